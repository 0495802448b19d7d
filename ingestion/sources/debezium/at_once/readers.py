"""How a column is read at once: what Arrow's JSON reader takes for its values, and how these become the column's.

Whatever has no way of its own here goes through the reader that values have one by one, so that both say the same.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from ingestion.schema.types.model import Form
from ingestion.schema.types.table import target_type
from ingestion.sources.debezium.at_once.decimals import decimals
from ingestion.sources.debezium.message.columns import Modes, Reader, Typed, Unfit
from ingestion.sources.debezium.message.moments import ERA, MICROSECONDS, is_within
from ingestion.sources.debezium.message.opened import ConnectType, Types
from ingestion.sources.debezium.message.values import DECIMAL, VARIABLE, expected, leaves_empty, reader_of
from ingestion.sources.debezium.shape import Shape

_VARIABLE = pa.struct([("scale", pa.int32()), ("value", pa.string())])
_KEYS = (pa.types.is_integer, pa.types.is_string, pa.types.is_boolean)
_RAW: Mapping[str, pa.DataType] = {
    "int8": pa.int64(), "int16": pa.int64(), "int32": pa.int64(), "int64": pa.int64(), "boolean": pa.bool_(),
    "string": pa.string(), "bytes": pa.string(),
}  # fmt: skip


@dataclass(frozen=True)
class ColumnReader:
    """`raw` is the type of a column's values as JSON has them, `read` makes of these what `one_by_one` would.

    `leaves_empty`: an update may say NULL for a value that it did not carry.
    """

    raw: pa.DataType
    read: Callable[[pa.Array], pa.Array]
    one_by_one: Reader
    leaves_empty: bool = False

    @property
    def is_text(self) -> bool:
        """Whether the values are text in JSON, which may say that an update did not carry one."""
        return pa.types.is_string(self.raw)


Readers = Mapping[str, ColumnReader]


def column_readers(shape: Shape, types: Types | None) -> Readers | None:
    """By name, of the columns that messages of these types have; None where one of them, or the key, is not read at
    once."""
    found = {}
    for column in shape.columns:
        if types is None or column.name in types:
            try:
                reader = _column_reader(column.typed, types[column.name] if types else None, shape.modes)
            except Unfit:  # those who read one by one tell why
                return None
            if reader is None:
                return None
            found[column.name] = reader
    is_keyed = all(name in found and any(is_of(found[name].raw) for is_of in _KEYS) for name in shape.key)
    return found if found and is_keyed else None


def _column_reader(column: Typed, told: ConnectType | None, modes: Modes) -> ColumnReader | None:
    one_by_one = reader_of(column, told, modes)
    given = told or expected(column, modes)
    target = target_type(column.source)
    plain = partial(_in_python, one_by_one)
    if column.source.name == "numeric" and given.name == DECIMAL and target.form is Form.DECIMAL:
        scale = int(given.parameters.get("scale", 0))
        return ColumnReader(pa.string(), partial(_decimal, plain, scale, target.arrow), one_by_one)
    if column.source.name == "numeric" and given.type == "string":
        return ColumnReader(pa.string(), _as_it_is, one_by_one)
    if target.form is Form.FLOAT:
        return ColumnReader(target.arrow, _float, one_by_one)
    if target.form in (Form.INTEGER, Form.BOOLEAN):
        return ColumnReader(target.arrow, _as_it_is, one_by_one)
    if given.type in ("int32", "int64") and target.form in (Form.DATE, Form.TIMESTAMP, Form.TIME):
        unit = 1 if target.form is Form.DATE else MICROSECONDS.get(str(given.name), 0)
        return ColumnReader(pa.int64(), partial(_moments, plain, unit, target.arrow), one_by_one)
    if given.type == "string" and target.form in (Form.DATE, Form.TIMESTAMP, Form.TIME, Form.TIMESTAMPTZ):
        return ColumnReader(pa.string(), partial(_iso, plain, target.form is not Form.TIMESTAMPTZ), one_by_one)
    if given.type == "string" and target.form is Form.TEXT and column.source.name not in ("bit", "varbit"):
        return ColumnReader(pa.string(), _as_it_is, one_by_one)
    raw = _raw(given)
    return None if raw is None else ColumnReader(raw, plain, one_by_one, leaves_empty(given))


def _raw(given: ConnectType) -> pa.DataType | None:
    """What holds the values as Python's parser gives them; None for those that no column does."""
    if given.name == VARIABLE:
        return _VARIABLE
    if given.type == "array" and given.element is not None:
        element = _raw(given.element)
        return None if element is None or pa.types.is_nested(element) else pa.list_(element)
    return _RAW.get(given.type)


def _as_it_is(values: pa.Array) -> pa.Array:
    return values


def _float(values: pa.Array) -> pa.Array:
    if pc.any(pc.is_inf(values)).as_py():  # no number of JSON is: their text tells which are too large
        raise Unfit("a number too large for its type")
    return values


def _in_python(reader: Reader, values: pa.Array) -> pa.Array:
    return reader(values.to_pylist())


def _decimal(plain: Callable[[pa.Array], pa.Array], scale: int, arrow: pa.DataType, values: pa.Array) -> pa.Array:
    try:
        found = decimals(values, scale)
        return plain(values) if found is None else found.cast(arrow)
    except pa.ArrowInvalid:  # more digits than the column has
        return plain(values)


def _moments(plain: Callable[[pa.Array], pa.Array], unit: int, arrow: pa.DataType, values: pa.Array) -> pa.Array:
    try:
        counts = pc.multiply_checked(values, unit) if unit != 1 else values
    except pa.ArrowInvalid:
        return plain(values)
    if not unit or not is_within(counts, arrow):
        return plain(values)
    return (
        counts
        if arrow == pa.int64()
        else counts.cast(pa.int32()).view(arrow)
        if arrow == pa.date32()
        else counts.view(arrow)
    )


def _iso(plain: Callable[[pa.Array], pa.Array], ends_with_zone: bool, values: pa.Array) -> pa.Array:
    if pc.any(pc.match_substring_regex(values, ERA)).as_py():
        return plain(values)
    return pc.replace_substring_regex(values, "Z$", "") if ends_with_zone else values

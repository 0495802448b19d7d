"""Events to columns: each declared column as text that its type's reader takes, or typed."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ingestion.schema.changes import META_SCHEMA, PLACE_SCHEMA, Batch, rows_without_columns
from ingestion.schema.types import ConversionError, convert, unreadable
from ingestion.schema.types.model import Form, SourceType
from ingestion.schema.types.table import target_type
from ingestion.sources.kafka.json_columns import json_columns
from ingestion.sources.kafka.json_values import JsonValues
from ingestion.sources.kafka.key_forms import in_key_form
from ingestion.sources.kafka.shape import Field, Shape
from ingestion.sources.kafka.unwrapped import DELETED, is_delete, is_lacking, may_lack
from ingestion.sources.kafka.values import Row, Unread, Values, text

EVENTS_SCHEMA = pa.schema(
    [
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
    ]
)
TOGETHER = 4096  # events among which one that is out of the ordinary makes all others be read one by one


@dataclass(frozen=True)
class Decoded:
    """Events that could be read, by their index among all: their operations and their values by column.

    `unread` are the others, with the reason. `told` are the fields of those that were looked at one by one, None where
    all were read in columns.
    """

    indices: Sequence[int]
    operations: list[str]
    values: pa.Table
    unread: dict[int, str]
    told: frozenset[str] | None = None


def one_chunk(column: pa.ChunkedArray) -> Any:
    """A column as one array, which shares the memory of its only chunk."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def decode_in_parts(shape: Shape, events: pa.Table, values: Values) -> Iterator[tuple[pa.Table, Decoded]]:
    """Events in order, part by part; all are one where that is as quick."""
    at_once = _ordinary(shape, events, values)
    if at_once is not None:
        yield events, at_once
        return
    for first in range(0, events.num_rows, TOGETHER):
        part = events.slice(first, TOGETHER)
        yield part, decode(shape, part, values)


def decode(shape: Shape, events: pa.Table, values: Values) -> Decoded:
    """Decodes events; a field that is not declared does not land, one that is missing is null."""
    return _ordinary(shape, events, values) or _one_by_one(shape, events, values)


def _ordinary(shape: Shape, events: pa.Table, values: Values) -> Decoded | None:
    """Events that are read in columns; None where one of them has to be looked at by itself."""
    if not isinstance(values, JsonValues) or events.column("value").null_count:
        return None
    parsed = json_columns(shape, one_chunk(events.column("value")))
    if parsed is None or _may_be_unwrapped(shape, parsed) or _is_foreign(shape, parsed, events, values):
        return None
    columns = {}
    for field in shape.fields:
        columns[field.name], unfit = _fitted(shape, field, parsed[field.name])
        if unfit:
            return None
    if any(columns[name].null_count for name in shape.key):
        return None
    return Decoded(range(events.num_rows), ["c"] * events.num_rows, _table(columns, events.num_rows), {})


def _may_be_unwrapped(shape: Shape, columns: Mapping[str, pa.Array]) -> bool:
    """Whether one of the events may be a row that Debezium tells without what it was before, or a rewritten delete."""
    marks = columns[DELETED]
    is_marked = not _declares_mark(shape) and pc.any(pc.equal(marks, "true")).as_py() is True
    return is_marked or (bool(shape.key) and any(may_lack(columns[field.name]) for field in shape.fields))


def _is_foreign(shape: Shape, columns: Mapping[str, pa.Array], events: pa.Table, values: Values) -> bool:
    """Whether one of the events has none of the declared columns. In columns, that is as one whose values are null."""
    there = [columns[field.name] for field in shape.fields]
    if not all(column.null_count for column in there):
        return False
    empty = events.column("value").filter(reduce(pc.and_, [column.is_null() for column in there]))
    try:
        return not all(_tells(shape, values.row(value)) for value in empty.to_pylist())
    except Unread:  # Arrow goes deeper than Python's parser does
        return True


def _tells(shape: Shape, row: Row) -> bool:
    return any(field.name in row for field in shape.fields)


def _declares_mark(shape: Shape) -> bool:
    """Whether the mark of a rewritten delete is a column as others are, which who reads the table looks at."""
    return any(field.name == DELETED for field in shape.fields)


def _one_by_one(shape: Shape, events: pa.Table, values: Values) -> Decoded:
    indices, operations, rows = [], [], []
    unread, told = dict[int, str](), set[str]()
    pairs = zip(events.column("key").to_pylist(), events.column("value").to_pylist(), strict=True)
    for index, (key, value) in enumerate(pairs):
        try:
            row, op = _told(shape, key, value, values)
            told.update(row if value is not None else ())
            rows.append(_printed(shape, row))
        except Unread as reason:
            unread[index] = str(reason)
            continue
        except RecursionError:  # it could be parsed, which goes deeper than Python's own functions do
            unread[index] = "the value is nested too deeply"
            continue
        indices.append(index)
        operations.append(op)
    columns, unfit = _columns(shape, rows)
    if unfit:
        unread |= {indices[row]: reason for row, reason in unfit.items()}
        good = [row for row in range(len(rows)) if row not in unfit]
        indices, operations = [indices[row] for row in good], [operations[row] for row in good]
        columns, _ = _columns(shape, [rows[row] for row in good])
    return Decoded(indices, operations, _table(columns, len(indices)), unread, frozenset(told))


def batch_of(shape: Shape, decoded: Decoded, meta: dict[str, pa.Array | pa.ChunkedArray]) -> Batch:
    """The rows of decoded events; `meta` has their other metadata columns, in their order."""
    rows = len(decoded.indices)
    given = {"_op": pa.array(decoded.operations, pa.string())} | meta
    schema = pa.schema([pa.field(item.name, item.type) for item in (*META_SCHEMA, *PLACE_SCHEMA)])
    columns = [given.get(item.name, pa.nulls(rows, item.type)) for item in schema]
    return Batch(shape.relation, decoded.values, pa.table(columns, schema=schema))


def _table(columns: dict[str, pa.Array], rows: int) -> pa.Table:
    return pa.table(columns) if columns else rows_without_columns(rows)


def deleted(shape: Shape, key: bytes | None, values: Values) -> Row:
    """The key of an event without a value, which deletes the row of that key in a table that has one."""
    if not shape.key:
        raise Unread("the event has no value, and the table no key")
    found = values.key(key) if key else None
    row = found if isinstance(found, dict) else {}
    if key and len(shape.key) == 1 and not isinstance(found, dict):
        row = {shape.key[0]: _alone(shape, key, found)}
    if any(row.get(name) is None for name in shape.key):
        raise Unread(f"the event has no value, and its key does not tell {', '.join(shape.key)}")
    return {name: row[name] for name in shape.key}


def _alone(shape: Shape, key: bytes, found: Any) -> Any:
    """The value of the only column of a key. Text that was written as it is, `12 ` say, reads as JSON too: it stands
    for the row of that text. Raises Unread where JSON would be another text than what is written."""
    [field] = [field for field in shape.fields if field.name == shape.key[0]]
    is_json = type(found) is not str and found is not None and key[:1] != b"\0"
    if not is_json or target_type(field.source_type).form is not Form.TEXT:
        return found
    written = key.decode()
    if text(found) != written.strip():
        raise Unread(f"the event has no value, and its key may be text or JSON, which are not the same {field.name}")
    return written


def _told(shape: Shape, key: bytes | None, value: bytes | None, values: Values) -> tuple[Row, str]:
    """The row of an event, and its operation."""
    if value is None:
        return deleted(shape, key, values), "d"
    row = values.row(value)
    _check_told(shape, row)
    _check_keyed(shape, row)
    if _declares_mark(shape) or not is_delete(row):
        return row, "c"
    if not shape.key:
        raise Unread(f"the event says that its row was deleted ({DELETED}), and the table has no key")
    return {name: row[name] for name in shape.key}, "d"


def _check_told(shape: Shape, row: Row) -> None:
    """Raises Unread for an event that has none of the declared columns."""
    if not shape.fields or _tells(shape, row):
        return
    says = "it has none of the declared columns"
    if row.keys() == {"schema", "payload"}:
        says += ": let Connect's converter write values alone (value.converter.schemas.enable=false)"
    elif "op" in row and not row.keys().isdisjoint(("before", "after")):
        says += ", and is an envelope of Debezium: declare kind debezium"
    raise Unread(says)


def _check_keyed(shape: Shape, row: Row) -> None:
    """Raises Unread for an event that does not tell the whole key that its table has."""
    if lacking := [name for name in shape.key if row.get(name) is None]:
        raise Unread(f"its value does not tell {', '.join(lacking)}, which the declared key has")


def _printed(shape: Shape, row: Row) -> Row:
    """What lands of a row, with nested values as text. Raises Unread for one that lacks a value, in a table with a key:
    without one it is a log of what came, whose models may know the placeholder."""
    found = {field.name: row.get(field.name) for field in shape.fields}
    if shape.key and (lacking := [name for name, part in found.items() if is_lacking(part)]):
        raise Unread(
            f"it lacks {', '.join(lacking)}, which Debezium's update did not carry: let the connector write envelopes, "
            "without ExtractNewRecordState, and declare kind debezium, or set REPLICA IDENTITY FULL"
        )
    return {name: text(part) if isinstance(part, dict | list) else part for name, part in found.items()}


def _columns(shape: Shape, rows: Sequence[Row]) -> tuple[dict[str, pa.Array], dict[int, str]]:
    """The columns, and the rows with a value that does not fit its column, with the reason."""
    columns: dict[str, pa.Array] = {}
    unfit: dict[int, str] = {}
    for field in shape.fields:
        values = _as_read(field.source_type, [row.get(field.name) for row in rows])
        columns[field.name], bad = _fitted(shape, field, values)
        unfit |= dict.fromkeys(bad, f"column {field.name!r}: a value that is no {field.type_name}")
    return columns, unfit


def _as_read(source: SourceType, values: Sequence[Any]) -> pa.Array:
    """Values as text that the reader of their type takes; whole numbers as they are."""
    target = target_type(source)
    if target.form is Form.INTEGER and all(value is None or type(value) is int for value in values):
        try:
            return pa.array(values, target.arrow)
        except (pa.ArrowException, OverflowError):
            pass  # one is too large, and its text says which
    if target.form is Form.TEXT and all(value is None or type(value) is str for value in values):
        return pa.array(values, pa.string())
    printed = _TEXTS.get(target.form, text)
    return pa.array([None if value is None else printed(value) for value in values], pa.string())


def _fitted(shape: Shape, field: Field, values: pa.Array) -> tuple[pa.Array, list[int]]:
    """Values in their type, or as text where the lake's type cannot hold one; and the rows whose text is of another."""
    source = field.source_type
    if field.name in shape.key:
        values = in_key_form(values, source)
    if target_type(source).form is Form.TEXT or not pa.types.is_string(values.type):
        return values, _infinite(values)  # no number of JSON is
    try:
        converted = convert(values, source, "null")
    except ConversionError:
        return values, unreadable(values, source)
    return (values if converted.unrepresentable else converted.array), []


def _infinite(values: pa.Array) -> list[int]:
    """The rows with an infinity, which a number too large for its type becomes."""
    if not pa.types.is_floating(values.type):
        return []
    return list(pc.indices_nonzero(pc.is_inf(values)).to_pylist())


def _truth(value: Any) -> str:
    return ("t" if value else "f") if isinstance(value, bool) else text(value)


_TEXTS: dict[Form, Callable[[Any], str]] = {Form.BOOLEAN: _truth}

"""JSON events to columns: each declared column as text that its type's reader takes, or typed. Pure.

Numbers are kept as they are written, whatever their length: a text column of `1.50` says so, and a decimal is exact.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from ingestion.schema.changes import META_SCHEMA, PLACE_SCHEMA, Batch, rows_without_columns
from ingestion.schema.types import ConversionError, NeedsText, convert, out_of_bounds, typed, unreadable
from ingestion.schema.types.model import Form, SourceType
from ingestion.schema.types.table import target_type
from ingestion.sources.kafka.shape import Shape

EVENTS_SCHEMA = pa.schema(
    [
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
    ]
)
Row = dict[str, Any]


class Number(str):
    """A number with a fraction or an exponent, as it is written."""


_DECODER = json.JSONDecoder(parse_float=Number, parse_constant=Number)


class Unread(ValueError):
    """An event that cannot be read; the text says why, never what is in it."""


@dataclass(frozen=True)
class Decoded:
    """Events that could be read, by their index among all: their operations and their values by column.

    `unread` are the others, with the reason.
    """

    indices: list[int]
    operations: list[str]
    values: pa.Table
    unread: dict[int, str]


def decode(shape: Shape, events: pa.Table) -> Decoded:
    """Decodes events; a field that is not declared does not land, one that is missing is null."""
    indices, operations, rows = [], [], []
    unread: dict[int, str] = {}
    pairs = zip(events.column("key").to_pylist(), events.column("value").to_pylist(), strict=True)
    for index, (key, value) in enumerate(pairs):
        try:
            rows.append(_deleted(shape, key) if value is None else _object(value))
        except Unread as reason:
            unread[index] = str(reason)
            continue
        indices.append(index)
        operations.append("d" if value is None else "c")
    columns, unfit = _columns(shape, rows)
    if unfit:
        unread |= {indices[row]: reason for row, reason in unfit.items()}
        good = [row for row in range(len(rows)) if row not in unfit]
        indices, operations = [indices[row] for row in good], [operations[row] for row in good]
        columns, _ = _columns(shape, [rows[row] for row in good])
    values = pa.table(columns) if columns else rows_without_columns(len(indices))
    return Decoded(indices, operations, values, unread)


def batch_of(shape: Shape, decoded: Decoded, meta: dict[str, pa.Array | pa.ChunkedArray]) -> Batch:
    """The rows of decoded events; `meta` has their other metadata columns, in their order."""
    rows = len(decoded.indices)
    given = {"_op": pa.array(decoded.operations, pa.string())} | meta
    schema = pa.schema([pa.field(item.name, item.type) for item in (*META_SCHEMA, *PLACE_SCHEMA)])
    columns = [given.get(item.name, pa.nulls(rows, item.type)) for item in schema]
    return Batch(shape.relation, decoded.values, pa.table(columns, schema=schema))


def _object(value: bytes) -> Row:
    try:
        row = _parsed(value.decode())
    except RecursionError:
        raise Unread("the value is nested too deeply") from None
    except ValueError:  # no JSON, no UTF-8, or a number of thousands of digits
        raise Unread("the value is no JSON") from None
    if not isinstance(row, dict):
        raise Unread("the value is no JSON object")
    if b"\\u" in value and not _is_text(row):
        raise Unread("the value has half a surrogate pair, which is no text")
    return row


def _parsed(given: str) -> Any:
    """The JSON value; raises ValueError. Nearly always nothing stands around it."""
    try:
        value, end = _DECODER.raw_decode(given)
    except json.JSONDecodeError:
        end = -1
    return value if end == len(given) else _DECODER.decode(given)


def _is_text(row: Row) -> bool:
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _deleted(shape: Shape, key: bytes | None) -> Row:
    """The key of an event without a value, which deletes the row of that key in a table that has one."""
    if not shape.key:
        raise Unread("the event has no value, and the table no key")
    try:
        found = _parsed((key or b"").decode())
    except (ValueError, RecursionError):
        found = (key or b"").decode(errors="replace") if len(shape.key) == 1 and key else None
    row = found if isinstance(found, dict) else {shape.key[0]: found} if len(shape.key) == 1 else {}
    if any(row.get(name) is None for name in shape.key):
        raise Unread(f"the event has no value, and its key does not tell {', '.join(shape.key)}")
    return {name: row[name] for name in shape.key}


def _columns(shape: Shape, rows: Sequence[Row]) -> tuple[dict[str, pa.Array], dict[int, str]]:
    """The columns, and the rows with a value that does not fit its column, with the reason."""
    columns: dict[str, pa.Array] = {}
    unfit: dict[int, str] = {}
    for field in shape.fields:
        source = SourceType(field.type_oid, field.type_name, field.typmod)
        values = _as_read(source, [row.get(field.name) for row in rows])
        columns[field.name], bad = _fitted(values, source)
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


def _fitted(values: pa.Array, source: SourceType) -> tuple[pa.Array, list[int]]:
    """Values in their type, or as text where the lake's type cannot hold one; and the rows whose text is of another."""
    if target_type(source).form is Form.TEXT or not pa.types.is_string(values.type):
        return values, []
    try:
        converted = convert(values, source, "null")
        return (values if converted.unrepresentable else typed(converted.array, source)), []
    except ConversionError:
        return values, unreadable(values, source)
    except NeedsText:
        return values, out_of_bounds(converted.array, source)


def _truth(value: Any) -> str:
    return ("t" if value else "f") if isinstance(value, bool) else text(value)


def text(value: Any) -> str:
    """A value as text: what is text as it is, anything else as JSON writes it."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_quoted(name)}: {_nested(part)}" for name, part in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_nested, value)) + "]"
    return _quoted(value)


def _nested(value: Any) -> str:
    is_text = isinstance(value, str) and not isinstance(value, Number)
    return _quoted(value) if is_text else text(value)


def _quoted(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


_TEXTS: dict[Form, Callable[[Any], str]] = {Form.BOOLEAN: _truth}

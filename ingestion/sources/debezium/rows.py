"""Placed envelopes as rows of the raw contract, in columns."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ingestion.schema.changes import META_SCHEMA, PLACE_SCHEMA, Batch, rows_without_columns
from ingestion.schema.types import ConversionError, NeedsText, convert, out_of_bounds, printed, typed, unreadable
from ingestion.schema.types.model import SourceType
from ingestion.sources.debezium.message.columns import BAD, Reader, Unfit
from ingestion.sources.debezium.message.envelope import Envelope, Row
from ingestion.sources.debezium.message.opened import Types
from ingestion.sources.debezium.message.values import leaves_empty, placeholders, reader_of
from ingestion.sources.debezium.shape import Column, Shape, written
from ingestion.sources.kafka.values import Unread

SCHEMA = pa.schema([pa.field(item.name, item.type) for item in (*META_SCHEMA, *PLACE_SCHEMA)])


@dataclass(frozen=True)
class Placed:
    """An event with its place; `old` is the row before a change of the key that came as two events. `is_half`: the
    other one of these may be what cannot be read of its transaction."""

    envelope: Envelope
    partition: int
    offset: int
    number: int
    place: int
    old: Row | None = None
    is_half: bool = False


@dataclass(frozen=True)
class Made:
    """Rows, the events that could not be read by their index, and why the table cannot go on, if it cannot."""

    batches: list[Batch]
    unread: Mapping[int, str]
    problem: str | None = None


@dataclass(frozen=True)
class _Line:
    """A row that is about to land; `index` is its event's, `old` the row whose key it had, `updates` whether it may
    lack values."""

    index: int
    op: str
    row: Row
    late: int = 0
    old: Row | None = None
    updates: bool = False


def rows_of(shape: Shape, events: Sequence[Placed]) -> Made:
    """The rows of events of one topic."""
    unread: dict[int, str] = {}
    lines: dict[int, tuple[Types | None, list[_Line]]] = {}
    for index, event in enumerate(events):
        try:
            made = list(_lines(shape, index, event))
        except Unread as reason:
            unread[index] = str(reason)
            continue
        types = event.envelope.types
        lines.setdefault(id(types), (types, []))[1].extend(made)
    batches = []
    for types, group in lines.values():
        try:
            readers = _readers(shape, types)
            bad = _emptied(shape, types, events, group) | _unfit(shape, readers, group)
            unread |= bad
            if good := [line for line in group if line.index not in bad]:
                batches.append(_batch(shape, readers, events, good))
        except Unfit as reason:
            return Made([], {}, str(reason))
    return Made(batches, unread)


def _lines(shape: Shape, index: int, event: Placed) -> Iterator[_Line]:
    envelope, key = event.envelope, shape.key
    check_relation(shape, envelope)
    if envelope.op == "t":
        yield _Line(index, "t", {})
        return
    if (row := envelope.before if envelope.op == "d" else envelope.after) is None:
        raise Unread("it does not tell its row")
    if missing := [name for name in key if row.get(name) is None]:
        raise Unread(f"it does not tell {', '.join(missing)}, which the declared key has")
    if envelope.op == "d":
        yield _Line(index, "d", {name: row[name] for name in key} if key else row)
        return
    if envelope.op == "c" and event.old is None and (envelope.transaction is None or event.is_half):
        _check_whole(shape, row)
    before = envelope.before if envelope.op == "u" else None
    if key and before and _differs(before, row, key):
        yield _Line(index, "d", {name: before[name] for name in key})
        yield _Line(index, "c", row, late=1, old=before, updates=True)
        return
    yield _Line(index, envelope.op, row, old=event.old, updates=envelope.op == "u" or event.old is not None)


def _check_whole(shape: Shape, row: Row) -> None:
    """Raises Unread for the second half of a key change whose first half was in another read, where no transaction
    holds them together, or cannot be read: what the row lacks is that of the key it had."""
    forms = placeholders(shape.modes)
    if lacking := [c.name for c in shape.columns if row.get(c.name) is not None and row[c.name] in forms]:
        raise Unread(
            f"it lacks {', '.join(lacking)}, and the delete of its former key came apart from it, or cannot be read"
        )


def _differs(before: Row, after: Row, key: Iterable[str]) -> bool:
    return all(before.get(name) is not None for name in key) and any(before[name] != after[name] for name in key)


def _readers(shape: Shape, types: Types | None) -> dict[str, Reader]:
    found = {}
    for column in shape.columns:
        if types is None or column.name in types:
            try:
                found[column.name] = reader_of(column.typed, types[column.name] if types else None, shape.modes)
            except Unfit as reason:
                raise Unfit(f"column {column.name!r}: {reason}") from None
    return found


def _emptied(
    shape: Shape, types: Types | None, events: Sequence[Placed], lines: Sequence[_Line]
) -> dict[int, str]:  # fmt: skip
    """The events that say NULL where that may be a value which the update did not carry."""
    names = [c.name for c in shape.columns if types and c.name in types and leaves_empty(types[c.name])]
    bad: dict[int, str] = {}
    for line in lines if names else ():
        empty = [name for name in names if line.row.get(name) is None] if line.updates else []
        if empty and not _is_whole(shape, line.old or events[line.index].envelope.before):
            bad[line.index] = (
                f"column {', '.join(empty)}: it says NULL, as Debezium also does for a large array that an update did "
                "not carry: set REPLICA IDENTITY FULL, or do not declare it"
            )
    return bad


def _is_whole(shape: Shape, before: Row | None) -> bool:
    """Whether a row before has more than its key, so that what was not carried is known."""
    return before is not None and any(part is not None for name, part in before.items() if name not in shape.key)


def _unfit(shape: Shape, readers: Mapping[str, Reader], lines: Sequence[_Line]) -> dict[int, str]:
    """The events with a value that does not fit its column."""
    bad: dict[int, str] = {}
    for column in shape.columns:
        if column.name in readers:
            values, _ = _values(shape, column, lines)
            if column.name in shape.key:
                values += _old(column, lines)
            try:
                read = readers[column.name](values)
            except Unfit as reason:
                raise Unfit(f"column {column.name!r}: {reason}") from None
            _, rows = fitted(read, column.typed.source)
            bad |= {
                lines[row % len(lines)].index: f"column {column.name!r}: a value that is no {column.type_name}"
                for row in rows
            }
    return bad


def _batch(shape: Shape, readers: Mapping[str, Reader], events: Sequence[Placed], lines: Sequence[_Line]) -> Batch:
    columns: dict[str, pa.Array] = {}
    unchanged: list[list[str] | None] = [None] * len(lines)
    for column in shape.columns:
        reader = readers.get(column.name)
        if reader is None:
            columns[column.name] = pa.nulls(len(lines), pa.string())
            continue
        values, lacking = _values(shape, column, lines)
        for row in lacking:
            unchanged[row] = [*(unchanged[row] or ()), column.name]
        columns[column.name] = fitted(reader(values), column.typed.source)[0]
    values = pa.table(columns) if columns else rows_without_columns(len(lines))
    return Batch(shape.relation, values, _meta(shape, readers, events, lines, unchanged))


def _values(shape: Shape, column: Column, lines: Sequence[_Line]) -> tuple[list[Any], list[int]]:
    """The values of a column, and the lines that lack theirs: an update did not carry it."""
    values = [line.row.get(column.name) for line in lines]
    forms = placeholders(shape.modes)
    lacking = [i for i, v in enumerate(values) if v is not None and lines[i].updates and v in forms]
    for index in lacking:
        values[index] = None
    return values, lacking


def _meta(
    shape: Shape, readers: Mapping[str, Reader], events: Sequence[Placed], lines: Sequence[_Line],
    unchanged: list[list[str] | None],
) -> pa.Table:  # fmt: skip
    placed = [events[line.index] for line in lines]
    given: dict[str, Any] = {
        "_op": [line.op for line in lines],
        "_commit_lsn": [event.number for event in placed],
        "_seq": [2 * event.place + line.late for event, line in zip(placed, lines, strict=True)],
        "_xid": [event.envelope.xid for event in placed],
        "_committed_at": [event.envelope.committed_at for event in placed],
        "_unchanged": unchanged,
        "_old_key": _old_keys(shape, readers, lines),
        "_topic": [shape.topic] * len(lines),
        "_topic_partition": [event.partition for event in placed],
        "_offset": [event.offset for event in placed],
    }
    return pa.table([pa.array(given[item.name], item.type) for item in SCHEMA], schema=SCHEMA)


def _old_keys(shape: Shape, readers: Mapping[str, Reader], lines: Sequence[_Line]) -> list[str | None]:
    """The keys that rows had, as the stream of a slot would tell them."""
    if not shape.key or all(line.old is None for line in lines):
        return [None] * len(lines)
    of_key = [column for column in shape.columns if column.name in shape.key]
    texts = {c.name: printed(readers[c.name](_old(c, lines)), c.typed.source) for c in of_key}
    return [
        None if line.old is None else json.dumps(key, ensure_ascii=False, separators=(",", ":"))
        for line, key in zip(lines, pa.table(texts).select(shape.key).to_pylist(), strict=True)
    ]


def _old(column: Column, lines: Sequence[_Line]) -> list[Any]:
    """The values of a column in the rows whose keys became others."""
    return [line.old.get(column.name) if line.old else None for line in lines]


def fitted(values: pa.Array, source: SourceType) -> tuple[pa.Array, list[int]]:
    """Values in their type, or as text where the lake's type cannot hold one; and the rows whose text is of another."""
    if not pa.types.is_string(values.type):
        try:
            return typed(values, source), []
        except NeedsText:
            return values, out_of_bounds(values, source)
    bad = pc.fill_null(pc.equal(values, BAD), False)
    rows = pc.indices_nonzero(bad).to_pylist()
    values = pc.if_else(bad, pa.scalar(None, values.type), values) if rows else values
    try:
        converted = convert(values, source, "null")
    except ConversionError:
        return values, sorted({*rows, *unreadable(values, source)})
    return (values if len(converted.rows) else converted.array), rows


def check_relation(shape: Shape, envelope: Envelope) -> None:
    """Raises Unread for an event of another relation than its topic is declared to have."""
    if envelope.relation != shape.of:
        raise Unread(
            f"it is of relation {written(envelope.relation)}, not of {shape.captured}: correct meta.raw.relation, or, "
            "if both come by this topic, let the connector write one of them to another"
        )

"""Events of Debezium that are kept as bytes: a line that says where they were and what they lack, then the value."""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from ingestion.schema.changes import Batch, Relation
from ingestion.schema.problem import TableProblem
from ingestion.sources.base import Keys, NoRecord, OfAnotherKind, UnreadableRecord
from ingestion.sources.debezium.join.heads import identity_of, said_by
from ingestion.sources.debezium.join.sharing import CHANGE, sharing
from ingestion.sources.debezium.message.avro import opener_of
from ingestion.sources.debezium.message.envelope import Row, envelope_of
from ingestion.sources.debezium.message.opened import JsonOpener, Opener, parsed
from ingestion.sources.debezium.numbers import Numbers
from ingestion.sources.debezium.problems import UNORDERED, lacking_key, shared_key
from ingestion.sources.debezium.rows import Placed, rows_of
from ingestion.sources.debezium.shape import Shape, decoded
from ingestion.sources.kafka.records import KEPT_SCHEMA, gone_since
from ingestion.sources.kafka.registry import SchemaRegistry
from ingestion.sources.kafka.values import Unread, text
from lakehouse.errors import LakehouseError


@dataclass(frozen=True)
class Event:
    """An event as it is kept, at its place. `is_unordered`: nothing tells which events of other partitions it is after.
    `keyed_by` are the columns of its topic's keys, of an update that does not tell the row before. `counted_in` is the
    transaction of one that cannot be read: its place there is what it tells once it can be, if it is of that one.
    `unread` says why one never can be. `is_half` as `Placed` has it."""

    partition: int
    offset: int
    number: int
    place: int
    xid: int | None
    at: datetime
    value: bytes
    old: Row | None = None
    format: str = "json"
    is_unordered: bool = False
    keyed_by: Collection[str] | None = None
    counted_in: int | None = None
    unread: str | None = None
    is_half: bool = False


def kept(shape: Shape, events: Sequence[Event]) -> pa.Table:
    """Events as records."""
    columns: dict[str, Any] = {
        "commit_lsn": [event.number for event in events],
        "place": [event.place for event in events],
        "xid": [event.xid for event in events],
        "committed_at": [event.at for event in events],
        "oid": [shape.oid] * len(events),
        "relation": [shape.encoded] * len(events),
        "message": [_message(event) for event in events],
        "topic": [shape.topic] * len(events),
        "partition": [event.partition for event in events],
        "offset": [event.offset for event in events],
    }
    return pa.table([pa.array(columns[item.name], item.type) for item in KEPT_SCHEMA], schema=KEPT_SCHEMA)


def stray(shape: Shape, topic: str, offset: int, number: int, place: int, at: datetime, reason: str) -> pa.Table:
    """A message of the transaction topic that cannot be read, as a record beside those of a table: what it says stays
    in Kafka."""
    event = Event(partition=0, offset=offset, number=number, place=place, xid=None, at=at, value=b"", unread=reason)
    made = kept(shape, [event])
    return made.set_column(made.schema.get_field_index("topic"), "topic", pa.array([topic], pa.string()))


@dataclass(frozen=True)
class EnvelopeRecords:
    """The base's `Records`. `shapes` are those of today, by number: an event that was kept is read by them. `tables`
    are the names of their tables. Without `registry` no event is read that is kept in Avro. `is_whole`: no event of the
    transactions that they are of has landed."""

    shapes: Mapping[int, Shape] = field(default_factory=dict)
    source: str = ""
    tables: Mapping[int, str] = field(default_factory=dict)
    registry: SchemaRegistry | None = None
    is_whole: bool = True
    _changes: dict[int, Numbers] = field(default_factory=dict, compare=False, repr=False)  # of what was decoded
    _unread: dict[int, dict[str, None]] = field(default_factory=dict, compare=False, repr=False)  # of transactions

    def relation(self, encoded: bytes) -> Relation:
        """The relation of kept events; raises OfAnotherKind for those of a slot."""
        if not encoded.startswith(b"["):
            raise OfAnotherKind
        return decoded(encoded).relation

    def without(self, record: bytes, relation: bytes, gone: Collection[str]) -> bytes:
        """An event without the values of the columns `gone`; of one that cannot be read the reason alone is left."""
        head, _, value = record.partition(b"\n")
        told = parsed(head)
        if "unread" in told:
            return record
        told["old"], left = _less(told["old"], gone), b""
        try:
            left = _envelope_without(told.pop("format", "json"), value, gone)
        except (Unread, RecursionError) as reason:
            told["unread"] = gone_since(reason)
        return text(told).encode() + b"\n" + left

    def decode(self, relation: bytes, records: pa.Table, keys: Keys, imaged: Collection[int]) -> Iterator[Batch]:
        """Kept events as rows, each at its own place; raises UnreadableRecord, NoRecord of a message of the transaction
        topic, TableProblem where none can land."""
        kept_as = decoded(relation)
        shape, openers = self.shapes.get(kept_as.oid, kept_as), _Openers(self.registry)
        events, broken, known = [], None, set[tuple[int, int]]()
        is_known = kept_as.oid in self.shapes  # who only looks at records, as an erasure does, parks no table
        columns = [records.column(name).to_pylist() for name in ("message", "commit_lsn", "seq")]
        has_topic = "topic" in records.column_names
        topics = records.column("topic").to_pylist() if has_topic else [kept_as.topic] * records.num_rows
        for index, (message, number, seq, topic) in enumerate(zip(*columns, topics, strict=True)):
            try:
                event, problem, was_read = _placed(openers, shape, message, number, seq // 2)
                if was_read and not self.is_whole:
                    known.add((event.partition, event.offset))
                if problem is not None and is_known:
                    raise self._parked(shape, problem)
                events.append(event)
            except Unread as reason:
                self._note_unread(shape, message, str(reason))
                broken = (UnreadableRecord if topic == kept_as.topic else NoRecord)(index, str(reason))
                break
        made = rows_of(shape, events)
        if made.problem is not None:
            raise self._parked(shape, made.problem)
        if made.unread:
            first = min(made.unread)
            self._note(shape, events[first : first + 1], known)
            raise UnreadableRecord(first, made.unread[first])
        if broken is not None:
            raise broken
        self._note(shape, events, known)
        return iter(made.batches)

    def beside_landed(self) -> "EnvelopeRecords":
        """As the protocol."""
        return replace(self, is_whole=False)

    def problems(self) -> dict[int, str]:
        """As the protocol: rows that a transaction has left with the key that is declared by now."""
        found = {}
        for oid, changes in self._changes.items():
            rows = sharing(partial(_windows, changes))
            if any((some["first"] != some["other"]).any() for _, some in rows.windows()):
                found[oid] = shared_key(self.shapes[oid].key, self._unread.get(oid, ()))
            for held in (changes, rows):
                held.close()
        self._changes.clear()
        self._unread.clear()
        return found

    def _note_unread(self, shape: Shape, message: bytes, reason: str) -> None:
        """Keeps where what cannot be read of a transaction is."""
        with suppress(ValueError, TypeError, KeyError):
            told = json.loads(message.partition(b"\n")[0])
            if told["counted_in"] is not None:
                says = f"partition {told['partition']}, offset {told['offset']} ({reason})"
                self._unread.setdefault(shape.oid, {})[says] = None

    def _note(self, shape: Shape, events: Sequence[Placed], known: Collection[tuple[int, int]]) -> None:
        """Keeps what tells whether rows share a key; what an insert says of its row is a number. Those at the places
        `known` were looked at with the rest of their transaction, when that landed."""
        rows = []
        for event in events if shape.key and shape.oid in self.shapes else ():
            if (event.partition, event.offset) in known:
                continue
            envelope = event.envelope
            key = [envelope.row.get(name) for name in shape.key]
            if envelope.transaction is not None and (envelope.op == "t" or None not in key):
                number = identity_of([event.number, envelope.transaction.xid])  # history has the number of others
                says = said_by(envelope.row) if envelope.op == "c" else 0
                rows.append((number, 0, identity_of(key), ord(envelope.op), event.place, says))
        if rows:
            self._changes.setdefault(shape.oid, Numbers(CHANGE)).extend(np.array(rows, CHANGE))

    def _parked(self, shape: Shape, problem: str) -> TableProblem:
        return TableProblem(self.source, self.tables.get(shape.oid, shape.topic), problem)


def _windows(of: Numbers) -> Iterator[np.ndarray]:
    return (rows for _, rows in of.windows())


def _envelope_without(form: str, value: bytes, gone: Collection[str]) -> bytes:
    """Raises Unread for a value that is no envelope, of which it is not known where it has the columns `gone`."""
    if form != "json":
        raise Unread("the value could not be read by a schema of the registry")
    envelope_of(JsonOpener().open(value))
    fields = parsed(value)
    envelope = fields["payload"] if fields.keys() == {"schema", "payload"} else fields
    envelope |= {name: _less(envelope[name], gone) for name in ("before", "after") if name in envelope}
    return text(fields).encode()


def _less(row: Any, gone: Collection[str]) -> Any:
    return {name: part for name, part in row.items() if name not in gone} if isinstance(row, dict) else row


def _message(event: Event) -> bytes:
    told: dict[str, Any] = {"partition": event.partition, "offset": event.offset, "old": event.old}
    if event.format != "json":
        told["format"] = event.format
    if event.is_unordered:
        told["unordered"] = True
    if event.keyed_by is not None:
        told["keyed_by"] = sorted(event.keyed_by)
    if event.counted_in is not None:
        told["counted_in"] = event.counted_in
    if event.is_half:
        told["half"] = True
    if event.unread is not None:
        told["unread"] = event.unread
    return text(told).encode() + b"\n" + event.value


@dataclass(frozen=True)
class _Openers:
    """How kept events are read, by their format."""

    registry: SchemaRegistry | None
    made: dict[str, Opener] = field(default_factory=dict)

    def of(self, form: str) -> Opener:
        if form not in self.made:
            if form == "avro" and self.registry is None:
                raise LakehouseError("kept events are Avro: set the SCHEMA_REGISTRY__URL of their source")
            self.made[form] = opener_of(form, self.registry)
        return self.made[form]


def _placed(
    openers: _Openers, shape: Shape, message: bytes, number: int, place: int
) -> tuple[Placed, str | None, bool]:  # fmt: skip
    """A kept event, why its table cannot go on with it, if it cannot, and whether it could be read when it came."""
    head, _, value = message.partition(b"\n")
    try:
        told = parsed(head)
        partition, offset, old = told["partition"], told["offset"], told["old"]
        form = told.get("format", "json")
        reason, keyed_by, is_half = told.get("unread"), told.get("keyed_by"), told.get("half", False)
        problem, counted_in = UNORDERED if told.get("unordered") else None, told.get("counted_in")
    except (ValueError, TypeError, KeyError, AttributeError):
        raise Unread("it is no kept event") from None
    if reason is not None:
        raise Unread(reason)
    if keyed_by is not None:
        problem = lacking_key(shape.key, keyed_by)
    envelope = envelope_of(openers.of(form).open(value))
    if envelope.transaction is not None and envelope.transaction.xid == counted_in:
        place = envelope.transaction.order
    return Placed(envelope, partition, offset, number, place, old, is_half), problem, counted_in is None

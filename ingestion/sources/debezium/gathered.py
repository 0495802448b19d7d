"""The messages of a read, opened once: what each is, and what people are told of them."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ingestion.sources.debezium.at_once.ends import ends_at_once
from ingestion.sources.debezium.at_once.parts import Part, heads_of, part_of, runs
from ingestion.sources.debezium.at_once.readers import Readers, column_readers
from ingestion.sources.debezium.at_once.scan import BEGINS, Scanned, scanned
from ingestion.sources.debezium.clocks import Seen, believed
from ingestion.sources.debezium.join.heads import EMPTY, EVENT, LOOSE, SNAPSHOT, UNREAD, Heads, identity_of
from ingestion.sources.debezium.join.joined import Told
from ingestion.sources.debezium.message.avro import opener_of
from ingestion.sources.debezium.message.envelope import EPOCH, Envelope, Origin, Unwrapped, end_of, envelope_of
from ingestion.sources.debezium.message.opened import Opener, Types
from ingestion.sources.debezium.problems import UNORDERED, lacking_key
from ingestion.sources.debezium.ranges import EnvelopeRanges
from ingestion.sources.debezium.rows import check_relation
from ingestion.sources.debezium.shape import Shape
from ingestion.sources.debezium.spool import Block, Spool, Tables, blocks_of
from ingestion.sources.kafka.events import one_chunk
from ingestion.sources.kafka.fetching import some_at_once
from ingestion.sources.kafka.reading import Range
from ingestion.sources.kafka.values import Unread
from lakehouse.errors import LakehouseError

OPENED, OPENED_BYTES = 20_000, 16 * 1024 * 1024  # envelopes that are kept as they were opened, and their messages
TOGETHER = 64  # messages that are read one by one where one of them is unlike the others
PARTS = 16  # into which more of them are split
THREADS = min(4, os.cpu_count() or 1)  # that look at messages, each at a batch; Spark tells its tasks of one core
MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True)
class _Looked:
    """What a look at messages in columns has found. `is_unlike`: fewer of them may be alike where these are not."""

    is_unlike: bool
    readers: Readers | None = None
    types: Types | None = None
    found: Scanned | None = None


@dataclass
class Strays:
    """Messages of the transaction topic that cannot be read: when each came, and why it cannot. The last one that can
    be is at the offset `heard`."""

    came: dict[int, datetime] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    heard: int = -1

    def add(self, offset: int, came: datetime, reason: str) -> None:
        """Adds one."""
        self.came[offset], self.reasons[offset] = came, reason

    @property
    def last(self) -> list[int]:
        """Those behind which nothing can be read."""
        return [offset for offset in self.reasons if offset > self.heard]


@dataclass
class Gathered:
    """The messages of a read in a spool, their heads, and what was noticed as they were opened."""

    reader: EnvelopeRanges
    spool: Spool
    heads: Heads = field(default_factory=Heads)
    opened: dict[int, Envelope] = field(default_factory=dict)
    opened_bytes: int = 0
    reasons: dict[int, str] = field(default_factory=dict)
    openers: dict[str, Opener] = field(default_factory=dict)
    versions: set[str] = field(default_factory=set)
    origins: dict[str, dict[Origin, int]] = field(default_factory=dict)  # by topic, and when their last event came
    columns: dict[str, set[str]] = field(default_factory=dict)
    newest: dict[str, tuple[int, frozenset[str]]] = field(default_factory=dict)  # when a row came, and its columns
    problems: dict[str, str] = field(default_factory=dict)
    keys: dict[str, frozenset[str]] = field(default_factory=dict)  # by topic, the columns of its events' keys
    unwrapped: dict[str, list[int]] = field(default_factory=dict)  # by topic, what has no envelope
    flat: dict[str, int] = field(default_factory=dict)  # by topic, when the last came that has columns of the table
    wrapped: dict[str, int] = field(default_factory=dict)  # and when the last came that has one
    strays: Strays = field(default_factory=Strays)
    ahead: dict[str, datetime] = field(default_factory=dict)  # by topic, the latest moment that is in the future
    snapshots: dict[str, str] = field(default_factory=dict)
    hidden: dict[str, set[str]] = field(default_factory=dict)  # by topic, columns that may hide a NULL
    looked_at: dict[int, Types] = field(default_factory=dict)
    parts: list[Part] = field(default_factory=list)
    kept: Tables = field(default_factory=Tables)
    readers: dict[tuple[str, int], tuple[Types | None, Readers | None]] = field(default_factory=dict)

    @cached_property
    def numbers(self) -> dict[tuple[str, int], int]:
        """The number that each partition has here."""
        return {(r.topic, r.partition): number for number, r in enumerate(self.reader.ranges)}

    @cached_property
    def _seen(self) -> dict[str, dict[int, Seen]]:
        found: dict[str, dict[int, Seen]] = {}
        for (topic, number), ends in self.reader.seen.items():
            found.setdefault(topic, {})[number] = ends
        return found

    def opener(self, form: str) -> Opener:
        """Opens messages of that format."""
        if form not in self.openers:
            self.openers[form] = opener_of(form, self.reader.registry)
        return self.openers[form]

    def listen(self, wanted: Range) -> list[Told]:
        """What the transaction topic tells; what cannot be read is noted in `strays`. Raises LakehouseError where none
        of it can be, so that it is no such topic."""
        told = list(self.told(wanted, self.strays))
        self.check_heard(wanted)
        return told

    def check_heard(self, wanted: Range) -> None:
        """Raises LakehouseError where nothing of the transaction topic could be read: it is no such topic."""
        if self.strays.reasons and self.strays.heard < 0 and not self.reader.before.end:
            raise self._unheard(self.stray(wanted, min(self.strays.reasons)))

    def _unheard(self, what: str) -> LakehouseError:
        return self.reader.refused(
            f"{what}: correct `transactions`, the topic of the connector's transaction metadata, or the registry"
        )

    def stray(self, of: Range, offset: int) -> str:
        """Where a message is that cannot be read, and why."""
        return f"topic {of.topic}, offset {offset}: {self.strays.reasons[offset]}"

    def told(self, wanted: Range, strays: Strays | None = None) -> Iterator[Told]:
        """The messages of the transaction topic that can be read."""
        forms = {shape.format for shape in self.reader.shapes.values()}
        opener, noted = self.opener("avro" if "avro" in forms else "json"), strays or Strays()
        for _, found in self.reader.messages([wanted]):
            messages = self._believed(wanted.topic, found)
            if messages.num_rows and (ends := ends_at_once(opener, messages)) is not None:
                noted.heard = messages.column("offset")[-1].as_py()
                yield from ends
                continue
            for message in messages.to_pylist():
                if message["value"] is None:
                    continue
                try:
                    end = end_of(opener.open(message["value"]))
                except Unread as reason:
                    if message["value"][:1] == b"\0":  # an END whose schema is only lacking for now, and no stray
                        raise self._unheard(f"topic {wanted.topic}, offset {message['offset']}: {reason}") from None
                    noted.add(message["offset"], message["at"], str(reason))
                    continue
                noted.heard = message["offset"]
                yield Told(message["offset"], message["at"], end)

    def close(self) -> None:
        """Deletes what was spooled."""
        for held in (self.spool, self.kept, self.heads):
            held.close()

    def fetch(self) -> None:
        """Reads all messages into the spool; some batches are opened while those before them are added."""
        with ThreadPoolExecutor(THREADS) as pool:
            begun = ((of[1].nbytes, (*of, self._look(pool, *of))) for of in self._messages())
            for shape, messages, looked in some_at_once(begun, THREADS * self.reader.batch_bytes):
                blocks, found = looked.result()
                self.spool.extend(blocks)
                self._take(shape, messages, found)
        passed = self.reader.passed
        self.check_envelopes({topic: some for topic, some in self.unwrapped.items() if topic not in passed})
        self.check_since(self.flat)

    def check_envelopes(self, unwrapped: Mapping[str, Sequence[int]]) -> None:
        """Raises LakehouseError where these events, by topic, came after all that have their envelope."""
        self.check_since(
            {topic: max(int(self.heads[index]["at"]) for index in some) for topic, some in unwrapped.items()}
        )

    def check_since(self, last: Mapping[str, int]) -> None:
        """The same of topics whose last such event came at a moment."""
        if flat := [topic for topic, at in last.items() if at > self.wrapped.get(topic, -1)]:
            raise self.reader.refused(
                f"topic {', '.join(sorted(flat))} has rows without their envelope (no op, no source), which tell "
                "neither deletes nor transactions: take the transform "
                "ExtractNewRecordState from the connector; kind kafka reads them, but not an update that left a large "
                "value out, and no delete that the transform drops; if it is a stray message, it becomes a dead letter "
                "with the next change of its table"
            )

    def _messages(self) -> Iterator[tuple[Shape, pa.Table]]:
        for topic, messages in self.reader.messages(self.reader.ranges):
            yield self.reader.shapes[topic], self._believed(topic, messages)

    def _believed(self, topic: str, messages: pa.Table) -> pa.Table:
        found = believed(messages, self.reader.now, self._seen.get(topic))
        latest = pc.max(found.column("sent")).as_py()
        if latest is not None and latest > self.reader.now:
            self.ahead[topic] = max(latest, self.ahead.get(topic, latest))
        return found

    def _look(self, pool: Executor, shape: Shape, messages: pa.Table) -> Future[tuple[list[Block], _Looked]]:
        """Begins to look at messages in columns, and to make blocks of them."""
        values = one_chunk(messages.column("value"))
        look = self._looking(shape, values)
        return pool.submit(lambda: ([*blocks_of(values)], look()))

    def _looking(self, shape: Shape, values: pa.Array) -> Callable[[], _Looked]:
        """How messages of a topic are looked at all at once, which another thread may do."""
        there = values.drop_null()
        opened = self.opener(shape.format).bodies(there) if len(there) else None
        readers = self.column_readers(shape, opened[0]) if opened is not None else None
        is_unlike = len(there) > 0 and (opened is None or readers is not None)
        if opened is None or readers is None:
            return lambda: _Looked(is_unlike)
        types, bodies = opened
        is_told = self.reader.told is not None
        alone = not is_told and shape.topic in self.reader.wide

        def look() -> _Looked:
            return _Looked(is_unlike, readers, types, scanned(shape, readers, bodies, told=is_told, alone=alone))

        return look

    def _take(self, shape: Shape, messages: pa.Table, looked: _Looked) -> None:
        """All at once; where they are not alike, in smaller parts, and the smallest one by one."""
        if looked.readers is not None and looked.found is not None:
            self._take_at_once(shape, looked.readers, messages, looked.types, looked.found)
        elif looked.is_unlike and messages.num_rows > TOGETHER:
            size = -(-messages.num_rows // PARTS)
            for first in range(0, messages.num_rows, size):
                part = messages.slice(first, size)
                self._take(shape, part, self._looking(shape, one_chunk(part.column("value")))())
        else:
            self.parts.append(Part(shape, len(self.heads), len(self.heads) + messages.num_rows))
            self._add_each(shape, messages)

    def _take_at_once(
        self, shape: Shape, readers: Readers, messages: pa.Table, types: Types | None, found: Scanned
    ) -> None:
        part = part_of(shape, readers, len(self.heads), len(self.kept), messages, found)
        self.parts.append(part)
        self.kept.add(found.kept)
        self._note(shape, found, messages)
        if found.writes_defaults:
            self._note_defaults(shape, types)
        self._check_keys(shape, found, messages)
        columns = heads_of(part, found, messages, self.numbers)
        for first, end, one_by_one in runs(part.is_odd):
            if one_by_one:
                self._add_each(shape, messages.slice(first, end - first))
            else:
                self.heads.extend(**{name: values[first:end] for name, values in columns.items()})

    def column_readers(self, shape: Shape, types: Types | None) -> Readers | None:
        """Reads columns of messages of these types at once; None where that is not possible."""
        known = self.readers.get((shape.topic, id(types)))
        if known is None:
            known = self.readers[shape.topic, id(types)] = types, column_readers(shape, types)
        return known[1]

    def _note(self, shape: Shape, found: Scanned, messages: pa.Table) -> None:
        """What people are told of messages that are not looked at one by one."""
        if found.is_odd.all():
            return
        came = messages.filter(messages.column("value").is_valid()).column("at").filter(pa.array(~found.is_odd))
        last = (pc.max(came).as_py() - EPOCH) // MILLISECOND
        self._note_wrapped(shape, last)
        self.versions.update(found.versions)
        for number, origin in enumerate(found.origins, start=1):
            self._note_origin(shape, origin, last if number == len(found.origins) else 0)
        told, rows = self.columns.setdefault(shape.topic, set()), found.outermost()
        if any(column.name not in told for column in shape.columns):
            told.update(found.with_values())
        else:
            rows = rows[-1:]
        values = one_chunk(messages.column("value"))
        there = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))
        for row in rows:
            value = values[int(there[row])].as_py()
            after = envelope_of(self.opener(shape.format).open(value)).after or ()
            told.update(after)
            self._note_newest(shape, after, last)

    def _add_each(self, shape: Shape, messages: pa.Table) -> None:
        for message in messages.to_pylist():
            self._add(shape, self.numbers[shape.topic, message["partition"]], message)

    def _add(self, shape: Shape, partition: int, message: Mapping[str, Any]) -> None:
        at = (message["at"] - EPOCH) // MILLISECOND
        place, sent = (partition, message["offset"], at), (message["sent"] - EPOCH) // MILLISECOND
        if message["value"] is None:
            self.heads.add(*place, EMPTY, sent=sent)
            return
        index = len(self.heads)
        try:
            envelope = envelope_of(self.opener(shape.format).open(message["value"]))
            check_relation(shape, envelope)
            if self.reader.told is not None and envelope.transaction is not None and envelope.lsn is None:
                raise Unread("its source block has no lsn, which tells it from one that came again")
        except Unread as reason:
            if isinstance(reason, Unwrapped):
                self.unwrapped.setdefault(shape.topic, []).append(index)
                if {column.name for column in shape.columns} & reason.names:
                    self.flat[shape.topic] = max(at, self.flat.get(shape.topic, at))
            self.reasons[index] = str(reason)
            self.heads.add(*place, UNREAD, sent=sent)
            return
        self._note_wrapped(shape, at)
        self.versions.add(envelope.version)
        self._note_origin(shape, envelope.origin, at)
        if envelope.after:
            self.columns.setdefault(shape.topic, set()).update(envelope.after)
            self._note_newest(shape, envelope.after, at)
        if envelope.writes_defaults:
            self._note_defaults(shape, envelope.types)
        if envelope.op == "u" and envelope.before is None:
            self._check_key(shape, message["key"])
        self.opened_bytes += len(message["value"])
        if len(self.opened) < OPENED and self.opened_bytes <= OPENED_BYTES:
            self.opened[index] = envelope
        of = envelope.transaction
        if self.reader.told is None:
            if of is not None:
                raise self.reader.refused(
                    f"topic {shape.topic} tells transactions: set LAKEHOUSE_SOURCES__{self.reader.source.upper()}"
                    "__TRANSACTIONS to the topic that tells their ends, <prefix>.transaction"
                )
            if envelope.op == "t" and shape.topic in self.reader.wide:
                self.problems[shape.topic] = UNORDERED
            self.heads.add(*place, EVENT, sent=sent, xid=envelope.xid or 0, lsn=envelope.lsn or 0, op=envelope.op)
        elif of is not None:
            self.heads.add(
                *place, EVENT, sent=sent, xid=of.xid, lsn=envelope.lsn or 0, order=of.order, in_table=of.in_table,
                op=envelope.op, identity=identity_of([envelope.row.get(name) for name in shape.key]),
            )  # fmt: skip
        elif envelope.op == "r":
            self.heads.add(*place, LOOSE if envelope.snapshot == "incremental" else SNAPSHOT, sent=sent)
            self._note_snapshot(shape, envelope, message)
        else:
            raise self.reader.refused(
                f"topic {shape.topic}, partition {message['partition']}, offset {message['offset']}: a change without "
                "its transaction: set provide.transaction.metadata=true of the connector; earlier events cannot be "
                "placed, so let it write to topics of another prefix, or leave out `transactions` of the source, where "
                "a cut for each table alone is enough"
            )

    def _note_newest(self, shape: Shape, columns: Iterable[str], at: int) -> None:
        if at >= self.newest.get(shape.topic, (at,))[0]:
            self.newest[shape.topic] = at, frozenset(columns)

    def _note_origin(self, shape: Shape, origin: Origin, at: int) -> None:
        known = self.origins.setdefault(shape.topic, {})
        known[origin] = max(at, known.get(origin, at))

    def _note_wrapped(self, shape: Shape, at: int) -> None:
        self.wrapped[shape.topic] = max(at, self.wrapped.get(shape.topic, at))

    def _note_defaults(self, shape: Shape, types: Types | None) -> None:
        """The columns whose NULLs come as their default, as far as messages tell."""
        if types is None:
            self.hidden.setdefault("", set())
        elif id(types) not in self.looked_at:
            self.looked_at[id(types)] = types
            if names := {c.name for c in shape.columns if c.name in types and types[c.name].hides_null}:
                self.hidden.setdefault(shape.topic, set()).update(names)

    def _note_snapshot(self, shape: Shape, envelope: Envelope, message: Mapping[str, Any]) -> None:
        """The snapshot that a connector begins with is the first that a topic has."""
        if envelope.snapshot in BEGINS and message["offset"]:
            self.snapshots[shape.topic] = f"partition {message['partition']}, offset {message['offset']}"

    def _check_keys(self, shape: Shape, found: Scanned, messages: pa.Table) -> None:
        """The same of the first and the last of many: where the columns of a key change, all that comes later has the
        other ones."""
        rows = found.without_before()
        if len(rows):
            keys = messages.filter(messages.column("value").is_valid()).column("key")
            for row in (rows[0], rows[-1]):
                self._check_key(shape, keys[int(row)].as_py())

    def _check_key(self, shape: Shape, key: bytes | None) -> None:
        """An update without the row before says that the key did not change: that of the message, not another one."""
        try:
            told = frozenset(self.opener(shape.format).key(key)) if key else frozenset[str]()
        except Unread:
            told = frozenset[str]()
        problem = lacking_key(shape.key, told)
        if problem is not None or shape.topic not in self.keys:
            self.keys[shape.topic] = told
        if problem is not None:
            self.problems[shape.topic] = problem

    def envelope(self, index: int) -> Envelope:
        """The envelope of a message that could be opened."""
        if (known := self.opened.get(index)) is not None:
            return known
        of = self.reader.shapes[self.reader.ranges[self.heads[index]["partition"]].topic]
        return envelope_of(self.opener(of.format).open(self.spool.value(index)))

"""Topics of Debezium, read inside a Spark task: the transactions that are whole land, the others wait."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa

from ingestion.schema.offsets import Offsets
from ingestion.schema.transaction_offsets import TransactionOffsets
from ingestion.sources.base import Keys, Landing, Noticed, Piece, SourceNow
from ingestion.sources.debezium.envelope import EPOCH, End, Envelope, Unwrapped, end_of, envelope_of
from ingestion.sources.debezium.heads import EMPTY, EVENT, LOOSE, UNREAD, Heads, identity_of
from ingestion.sources.debezium.joined import Follows, Joined, OutOfOrder, Reached, Told
from ingestion.sources.debezium.opened import JsonOpener
from ingestion.sources.debezium.records import Event, kept
from ingestion.sources.debezium.rows import Placed, check_relation, key_text, rows_of
from ingestion.sources.debezium.shape import Shape
from ingestion.sources.debezium.spool import Spool
from ingestion.sources.debezium.transactions import join
from ingestion.sources.kafka.reading import Range, TopicReader
from ingestion.sources.kafka.records import KEPT_SCHEMA
from ingestion.sources.kafka.values import Unread
from lakehouse.errors import LakehouseError

EXACT = (3, 7)  # from this version of Debezium on nothing is lost with exactly once
OPENED = 20_000  # envelopes that are kept as they were opened


@dataclass(frozen=True)
class EnvelopeReader:
    """One read: the ranges of data topics, and the one of the transaction topic, whose `place` is its earliest offset.

    Travels by pickle; holds the password.
    """

    source: str
    properties: Mapping[str, Any]
    ranges: tuple[Range, ...]
    told: Range
    is_told: bool
    histories: Mapping[str, int]
    shapes: Mapping[str, Shape]
    before: TransactionOffsets
    exactly_once: bool
    is_whole: bool
    now: datetime
    batch_bytes: int

    @property
    def is_silent(self) -> bool:
        """Whether there is nothing to read."""
        return not any(r.first < r.end for r in (*self.ranges, self.told))

    @property
    def relations(self) -> frozenset[int] | None:
        """Not known before it is read."""
        return None

    def read(self, keys: Keys, landing: Landing, imaged: frozenset[int], take: Callable[[Piece], None]) -> Noticed:
        """Gives the events of whole transactions in pieces; raises LakehouseError for what cannot be read."""
        if self.is_silent:
            return Noticed()
        work = _Work(self, Spool())
        try:
            told = list(work.told(self.told))
            work.fetch()
            joined = work.join(told)
            for piece in work.pieces(joined, landing):
                take(piece)
        finally:
            work.spool.close()
        return Noticed(reached=SourceNow(_reached(self, joined), self.now, 0), warnings=tuple(work.warnings()))

    def messages(self, ranges: Sequence[Range]) -> Iterator[tuple[str, pa.Table]]:
        """All messages of some ranges, a batch of one topic at a time."""
        some = tuple(r for r in ranges if r.first < r.end)
        if some:
            yield from TopicReader(
                self.source, self.properties, some, {}, 0, self.now, self.batch_bytes, {}
            ).fetched()  # fmt: skip

    def refused(self, says: str) -> LakehouseError:
        """The error of a source that cannot go on."""
        return LakehouseError(f"source {self.source!r}: {says}")


@dataclass
class _Work:
    """What is known of the messages of a read."""

    reader: EnvelopeReader
    spool: Spool
    heads: Heads = field(default_factory=Heads)
    opened: dict[int, Envelope] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    opener: JsonOpener = field(default_factory=JsonOpener)
    versions: set[str] = field(default_factory=set)
    columns: dict[str, set[str]] = field(default_factory=dict)
    checked: set[str] = field(default_factory=set)
    problems: dict[str, str] = field(default_factory=dict)
    unwrapped: dict[str, int] = field(default_factory=dict)
    wrapped: set[str] = field(default_factory=set)

    def told(self, wanted: Range) -> Iterator[Told]:
        """The messages of the transaction topic."""
        for _, messages in self.reader.messages([wanted]):
            for message in messages.to_pylist():
                if message["value"] is None:
                    continue
                try:
                    end = end_of(self.opener.open(message["value"]))
                except Unread as reason:
                    where = f"topic {self.reader.told.topic}, offset {message['offset']}"
                    raise self.reader.refused(
                        f"{where}: {reason}: correct `transactions`, the topic of the connector's transaction metadata"
                    ) from None
                yield Told(message["offset"], message["at"], end)

    def fetch(self) -> None:
        """Reads all messages into the spool."""
        numbers = {(r.topic, r.partition): number for number, r in enumerate(self.reader.ranges)}
        for topic, messages in self.reader.messages(self.reader.ranges):
            shape = self.reader.shapes[topic]
            for message in messages.to_pylist():
                self.spool.add(message["value"])
                self._add(shape, numbers[topic, message["partition"]], message)
        if flat := sorted(set(self.unwrapped) - self.wrapped):
            raise self.reader.refused(
                f"topic {', '.join(flat)} has rows without their envelope (no op, no source), which tell "
                "neither deletes nor transactions: take the transform "
                "ExtractNewRecordState from the connector, or declare kind kafka"
            )

    def _add(self, shape: Shape, partition: int, message: Mapping[str, Any]) -> None:
        at = int((message["at"] - EPOCH).total_seconds() * 1000)
        place = partition, message["offset"], at
        if message["value"] is None:
            self.heads.add(*place, EMPTY)
            return
        index = len(self.heads)
        try:
            envelope = envelope_of(self.opener.open(message["value"]))
            check_relation(shape, envelope)
        except Unread as reason:
            if isinstance(reason, Unwrapped):
                self.unwrapped[shape.topic] = index
            self.reasons[index] = str(reason)
            self.heads.add(*place, UNREAD)
            return
        self.wrapped.add(shape.topic)
        self.versions.add(envelope.version)
        if envelope.after:
            self.columns.setdefault(shape.topic, set()).update(envelope.after)
        self._check_key(shape, envelope, message["key"])
        if len(self.opened) < OPENED:
            self.opened[index] = envelope
        if (of := envelope.transaction) is not None:
            self.heads.add(
                *place, EVENT, xid=of.xid, lsn=envelope.lsn or 0, order=of.order, in_table=of.in_table, op=envelope.op,
                identity=identity_of(key_text(shape, envelope.row)),
            )  # fmt: skip
        elif envelope.op == "r":
            self.heads.add(*place, LOOSE)
        else:
            raise self.reader.refused(
                f"topic {shape.topic}, partition {message['partition']}, offset {message['offset']}: a change without "
                "its transaction: set provide.transaction.metadata=true of the connector; earlier events cannot be "
                "placed, so let it write to topics of another prefix"
            )

    def _check_key(self, shape: Shape, envelope: Envelope, key: bytes | None) -> None:
        """An update without the row before says that the key did not change: that of the message, not another one."""
        if envelope.op != "u" or envelope.before is not None or shape.topic in self.checked:
            return
        self.checked.add(shape.topic)
        try:
            told = set(self.opener.key(key)) if key else set()
        except Unread:
            told = set()
        if lacking := sorted(set(shape.key) - told):
            self.problems[shape.topic] = (
                f"key column {', '.join(lacking)} is not in its events' key ({', '.join(sorted(told)) or 'none'}),"
                " so updates do not tell when it changes: declare that key, or set REPLICA IDENTITY FULL and let the "
                "connector write the table to a topic of another name"
            )

    def join(self, told: Sequence[Told]) -> Joined:
        """Places the events."""
        reader, before = self.reader, self.reader.before
        if not reader.is_told and EVENT in self.heads.kind:
            raise reader.refused(
                f"there is no transaction topic {reader.told.topic}, although transactions have come: correct "
                f"LAKEHOUSE_SOURCES__{reader.source.upper()}__TRANSACTIONS, which is <prefix>.transaction"
            )
        relations = [reader.shapes[r.topic].captured for r in reader.ranges]
        follows = Follows(
            relations=relations, ends=[r.end for r in reader.ranges], bases=[r.place - r.first for r in reader.ranges],
            told_to=reader.told.end, 
            followed=frozenset(s.captured for s in reader.shapes.values()),
            keyed=frozenset(s.captured for s in reader.shapes.values() if s.key),
            exactly_once=reader.exactly_once, is_whole=reader.is_whole, now=reader.now, histories=reader.histories,
            older=self._older(told, relations),
        )  # fmt: skip
        try:
            return join(self.heads, told, Reached(before.end, before.committed_at, before.bound), follows)
        except OutOfOrder as problem:
            raise reader.refused(
                f"{problem}; `lakehouse ingest --recover {reader.source}` goes on with what is there, in the next epoch"
            ) from None

    def _older(self, told: Sequence[Told], relations: Sequence[str]) -> dict[int, End]:
        """The ENDs before those of the read, by xid: asked for where events of a table that is read later need them."""
        new = {one.end.xid for one in told if one.end}
        heads, histories = self.heads, self.reader.histories
        if not any(
            heads.kind[i] == EVENT
            and heads.xid[i] not in new
            and heads.lsn[i] <= histories.get(relations[heads.partition[i]], 0)
            for i in range(len(heads) if histories else 0)
        ):
            return {}
        of = self.reader.told
        return {one.end.xid: one.end for one in self.told(replace(of, first=of.place, end=of.first)) if one.end}

    def warnings(self) -> Iterator[str]:
        """What is upstream and cannot be made good here."""
        if old := sorted(v for v in self.versions if _is_older(v)):
            yield (
                f"Debezium {', '.join(old)} may lose rows of a transaction within which Kafka Connect is killed, also "
                "with exactly once: take 3.7 or newer"
            )
        for topic, told in sorted(self.columns.items()):
            if missing := [c.name for c in self.reader.shapes[topic].columns if c.name not in told]:
                yield f"topic {topic}: column {', '.join(missing)} is in none of its events, and lands as NULL"
        if not self.reader.exactly_once:
            yield (
                "its topics are declared to be delivered at least once: an event that comes twice is dropped by its "
                "key; set exactly.once.source.support of Kafka Connect, then declare delivery = exactly_once"
            )

    def envelope(self, index: int) -> Envelope:
        """The envelope of a message that could be opened."""
        return self.opened.get(index) or envelope_of(self.opener.open(self.spool.value(index)))

    def pieces(self, joined: Joined, landing: Landing) -> Iterator[Piece]:
        """What lands, in the order in which it was fetched."""
        taken: dict[str, list[int]] = {}
        size = 0
        for index, number in enumerate(joined.numbers):
            if number >= 0:
                taken.setdefault(self.reader.ranges[self.heads.partition[index]].topic, []).append(index)
                size += self.spool.size(index)
            if size >= self.reader.batch_bytes:
                yield from self._of_topics(joined, landing, taken)
                taken, size = {}, 0
        yield from self._of_topics(joined, landing, taken)

    def _of_topics(self, joined: Joined, landing: Landing, taken: Mapping[str, list[int]]) -> Iterator[Piece]:
        for topic, indices in taken.items():
            yield from self._of_topic(self.reader.shapes[topic], joined, landing, indices)

    def _of_topic(self, shape: Shape, joined: Joined, landing: Landing, indices: list[int]) -> Iterator[Piece]:
        readable = [index for index in indices if index not in self.reasons]
        unread = {index: self.reasons[index] for index in indices if index in self.reasons}
        if shape.oid not in landing():
            if readable:
                yield Piece([], self._records(shape, joined, readable))
        elif readable:
            made = rows_of(shape, [self._placed(joined, index) for index in readable])
            problem = self.problems.get(shape.topic, made.problem)
            if problem is not None:
                yield Piece([], self._records(shape, joined, readable), parks={shape.oid: problem})
            else:
                unread |= {readable[row]: reason for row, reason in made.unread.items()}
                good = [index for index in readable if index not in unread]
                if good:
                    yield Piece(made.batches, self._records(shape, joined, good))
        if unread:
            reasons = {(joined.numbers[i], joined.places[i]): reason for i, reason in unread.items()}
            yield Piece([], self._records(shape, joined, sorted(unread)), reasons)

    def _placed(self, joined: Joined, index: int) -> Placed:
        of = self.reader.ranges[self.heads.partition[index]]
        envelope, old = self.envelope(index), joined.old.get(index)
        return Placed(
            envelope, of.partition, self.heads.offset[index], joined.numbers[index], joined.places[index],
            None if old is None else self.envelope(old).before,
        )  # fmt: skip

    def _records(self, shape: Shape, joined: Joined, indices: list[int]) -> Callable[[frozenset[int]], pa.Table]:
        def records(oids: frozenset[int]) -> pa.Table:
            if shape.oid not in oids:
                return KEPT_SCHEMA.empty_table()
            return kept(shape, [self._event(joined, index) for index in indices])

        return records

    def _event(self, joined: Joined, index: int) -> Event:
        placed = None if index in self.reasons else self._placed(joined, index)
        of = placed.envelope.transaction if placed else None
        at = placed.envelope.committed_at if placed else EPOCH + timedelta(milliseconds=self.heads.at[index])
        return Event(
            partition=self.reader.ranges[self.heads.partition[index]].partition, offset=self.heads.offset[index],
            number=joined.numbers[index], place=joined.places[index], xid=of.xid if of else None, at=at,
            value=self.spool.value(index), old=placed.old if placed else None,
        )  # fmt: skip


def _reached(reader: EnvelopeReader, joined: Joined) -> TransactionOffsets:
    """Where the read has got to: what waits is read again."""
    offsets = {(r.topic, r.partition): offset for r, offset in zip(reader.ranges, joined.offsets, strict=True)}
    offsets[reader.told.topic, reader.told.partition] = joined.told_to
    reached = joined.reached
    at = int((reached.at - EPOCH).total_seconds() * 1_000_000) if reached.at else 0
    landed = TransactionOffsets(Offsets.of(offsets).parts, reached.end, at, reached.bound)
    return reader.before.join(landed)


def _is_older(version: str) -> bool:
    """Whether it is before 3.7; a version that is not written as Debezium's are is not."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return found is not None and (int(found[1]), int(found[2])) < EXACT

"""Topics of Debezium, read inside a Spark task: the transactions that are whole land, the others wait."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa

from ingestion.schema.changes import Batch
from ingestion.schema.offsets import Offsets
from ingestion.schema.transaction_offsets import TransactionOffsets
from ingestion.sources.base import Keys, Landing, Noticed, Piece, SourceNow
from ingestion.sources.debezium.at_once.parts import Part, runs
from ingestion.sources.debezium.at_once.rows import Places, Rows, rows_at_once
from ingestion.sources.debezium.envelope import EPOCH, End
from ingestion.sources.debezium.gathered import Gathered
from ingestion.sources.debezium.join.alone import place_alone
from ingestion.sources.debezium.join.heads import EVENT
from ingestion.sources.debezium.join.joined import SKEW, STALLED, Follows, Joined, OutOfOrder, Reached, Told
from ingestion.sources.debezium.join.transactions import join
from ingestion.sources.debezium.noticed import warnings
from ingestion.sources.debezium.records import Event, kept
from ingestion.sources.debezium.rows import Made, Placed, rows_of
from ingestion.sources.debezium.shape import Shape
from ingestion.sources.debezium.spool import Spool
from ingestion.sources.kafka.reading import Range, TopicReader
from ingestion.sources.kafka.records import KEPT_SCHEMA
from ingestion.sources.kafka.registry import SchemaRegistry
from lakehouse.errors import LakehouseError


@dataclass(frozen=True)
class EnvelopeReader:
    """One read: the ranges of data topics, and the one of the transaction topic, whose `place` is its earliest offset;
    None where transactions are not told. `wide` topics have several partitions.

    Travels by pickle; holds the password.
    """

    source: str
    properties: Mapping[str, Any]
    ranges: tuple[Range, ...]
    told: Range | None
    is_told: bool
    histories: Mapping[str, int]
    shapes: Mapping[str, Shape]
    before: TransactionOffsets
    exactly_once: bool
    is_whole: bool
    now: datetime
    batch_bytes: int
    wide: frozenset[str] = frozenset()
    registry: SchemaRegistry | None = None

    @property
    def is_silent(self) -> bool:
        """Whether there is nothing to read."""
        return not any(r.first < r.end for r in (*self.ranges, self.told) if r is not None)

    @property
    def relations(self) -> frozenset[int] | None:
        """Not known before it is read."""
        return None

    def parts(self) -> "tuple[EnvelopeReader]":
        """All of it: what lands depends on where all events of a transaction are."""
        return (self,)

    def read(self, keys: Keys, landing: Landing, imaged: frozenset[int], take: Callable[[Piece], None]) -> Noticed:
        """Gives the events of whole transactions in pieces; raises LakehouseError for what cannot be read."""
        if self.is_silent:
            return Noticed()
        work = _Work(self, Spool())
        try:
            told = list(work.told(self.told)) if self.told else []
            work.fetch()
            joined = work.join(told)
            for piece in work.pieces(joined, landing):
                take(piece)
        finally:
            work.close()
        return Noticed(reached=SourceNow(_reached(self, joined), self.now, 0), warnings=tuple(warnings(work, joined)))

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


class _Work(Gathered):
    """What becomes of the messages."""

    def join(self, told: Sequence[Told]) -> Joined:
        """Places the events."""
        reader, before = self.reader, self.reader.before
        if reader.told is not None and not reader.is_told and EVENT in self.heads.kind:
            raise reader.refused(
                f"there is no transaction topic {reader.told.topic}, although transactions have come: correct "
                f"LAKEHOUSE_SOURCES__{reader.source.upper()}__TRANSACTIONS, which is <prefix>.transaction"
            )
        relations = [reader.shapes[r.topic].captured for r in reader.ranges]
        follows = Follows(
            relations=relations, ends=[r.end for r in reader.ranges], bases=[r.place - r.first for r in reader.ranges],
            told_to=reader.told.end if reader.told else 0, 
            followed=frozenset(s.captured for s in reader.shapes.values()),
            keyed=frozenset(s.captured for s in reader.shapes.values() if s.key),
            exactly_once=reader.exactly_once, is_whole=reader.is_whole, now=reader.now, histories=reader.histories,
            older=self._older(told, relations), forgotten_to=self._forgotten_to(told),
        )  # fmt: skip
        reached = Reached(before.end, before.committed_at, before.bound)
        if reader.told is None:
            return place_alone(self.heads, reached, follows)
        try:
            return join(self.heads, told, reached, follows)
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
        assert of is not None, "tables that are read later need no history where no transaction is told"
        return {one.end.xid: one.end for one in self.told(replace(of, first=of.place, end=of.first)) if one.end}

    def _forgotten_to(self, told: Sequence[Told]) -> datetime | None:
        """The moment before which the transaction topic has no END any more: asked for where an event that came a while
        ago has none among those of the read."""
        of, heads = self.reader.told, self.heads
        if of is None or not of.place:
            return None
        new = np.array([one.end.xid for one in told if one.end], np.int64)
        lacks = (np.array(heads.kind) == EVENT) & ~np.isin(np.array(heads.xid), new)
        is_old = np.array(heads.at) < (self.reader.now - STALLED).timestamp() * 1000
        if not (lacks & is_old).any():
            return None
        if (first := self._first_at(of)) is not None:
            return first - SKEW
        settled = self.reader.now - STALLED  # it has nothing: what is being sent has no BEGIN there either
        return settled if is_old[lacks].all() else None

    def _first_at(self, of: Range) -> datetime | None:
        """When the earliest message came that a topic still has, None where it has none."""
        first, count = of.place, 256  # what is there may be marks of Kafka's own transactions
        while first < of.end:
            some = replace(of, first=first, end=min(first + count, of.end))
            for _, messages in self.reader.messages([some]):
                if messages.num_rows:
                    return EPOCH + timedelta(microseconds=messages.column("at")[0].value)
            first, count = some.end, 16 * count
        return None

    def pieces(self, joined: Joined, landing: Landing) -> Iterator[Piece]:
        """What lands, in the order in which it was fetched."""
        numbers = np.array(joined.numbers, np.int64)
        for part in self.parts:
            indices = part.first + np.flatnonzero(numbers[part.first : part.end] >= 0)
            if len(indices):
                yield from self._of_part(part, joined, landing, indices.tolist())

    def _of_part(self, part: Part, joined: Joined, landing: Landing, indices: list[int]) -> Iterator[Piece]:
        shape = part.shape
        readable = [index for index in indices if index not in self.reasons] if self.reasons else indices
        unread = {index: self.reasons[index] for index in indices if index in self.reasons} if self.reasons else {}
        if shape.oid not in landing():
            if readable:
                yield Piece([], self._records(shape, joined, readable))
        elif readable:
            made = self._made(part, joined, readable)
            problem = self.problems.get(shape.topic, made.problem)
            if problem is not None:
                yield Piece([], self._records(shape, joined, readable), parks={shape.oid: problem})
            else:
                unread |= {readable[row]: reason for row, reason in made.unread.items()}
                good = [index for index in readable if index not in unread] if unread else readable
                if good:
                    yield Piece(made.batches, self._records(shape, joined, good))
        if unread:
            reasons = {(joined.numbers[i], joined.places[i]): reason for i, reason in unread.items()}
            yield Piece([], self._records(shape, joined, sorted(unread)), reasons)

    def _made(self, part: Part, joined: Joined, indices: list[int]) -> Made:
        """The rows: of what is ordinary at once, of the others one by one, in their order."""
        rows = self._at_once(part, joined, indices)
        if rows is None:
            return rows_of(part.shape, [self._placed(joined, index) for index in indices])
        batches: list[Batch] = []
        unread: dict[int, str] = {}
        for first, end, is_odd in runs(rows.is_odd):
            if not is_odd:
                batches.append(rows.batch(first, end))
                continue
            made = rows_of(part.shape, [self._placed(joined, index) for index in indices[first:end]])
            if made.problem is not None:
                return made
            batches += made.batches
            unread |= {first + row: reason for row, reason in made.unread.items()}
        return Made(batches, unread)

    def _at_once(self, part: Part, joined: Joined, indices: list[int]) -> Rows | None:
        if part.readers is None:
            return None
        local = np.array(indices) - part.first
        kept, wanted = self.kept.table(part.kept), part.row_of[local]
        if len(wanted) < kept.num_rows:
            kept = kept.take(wanted)
        first, last = indices[0], indices[-1] + 1
        partitions = np.array([r.partition for r in self.reader.ranges], np.int32)
        where = local - local[0]
        places = Places(
            partition=partitions[np.array(self.heads.partition[first:last])[where]],
            offset=np.array(self.heads.offset[first:last])[where],
            number=np.array(joined.numbers[first:last])[where],
            place=np.array(joined.places[first:last])[where],
        )
        rows = rows_at_once(part.shape, part.readers, kept, places)
        if rows is not None:
            rows.is_odd[part.is_odd_message[local]] = True
            if joined.old:
                rows.is_odd[[row for row, index in enumerate(indices) if index in joined.old]] = True
        return rows

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
            return kept(shape, [self._event(shape, joined, index) for index in indices])

        return records

    def _event(self, shape: Shape, joined: Joined, index: int) -> Event:
        form, value = self.opener(shape.format).kept(self.spool.value(index))
        placed = None if index in self.reasons else self._placed(joined, index)
        at = placed.envelope.committed_at if placed else EPOCH + timedelta(milliseconds=self.heads.at[index])
        return Event(
            partition=self.reader.ranges[self.heads.partition[index]].partition, offset=self.heads.offset[index],
            number=joined.numbers[index], place=joined.places[index], at=at,
            xid=placed.envelope.xid if placed else None, value=value,
            old=placed.old if placed else None, format=form,
        )  # fmt: skip


def _reached(reader: EnvelopeReader, joined: Joined) -> TransactionOffsets:
    """Where the read has got to: what waits is read again."""
    offsets = {(r.topic, r.partition): offset for r, offset in zip(reader.ranges, joined.offsets, strict=True)}
    if reader.told is not None:
        offsets[reader.told.topic, reader.told.partition] = joined.told_to
    reached = joined.reached
    at = int((reached.at - EPOCH).total_seconds() * 1_000_000) if reached.at else 0
    landed = TransactionOffsets(Offsets.of(offsets).parts, reached.end, at, reached.bound)
    return reader.before.join(landed)

"""Topics of Debezium, read inside a Spark task: the transactions that are whole land, the others wait."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ingestion.schema.offsets import Offsets
from ingestion.schema.transaction_offsets import TransactionOffsets
from ingestion.sources.base import Keys, Landing, Noticed, Piece, SourceNow
from ingestion.sources.debezium.at_once.parts import Part
from ingestion.sources.debezium.at_once.rows import Places, Rows, rows_at_once
from ingestion.sources.debezium.gathered import MILLISECOND, Gathered
from ingestion.sources.debezium.join.alone import place_alone
from ingestion.sources.debezium.join.heads import EMPTY, EVENT, said_by
from ingestion.sources.debezium.join.joined import (
    SET_BACK,
    SETTLED,
    SKEW,
    STALLED,
    Earlier,
    Follows,
    Joined,
    OutOfOrder,
    Reached,
    Told,
)
from ingestion.sources.debezium.join.rest import FAR
from ingestion.sources.debezium.join.transactions import join
from ingestion.sources.debezium.message.envelope import EPOCH, End
from ingestion.sources.debezium.noticed import warnings
from ingestion.sources.debezium.problems import shared_key
from ingestion.sources.debezium.ranges import EnvelopeRanges
from ingestion.sources.debezium.records import Event, kept, stray
from ingestion.sources.debezium.rows import Made, Placed, rows_of
from ingestion.sources.debezium.shape import Shape
from ingestion.sources.debezium.spool import Spool
from ingestion.sources.kafka.reading import Range
from ingestion.sources.kafka.records import KEPT_SCHEMA

STRAY = 3 * FAR  # places of what is not of a table
LOOKED_BACK = 1 << 18  # messages of the transaction topic that are looked at again where one goes back


@dataclass(frozen=True)
class EnvelopeReader(EnvelopeRanges):
    """One read inside a Spark task."""

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
            told = work.listen(self.told) if self.told else []
            work.fetch()
            joined = work.join(told)
            work.check_envelopes(
                {topic: some for topic, some in work.unwrapped.items() if not joined.counted.keys().isdisjoint(some)}
            )
            reached = SourceNow(_reached(self, joined), self.now, 0)
            last = {topic: max(found, key=lambda origin: found[origin]) for topic, found in work.origins.items()}
            noticed = Noticed(witness=last, reached=reached, warnings=tuple(warnings(work, joined)))
            with closing(joined.placed), closing(joined.sharing):
                for piece in chain(work.pieces(joined, landing), work.dead_strays(joined, landing)):
                    take(piece)
        finally:
            work.close()
        return noticed


class _Work(Gathered):
    """What becomes of the messages."""

    def join(self, told: Sequence[Told]) -> Joined:
        """Places the events."""
        reader, before = self.reader, self.reader.before
        if reader.told is not None and not reader.is_told and self._has_events():
            raise reader.refused(
                f"there is no transaction topic {reader.told.topic}, although transactions have come: correct "
                f"LAKEHOUSE_SOURCES__{reader.source.upper()}__TRANSACTIONS, which is <prefix>.transaction"
            )
        relations = [reader.shapes[r.topic].counted_as for r in reader.ranges]
        fresh = self._fresh()
        histories, older = self._history(told, relations, fresh)
        told_to = self._told_to(told, older)
        follows = Follows(
            relations=relations, ends=[r.end for r in reader.ranges], bases=[r.place - r.first for r in reader.ranges],
            told_to=told_to,
            followed=frozenset(s.counted_as for s in reader.shapes.values()),
            keyed=frozenset(s.counted_as for s in reader.shapes.values() if s.key),
            exactly_once=reader.exactly_once, now=reader.now, histories=histories,
            whole_to=self._whole_to(),
            is_whole=reader.is_whole and (reader.told is None or told_to == reader.told.end), is_read=reader.is_whole,
            older=older, fresh=fresh, forgotten_to=self._forgotten_to(told), earlier=self._earlier(told),
            content=self._content,
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

    def _whole_to(self) -> list[int]:
        """By partition the moment up to which all that was sent is read, in milliseconds: what was sent a while before
        its end was asked for; -1 where the read does not reach that."""
        reader = self.reader
        settled = ((reader.asked or reader.now) - SETTLED - EPOCH) // MILLISECOND
        return [-1 if (r.topic, r.partition) in reader.behind else settled for r in reader.ranges]

    def _told_to(self, told: Sequence[Told], older: Collection[int]) -> int:
        """How far the transaction topic is read: not past a message that cannot be read and may be the END of events
        that came just before it. Raises LakehouseError where nothing comes behind it for a while."""
        of, last, now = self.reader.told, self.strays.last, self.reader.now
        if of is None or not last:
            return of.end if of else 0
        came = [self.strays.came[offset] for offset in last]
        since = (min(came) - EPOCH - STALLED) // MILLISECOND
        waiting: dict[int, datetime] = {}
        for events in self._without(told):
            events = events[(events["at"] >= since) & ~np.isin(events["xid"], [*older])]
            for xid in np.unique(events["xid"]).tolist() if len(events) else ():
                newest = EPOCH + MILLISECOND * int(events["at"].max())
                waiting[xid] = max(newest, waiting.get(xid, newest))
        if not self.reader.is_whole or now - max(*came, *waiting.values(), EPOCH) <= STALLED:
            return min(last)
        if waiting:
            raise self.reader.refused(
                f"{self.stray(of, min(last))}, and transaction {min(waiting)} has no END: correct the registry, or "
                "`transactions`; if it is a stray message, it becomes a dead letter with the next transaction"
            )
        return of.end

    def dead_strays(self, joined: Joined, landing: Landing) -> Iterator[Piece]:
        """Messages of the transaction topic that are passed and cannot be read, beside the records of a table: of one
        that lands, if there is one."""
        of, oids = self.reader.told, landing()
        shapes = [shape for _, shape in sorted(self.reader.shapes.items())]
        shapes = [shape for shape in shapes if shape.oid in oids] or shapes
        passed = [offset for offset in self.strays.reasons if offset < joined.told_to]
        if of is None or not shapes or not passed:
            return
        number = joined.reached.bound
        reasons = {(number, STRAY + offset): self.strays.reasons[offset] for offset in passed}
        made = pa.concat_tables(
            stray(shapes[0], of.topic, offset, number, STRAY + offset, self.strays.came[offset], reason)
            for offset, reason in zip(passed, reasons.values(), strict=True)
        )
        yield Piece([], lambda wanted: made if shapes[0].oid in wanted else made.slice(0, 0), reasons)

    def _fresh(self) -> frozenset[str]:
        """The relations of which nothing was read before."""
        passed = self.reader.passed
        return frozenset(shape.counted_as for topic, shape in self.reader.shapes.items() if topic not in passed)

    def _history(
        self, told: Sequence[Told], relations: Sequence[str], fresh: frozenset[str]
    ) -> tuple[Mapping[str, int], dict[int, list[End]]]:
        """The END up to which each relation's events are history, and the ENDs before those of the read that events of
        it have, by xid: asked for where events of a table that is read later need them."""
        reader, before = self.reader, self.reader.before.end or np.iinfo(np.int64).max
        began = {**reader.histories, **dict.fromkeys(reader.midway, before)}
        again = list[Told]()  # which may be the END of history, too
        if not fresh.isdisjoint(began):
            again = [one for one in told if one.end and one.end.lsn <= reader.before.end]
            told = [one for one in told if one.end and one.end.lsn > reader.before.end]
        of_each = np.array([began.get(relation, 0) for relation in relations] or [0], np.int64)
        if not began or not any((e["lsn"] <= of_each[e["partition"]]).any() for e in self._without(told)):
            return reader.histories, {}
        of = reader.told
        assert of is not None, "tables that are read later need no history where no transaction is told"
        here = {xid for events in self._without(told) for xid in np.unique(events["xid"]).tolist()}
        midway, older = dict.fromkeys(reader.midway, 0), dict[int, list[End]]()
        past = self.told(replace(of, first=of.place, end=of.first))  # of years, maybe: they are not kept
        for one in chain(past, again):
            if (end := one.end) is None:
                continue
            for relation, offset in reader.midway.items():
                if one.offset < offset:
                    midway[relation] = max(midway[relation], end.lsn)
            if end.xid in here:
                older.setdefault(end.xid, []).append(end)
        return {**reader.histories, **midway}, older

    def _forgotten_to(self, told: Sequence[Told]) -> datetime | None:
        """The moment before which the transaction topic has no END any more: asked for where an event that came a while
        ago has none among those of the read."""
        of, settled = self.reader.told, self.reader.now - STALLED
        if of is None or not of.place:
            return None
        are_old = [events["at"] < settled.timestamp() * 1000 for events in self._without(told)]
        if not any(old.any() for old in are_old):
            return None
        if (first := self._first_at(of)) is not None:
            return first - SKEW
        # it has nothing: what is being sent has no BEGIN there either
        return settled if all(old.all() for old in are_old) else None

    def _earlier(self, told: Sequence[Told]) -> Earlier | None:
        """What was told before the read, back to the time of each END that goes back; None where none does."""
        of, last, at = self.reader.told, self.reader.before.end, set[datetime]()
        for end in (one.end for one in told if one.end):
            if end.lsn <= last:
                at.add(end.at)
            last = max(last, end.lsn)
        if of is None or not at:
            return None
        since, lowest = min(at) - SET_BACK, max(of.place, of.first - LOOKED_BACK)
        earlier, first, count = list[Told](), of.first, 1024
        while first > lowest and all(one.end is None or one.end.at >= since for one in earlier):
            some = replace(of, first=max(lowest, first - count), end=first)
            earlier = [*self.told(some), *earlier]
            first, count = some.first, 4 * count
        return Earlier(earlier, is_all=first == 0)

    def _has_events(self) -> bool:
        return any((rows["kind"] == EVENT).any() for _, rows in self.heads.windows())

    def _without(self, told: Sequence[Told]) -> Iterator[np.ndarray]:
        """The events whose END is not among these, some at a time."""
        new = np.array([one.end.xid for one in told if one.end], np.int64)
        for _, rows in self.heads.windows():
            yield rows[(rows["kind"] == EVENT) & ~np.isin(rows["xid"], new)]

    def _first_at(self, of: Range) -> datetime | None:
        """When the earliest message came that a topic still has, of those that tell it; None where there is none."""
        first, count = of.place, 256  # what is there may be marks of Kafka's own transactions
        while first < of.end:
            some = replace(of, first=first, end=min(first + count, of.end))
            for _, messages in self.reader.messages([some]):
                at = messages.column("at")
                if len(told := at.filter(pc.less_equal(at, pa.scalar(self.reader.now, at.type)))):
                    return EPOCH + timedelta(microseconds=told[0].value)
            first, count = some.end, 16 * count
        return None

    def pieces(self, joined: Joined, landing: Landing) -> Iterator[Piece]:
        """What lands, in the order in which it was fetched."""
        self._note_sharing(joined)
        for part in self.parts:
            indices = part.first + np.flatnonzero(joined.placed.window(part.first, part.end)["number"] >= 0)
            if len(indices):
                yield from self._of_part(part, joined, landing, indices.tolist())

    def _content(self, index: int) -> int:
        return said_by(self.envelope(index).row)

    def _note_sharing(self, joined: Joined) -> None:
        """A table whose key does not tell its rows apart cannot go on. Rows that are the same in every column may be
        one that came twice."""
        told = set[str]()
        for _, pairs in joined.sharing.windows():
            for pair in pairs.tolist():
                shape = self.reader.shapes[self.reader.ranges[self.heads[pair[1]]["partition"]].topic]
                if shape.topic in told:
                    continue
                row, other = (self.envelope(index).row for index in pair)
                if row != other and all(row.get(name) is not None for name in shape.key):
                    told.add(shape.topic)
                    says = shared_key(shape.key, self._unread_beside(joined, pair[1]))
                    self.problems.setdefault(shape.topic, says)

    def _unread_beside(self, joined: Joined, index: int) -> list[str]:
        """What cannot be read of the transaction and the table that an event is of."""
        of, xid = self.reader.ranges[self.heads[index]["partition"]], self.heads[index]["xid"]
        found = []
        for other, counted_in in joined.counted.items():
            there, offset = self.reader.ranges[self.heads[other]["partition"]], self.heads[other]["offset"]
            if counted_in == xid and there.topic == of.topic:
                found.append(f"partition {there.partition}, offset {offset} ({self.reasons[other]})")
        return found

    def _is_half(self, joined: Joined, index: int) -> bool:
        """Whether it may be of a key change whose delete cannot be read."""
        head = self.heads[index]
        is_lacking = head["op"] == ord("c") and int(head["xid"]) in joined.lacking
        return is_lacking and bool(self._unread_beside(joined, index))

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
            places = {index: joined.placed[index].tolist() for index in unread}
            reasons = {(number, place): unread[index] for index, (number, place, _) in places.items()}
            yield Piece([], self._records(shape, joined, sorted(unread)), reasons)

    def _made(self, part: Part, joined: Joined, indices: list[int]) -> Made:
        """The rows: of what is ordinary at once, and of the others one by one."""
        rows = self._at_once(part, joined, indices)
        if rows is None:
            return rows_of(part.shape, [self._placed(joined, index) for index in indices])
        odd = np.flatnonzero(rows.is_odd).tolist()
        made = rows_of(part.shape, [self._placed(joined, indices[row]) for row in odd])
        unread = {odd[row]: reason for row, reason in made.unread.items()}
        return Made([*rows.ordinary(), *made.batches], unread, made.problem)

    def _at_once(self, part: Part, joined: Joined, indices: list[int]) -> Rows | None:
        if part.readers is None:
            return None
        local = np.array(indices) - part.first
        heads, placed = self.heads.window(part.first, part.end), joined.placed.window(part.first, part.end)[local]
        kept, wanted = self.kept.table(part.kept), (np.cumsum(heads["kind"] != EMPTY) - 1)[local]
        if len(wanted) < kept.num_rows:
            kept = kept.take(wanted)
        partitions = np.array([r.partition for r in self.reader.ranges], np.int32)
        places = Places(
            partition=partitions[heads["partition"][local]], offset=heads["offset"][local],
            number=placed["number"].copy(), place=placed["place"].copy(),
        )  # fmt: skip
        rows = rows_at_once(part.shape, part.readers, kept, places)
        if rows is not None:
            is_half = (heads["op"] == ord("c")) & np.isin(heads["xid"], [*joined.lacking])
            rows.is_odd[part.is_odd[local] | (placed["old"] >= 0) | is_half[local]] = True
        return rows

    def _placed(self, joined: Joined, index: int) -> Placed:
        head, placed = self.heads[index], joined.placed[index]
        of, old = self.reader.ranges[head["partition"]], int(placed["old"])
        return Placed(
            self.envelope(index), of.partition, int(head["offset"]), int(placed["number"]), int(placed["place"]),
            None if old < 0 else self.envelope(old).before, is_half=self._is_half(joined, index),
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
        envelope = placed.envelope if placed else None
        is_alone = self.reader.told is None and shape.topic in self.reader.wide
        has_no_before = envelope is not None and envelope.op == "u" and envelope.before is None
        head, (number, place, _) = self.heads[index], joined.placed[index].tolist()
        return Event(
            partition=self.reader.ranges[head["partition"]].partition, offset=int(head["offset"]),
            number=number, place=place,
            at=envelope.committed_at if envelope else EPOCH + timedelta(milliseconds=int(head["at"])),
            xid=envelope.xid if envelope else None, value=value,
            old=placed.old if placed else None, format=form,
            is_unordered=envelope is not None and envelope.op == "t" and is_alone,
            is_half=placed is not None and placed.is_half,
            counted_in=joined.counted.get(index), keyed_by=self.keys.get(shape.topic) if has_no_before else None,
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

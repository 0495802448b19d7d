"""Where topics go on from the position of a slot that was read before them: without a gap, and without a change twice.

The END of a transaction tells where its commit record ends, so what the slot has brought is what ends at or below its
position. That holds from the snapshot of the connector on: a connector that began after the slot's position knows
nothing of what was deleted in between, and is refused. So are topics that have lost events of what comes next.

A partition has transactions in the order of their commits. So what nothing tells of itself, since its END is gone or
never came, or since it cannot be read, has landed if something behind it has.
"""

from array import array
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from ingestion.schema.offsets import Offsets, Partition
from ingestion.schema.transaction_offsets import TransactionOffsets
from ingestion.sources.base import NEAR
from ingestion.sources.debezium.at_once.scan import Scanned, scanned
from ingestion.sources.debezium.gathered import MILLISECOND, Gathered
from ingestion.sources.debezium.join.heads import EVENT
from ingestion.sources.debezium.join.joined import CLOCKS, SKEW, STALLED, Told
from ingestion.sources.debezium.message.envelope import EPOCH, End, envelope_of
from ingestion.sources.debezium.ranges import EnvelopeRanges
from ingestion.sources.debezium.spool import Spool
from ingestion.sources.kafka.events import one_chunk
from ingestion.sources.kafka.reading import Range
from ingestion.sources.kafka.values import Unread

AGAIN = (
    "declare the slot again, ingest once a change has come through the connector, and move then; nothing has "
    "changed in the lake"
)
LATER = timedelta(minutes=1)  # clocks differ
Place = Literal["landed", "beside", "left", "unknown"]


def position_after(
    reader: EnvelopeRanges, starts: Mapping[Partition, int], landed: int, recent: Collection[int]
) -> TransactionOffsets:
    """The position from which the topics that `reader` reads go on after a slot.

    `landed` is the position below which the slot's commits have landed, `recent` the xids of those just below it.
    Raises LakehouseError where that would lose changes, or where it cannot be told.
    """
    of = reader.told
    if of is None:
        raise reader.refused("its transactions are not told: set `transactions` of the source to their topic")
    work = Gathered(reader, Spool())
    try:
        told = _Ends(landed)
        told.read(_checked(reader, work.told(of, work.strays)))
        work.check_heard(of)
        ahead = [one.end for one in told.behind if one.end]
        reached = max([landed, *(e.lsn for e in ahead if e.lsn <= landed + NEAR and e.xid in recent)])
        seen = _Seen(work, told, reached, told.first - SKEW if told.first and of.first else None)
        offsets = {(r.topic, r.partition): seen.first_left(r) for r in reader.ranges}
        _check_reach(reader, seen, reached, is_whole=of.first == 0)
        for r in reader.ranges:
            seen.count_left(Range(r.topic, r.partition, offsets[r.topic, r.partition], r.end, 0))
    finally:
        work.close()
    _check_whole(reader, seen, told.behind, reached)
    at = max(datetime.now(UTC), told.latest) + LATER
    parts = Offsets.of({**starts, **offsets, (of.topic, of.partition): of.first}).parts
    return TransactionOffsets(parts, reached, int((at - EPOCH).total_seconds() * 1_000_000), reached)


class _Ends:
    """What the transaction topic tells, which may be of years: of each END two numbers, and all of those `behind` what
    has landed. `first` is when the broker got the first of them, `latest` the latest commit."""

    def __init__(self, landed: int) -> None:
        self._landed, self._xids, self._lsns = landed, array("q"), array("q")
        self.behind: list[Told] = []
        self.first: datetime | None = None
        self.latest = EPOCH

    def read(self, told: Iterable[Told]) -> None:
        """Takes them."""
        for one in told:
            if (end := one.end) is None:
                continue
            self._xids.append(end.xid)
            self._lsns.append(end.lsn)
            self.first, self.latest = self.first or one.at, max(self.latest, end.at)
            if end.lsn > self._landed:
                self.behind.append(one)

    def by_xid(self, reached: int) -> tuple[np.ndarray, np.ndarray]:
        """The xids in their order, and of each whether it has landed; what was told last of one is behind."""
        xids, lsns = np.frombuffer(self._xids, np.int64), np.frombuffer(self._lsns, np.int64)
        order = np.argsort(xids, kind="stable")
        return xids[order], lsns[order] <= reached


class _Seen:
    """What the topics have of the time before, and how much of the time after. A transaction with an END has landed if
    that is not beyond `reached`; what came before `forgotten_to` and has none has."""

    def __init__(self, work: Gathered, told: _Ends, reached: int, forgotten_to: datetime | None) -> None:
        self._work, self._reached = work, reached
        self._xids, self.has_landed = told.by_xid(reached)
        self._forgotten_to = (forgotten_to - EPOCH) // MILLISECOND if forgotten_to else 0
        self.rows = self.is_over = False  # whether a snapshot's rows came, and the last of them
        self.left: defaultdict[str, Counter[int]] = defaultdict(Counter)  # by relation, the events of transactions
        self.unread: Counter[str] = Counter()

    def _known(self, xids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of each transaction whether it has an END, and whether it has landed by that."""
        if not len(self._xids):
            return np.zeros(len(xids), bool), np.zeros(len(xids), bool)
        at = np.searchsorted(self._xids, xids, side="right") - 1  # -1 is the last one, whose xid is greater
        is_known = self._xids[at] == xids
        return is_known, is_known & self.has_landed[at]

    def first_left(self, of: Range) -> int:
        """The offset of the first message of a partition that the slot has not brought, or may not have."""
        unknown: int | None = None
        for topic, messages in self._work.reader.messages([of]):
            if unknown is None and self._all_landed(topic, messages):
                continue
            for message in messages.to_pylist():
                place = self._place(topic, message) if message["value"] is not None else "beside"
                if place == "landed":
                    unknown = None
                elif place == "left":
                    return int(message["offset"]) if unknown is None else unknown
                elif place == "unknown" and unknown is None:
                    unknown = int(message["offset"])
        return of.end if unknown is None else unknown

    def count_left(self, of: Range) -> None:
        """Counts what is there of each transaction."""
        for topic, messages in self._work.reader.messages([of] if of.first < of.end else []):
            relation, found = self._work.reader.shapes[topic].counted_as, self._scanned(topic, messages)
            if found is not None and not found.is_odd.any():
                xids, counts = np.unique(found.xid[found.kind == EVENT], return_counts=True)
                self.left[relation].update(dict(zip(xids.tolist(), counts.tolist(), strict=True)))
                continue
            for message in messages.to_pylist():
                if message["value"] is not None:
                    self._count(topic, relation, message["value"])

    def _count(self, topic: str, relation: str, value: bytes) -> None:
        try:
            envelope = envelope_of(self._work.opener(self._work.reader.shapes[topic].format).open(value))
        except Unread:
            self.unread[relation] += 1
            return
        if envelope.transaction is not None:
            self.left[relation][envelope.transaction.xid] += 1

    def _scanned(self, topic: str, messages: pa.Table) -> Scanned | None:
        """Messages in columns, None where each has to be looked at."""
        reader, shape = self._work.reader, self._work.reader.shapes[topic]
        values = one_chunk(messages.column("value")).drop_null()
        opened = self._work.opener(shape.format).bodies(values) if len(values) else None
        readers = self._work.column_readers(shape, opened[0]) if opened else None
        if opened is None or readers is None:
            return None
        return scanned(shape, readers, opened[1], told=reader.told is not None, alone=False)

    def _all_landed(self, topic: str, messages: pa.Table) -> bool:
        """Whether the slot has brought all of them, as far as that shows in columns: a topic may have a long past."""
        found = self._scanned(topic, messages)
        if found is None:
            return messages.column("value").null_count == messages.num_rows
        if found.is_odd.any() or found.read_to > self._reached:
            return False
        is_event = found.kind == EVENT
        xids = found.xid[is_event]
        valued = messages.filter(messages.column("value").is_valid())
        at = (one_chunk(valued.column("at")).view(pa.int64()).to_numpy() // 1000)[is_event]
        is_known, has_landed = self._known(xids)
        if not (has_landed | ((at < self._forgotten_to) & ~is_known)).all():
            return False
        self.rows |= not is_event.all()
        self.is_over |= found.ends_snapshot
        return True

    def _place(self, topic: str, message: Mapping[str, Any]) -> Place:
        """Where a message is; what is `beside` says nothing of those around it."""
        reader, shape = self._work.reader, self._work.reader.shapes[topic]
        try:
            envelope = envelope_of(self._work.opener(shape.format).open(message["value"]))
        except Unread:
            return "unknown"  # it goes to the dead letters, unless it is of the time before
        if envelope.transaction is not None:
            is_known, has_landed = (found[0] for found in self._known(np.array([envelope.transaction.xid])))
            if not is_known:
                is_forgotten = (message["at"] - EPOCH) // MILLISECOND < self._forgotten_to
                return "landed" if is_forgotten else "unknown"
            return "landed" if has_landed else "left"
        if (envelope.lsn or 0) > self._reached:
            where = f"topic {topic}, partition {message['partition']}, offset {message['offset']}"
            raise reader.refused(
                f"{where}: the connector's snapshot is newer than what the lake has read by the slot, so what was "
                f"deleted in between would stay: {AGAIN}",
            )
        self.rows = True
        self.is_over |= envelope.snapshot == "last"
        return "beside" if envelope.snapshot == "incremental" else "landed"


def _checked(reader: EnvelopeRanges, told: Iterable[Told]) -> Iterator[Told]:
    """The same; raises LakehouseError where commits went back while time went on: what was before is of another
    history."""
    last: End | None = None
    for one in told:
        yield one
        if (end := one.end) is None:
            continue
        if last is not None and end.lsn < last.lsn and end.at > last.at + CLOCKS:
            raise reader.refused(
                "its topics have transactions of a database that was restored, or that another one took the place of, "
                f"at {end.at:%Y-%m-%d %H:%M:%S} UTC: let the connector write to topics of another prefix; nothing has "
                "changed in the lake"
            )
        last = end if last is None or end.lsn > last.lsn else last


def _check_reach(reader: EnvelopeRanges, seen: _Seen, reached: int, *, is_whole: bool) -> None:
    if not len(seen.has_landed) and not seen.is_over:
        raise reader.refused(f"the connector's snapshot is not over, or nothing has come yet: {AGAIN}")
    if not seen.has_landed.any() and not (is_whole and seen.rows):
        raise reader.refused(
            "nothing in its topics is as old as what the lake has read by the slot, so changes in between may be in "
            f"neither: {AGAIN}",
        )


def _check_whole(reader: EnvelopeRanges, seen: _Seen, told: Sequence[Told], reached: int) -> None:
    """Raises LakehouseError where an END of what the slot has not brought counts events that are not there: retention
    or compaction has taken them. What has just been sent may not be visible yet, and where Connect was restarted within
    a transaction, its counts are void."""
    followed = {shape.counted_as for shape in reader.shapes.values()}
    for one in told:
        end = one.end
        if end is None or end.lsn <= reached or reader.now - one.at <= STALLED:
            continue
        for relation in followed & end.counts.keys():
            there, wanted = seen.left[relation][end.xid] + seen.unread[relation], end.counts[relation]
            if there < (wanted if reader.exactly_once else min(wanted, 1)):
                raise reader.refused(
                    f"{there} of {wanted} events of {relation} are in its topics of transaction {end.xid}, which the "
                    "slot has not brought: retention or compaction took the others, and they would be missing: declare "
                    "the slot again, ingest until nothing is behind, and move then; nothing has changed in the lake"
                )

"""Where topics go on from the position of a slot that was read before them: without a gap, and without a change twice.

The END of a transaction tells where its commit record ends, so what the slot has brought is what ends at or below its
position. That holds from the snapshot of the connector on: a connector that began after the slot's position knows
nothing of what was deleted in between, and is refused.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa

from ingestion.schema.offsets import Offsets, Partition
from ingestion.schema.transaction_offsets import TransactionOffsets
from ingestion.sources.base import NEAR
from ingestion.sources.debezium.at_once.scan import scanned
from ingestion.sources.debezium.envelope import EPOCH, End, envelope_of
from ingestion.sources.debezium.gathered import Gathered
from ingestion.sources.debezium.join.heads import EVENT
from ingestion.sources.debezium.reading import EnvelopeReader
from ingestion.sources.debezium.spool import Spool, one_chunk
from ingestion.sources.kafka.reading import Range
from ingestion.sources.kafka.values import Unread

AGAIN = (
    "declare the slot again, ingest once a change has come through the connector, and move then; nothing has "
    "changed in the lake"
)
LATER = timedelta(minutes=1)  # clocks differ


def position_after(
    reader: EnvelopeReader, starts: Mapping[Partition, int], landed: int, recent: Collection[int]
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
        ends = [one.end for one in work.told(of) if one.end]
        reached = max([landed, *(e.lsn for e in ends if landed < e.lsn <= landed + NEAR and e.xid in recent)])
        known = {end.xid: end.lsn <= reached for end in ends}
        seen = _Seen(work, known, reached)
        offsets = {(r.topic, r.partition): seen.first_left(r) for r in reader.ranges}
    finally:
        work.spool.close()
        work.kept.close()
    _check_reach(reader, seen, ends, reached, is_whole=of.first == 0)
    at = max([datetime.now(UTC), *(end.at for end in ends)]) + LATER
    parts = Offsets.of({**starts, **offsets, (of.topic, of.partition): of.first}).parts
    return TransactionOffsets(parts, reached, int((at - EPOCH).total_seconds() * 1_000_000), reached)


class _Seen:
    """What the topics have of the time before."""

    def __init__(self, work: Gathered, known: Mapping[int, bool], reached: int) -> None:
        self._work, self._known, self._reached = work, known, reached
        self._landed = np.array([xid for xid, has_landed in known.items() if has_landed], np.int64)
        self.rows = self.is_over = False  # whether a snapshot's rows came, and the last of them

    def first_left(self, of: Range) -> int:
        """The offset of the first message of a partition that the slot has not brought."""
        for topic, messages in self._work.reader.messages([of]):
            if self._all_landed(topic, messages):
                continue
            for message in messages.to_pylist():
                if message["value"] is not None and not self._is_landed(topic, message):
                    return int(message["offset"])
        return of.end

    def _all_landed(self, topic: str, messages: pa.Table) -> bool:
        """Whether the slot has brought all of them, as far as that shows in columns: a topic may have a long past."""
        reader, shape = self._work.reader, self._work.reader.shapes[topic]
        values = one_chunk(messages.column("value")).drop_null().to_pylist()
        opened = self._work.opener(shape.format).bodies(values) if values else None
        readers = self._work.column_readers(shape, opened[0]) if opened else None
        if opened is None or readers is None:
            return not values
        found = scanned(shape, readers, opened[1], told=reader.told is not None, alone=False)
        if found is None or found.is_odd.any() or found.read_to > self._reached:
            return False
        is_event = found.kind == EVENT
        if not np.isin(found.xid[is_event], self._landed).all():
            return False
        self.rows |= not is_event.all()
        self.is_over |= found.ends_snapshot
        return True

    def _is_landed(self, topic: str, message: Mapping[str, Any]) -> bool:
        reader, shape = self._work.reader, self._work.reader.shapes[topic]
        try:
            envelope = envelope_of(self._work.opener(shape.format).open(message["value"]))
        except Unread:
            return False  # it goes to the dead letters
        if envelope.transaction is not None:
            return self._known.get(envelope.transaction.xid, False)
        if (envelope.lsn or 0) > self._reached:
            where = f"topic {topic}, partition {message['partition']}, offset {message['offset']}"
            raise reader.refused(
                f"{where}: the connector's snapshot is newer than what the lake has read by the slot, so what was "
                f"deleted in between would stay: {AGAIN}",
            )
        self.rows = True
        self.is_over |= envelope.snapshot == "last"
        return True


def _check_reach(reader: EnvelopeReader, seen: _Seen, ends: Sequence[End], reached: int, *, is_whole: bool) -> None:
    if not ends and not seen.is_over:
        raise reader.refused(f"the connector's snapshot is not over, or nothing has come yet: {AGAIN}")
    if not any(end.lsn <= reached for end in ends) and not (is_whole and seen.rows):
        raise reader.refused(
            "nothing in its topics is as old as what the lake has read by the slot, so changes in between may be in "
            f"neither: {AGAIN}",
        )

"""What readers of a table saw at a moment, by its current metadata."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from lakehouse.catalog.open import PUBLISHED, PUT_BACK

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

EPOCH = datetime.fromtimestamp(0, UTC)


def milliseconds(moment: datetime) -> int:
    """A moment as Iceberg counts it."""
    return (moment - EPOCH) // timedelta(milliseconds=1)


def seen_at(metadata: TableMetadata, at: int, snapshot_id: int) -> int:
    """When readers saw a snapshot to which the table came at that time, in milliseconds: with its whole build."""
    return max(at, int(metadata.properties.get(f"{PUBLISHED}{snapshot_id}", 0)))


def newest_until(metadata: TableMetadata, moment: datetime) -> tuple[int | None, bool]:
    """The snapshot that a table had at a moment, None if it had none, and whether that is certain: not where snapshots
    between it and the next one that is kept have expired, as where a pin kept it for longer than those after it. Nor
    before the table was made: another one may have had its name.

    A snapshot that replaces a table begins the log of snapshots anew: all those of before count. Where the table was
    restored to one of them, or they were published later than made, as all of one build are, a property says so.
    """
    until, current = milliseconds(moment), metadata.current_snapshot()
    numbers = {snapshot.snapshot_id: _number(snapshot) for snapshot in metadata.snapshots}

    def move(at: int, snapshot_id: int) -> tuple[int, int, int]:
        """When the table came to a snapshot, for readers; of those of one build, the last one counts."""
        return seen_at(metadata, at, snapshot_id), numbers.get(snapshot_id, 0), snapshot_id

    log = [move(entry.timestamp_ms, entry.snapshot_id) for entry in metadata.snapshot_log]
    if current is not None and not log:
        log = [move(current.timestamp_ms, current.snapshot_id)]
    if log and log[-1][0] <= until:
        return log[-1][2], True
    built = [move(snapshot.timestamp_ms, snapshot.snapshot_id) for snapshot in metadata.snapshots]
    logged_since = min((entry.timestamp_ms for entry in metadata.snapshot_log), default=metadata.last_updated_ms)
    before = (move(s.timestamp_ms, s.snapshot_id) for s in metadata.snapshots if s.timestamp_ms < logged_since)
    moves = (*before, *log, *(move(*found) for found in _put_back(metadata)))
    _, _, found = max((each for each in moves if each[0] <= until), default=(0, 0, None))
    earlier = (number for at, number, _ in built if at <= until)
    later = (number for at, number, _ in built if at > until)
    last: int = getattr(metadata, "last_sequence_number", 0)  # format version 1 has none, and tells of no gap
    has_all = all(numbers.values()) and min(later, default=last + 1) <= max(earlier, default=0) + 1
    if found is None:
        made = min((entry.timestamp_ms for entry in metadata.metadata_log), default=metadata.last_updated_ms)
        return None, has_all and made <= until
    return found, has_all and metadata.snapshot_by_id(found) is not None


def _put_back(metadata: TableMetadata) -> Iterator[tuple[int, int]]:
    """When the table was restored, and to which snapshot."""
    for key, value in metadata.properties.items():
        if key.startswith(PUT_BACK):
            yield int(key.removeprefix(PUT_BACK)), int(value)


def _number(snapshot: Snapshot) -> int:
    """Snapshots of a table are numbered from 1 without gaps, in whatever order they are read."""
    return snapshot.sequence_number or 0

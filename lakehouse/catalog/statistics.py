"""Keeps statistics when the snapshot that they were computed from expires.

Engines search for a table's statistics in the current snapshot and its ancestors. When ingestion expires the oldest
snapshots, their newest statistics are attached to the first that stays. Each blob of a statistics file names the
snapshot that it was computed from, so it stays correct. A property records the number of rows changed between the two
snapshots, and the time of the statistics, so that they still become stale.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from lakehouse.catalog.open import DATA_OPERATIONS

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot
    from pyiceberg.table.statistics import StatisticsFile
    from pyiceberg.table.update import TableUpdate

CARRIED = "lakehouse.statistics"  # <rows changed until the snapshot they are at>@<when they were made, in milliseconds>


def rows_changed(snapshot: Snapshot) -> int:
    """The number of rows that a snapshot added and deleted; 0 if it only rewrote rows."""
    if snapshot.summary is None or snapshot.summary.operation.value not in DATA_OPERATIONS:
        return 0
    numbers = snapshot.summary.additional_properties
    return sum(int(numbers.get(key, 0)) for key in ("added-records", "deleted-records"))


def origin(metadata: TableMetadata, statistics: StatisticsFile) -> tuple[int, int]:
    """Rows changed between the statistics and the snapshot they are at, and when they were made, in milliseconds."""
    snapshot = metadata.snapshot_by_id(statistics.snapshot_id)
    assert snapshot is not None, "statistics are of a snapshot that is there"
    carried = metadata.properties.get(CARRIED)
    if carried is None or any(blob.snapshot_id == snapshot.snapshot_id for blob in statistics.blob_metadata):
        return 0, snapshot.timestamp_ms
    changed, _, made = carried.partition("@")
    return int(changed), int(made)


def carry(metadata: TableMetadata, gone: Collection[int]) -> tuple[TableUpdate, ...]:
    """The updates that attach the newest statistics of expiring snapshots to the first later one that stays; none if
    later snapshots have statistics."""
    from pyiceberg.table.update import SetPropertiesUpdate, SetStatisticsUpdate

    line = sorted(metadata.snapshots, key=lambda snapshot: snapshot.sequence_number or 0)
    last = max(place for place, snapshot in enumerate(line) if snapshot.snapshot_id in gone)
    described = {statistics.snapshot_id: statistics for statistics in metadata.statistics}
    places = [place for place, snapshot in enumerate(line) if snapshot.snapshot_id in described]
    if not places or places[-1] > last or line[places[-1]].snapshot_id not in gone:
        return ()
    statistics, stays = described[line[places[-1]].snapshot_id], line[last + 1]
    changed, made = origin(metadata, statistics)
    changed += sum(map(rows_changed, line[places[-1] + 1 : last + 2]))
    return (
        SetStatisticsUpdate(statistics=statistics.model_copy(update={"snapshot_id": stays.snapshot_id})),
        SetPropertiesUpdate(updates={CARRIED: f"{changed}@{made}"}),
    )

"""Sizes and histories of a table from its Iceberg metadata; no data file is opened."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lakehouse.catalog.open import DATA_OPERATIONS, history, total
from lakehouse.catalog.statistics import origin, rows_changed
from maintenance.inventory.outcome import Figures

if TYPE_CHECKING:
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot


def measure(table: Table) -> Figures:
    """The table's current size: one manifest list is read."""
    snapshot = table.current_snapshot()
    return Figures(
        files=total(snapshot, "total-data-files"),
        bytes=total(snapshot, "total-files-size"),
        delete_files=total(snapshot, "total-delete-files"),
        manifests=len(live_manifests(table)),
        snapshots=len(table.metadata.snapshots),
    )


def measure_all(table: Table) -> Figures:
    """`measure` with the bytes of the table's metadata file, which costs one more request."""
    return replace(measure(table), metadata_bytes=metadata_size(table))


def metadata_size(table: Table) -> int:
    """Bytes of the table's current metadata file, as it is stored."""
    return len(table.io.new_input(table.metadata_location))


def live_manifests(table: Table) -> list[ManifestFile]:
    """The current snapshot's manifests with live files (the next commit drops the others)."""
    snapshot = table.current_snapshot()
    manifests = snapshot.manifests(table.io) if snapshot else []
    return [manifest for manifest in manifests if manifest.has_added_files() or manifest.has_existing_files()]


def newest_data_chain(table: Table) -> list[Snapshot]:
    """The current snapshot back to the newest one that changed data, inclusive.

    Sensors follow this chain to tell new data from a compaction, so no snapshot of it may be missing.
    """
    chain = []
    for snapshot in history(table.metadata):
        chain.append(snapshot)
        if snapshot.summary is None or snapshot.summary.operation.value in DATA_OPERATIONS:
            break
    return chain


def unanalyzed_share(table: Table) -> tuple[float, int | None]:
    """The share of rows added or deleted since the newest statistics, at most 1, and the time of those in ms."""
    metadata = table.metadata
    described = {statistics.snapshot_id: statistics for statistics in metadata.statistics}
    rows, changed = total(table.current_snapshot(), "total-records"), 0
    for snapshot in history(metadata):
        if (statistics := described.get(snapshot.snapshot_id)) is not None:
            before, made_ms = origin(metadata, statistics)
            return (min(1.0, (before + changed) / rows) if rows else 0.0), made_ms
        changed += rows_changed(snapshot)
    return (1.0 if rows else 0.0), None

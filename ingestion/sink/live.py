"""The next metadata of a table with rows that are not published: what the catalog service shows as its live state.

Each state is staged on the one before it, so that its metadata has the snapshots of the earlier ones: who has pinned
one reads it until the rows are published. The files of states that have passed are left to orphan removal.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation

from ingestion.sink.publish import drop_surplus
from ingestion.sink.writer import Written
from lakehouse.catalog.lake_catalog import LakeCatalog
from lakehouse.catalog.live_tables import POSITION, SNAPSHOT
from lakehouse.catalog.private_pyiceberg import Staging
from lakehouse.catalog.writing.manifests import TieredAppend


@dataclass(frozen=True)
class StagedTable:
    """A table's next metadata, made from what it had at `base_location`, with this many of the held files."""

    base_location: str
    base_snapshot: int | None
    table: Table
    files: int


def stage_live(
    catalog: LakeCatalog, base: Table, before: StagedTable | None, held: Written, position: str,
    cycle_id: str, max_snapshots: int,
) -> StagedTable:  # fmt: skip
    """Stages the held files that the state `before` lacks; all of them where the table has moved on since."""
    if before is None or before.base_location != base.metadata_location:
        before = StagedTable(base.metadata_location, base.metadata.current_snapshot_id, base, 0)
    table, new = before.table, held.files[before.files :]
    transaction, snapshot = Staging(table), table.metadata.current_snapshot_id
    if new:
        summary = {"lakehouse.cycle": cycle_id}
        update = TieredAppend(Operation.APPEND, transaction, table.io, snapshot_properties=summary)
        with update:
            for file in new:
                update.append_data_file(file)
        snapshot = update.snapshot_id
    transaction.set_properties({SNAPSHOT: str(snapshot), POSITION: position})
    drop_surplus(transaction, table.metadata, max_snapshots)
    staged = transaction.stage(catalog, table)
    shown = Table(table.name(), staged.metadata, staged.metadata_location, table.io, catalog)
    return StagedTable(before.base_location, before.base_snapshot, shown, len(held.files))

"""Measures a table's health from its metadata and one listing of the warehouse; no data file is opened.

The policy sets the limits: files below 75 % of its target size are small, objects older than its limit are orphans.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lakehouse.catalog.open import total
from lakehouse.declarations.policies import MaintenancePolicy
from maintenance.actions.registry import ACTIONS
from maintenance.inventory.figures import live_manifests, metadata_size
from maintenance.inventory.health import Health
from maintenance.inventory.lake import Lake
from maintenance.inventory.outcome import TableName
from maintenance.inventory.session import Session

if TYPE_CHECKING:
    from pyiceberg.table import Table


def measure_health(session: Session, name: TableName, policy: MaintenancePolicy) -> Health | None:
    """The table's health by its policy; None if it is not in the lake."""
    lake = session.lake()
    table, found = lake.tables.get(name), dict[str, Any]()
    for action in ACTIONS:
        found |= action.module.inspect(session, name, table, policy)
    if table is None:
        return Health(**found) if any(found.values()) else None
    return Health(**_sizes(lake, name, table) | found)


def _sizes(lake: Lake, name: TableName, table: Table) -> dict[str, Any]:
    snapshot, manifests, objects = table.current_snapshot(), len(live_manifests(table)), lake.objects_of(name)
    listed = next((stored.size for stored in objects if stored.path == table.metadata_location), 0)
    return {
        "rows": total(snapshot, "total-records"),
        "files": total(snapshot, "total-data-files"),
        "bytes": total(snapshot, "total-files-size"),
        "delete_files": total(snapshot, "total-delete-files"),
        "manifests": manifests,
        "needed_manifests": manifests,
        "snapshots": len(table.metadata.snapshots),
        "metadata_bytes": listed or metadata_size(table),  # newer than the listing
        "metadata_files": len(table.metadata.metadata_log),
        "objects": len(objects),
        "object_bytes": sum(stored.size for stored in objects),
    }

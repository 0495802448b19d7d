"""How a table is, measured: from its metadata and one listing of the warehouse; no data file is opened.

The policy says what counts: files below 75 % of its target size are small, objects older than its limit are orphans.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from lakehouse.declarations.policies import CompactPolicy, MaintenancePolicy
from maintenance.actions.clean_dbt_temporary import temporary_things
from maintenance.actions.expire_snapshots import expirable, properties_to_set
from maintenance.actions.layout import plan_for
from maintenance.inventory import removed
from maintenance.inventory.figures import live_manifests, metadata_size, total, unanalyzed_share
from maintenance.inventory.lake import Lake, StoredObject
from maintenance.inventory.outcome import TableName
from maintenance.inventory.removed import RemovedFile
from maintenance.inventory.session import Session
from maintenance.inventory.unreferenced import unreferenced

if TYPE_CHECKING:
    from pyiceberg.table import Table


@dataclass(frozen=True)
class Health:
    """A table's state in numbers; sizes in bytes. A part that the policy leaves out is 0, as nothing is to be done."""

    rows: int = 0
    files: int = 0
    bytes: int = 0
    small_files: int = 0
    small_bytes: int = 0
    rewritable_files: int = 0  # small files in partitions that have enough of them
    rewritable_bytes: int = 0  # of those, and of partitions that are to be sorted as a whole
    rewritable_partitions: int = 0
    reserved_column: str | None = None  # keeps Spark from rewriting data that is worth it
    delete_files: int = 0
    due_delete_files: int = 0  # all of them, where there are enough to be dealt with
    snapshots: int = 0
    expirable_snapshots: int = 0
    manifests: int = 0
    needed_manifests: int = 0  # so many would do; as many as there are where a rewrite is not worth it
    metadata_bytes: int = 0
    metadata_files: int = 0  # earlier ones that the table's log names
    properties_to_set: int = 0  # that keep this log as long as declared
    objects: int = 0
    object_bytes: int = 0
    orphans: int = 0  # and what was removed before and is due to be deleted
    orphan_bytes: int = 0
    kept_aside: int = 0  # removed before, restorable for a while yet
    kept_aside_bytes: int = 0
    temporary: int = 0  # relations and objects that dbt left
    temporary_bytes: int = 0
    unanalyzed_share: float = 0.0  # rows changed since the statistics, of all; 1 without any
    statistics_age_hours: float | None = None

    @property
    def small_share(self) -> float:
        """Small files among all data files, from 0 to 1."""
        return self.small_files / self.files if self.files else 0.0

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {"small_share": round(self.small_share, 4)}


def measure_health(session: Session, name: TableName, policy: MaintenancePolicy) -> Health | None:
    """The table's health by its policy; None when it is not in the lake."""
    lake = session.lake()
    table, left = lake.tables.get(name), _left_by_dbt(session, name, policy)
    if table is None:
        return Health(**left) if left["temporary"] else None
    objects = lake.objects_of(name)
    return Health(
        **left,
        **_data(table, policy.compact),
        **_snapshots(session, name, table, policy),
        **_metadata(table, objects),
        **_orphans(session, name, policy, objects),
        **_statistics(session, table, policy),
    )


def _data(table: Table, rule: CompactPolicy | None) -> dict[str, Any]:
    snapshot, manifests = table.current_snapshot(), live_manifests(table)
    figures: dict[str, Any] = {
        "rows": total(snapshot, "total-records"),
        "files": total(snapshot, "total-data-files"),
        "bytes": total(snapshot, "total-files-size"),
        "delete_files": total(snapshot, "total-delete-files"),
        "manifests": len(manifests),
        "needed_manifests": len(manifests),
    }
    if rule is None:
        return figures
    plan = plan_for(table, rule)
    return figures | {
        "small_files": plan.small_files,
        "small_bytes": plan.small_bytes,
        "rewritable_files": plan.files,
        "rewritable_bytes": plan.bytes,
        "rewritable_partitions": plan.partitions,
        "reserved_column": plan.reserved,
        "due_delete_files": figures["delete_files"] if plan.deletes else 0,
        "needed_manifests": 1 if plan.manifests else len(manifests),
    }


def _snapshots(session: Session, name: TableName, table: Table, policy: MaintenancePolicy) -> dict[str, Any]:
    rule, there = policy.expire_snapshots, len(table.metadata.snapshots)
    if rule is None:
        return {"snapshots": there}
    named = session.snapshots_of_cuts(name, rule.older_than_hours)
    limit_ms = int(session.ago(rule.older_than_hours).timestamp() * 1000)
    return {
        "snapshots": there,
        "expirable_snapshots": len(expirable(table, rule, named, limit_ms)),
        "properties_to_set": len(properties_to_set(table, rule)),
    }


def _metadata(table: Table, objects: Collection[StoredObject]) -> dict[str, Any]:
    size = next((stored.size for stored in objects if stored.path == table.metadata_location), 0)
    return {
        "metadata_bytes": size or metadata_size(table),  # newer than the listing
        "metadata_files": len(table.metadata.metadata_log),
    }


def _orphans(
    session: Session, name: TableName, policy: MaintenancePolicy, objects: Collection[StoredObject]
) -> dict[str, Any]:
    figures = {"objects": len(objects), "object_bytes": sum(stored.size for stored in objects)}
    rule, lake = policy.remove_orphan_files, session.lake()
    if rule is None or lake.sharing_location(name):
        return figures
    gone = session.once(f"lake.removed.{name}", lambda: _removed(session, name))
    since = session.ago(policy.keep_removed_hours or 0)
    aside = [stored.size for stored in objects if (file := gone.get(stored.path)) and file.removed_at > since]
    due = [stored.size for stored in objects if (file := gone.get(stored.path)) and file.removed_at <= since]
    found = unreferenced(lake, name, session.ago(rule.older_than_hours), gone)
    orphans = [*due, *(stored.size for stored in found)]
    return figures | {
        "orphans": len(orphans),
        "orphan_bytes": sum(orphans),
        "kept_aside": len(aside),
        "kept_aside_bytes": sum(aside),
    }


def _removed(session: Session, name: TableName) -> dict[str, RemovedFile]:
    with removed.catalog_database(session.settings) as connection:
        return removed.recorded(connection, name)


def _left_by_dbt(session: Session, name: TableName, policy: MaintenancePolicy) -> dict[str, Any]:
    if policy.clean_dbt_temporary is None:
        return {"temporary": 0, "temporary_bytes": 0}
    lake, limit = session.lake(), session.ago(policy.clean_dbt_temporary.older_than_hours)
    all_relations, all_prefixes = temporary_things(session)
    young = [r for r in all_relations.get(name, []) if _changed_since(lake, r.name, limit)]
    objects = [o for prefix in all_prefixes.get(name, []) if prefix.newest < limit for o in prefix.objects]
    count = len(all_relations.get(name, [])) - len(young) + len(objects)
    return {"temporary": count, "temporary_bytes": sum(stored.size for stored in objects)}


def _changed_since(lake: Lake, name: TableName, limit: datetime) -> bool:
    """Whether a table is younger than the limit; a view's age is only looked at by the action."""
    table = lake.tables.get(name)
    return table is not None and table.metadata.last_updated_ms >= limit.timestamp() * 1000


def _statistics(session: Session, table: Table, policy: MaintenancePolicy) -> dict[str, Any]:
    if policy.statistics is None:
        return {}
    share, made_ms = unanalyzed_share(table)
    age = None if made_ms is None else (session.now.timestamp() * 1000 - made_ms) / 3_600_000
    return {"unanalyzed_share": share, "statistics_age_hours": age}

"""Expires all old snapshots of a table and deletes their files, whatever its retention says.

The commit that replaces a subject's files lists them again, as deleted, with the bounds of their values. Therefore one
more commit without changes makes a snapshot that lists only live files, and all others are expired. Files that only the
others referred to are recorded, then unreferenced, then deleted, so that after a kill the next run finishes. Files that
maintenance keeps for a restore are deleted too.
"""

from __future__ import annotations

from collections.abc import Collection

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from pyiceberg.table.update import RemoveSnapshotsUpdate, RemoveStatisticsUpdate, TableUpdate

from erasure import tombstones
from erasure.rewrite import SUMMARY
from lakehouse.catalog.pins import refuse_pinned
from lakehouse.catalog.views.current_views import TAG
from lakehouse.catalog.views.regular import only_current
from lakehouse.catalog.views.tags import is_tag
from lakehouse.catalog.writing.bulk_delete import delete_objects
from lakehouse.catalog.writing.commit import retried, until_committed
from lakehouse.errors import LakehouseError
from lakehouse.servers.database import CatalogConnection
from maintenance.inventory import removed
from maintenance.inventory.in_use import all_tables, living_on
from maintenance.inventory.reachable import reachable_files

AGAIN = "run the erasure again"


def check_references(table: Table) -> None:
    """Raises LakehouseError for a tag or another branch, which would keep old snapshots.

    The tags of a view's snapshot are a mirror's, and go with it. Those of regular rows go with the history.
    """
    refuse_pinned(_name(table), [table])
    if kept := sorted(name for name in table.metadata.refs if name not in ("main", TAG) and not is_tag(name)):
        raise LakehouseError(f"{_name(table)}: tag or branch {', '.join(kept)} keeps old snapshots: drop it first")


def check_copies(catalog: SqlCatalog, tables: Collection[tuple[str, str]]) -> None:
    """Raises LakehouseError if another table lives on files of one of these, such as a restored copy, also of a copy:
    the erasure would delete files that it needs."""
    if found := living_on(all_tables(catalog), tables):
        raise LakehouseError("; ".join(found))


def list_live_files(catalog: SqlCatalog, identifier: tuple[str, str]) -> None:
    """Commits a snapshot without changes: its manifests list only live files."""

    def append(table: Table) -> None:
        with table.transaction() as transaction, transaction.update_snapshot(snapshot_properties=SUMMARY).fast_append():
            pass

    retried(catalog, identifier, append, AGAIN)


def expire_history(catalog: SqlCatalog, states: CatalogConnection, identifier: tuple[str, str]) -> int:
    """Expires every snapshot but the current one and drops all statistics; returns the number of expired snapshots."""
    before = len(catalog.load_table(identifier).metadata.snapshots)
    until_committed(catalog, identifier, _drop_statistics, AGAIN)
    until_committed(catalog, identifier, lambda table: only_current(table.metadata), AGAIN)  # no view names the others

    def expire(table: Table) -> tuple[TableUpdate, ...]:
        check_references(table)  # a pin may have come since the search
        current = table.metadata.current_snapshot_id
        old = [s.snapshot_id for s in table.metadata.snapshots if s.snapshot_id != current]
        kept_aside = removed.recorded(states, identifier).keys()
        past = reachable_files(table) - reachable_files(_only_now(table))
        tombstones.record_files_to_delete(states, identifier, past | kept_aside)
        return (RemoveSnapshotsUpdate(snapshot_ids=old),) if old else ()

    until_committed(catalog, identifier, expire, AGAIN)
    return before - len(catalog.load_table(identifier).metadata.snapshots)


def delete_expired_files(catalog: SqlCatalog, states: CatalogConnection, identifier: tuple[str, str]) -> int:
    """Deletes the recorded files, except those that the table still refers to; returns how many."""
    paths = tombstones.files_to_delete(states, identifier)
    if not paths:
        return 0
    table = catalog.load_table(identifier)
    unreferenced = paths - reachable_files(table)
    delete_objects(table.io, unreferenced)
    removed.forget(states, paths)
    tombstones.forget_files_to_delete(states, identifier)
    return len(unreferenced)


def _only_now(table: Table) -> Table:
    """The table with its current snapshot only."""
    current = [s for s in table.metadata.snapshots if s.snapshot_id == table.metadata.current_snapshot_id]
    slim = table.metadata.model_copy(update={"snapshots": current, "statistics": [], "partition_statistics": []})
    return Table(table.name(), slim, table.metadata_location, table.io, table.catalog)


def _drop_statistics(table: Table) -> tuple[TableUpdate, ...]:
    return tuple(RemoveStatisticsUpdate(snapshot_id=s.snapshot_id) for s in table.metadata.statistics)


def _name(table: Table) -> str:
    return ".".join(table.name())

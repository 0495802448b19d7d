"""Cuts a table's past off and deletes its files, whatever its retention says.

The commit that replaced a subject's files names them once more, as deleted, with the bounds of their values; so one
more snapshot without changes is made, which lists living files only, and every other one is expired. Files that only
those referred to are written down, then cut off, then deleted: killed anywhere, the next run finishes. So are those
that maintenance has taken out of use and keeps for a restore: that is over for the whole table.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from pyiceberg.table.update.snapshot import ExpireSnapshots

from erasure import tombstones
from erasure.rewrite import SUMMARY
from lakehouse.catalog.bulk_delete import delete_objects
from lakehouse.catalog.commit import retried
from lakehouse.errors import LakehouseError
from lakehouse.servers.database import CatalogConnection
from maintenance.inventory import removed
from maintenance.inventory.in_use import copies
from maintenance.inventory.reachable import reachable_files

AGAIN = "run the erasure again"


def check_references(table: Table) -> None:
    """Raises LakehouseError for a tag or another branch: it would keep what is to be erased."""
    if kept := sorted(name for name in table.metadata.refs if name != "main"):
        raise LakehouseError(f"{_name(table)}: tag or branch {', '.join(kept)} keeps old snapshots: drop it first")


def check_copies(catalog: SqlCatalog, tables: Iterable[tuple[str, str]]) -> None:
    """Raises LakehouseError where a table was restored beside one of these: nobody knows what else is in it."""
    for table in tables:
        if found := copies(catalog, table):
            raise LakehouseError(f"{'.'.join(table)}: {', '.join(map(str, found))} is a restored copy: drop it first")


def list_the_living(catalog: SqlCatalog, identifier: tuple[str, str]) -> None:
    """A snapshot that changes nothing and names only files that are there."""

    def append(table: Table) -> None:
        with table.transaction() as transaction, transaction.update_snapshot(snapshot_properties=SUMMARY).fast_append():
            pass

    retried(catalog, identifier, append, AGAIN)


def cut_off(catalog: SqlCatalog, states: CatalogConnection, identifier: tuple[str, str]) -> int:
    """Expires every snapshot but the current one and drops all statistics; returns how many snapshots went."""
    before = len(catalog.load_table(identifier).metadata.snapshots)
    retried(catalog, identifier, _drop_statistics, AGAIN)

    def expire(table: Table) -> None:
        current = table.metadata.current_snapshot_id
        old = [s.snapshot_id for s in table.metadata.snapshots if s.snapshot_id != current]
        kept_aside = removed.recorded(states, identifier).keys()
        past = reachable_files(table) - reachable_files(_only_now(table))
        tombstones.condemn(states, identifier, past | kept_aside)
        if old:
            _expiry(table).by_ids(old).commit()

    retried(catalog, identifier, expire, AGAIN)
    return before - len(catalog.load_table(identifier).metadata.snapshots)


def delete_condemned(catalog: SqlCatalog, states: CatalogConnection, identifier: tuple[str, str]) -> int:
    """Deletes what was cut off, except what the table refers to after all; returns how many files."""
    paths = tombstones.condemned(states, identifier)
    if not paths:
        return 0
    table = catalog.load_table(identifier)
    doomed = paths - reachable_files(table)
    delete_objects(table.io, doomed)
    removed.forget(states, paths)
    tombstones.executed(states, identifier)
    return len(doomed)


def _only_now(table: Table) -> Table:
    """The table as it will be without its past."""
    current = [s for s in table.metadata.snapshots if s.snapshot_id == table.metadata.current_snapshot_id]
    slim = table.metadata.model_copy(update={"snapshots": current, "statistics": [], "partition_statistics": []})
    return Table(table.name(), slim, table.metadata_location, table.io, table.catalog)


def _drop_statistics(table: Table) -> None:
    for statistics in table.metadata.statistics:
        table.update_statistics().remove_statistics(statistics.snapshot_id).commit()
        table = table.refresh()


def _expiry(table: Table) -> ExpireSnapshots:
    return table.maintenance.expire_snapshots()


def _name(table: Table) -> str:
    return ".".join(table.name())

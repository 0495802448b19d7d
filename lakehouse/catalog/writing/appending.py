"""Appends to many tables at once: rows, and what loads remember of themselves, in one transaction of the catalog.

Readers see all of a load or nothing. A table is appended to in the state in which it was read, and in no other one: of
two loads at once, which would both add what neither has found, the later adds nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from pyiceberg.table.snapshots import Operation

from lakehouse.catalog.private_pyiceberg import Staging, data_files
from lakehouse.catalog.writing.commit import move_pointer
from lakehouse.catalog.writing.manifests import TieredAppend

if TYPE_CHECKING:
    import psycopg
    import pyarrow as pa
    from pyiceberg.table import StagedTable, Table

    from lakehouse.catalog.lake_catalog import LakeCatalog

STAGING_THREADS = 4


@dataclass(frozen=True)
class Append:
    """Rows for a table as it was read, none of them perhaps; and what it is to remember with the snapshot they make."""

    table: Table
    rows: pa.Table
    remember: Mapping[str, str] = field(default_factory=dict)


class _Changed(Exception):
    """Another writer has moved a table's pointer."""


def append_all(connection: psycopg.Connection[Any], catalog: LakeCatalog, appends: Sequence[Append]) -> bool:
    """Appends all of it, or nothing: False if another writer has changed one of the tables since it was read."""
    wanted = [append for append in appends if append.rows.num_rows or append.remember]
    with ThreadPoolExecutor(STAGING_THREADS) as pool:  # most of it is waiting for the object store
        staged = list(zip(wanted, pool.map(partial(_stage, catalog), wanted), strict=True))
    try:
        with connection.transaction():
            for append, after in sorted(staged, key=lambda pair: pair[0].table.name()):
                name, before = _name(append.table), append.table.metadata_location
                if not move_pointer(connection, catalog.name, name, before, after.metadata_location):
                    raise _Changed
    except _Changed:
        return False
    for append, after in staged:
        catalog.remember(_name(append.table), after.metadata_location, after.metadata)
    return True


def _stage(catalog: LakeCatalog, append: Append) -> StagedTable:
    staging, snapshot = Staging(append.table), append.table.metadata.current_snapshot_id
    if append.rows.num_rows:
        files = data_files(append.table.metadata, append.rows, append.table.io)
        with TieredAppend(Operation.APPEND, staging, append.table.io) as update:
            for file in files:
                update.append_data_file(file)
        snapshot = update.snapshot_id
    if append.remember and snapshot is not None:
        staging.set_properties({key: f"{value}|{snapshot}" for key, value in append.remember.items()})
    return staging.stage(catalog, append.table)


def _name(table: Table) -> tuple[str, str]:
    namespace, name = table.name()
    return namespace, name

"""The copies in which the next state of mirrors is built, and the transaction that puts them in the mirrors' place.

A copy is a row of the catalog, in the namespace `next_mirror_<source>`, that names the mirror's own metadata file. What
Spark commits to it, nobody sees. A killed refresh leaves copies behind; the next one begins with new ones.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
import pyarrow as pa
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from ingestion.mirrors.views import NextView, Since, swap, unreached
from ingestion.sink.meta_tables import MIRRORS, ensure_mirrors
from ingestion.sink.publication import TableAppend
from ingestion.sink.publish import TABLE_PROPERTIES, Staged, stage_append
from ingestion.state import lease as leases
from ingestion.state import store
from ingestion.state.lease import Lease
from lakehouse.catalog.lake_catalog import LakeCatalog
from lakehouse.catalog.next_names import Name, next_name
from lakehouse.catalog.private_pyiceberg import data_files
from lakehouse.catalog.writing.commit import enter, move_pointer, remove
from lakehouse.errors import LakehouseError
from lakehouse.servers.database import CatalogConnection
from lakehouse.servers.retry import until_answered
from lakehouse.settings import Settings

Connection = psycopg.Connection[Any]
MAX_CONFLICTS = 50
PROPERTIES = TABLE_PROPERTIES | {
    "write.delete.mode": "merge-on-read",
    "write.delete.granularity": "file",
    "write.delete.distribution-mode": "none",
    "write.distribution-mode": "none",
}


@dataclass(frozen=True)
class Next:
    """A mirror's next metadata file, and the one that it replaces; None for a new mirror."""

    mirror: Name
    base: str | None
    location: str


class MirrorChanged(LakehouseError):
    """A compaction, say, has committed to a mirror since its copy was made."""


def make_room(catalog: LakeCatalog, mirror: Name) -> None:
    """Makes the namespaces of a mirror and of its copy, unless they are there."""
    for namespace in (mirror[0], next_name(mirror)[0]):
        catalog.create_namespace_if_not_exists(namespace)


def begin(states: CatalogConnection, catalog: LakeCatalog, mirror: Name, location: str, branch: str) -> Table:
    """A copy of a mirror that stands at this metadata file, in the place of one that a killed refresh has left.

    It has no such branch. The mirror may have one: a restored catalog can name the file of an unfinished copy.
    """
    with states.transaction():
        remove(states, catalog.name, next_name(mirror))
        enter(states, catalog.name, next_name(mirror), location)
    copy = catalog.load_table(next_name(mirror))
    if branch in copy.metadata.refs:
        copy.manage_snapshots().remove_branch(branch).commit()
    return copy


def forget(states: CatalogConnection, catalog: LakeCatalog, mirrors: Collection[Name]) -> None:
    """Drops the copies; their files stay for orphan removal, unless a mirror names them."""
    for mirror in mirrors:
        remove(states, catalog.name, next_name(mirror))


def create(states: CatalogConnection, catalog: LakeCatalog, mirror: Name, schema: Schema, comment: str) -> Table:
    """An empty copy of a mirror that does not exist yet, at the place where the mirror will be."""
    remove(states, catalog.name, next_name(mirror))
    return catalog.create_table(
        next_name(mirror),
        schema,
        location=location_of(catalog, mirror),
        partition_spec=UNPARTITIONED_PARTITION_SPEC,
        properties=PROPERTIES | {"comment": comment},
    )


def settle(catalog: LakeCatalog, mirror: Name, branch: str) -> Table:
    """The copy, whose newest state is that of the branch if it has one."""
    copy = catalog.load_table(next_name(mirror))
    if (written := copy.metadata.refs.get(branch)) is not None:
        with copy.manage_snapshots() as manage:
            manage.set_current_snapshot(written.snapshot_id).remove_branch(branch)
    return copy


def location_of(catalog: LakeCatalog, mirror: Name) -> str:
    """Where the files of a mirror are."""
    warehouse = str(catalog.properties["warehouse"]).rstrip("/")
    return f"{warehouse}/{mirror[0]}/{mirror[1]}"


@dataclass(frozen=True)
class Published:
    """What one refresh makes visible: the mirrors that changed, views that name other states of them, and its row.

    There is none where views alone change. The refresh knows of no publish of the source after `seen`, whose cut ends
    at `cut_lsn`.
    """

    source: str
    seen: datetime
    cut_lsn: int
    mirrors: Sequence[Next]
    views: Sequence[NextView]
    row: Mapping[str, object] | None


def publish(settings: Settings, catalog: LakeCatalog, lease: Lease, made: Published) -> None:
    """Points all mirrors and views to their next state and adds the row to `meta.mirrors`, in one transaction.

    Raises LeaseLost, and MirrorChanged if another writer has changed a mirror.
    """
    for _ in range(MAX_CONFLICTS):
        row = None if made.row is None else _staged_row(settings, catalog, made.row)
        if _swapped(settings, catalog, lease, made, row):
            return
    raise LakehouseError(f"meta.mirrors: {MAX_CONFLICTS} commits of other writers in a row; nothing was lost")


def _staged_row(settings: Settings, catalog: LakeCatalog, row: Mapping[str, object]) -> Staged:
    table = ensure_mirrors(catalog)
    files = tuple(data_files(table.metadata, _as_arrow(table, row), table.io))
    append = TableAppend(MIRRORS, files, {"lakehouse.source": str(row["source"])})
    return stage_append(catalog, append, settings.ingestion.max_snapshots)


def _as_arrow(table: Table, row: Mapping[str, object]) -> pa.Table:
    return pa.Table.from_pylist([dict(row)], schema=table.schema().as_arrow())


def _swapped(settings: Settings, catalog: LakeCatalog, lease: Lease, made: Published, row: Staged | None) -> bool:
    """False if another refresh has added a row meanwhile."""
    done: list[bool] = []

    def attempt() -> None:
        with store.connect_catalog(settings) as connection, connection.transaction():
            leases.check(connection, lease, settings.ingestion.lease_seconds)
            # The lease's row is locked now, so an earlier attempt has either committed or gone.
            since = _since(connection, made)
            still = unreached(connection, catalog.name, made.views)
            landed = row is not None and _names(connection, catalog.name, row.identifier, row.new_location)
            if not landed and _added(connection, catalog.name, row):
                for mirror in sorted(made.mirrors, key=lambda item: item.mirror):
                    _put(connection, catalog.name, mirror)
                swap(connection, catalog.name, made.views, since, still)
                landed = True
            done.append(landed)

    until_answered(attempt, what=f"publish of {lease.source}")
    return done[-1]


def _since(connection: CatalogConnection, made: Published) -> Since:
    """What publishes that the refresh knows nothing of have brought.

    From here on none comes before the end of the transaction; the next one finds the short text and replaces it. A row
    that a repair lands at a position before the refresh's is in none of its texts, and readers may have seen it.
    """
    if all(view.table is None for view in made.views):
        return Since(frozenset(), frozenset())
    leases.hold_off(connection, made.source)
    return store.irregular_since(connection, made.source, made.seen, made.cut_lsn)


def _added(connection: Connection, catalog: str, row: Staged | None) -> bool:
    return row is None or move_pointer(connection, catalog, row.identifier, row.old_location, row.new_location)


def _put(connection: Connection, catalog: str, mirror: Next) -> None:
    if mirror.base is None:
        enter(connection, catalog, mirror.mirror, mirror.location)
    elif not move_pointer(connection, catalog, mirror.mirror, mirror.base, mirror.location):
        raise MirrorChanged(f"{'.'.join(mirror.mirror)} was changed by another writer during its refresh")
    remove(connection, catalog, next_name(mirror.mirror))


def _names(connection: Connection, catalog: str, name: Name, location: str) -> bool:
    found = connection.execute(
        "SELECT 1 FROM iceberg_tables WHERE catalog_name = %s AND table_namespace = %s AND table_name = %s"
        " AND metadata_location = %s",
        (catalog, *name, location),
    ).fetchone()
    return found is not None

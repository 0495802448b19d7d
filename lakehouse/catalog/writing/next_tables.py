"""Tables that are built and tested beside the ones that readers see, then published together.

A copy of a table is a row of the catalog that names the same metadata file. What replaces the copy writes a metadata
file of its own, below the table's location and with the table's history. To publish is to point the tables there, all
in one transaction: history stays, and no file is copied.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from lakehouse.catalog.next_names import Name, next_name
from lakehouse.catalog.objects import list_objects
from lakehouse.catalog.open import PUBLISHED, PUT_BACK
from lakehouse.catalog.pins import CUT
from lakehouse.catalog.private_pyiceberg import Staging
from lakehouse.catalog.relations import Relation, TableName, list_relations
from lakehouse.catalog.writing.bulk_delete import delete_objects
from lakehouse.catalog.writing.commit import enter, move_pointer
from lakehouse.errors import LakehouseError

if TYPE_CHECKING:
    import psycopg
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.io.pyarrow import PyArrowFileIO
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

    from lakehouse.catalog.lake_catalog import LakeCatalog

    Connection = psycopg.Connection[Any]

Comments = Mapping[str, str]  # by column
LOCK = "lakehouse.next_tables"
KEPT = (PUBLISHED, PUT_BACK, CUT)
BUILT_FROM = "lakehouse.built-from"  # property of a table that is built whole: see rebuilt_table.sql

ENTER = (  # all marts of a project, for each build of a few
    "INSERT INTO iceberg_tables (catalog_name, table_namespace, table_name, metadata_location, iceberg_type)"
    " SELECT %s, *, 'TABLE' FROM unnest(%s::text[], %s::text[], %s::text[])"
)
DROP = (
    "DELETE FROM iceberg_tables WHERE catalog_name = %s AND (table_namespace, table_name) IN"
    " (SELECT * FROM unnest(%s::text[], %s::text[]))"
)


@contextmanager
def building_next(
    catalog: LakeCatalog, tables: Mapping[Name, Comments], tested: Mapping[Name, str] = MappingProxyType({})
) -> Iterator[set[Name]]:
    """Copies the tables, and publishes at the end those that the block puts into the set.

    Each gets the comments of its columns, which a replacement loses. Drops the copies if the block raises. One builds
    at a time; another waits until the first has published, or its session has ended. Raises LakehouseError if another
    writer has changed a table in the meantime, or a copy since it was `tested`: the block puts in its metadata file.
    """
    sound: set[Name] = set()
    with no_next_tables(catalog) as connection:
        bases = begin(connection, catalog, tables)
        try:
            yield sound
            publish(connection, catalog, {name: tables[name] for name in sound}, bases, tested)
        finally:
            made = _locations(connection, catalog.name, [next_name(table) for table in tables if table not in bases])
            with connection.transaction():
                drop_next(connection, catalog.name, tables)
            with suppress(Exception):  # what stays goes with the clean-up of dbt's temporary objects
                for name, location in made.items():
                    delete_unowned(catalog, Relation(TableName(*name), "table", location))


@contextmanager
def no_next_tables(catalog: SqlCatalog) -> Iterator[Connection]:
    """A session during which nobody else builds. It also publishes: one that was lost has lost the lock."""
    pooled = catalog.engine.raw_connection()
    connection: Connection = pooled.driver_connection  # type: ignore[assignment]
    pooled.detach()
    try:
        connection.autocommit = True
        connection.execute("SELECT pg_advisory_lock(hashtext(%s))", (f"{LOCK}/{catalog.name}",))
        yield connection
    finally:
        connection.close()


def begin(connection: Connection, catalog: LakeCatalog, tables: Collection[Name]) -> dict[Name, str]:
    """Copies the tables that exist; the metadata file of each. What a killed build has left is dropped."""
    for namespace in {next_name(table)[0] for table in tables}:
        catalog.create_namespace_if_not_exists(namespace)
    with connection.transaction():
        drop_next(connection, catalog.name, tables)
        bases = _locations(connection, catalog.name, tables)
        copies = [(*next_name(table), location) for table, location in bases.items()]
        if copies:
            connection.execute(ENTER, (catalog.name, *map(list, zip(*copies, strict=True))))
    return bases


def publish(
    connection: Connection,
    catalog: LakeCatalog,
    tables: Mapping[Name, Comments],
    bases: Mapping[Name, str],
    tested: Mapping[Name, str],
) -> None:
    """Points the tables at their next state, all or none.

    Raises LakehouseError if another writer, such as a compaction, has changed one of them since `begin`, or its copy
    since it was `tested`, as a statement that a killed build has left in Trino does.
    """
    copies = catalog.load_tables([next_name(table) for table in tables])
    built = {table: copies[next_name(table)] for table in sorted(tables) if next_name(table) in copies}
    for table, copy in built.items():
        if tested.get(table, copy.metadata_location) != copy.metadata_location:
            raise LakehouseError(f"{'.'.join(table)} was built by another once it was tested: build it again")
    changed = {table: copy for table, copy in built.items() if bases.get(table) != copy.metadata_location}
    before = catalog.load_tables([table for table in changed if table in bases])
    made = _snapshots_since(before, changed)
    now = int(datetime.now(UTC).timestamp() * 1000)
    at = max([now, *(snapshot.timestamp_ms for new in made.values() for snapshot in new)])
    locations = {
        table: _finished(
            catalog,
            copy,
            tables[table],
            _noted(before.get(table)) | {f"{PUBLISHED}{s.snapshot_id}": str(at) for s in made[table]},
        )
        for table, copy in changed.items()
    }
    with connection.transaction():
        for table, location in locations.items():
            if table not in bases:
                enter(connection, catalog.name, table, location)
            elif not move_pointer(connection, catalog.name, table, bases[table], location):
                raise LakehouseError(
                    f"{'.'.join(table)} was changed by another writer during the build: build it again"
                )


def _noted(table: Table | None) -> dict[str, str]:
    """What is noted of a table's past, which Trino leaves out where it replaces the table."""
    return {key: value for key, value in table.properties.items() if key.startswith(KEPT)} if table else {}


def _snapshots_since(before: Mapping[Name, Table], tables: Mapping[Name, Table]) -> dict[Name, list[Snapshot]]:
    """The snapshots of each table that it did not have before."""
    known = {name: {snapshot.snapshot_id for snapshot in table.metadata.snapshots} for name, table in before.items()}
    return {
        name: [snapshot for snapshot in table.metadata.snapshots if snapshot.snapshot_id not in known.get(name, ())]
        for name, table in tables.items()
    }


def _finished(catalog: LakeCatalog, table: Table, comments: Comments, noted: Mapping[str, str]) -> str:
    """The metadata file of the table with these comments on its columns, and what is noted of its past: when its
    snapshots were published, and what else a replacement leaves out.

    One build makes its tables at several times, and readers see them at one.
    """
    fields, kept = table.schema().fields, {f"{PUBLISHED}{found.snapshot_id}" for found in table.metadata.snapshots}
    lacking = {f.name: comments[f.name] for f in fields if comments.get(f.name) and comments[f.name] != f.doc}
    expired = [key for key in table.properties if key.startswith(PUBLISHED) and key not in kept]
    noted = {
        key: value
        for key, value in noted.items()
        if table.properties.get(key) != value and (key in kept or not key.startswith(PUBLISHED))
    }
    if not (lacking or expired or noted):
        return table.metadata_location
    staging = Staging(table)
    if lacking:
        with staging.update_schema() as update:
            for name, comment in lacking.items():
                update.update_column(name, doc=comment)
    if expired:
        staging.remove_properties(*expired)
    if noted:
        staging.set_properties(noted)
    return staging.stage(catalog, table).metadata_location


def drop_next(connection: Connection, catalog: str, tables: Collection[Name]) -> None:
    """Forgets the copies. Their files stay: below a table's location orphan removal finds those that it does not name,
    and those of a table that was never published go with the clean-up of dbt's temporary objects."""
    copies = list(map(next_name, tables))
    connection.execute(DROP, (catalog, [namespace for namespace, _ in copies], [name for _, name in copies]))


def delete_unowned(catalog: LakeCatalog, gone: Relation) -> None:
    """Deletes the objects at the place of a copy that the catalog does not name any more, unless another relation is
    there, above it or below it."""
    if "/metadata/" not in gone.metadata_location:
        return  # it does not tell its place
    places = (relation.location for relation in list_relations(catalog))
    if not any(place.startswith(gone.location) or gone.location.startswith(place) for place in places):
        io = cast("PyArrowFileIO", catalog.file_io)
        delete_objects(io, {stored.path for stored in list_objects(io, gone.location)})


def _locations(connection: Connection, catalog: str, tables: Collection[Name]) -> dict[Name, str]:
    rows = connection.execute(
        "SELECT table_namespace, table_name, metadata_location FROM iceberg_tables WHERE catalog_name = %s"
        " AND iceberg_type IS DISTINCT FROM 'VIEW' AND (table_namespace, table_name) IN"
        " (SELECT * FROM unnest(%s::text[], %s::text[]))",
        (catalog, [namespace for namespace, _ in tables], [name for _, name in tables]),
    )
    return {(namespace, name): location for namespace, name, location in rows}

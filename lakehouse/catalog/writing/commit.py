"""A commit on exactly the state that was inspected.

PyIceberg's own commit loads the table again and applies the updates to its new state: expiry would remove a snapshot
that was tagged in between. Here a concurrent commit is a conflict, and the caller inspects the table again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from pyiceberg.catalog.sql import IcebergTables
from pyiceberg.exceptions import CommitFailedException
from sqlalchemy import update
from sqlalchemy.orm import Session

from lakehouse.catalog.objects import sync_objects
from lakehouse.catalog.private_pyiceberg import stage
from lakehouse.errors import LakehouseError

if TYPE_CHECKING:
    import psycopg
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.table import Table
    from pyiceberg.table.update import TableUpdate

T = TypeVar("T")
MAX_CONFLICTS = 20


def retried(
    catalog: SqlCatalog, name: tuple[str, str], change: Callable[[Table], T], remedy: str = "run it again"
) -> T:
    """Applies `change` to the current table, and again after a concurrent commit.

    Raises LakehouseError when others commit all the time.
    """
    for _ in range(MAX_CONFLICTS):
        try:
            return change(catalog.load_table(name))
        except CommitFailedException:
            continue
    raise LakehouseError(f"{'.'.join(name)}: {MAX_CONFLICTS} commits of other writers in a row; {remedy}")


def until_committed(
    catalog: SqlCatalog,
    name: tuple[str, str],
    change: Callable[[Table], tuple[TableUpdate, ...]],
    remedy: str = "run it again",
) -> bool:
    """Commits the updates that `change` returns for the current table, see `retried`; whether there were any."""

    def commit(loaded: Table) -> bool:
        if made := change(loaded):
            commit_on(catalog, loaded, made)
        return bool(made)

    return retried(catalog, name, commit, remedy)


def commit_on(catalog: SqlCatalog, table: Table, updates: tuple[TableUpdate, ...]) -> Table:
    """Commits updates to this state of the table; raises CommitFailedException after a concurrent commit."""
    namespace, name = table.name()
    staged = stage(catalog, table, updates)
    sync_objects(table.io)  # a raw table whose metadata a power loss took has lost its rows
    swap(catalog, (namespace, name), table.metadata_location, staged.metadata_location)
    return catalog.load_table((namespace, name))


def move_pointer(connection: psycopg.Connection[Any], catalog: str, name: tuple[str, str], old: str, new: str) -> bool:
    """Points the table at another metadata file within a transaction; False if it no longer points to `old`."""
    done = connection.execute(
        "UPDATE iceberg_tables SET metadata_location = %s, previous_metadata_location = %s"
        " WHERE catalog_name = %s AND table_namespace = %s AND table_name = %s AND metadata_location = %s",
        (new, old, catalog, *name, old),
    )
    return done.rowcount == 1


def pointers(
    connection: psycopg.Connection[Any],
    catalog: str,
    names: Collection[tuple[str, str]],
    *,
    are_views: bool = False,
    hold: bool = False,
) -> dict[tuple[str, str], str]:
    """The metadata files that tables, or views, point to within a transaction, without those that do not exist; `hold`
    keeps them there until it ends."""
    rows = connection.execute(
        "SELECT table_namespace, table_name, metadata_location FROM iceberg_tables"
        " JOIN unnest(%s::text[], %s::text[]) AS asked (namespace, name)"
        " ON table_namespace = asked.namespace AND table_name = asked.name"
        " WHERE catalog_name = %s AND (iceberg_type IS NOT DISTINCT FROM 'VIEW') = %s"
        + (" ORDER BY 1, 2 FOR SHARE OF iceberg_tables" if hold else ""),
        ([namespace for namespace, _ in names], [name for _, name in names], catalog, are_views),
    ).fetchall()
    return {(namespace, name): location for namespace, name, location in rows}


def enter(connection: psycopg.Connection[Any], catalog: str, name: tuple[str, str], location: str) -> None:
    """Adds a table to the catalog within a transaction."""
    connection.execute(
        "INSERT INTO iceberg_tables (catalog_name, table_namespace, table_name, metadata_location, iceberg_type)"
        " VALUES (%s, %s, %s, %s, 'TABLE')",
        (catalog, *name, location),
    )


def remove(connection: psycopg.Connection[Any], catalog: str, name: tuple[str, str]) -> None:
    """Removes a table or view from the catalog within a transaction; its files stay."""
    connection.execute(
        "DELETE FROM iceberg_tables WHERE catalog_name = %s AND table_namespace = %s AND table_name = %s",
        (catalog, *name),
    )


def remove_at(connection: psycopg.Connection[Any], catalog: str, name: tuple[str, str], old: str) -> bool:
    """The same within a transaction, of a table that points to `old`; False if it does not point there any more."""
    done = connection.execute(
        "DELETE FROM iceberg_tables WHERE catalog_name = %s AND table_namespace = %s AND table_name = %s"
        " AND metadata_location = %s",
        (catalog, *name, old),
    )
    return done.rowcount == 1


def swap(catalog: SqlCatalog, identifier: tuple[str, str], before: str, after: str) -> None:
    """Points the table at another metadata file; raises CommitFailedException if it no longer points to `before`."""
    swap_together(catalog, [(identifier, before, after)])


def swap_together(catalog: SqlCatalog, moves: Iterable[tuple[tuple[str, str], str, str]]) -> None:
    """Points tables and views (name, before, after) at other metadata files, all or none; raises as `swap` does."""
    with Session(catalog.engine) as session:
        for (namespace, name), before, after in moves:
            statement = (
                update(IcebergTables)
                .where(
                    IcebergTables.catalog_name == catalog.name,
                    IcebergTables.table_namespace == namespace,
                    IcebergTables.table_name == name,
                    IcebergTables.metadata_location == before,
                )
                .values(metadata_location=after, previous_metadata_location=before)
            )
            if session.execute(statement).rowcount != 1:  # type: ignore[attr-defined]
                raise CommitFailedException(f"{namespace}.{name} was changed by another writer")
        session.commit()

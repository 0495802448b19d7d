"""A commit on exactly the state that was looked at.

PyIceberg's own commit loads the table again and applies the updates to whatever is there by then: a tag that was made
in between would go with the snapshot that is removed. Here a table that has moved on refuses, and the caller looks
again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from pyiceberg.catalog.sql import IcebergTables
from pyiceberg.exceptions import CommitFailedException
from sqlalchemy import update
from sqlalchemy.orm import Session

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
    """What `change` makes of the table as it is; after a commit of another writer, of the table as it is then.

    Raises LakehouseError when others commit all the time.
    """
    for _ in range(MAX_CONFLICTS):
        try:
            return change(catalog.load_table(name))
        except CommitFailedException:
            continue
    raise LakehouseError(f"{'.'.join(name)}: {MAX_CONFLICTS} commits of other writers in a row; {remedy}")


def until_committed(catalog: SqlCatalog, name: tuple[str, str], change: Callable[[Table], TableUpdate | None]) -> None:
    """Commits what `change` makes of the table as it is, see `retried`; None is nothing to do."""

    def commit(loaded: Table) -> None:
        if (made := change(loaded)) is not None:
            commit_on(catalog, loaded, (made,))

    retried(catalog, name, commit)


def commit_on(catalog: SqlCatalog, table: Table, updates: tuple[TableUpdate, ...]) -> Table:
    """Commits updates to the table as `table` shows it; raises CommitFailedException when it has moved on."""
    namespace, name = table.name()
    staged = stage(catalog, table, updates)
    swap(catalog, (namespace, name), table.metadata_location, staged.metadata_location)
    return catalog.load_table((namespace, name))


def move_pointer(connection: psycopg.Connection[Any], catalog: str, name: tuple[str, str], old: str, new: str) -> bool:
    """Points the table at another metadata file as part of a transaction; False when it is not at `old` any more."""
    done = connection.execute(
        "UPDATE iceberg_tables SET metadata_location = %s, previous_metadata_location = %s"
        " WHERE catalog_name = %s AND table_namespace = %s AND table_name = %s AND metadata_location = %s",
        (new, old, catalog, *name, old),
    )
    return done.rowcount == 1


def enter(connection: psycopg.Connection[Any], catalog: str, name: tuple[str, str], location: str) -> None:
    """Adds a table that the catalog does not have, as part of a transaction."""
    connection.execute(
        "INSERT INTO iceberg_tables (catalog_name, table_namespace, table_name, metadata_location, iceberg_type)"
        " VALUES (%s, %s, %s, %s, 'TABLE')",
        (catalog, *name, location),
    )


def remove(connection: psycopg.Connection[Any], catalog: str, name: tuple[str, str]) -> None:
    """Takes a table or view out of the catalog, as part of a transaction; its files stay."""
    connection.execute(
        "DELETE FROM iceberg_tables WHERE catalog_name = %s AND table_namespace = %s AND table_name = %s",
        (catalog, *name),
    )


def swap(catalog: SqlCatalog, identifier: tuple[str, str], before: str, after: str) -> None:
    """Points the table at another metadata file; raises CommitFailedException when it is not at `before` any more."""
    namespace, name = identifier
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
    with Session(catalog.engine) as session:
        if session.execute(statement).rowcount != 1:  # type: ignore[attr-defined]
            raise CommitFailedException(f"{namespace}.{name} was changed by another writer")
        session.commit()

"""Files that maintenance has taken out of use and not deleted yet: `lakehouse.removed_files` in the catalog database.

A file is recorded before the commit that ends its use, so that a kill loses nothing. The purge checks again whether a
recorded file is in use.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from psycopg.rows import class_row

from lakehouse.catalog.locations import one_spelling, spellings
from lakehouse.migrations import ensure_state
from lakehouse.servers.database import CatalogConnection, connect_catalog

if TYPE_CHECKING:
    from lakehouse.settings import Settings

Name = tuple[str, str]


@dataclass(frozen=True)
class RemovedFile:
    """A file out of use. `size` is None if unknown; `metadata_location` is the table's metadata file before.

    The path is in one spelling; an earlier release may have recorded another.
    """

    path: str
    size: int | None
    removed_at: datetime
    action: str
    metadata_location: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", one_spelling(self.path))


@contextmanager
def catalog_database(settings: Settings) -> Iterator[CatalogConnection]:
    """A connection in autocommit mode, with the state's tables created; raises LakehouseError."""
    with connect_catalog(settings) as connection:
        ensure_state(connection)
        yield connection


def record(
    connection: CatalogConnection,
    table: Name,
    files: Iterable[tuple[str, int | None]],
    action: str,
    metadata_location: str,
) -> None:
    """Records files as removed now, with their sizes; the time of a recorded file is reset."""
    rows = [(one_spelling(path), *table, size, action, metadata_location) for path, size in files]
    with connection.transaction(), connection.cursor() as cursor:
        cursor.executemany(
            'INSERT INTO lakehouse.removed_files (path, namespace, "table", size, action, metadata_location)'
            " VALUES (%s, %s, %s, %s, %s, %s) ON CONFLICT (path) DO UPDATE SET removed_at = excluded.removed_at,"
            " action = excluded.action, metadata_location = excluded.metadata_location",
            rows,
        )


def recorded(connection: CatalogConnection, table: Name) -> dict[str, RemovedFile]:
    """The removed files of a table by path."""
    return {file.path: file for file in _select(connection, table, None)}


def recorded_by_table(connection: CatalogConnection) -> dict[Name, dict[str, RemovedFile]]:
    """The removed files of all tables."""
    found: dict[Name, dict[str, RemovedFile]] = defaultdict(dict)
    rows = connection.execute(
        'SELECT namespace, "table", path, size, removed_at, action, metadata_location FROM lakehouse.removed_files'
    )
    for namespace, table, *file in rows:
        each = RemovedFile(*file)
        found[namespace, table][each.path] = each
    return found


def due(connection: CatalogConnection, table: Name, keep_hours: float) -> list[RemovedFile]:
    """The table's files removed at least `keep_hours` ago by the database's clock, oldest first."""
    return _select(connection, table, keep_hours)


def forget(connection: CatalogConnection, paths: Collection[str]) -> set[str]:
    """Removes files from the record: they are deleted, or in use again. Returns those that were recorded."""
    asked = [spelled for path in paths for spelled in spellings(path)]
    found = connection.execute("DELETE FROM lakehouse.removed_files WHERE path = ANY(%s) RETURNING path", (asked,))
    return {one_spelling(path) for (path,) in found}


def _select(connection: CatalogConnection, table: Name, keep_hours: float | None) -> list[RemovedFile]:
    age = "" if keep_hours is None else " AND removed_at <= clock_timestamp() - %s * interval '1 hour'"
    values = table if keep_hours is None else (*table, keep_hours)
    with connection.cursor(row_factory=class_row(RemovedFile)) as cursor:
        return cursor.execute(
            "SELECT path, size, removed_at, action, metadata_location FROM lakehouse.removed_files"
            f' WHERE namespace = %s AND "table" = %s{age} ORDER BY removed_at, path',
            values,
        ).fetchall()

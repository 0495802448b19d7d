"""The second catalogs that `lakehouse export --follow` keeps up to date, for those who watch it.

A row of the state says that one is wanted: from when it begins until it ends by itself. One that was killed leaves it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

import psycopg

from lakehouse.errors import LakehouseError
from lakehouse.migrations import ensure_state
from lakehouse.servers.database import connect_catalog

if TYPE_CHECKING:
    from lakehouse.settings import Settings


@dataclass(frozen=True)
class Export:
    """A second catalog, which is to be brought up to date every so many seconds.

    `stale_seconds` have passed since it last was, or since that was begun; `tried_seconds` since it was last tried.
    """

    target: str
    every_seconds: float
    stale_seconds: float
    tried_seconds: float
    done_at: datetime | None
    error: str | None


@contextmanager
def noted(settings: Settings, target: str, every_seconds: float) -> Iterator[None]:
    """The block brings the target up to date; notes that it is tried, and what becomes of it.

    Raises what the block raises, LakehouseError if the catalog database cannot be reached, and psycopg.Error if it is
    lost meanwhile.
    """
    key = (settings.catalog_name, target)
    with closing(connect_catalog(settings)) as connection:
        ensure_state(connection)
        connection.execute(
            "INSERT INTO lakehouse.exports (catalog, target, every_seconds) VALUES (%s, %s, %s)"
            " ON CONFLICT (catalog, target) DO UPDATE"
            " SET every_seconds = excluded.every_seconds, tried_at = clock_timestamp()",
            (*key, every_seconds),
        )
        try:
            yield
        except (LakehouseError, OSError) as error:
            connection.execute(
                "UPDATE lakehouse.exports SET error = %s WHERE (catalog, target) = (%s, %s)",
                (str(error), *key),
            )
            raise
        connection.execute(
            "UPDATE lakehouse.exports SET error = NULL, done_at = clock_timestamp() WHERE (catalog, target) = (%s, %s)",
            key,
        )


def ended(settings: Settings, target: str) -> None:
    """Nobody is to keep the target up to date any more. Raises LakehouseError."""
    with closing(connect_catalog(settings)) as connection, suppress(psycopg.errors.UndefinedTable):
        connection.execute(
            "DELETE FROM lakehouse.exports WHERE (catalog, target) = (%s, %s)", (settings.catalog_name, target)
        )


def followed(settings: Settings) -> tuple[Export, ...]:
    """The second catalogs that are to be kept up to date. Raises LakehouseError."""
    with closing(connect_catalog(settings)) as connection:
        try:
            rows = connection.execute(
                "SELECT target, every_seconds, extract(epoch FROM now() - coalesce(done_at, began_at))::float8,"
                " extract(epoch FROM now() - tried_at)::float8, done_at, error FROM lakehouse.exports"
                " WHERE catalog = %s ORDER BY target",
                (settings.catalog_name,),
            ).fetchall()
        except psycopg.errors.UndefinedTable:  # the state is older than exports, or there is none yet
            return ()
    return tuple(Export(*row) for row in rows)

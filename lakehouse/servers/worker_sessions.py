"""Whether a worker lives: each holds a shared advisory lock in the catalog database for as long as its session lasts.

A lock ends with its session, so a killed worker holds none, at once and without a timeout. One that ends by itself also
removes the row that says that a worker is wanted; a row that nobody stands behind is that of a killed one.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Literal, LiteralString

import psycopg

from lakehouse.errors import LakehouseError
from lakehouse.servers.database import CatalogConnection, connect_catalog

if TYPE_CHECKING:
    from lakehouse.settings import Settings

WORKER = "worker"
RESTART_SECONDS = 30.0  # a supervised worker that was killed is back by then
CLASS = 20_476_101  # the first half of the key of workers' locks; nothing else in the catalog database uses it
_IS_LOCKED: LiteralString = (
    "EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND granted AND classid = %s"
    " AND objid = (hashtext(%s)::bigint & 4294967295)::oid AND objsubid = 2"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))"
)
Worker = Literal["none", "alive", "killed"]


def enter(connection: CatalogConnection, catalog: str) -> None:
    """Announces that a worker lives as long as this session."""
    connection.execute("SELECT pg_try_advisory_lock_shared(%s, hashtext(%s))", (CLASS, f"{catalog}/{WORKER}"))
    connection.execute("INSERT INTO lakehouse.workers (catalog) VALUES (%s) ON CONFLICT DO NOTHING", (catalog,))


def leave(connection: CatalogConnection, catalog: str) -> None:
    """The worker ends by itself. If it was the last one, none is wanted from now on."""
    connection.execute("SELECT pg_advisory_unlock_shared(%s, hashtext(%s))", (CLASS, f"{catalog}/{WORKER}"))
    connection.execute(
        f"DELETE FROM lakehouse.workers WHERE catalog = %s AND NOT {_IS_LOCKED}",
        (catalog, CLASS, f"{catalog}/{WORKER}"),
    )


def is_there(settings: Settings) -> bool:
    """Whether a worker lives."""
    return is_held(settings, WORKER)


def refuse_worker(settings: Settings) -> None:
    """Raises LakehouseError while a worker lives."""
    if is_there(settings):
        raise LakehouseError("`lakehouse worker` is at work: stop it, then run this again")


def is_held(settings: Settings, name: str) -> bool:
    """Whether a session holds the lock of this name."""
    with closing(connect_catalog(settings)) as connection:
        row = connection.execute(f"SELECT {_IS_LOCKED}", (CLASS, f"{settings.catalog_name}/{name}")).fetchone()
    return row == (True,)


def state_of(settings: Settings) -> Worker:
    """What became of the last worker: `killed` if it has ended otherwise than by itself, and none lives."""
    catalog = settings.catalog_name
    with closing(connect_catalog(settings)) as connection:
        try:
            row = connection.execute(
                f"SELECT {_IS_LOCKED}, EXISTS (SELECT FROM lakehouse.workers WHERE catalog = %s)",
                (CLASS, f"{catalog}/{WORKER}", catalog),
            ).fetchone()
        except psycopg.errors.UndefinedTable:  # the state is older than workers, or there is none yet
            return "none"
    assert row is not None
    lives, is_wanted = row
    return "alive" if lives else "killed" if is_wanted else "none"

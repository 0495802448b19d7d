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
RESTLESS = 3  # restarts within an hour: what it cannot finish is left to the sensors
CLASS = 20_476_101  # the first half of the key of workers' locks; nothing else in the catalog database uses it
_IS_LOCKED: LiteralString = (
    "EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND granted AND classid = %s"
    " AND objid = (hashtext(%s)::bigint & 4294967295)::oid AND objsubid = 2"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))"
)
# Only those of the last hour are kept. Of two workers neither is the other's restart.
_ENTER: LiteralString = """INSERT INTO lakehouse.workers AS known (catalog) VALUES (%s) ON CONFLICT (catalog) DO UPDATE
 SET restarts = (SELECT array_agg(at ORDER BY at) FROM unnest(known.restarts || clock_timestamp()) AS at
 WHERE at > clock_timestamp() - interval '1 hour') WHERE %s"""
_RESTARTS: LiteralString = """SELECT count(*) FROM lakehouse.workers, unnest(restarts) AS at
 WHERE catalog = %s AND at > clock_timestamp() - interval '1 hour'"""
Worker = Literal["none", "alive", "killed"]


def enter(connection: CatalogConnection, catalog: str, is_restart: bool = True) -> None:
    """Announces that a worker lives as long as this session. It counts as a restart where the last one did not end by
    itself, unless it is none.
    """
    key = CLASS, f"{catalog}/{WORKER}"
    is_second = connection.execute(f"SELECT {_IS_LOCKED}", key).fetchone() == (True,)
    connection.execute("SELECT pg_try_advisory_lock_shared(%s, hashtext(%s))", key)
    connection.execute(_ENTER, (catalog, is_restart and not is_second))


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


def restarts_of(settings: Settings) -> int:
    """How often within the last hour a worker began in the place of one that was killed, or ended by an error."""
    with closing(connect_catalog(settings)) as connection:
        try:
            row = connection.execute(_RESTARTS, (settings.catalog_name,)).fetchone()
        except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn):  # the state is of an earlier release
            return 0
    return row[0] if row else 0


def is_restless(settings: Settings) -> bool:
    """Whether the worker ends so often that nobody can wait for it."""
    return restarts_of(settings) >= RESTLESS


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

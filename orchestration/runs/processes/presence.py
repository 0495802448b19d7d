"""Which jobs a living worker serves, and who writes: session-level advisory locks in the catalog database.

A lock ends with its session, so a killed process holds none, at once and without a timeout. One process writes parsed,
vault and marts at a time, a run or the worker: no mart is built in the middle of a load. If a session is lost, two
loads of one table are kept apart where the table is written.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING

import psycopg

from lakehouse.servers.database import CatalogConnection, connect_catalog

if TYPE_CHECKING:
    from lakehouse.settings import Settings

WORKER = "worker"
"""Held by every living worker, whatever it serves."""

WRITING = "writing"
"""Held by whoever writes parsed, vault or marts."""

CLASS = 20_476_101  # the first half of the locks' key; nothing else in the catalog database uses it


def serve(connection: CatalogConnection, catalog: str, job: str) -> bool:
    """Announces that this session loads what the job would load; False while another worker does."""
    return _ask(connection, "SELECT pg_try_advisory_lock(%s, hashtext(%s))", CLASS, f"{catalog}/{job}")


def withdraw(connection: CatalogConnection, catalog: str, job: str) -> None:
    """Leaves the job to Dagster."""
    _ask(connection, "SELECT pg_advisory_unlock(%s, hashtext(%s))", CLASS, f"{catalog}/{job}")


def is_served(settings: Settings, job: str) -> bool:
    """Whether a living worker loads what this job would load."""
    with closing(connect_catalog(settings)) as connection:
        return _ask(
            connection,
            "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND granted AND classid = %s"
            " AND objid = (hashtext(%s)::bigint & 4294967295)::oid AND objsubid = 2"
            " AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))",
            CLASS,
            f"{settings.catalog_name}/{job}",
        )


@contextmanager
def writing(connection: CatalogConnection, catalog: str) -> Iterator[None]:
    """Writes alone; waits for whoever writes now, before all that ask later."""
    connection.execute("SELECT pg_advisory_lock(%s, hashtext(%s))", (CLASS, f"{catalog}/{WRITING}"))
    try:
        yield
    finally:
        _unlock(connection, catalog)


@contextmanager
def writing_if_free(connection: CatalogConnection, catalog: str) -> Iterator[bool]:
    """Writes alone; False if somebody else writes, or waits to."""
    free = serve(connection, catalog, WRITING)
    try:
        yield free
    finally:
        if free:
            _unlock(connection, catalog)


def _unlock(connection: CatalogConnection, catalog: str) -> None:
    with suppress(psycopg.OperationalError):  # the session has ended, and the lock with it
        withdraw(connection, catalog, WRITING)


def _ask(connection: CatalogConnection, query: str, *values: object) -> bool:
    row = connection.execute(query, values).fetchone()
    return bool(row and row[0])

"""Which jobs a living worker serves, and who writes: session-level advisory locks in the catalog database.

A lock ends with its session, so a killed process holds none, at once and without a timeout. Of the sources that share
tables, one process writes parsed and vault at a time, a run or the worker, and the marts made of them: no mart is built
in the middle of a load. If a session is lost, two loads of one table are kept apart where the table is written.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

import psycopg

from lakehouse.servers.database import CatalogConnection
from lakehouse.servers.worker_sessions import CLASS, is_held

if TYPE_CHECKING:
    from lakehouse.settings import Settings

WRITING = "writing/"
"""With the name of a group of sources: held by whoever writes their parsed and vault, or marts made of them."""


def serve(connection: CatalogConnection, catalog: str, job: str) -> bool:
    """Announces that this session loads what the job would load; False while another worker does."""
    return _ask(connection, "SELECT pg_try_advisory_lock(%s, hashtext(%s))", CLASS, f"{catalog}/{job}")


def withdraw(connection: CatalogConnection, catalog: str, job: str) -> None:
    """Leaves the job to Dagster."""
    _ask(connection, "SELECT pg_advisory_unlock(%s, hashtext(%s))", CLASS, f"{catalog}/{job}")


def is_served(settings: Settings, job: str) -> bool:
    """Whether a living worker loads what this job would load."""
    return is_held(settings, job)


@contextmanager
def writing(connection: CatalogConnection, catalog: str, groups: Collection[str]) -> Iterator[None]:
    """Writes these groups alone; waits for whoever writes now, before all that ask later.

    Whoever needs several groups holds none of them while it waits for one, or its wait would be that of all others.
    """
    waited_for = ""
    while True:
        if waited_for:
            connection.execute("SELECT pg_advisory_lock(%s, hashtext(%s))", (CLASS, f"{catalog}/{WRITING}{waited_for}"))
        with writing_if_free(connection, catalog, set(groups) - {waited_for}) as free, ExitStack() as held:
            if waited_for:
                held.callback(_unlock, connection, catalog, waited_for)
            busy = sorted(set(groups) - {waited_for} - free)
            if not busy:
                yield
                return
        waited_for = busy[0]


@contextmanager
def writing_if_free(connection: CatalogConnection, catalog: str, groups: Collection[str]) -> Iterator[frozenset[str]]:
    """Writes alone those of the groups that nobody else writes, or waits to; their names."""
    free = frozenset(group for group in sorted(groups) if serve(connection, catalog, WRITING + group))
    try:
        yield free
    finally:
        for group in free:
            _unlock(connection, catalog, group)


def _unlock(connection: CatalogConnection, catalog: str, group: str) -> None:
    with suppress(psycopg.OperationalError):  # the session has ended, and the lock with it
        withdraw(connection, catalog, WRITING + group)


def _ask(connection: CatalogConnection, query: str, *values: object) -> bool:
    row = connection.execute(query, values).fetchone()
    return bool(row and row[0])

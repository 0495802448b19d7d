"""Which jobs a living worker serves, and who writes: session-level advisory locks in the catalog database.

A lock ends with its session, so a killed process holds none, at once and without a timeout. Of the sources that share
tables, one process writes parsed and vault at a time, a run or the worker, and the marts made of them: no mart is built
in the middle of a load. So are `lakehouse erase` and `lakehouse rehash` alone. If a session is lost, two loads of one
table are kept apart where the table is written.

Such a group is locked by its sources, always in the same order, and not by its name: it gets another one, or other
sources, when a declaration changes, and a run that began before goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import TYPE_CHECKING, LiteralString

import psycopg

from lakehouse.servers.database import CatalogConnection, connect_catalog
from lakehouse.servers.worker_sessions import CLASS, WORKER, is_held

if TYPE_CHECKING:
    from lakehouse.settings import Settings

ALONE = "other"
"""The group of models that are made of no raw table."""
_AT_WORK: LiteralString = """WITH held AS (SELECT pid, objid, mode FROM pg_locks
 WHERE locktype = 'advisory' AND granted AND classid = %s AND objsubid = 2
 AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))
 SELECT coalesce(max(extract(epoch FROM clock_timestamp() - state_change)), 0)::float8 FROM pg_stat_activity
 WHERE pid IN (SELECT pid FROM held WHERE objid = (hashtext(%s)::bigint & 4294967295)::oid)
 AND pid IN (SELECT pid FROM held WHERE mode = 'ExclusiveLock' AND objid IN (
 SELECT (hashtext(key)::bigint & 4294967295)::oid FROM unnest(%s::text[]) AS keys (key)))"""
WRITING = "writing/"
"""With the name of a source: held by whoever writes its parsed and vault, or marts made of them."""
Groups = Mapping[str, Sequence[str]]
"""By the name of each group its sources, sorted."""


def at_work_for(settings: Settings) -> float:
    """For how many seconds a living worker has been at what it writes or tests; 0 if it is at nothing.

    Nothing that hangs, or is stopped, asks its session anything more.
    """
    keys = [f"{settings.catalog_name}/{WRITING}{source}" for source in (*settings.sources, ALONE)]
    with closing(connect_catalog(settings)) as connection:
        row = connection.execute(_AT_WORK, (CLASS, f"{settings.catalog_name}/{WORKER}", keys)).fetchone()
    return row[0] if row else 0.0


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
def writing(
    connection: CatalogConnection, catalog: str, groups: Groups, say: Callable[[str], None] = lambda waits: None
) -> Iterator[None]:
    """Writes these groups alone; waits for whoever writes now, before all that ask later, and says so.

    Whoever needs several groups holds none of them while it waits for one, or its wait would be that of all others.
    """
    waited_for = ""
    while True:
        with ExitStack() as held:
            for source in groups[waited_for] if waited_for else ():
                key = f"{catalog}/{WRITING}{source}"
                connection.execute("SELECT pg_advisory_lock(%s, hashtext(%s))", (CLASS, key))
                held.callback(_unlock, connection, catalog, source)
            others = {group: sources for group, sources in groups.items() if group != waited_for}
            free = held.enter_context(writing_if_free(connection, catalog, others))
            busy = sorted(others.keys() - free)
            if not busy:
                yield
                return
        waited_for = busy[0]
        say(f"waiting until others have written {', '.join(groups[waited_for])}: a load, marts, an erasure or a rehash")


@contextmanager
def writing_if_free(connection: CatalogConnection, catalog: str, groups: Groups) -> Iterator[frozenset[str]]:
    """Writes alone those of the groups that nobody else writes, or waits to; their names."""
    with ExitStack() as held:
        yield frozenset(group for group in sorted(groups) if _lock_all(connection, catalog, groups[group], held))


def _lock_all(connection: CatalogConnection, catalog: str, sources: Sequence[str], held: ExitStack) -> bool:
    """Locks all of the sources until `held` ends, or none; a session may lock one twice."""
    with ExitStack() as locked:
        for source in sources:
            if not serve(connection, catalog, WRITING + source):
                return False
            locked.callback(_unlock, connection, catalog, source)
        held.push(locked.pop_all())
    return True


def _unlock(connection: CatalogConnection, catalog: str, source: str) -> None:
    with suppress(psycopg.OperationalError):  # the session has ended, and the lock with it
        withdraw(connection, catalog, WRITING + source)


def _ask(connection: CatalogConnection, query: str, *values: object) -> bool:
    row = connection.execute(query, values).fetchone()
    return bool(row and row[0])

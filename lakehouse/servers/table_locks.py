"""A lock per table, so that two who rewrite a table, on any machines, do not work on it at once.

It is a session-level advisory lock in the catalog database, which ends with its process, so nothing is left after a
kill. Locks that are taken together have a connection of their own; its start is the time of the locks.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC
from hashlib import sha256
from typing import Any

import psycopg

from lakehouse.servers.database import CatalogConnection, connect_catalog
from lakehouse.settings import Settings

HOLDER = """
SELECT activity.application_name, activity.backend_start
FROM pg_locks AS held JOIN pg_stat_activity AS activity USING (pid)
WHERE held.locktype = 'advisory' AND held.granted AND held.database = (
    SELECT oid FROM pg_database WHERE datname = current_database())
  AND (held.classid::bigint << 32 | held.objid::bigint) = %s AND held.objsubid = 1
"""
# The server notices within two minutes that the holder's machine is gone.
KEEPALIVE = "-c tcp_keepalives_idle=30 -c tcp_keepalives_interval=15 -c tcp_keepalives_count=6"
WAIT_STEP_SECONDS = 0.2
Name = tuple[str, str]
REFUSED = "SELECT key FROM unnest(%s::bigint[]) AS key WHERE NOT pg_try_advisory_lock(key)"


class Held(Exception):
    """Another process has locked `table`; the message says which process."""

    def __init__(self, table: Name, holder: str) -> None:
        super().__init__(holder)
        self.table = table


@contextmanager
def locked(
    settings: Settings, tables: Collection[Name], work: str, patience: float = 0.0
) -> Iterator[CatalogConnection]:
    """Locks the tables during the block for this kind of work (`maintenance`), all on one connection: a source may have
    more tables than the database takes connections. Yields it: a statement on it fails once the locks are lost.

    Raises Held if another process has one for longer than `patience` seconds, and LakehouseError when the catalog
    database cannot be reached.
    """
    wanted = {lock_key(settings.catalog_name, table): table for table in sorted(tables)}
    deadline = time.monotonic() + patience
    name = f"lakehouse {work} {socket.gethostname()[:30]} {os.getpid()}"
    with connect_catalog(settings, application_name=name, options=KEEPALIVE) as connection:
        try:
            missing = list(wanted)
            while missing := _refused(connection, missing):
                if time.monotonic() >= deadline:
                    raise Held(wanted[missing[0]], _who(connection, missing[0]))
                time.sleep(WAIT_STEP_SECONDS)
            yield connection
        finally:
            with suppress(psycopg.Error):  # the server learns of a closed connection later than the next who asks
                connection.execute("SELECT pg_advisory_unlock_all()")


def lock_key(catalog: str, table: tuple[str, str]) -> int:
    """A signed 64-bit number for the table, the same in every process."""
    digest = sha256("\0".join(("maintenance", catalog, *table)).encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


def _refused(connection: psycopg.Connection[Any], keys: list[int]) -> list[int]:
    """Takes these locks; returns those that another session has."""
    return [key for (key,) in connection.execute(REFUSED, (keys,))]


def _who(connection: psycopg.Connection[Any], key: int) -> str:
    row = connection.execute(HOLDER, (key,)).fetchone()  # bigint wraps around as the lock's two halves do
    if row is None:
        return "another process held it until just now"
    holder, since = row
    _, work, host, pid = f"{holder} - - -".split(" ")[:4]
    return f"another {work} run ({host}, process {pid}, since {since.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC) holds it"

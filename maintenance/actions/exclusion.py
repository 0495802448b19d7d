"""A lock per table, so that two maintenance runs, on any machines, do not work on one table at once.

It is a session-level advisory lock in the catalog database, which ends with its process, so nothing is left after a
kill. Each lock has its own connection; the connection's start is the lock's time.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC
from hashlib import sha256
from typing import Any

import psycopg

from lakehouse.servers.database import connect_catalog
from lakehouse.settings import Settings
from maintenance.inventory.outcome import TableName
from maintenance.inventory.session import Session

APPLICATION = "lakehouse maintenance"
HOLDER = """
SELECT activity.application_name, activity.backend_start
FROM pg_locks AS held JOIN pg_stat_activity AS activity USING (pid)
WHERE held.locktype = 'advisory' AND held.granted AND held.database = (
    SELECT oid FROM pg_database WHERE datname = current_database())
  AND (held.classid::bigint << 32 | held.objid::bigint) = %s AND held.objsubid = 1
"""
# The server notices within two minutes that the holder's machine is gone.
KEEPALIVE = "-c tcp_keepalives_idle=30 -c tcp_keepalives_interval=15 -c tcp_keepalives_count=6"


class Held(Exception):
    """Another run has locked the table; the message says which one."""


@contextmanager
def exclusive(session: Session, table: TableName) -> Iterator[None]:
    """Locks the table during the block; raises Held at once if another run has locked it.

    Raises LakehouseError when the catalog database cannot be reached.
    """
    key = lock_key(session.settings.catalog_name, table)
    with _connect(session.settings) as connection:
        row = connection.execute("SELECT pg_try_advisory_lock(%s)", (key,)).fetchone()
        if row is None or not row[0]:
            raise Held(_who(connection, key))
        yield


def lock_key(catalog: str, table: TableName) -> int:
    """A signed 64-bit number for the table, the same in every process."""
    digest = sha256("\0".join(("maintenance", catalog, *table)).encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


def _connect(settings: Settings) -> psycopg.Connection[Any]:
    name = f"{APPLICATION} {socket.gethostname()[:30]} {os.getpid()}"
    return connect_catalog(settings, application_name=name, options=KEEPALIVE)


def _who(connection: psycopg.Connection[Any], key: int) -> str:
    row = connection.execute(HOLDER, (key,)).fetchone()  # bigint wraps around as the lock's two halves do
    if row is None:
        return "another maintenance run held it until just now"
    holder, since = row
    host, _, pid = holder.removeprefix(APPLICATION).strip().rpartition(" ")
    return (
        f"another maintenance run ({host}, process {pid}, since {since.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC) holds it"
    )

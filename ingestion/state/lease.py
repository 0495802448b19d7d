"""One writer per source: a lease with a fencing token in the catalog database.

Whoever takes over raises the token, and every publish checks its own token in the same SQL transaction, so a writer
that stalled and woke up cannot publish. Time is the database's clock.
"""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import psycopg

from ingestion.state.store import connect_catalog
from lakehouse.errors import LakehouseError
from lakehouse.servers.database import CatalogConnection
from lakehouse.settings import Settings

Mode = Literal["once", "follow"]


@dataclass(frozen=True)
class Lease:
    """The right to publish for one source."""

    source: str
    token: int
    holder: str


class LeaseLost(LakehouseError):
    """Another writer has taken the source over."""


def acquire(connection: CatalogConnection, source: str, seconds: float, mode: Mode) -> Lease | None:
    """Takes the lease when it is free or has run out; None when another writer holds it."""
    holder = f"{socket.gethostname()}:{os.getpid()}:{threading.get_ident()}"
    row = connection.execute(
        "INSERT INTO lakehouse.leases AS held (source, token, holder, mode, acquired_at, expires_at)"
        " VALUES (%(source)s, 1, %(holder)s, %(mode)s, clock_timestamp(),"
        "  clock_timestamp() + make_interval(secs => %(seconds)s))"
        " ON CONFLICT (source) DO UPDATE SET token = held.token + 1, holder = excluded.holder, mode = excluded.mode,"
        "  acquired_at = excluded.acquired_at, expires_at = excluded.expires_at"
        " WHERE held.expires_at <= clock_timestamp() RETURNING token",
        {"source": source, "holder": holder, "mode": mode, "seconds": seconds},
    ).fetchone()
    return Lease(source, row[0], holder) if row else None


def check(connection: CatalogConnection, lease: Lease, seconds: float) -> None:
    """Renews the lease, and locks its row when inside a transaction; raises LeaseLost when the token has moved on."""
    done = connection.execute(
        "UPDATE lakehouse.leases SET expires_at = clock_timestamp() + make_interval(secs => %s)"
        " WHERE source = %s AND token = %s AND holder = %s",
        (seconds, lease.source, lease.token, lease.holder),
    )
    if done.rowcount != 1:
        raise LeaseLost(f"source {lease.source!r}: another writer took the lease over; this one stops")


def release(connection: CatalogConnection, lease: Lease) -> None:
    """Lets the next writer in at once; does nothing when the lease is lost already."""
    connection.execute(
        "UPDATE lakehouse.leases SET expires_at = clock_timestamp() WHERE source = %s AND token = %s AND holder = %s",
        (lease.source, lease.token, lease.holder),
    )


def holder_of(connection: CatalogConnection, source: str) -> tuple[str, Mode] | None:
    """Holder and mode of a lease that is in force, or None."""
    row = connection.execute(
        "SELECT holder, mode FROM lakehouse.leases WHERE source = %s AND expires_at > clock_timestamp()", (source,)
    ).fetchone()
    return (row[0], row[1]) if row else None


def refuse_writers(connection: CatalogConnection) -> None:
    """Raises LakehouseError while somebody ingests: what is done needs the state to itself."""
    if connection.execute("SELECT to_regclass('lakehouse.leases')").fetchone() == (None,):
        return
    for (source,) in connection.execute("SELECT source FROM lakehouse.leases ORDER BY source").fetchall():
        if (held := holder_of(connection, source)) is not None:
            raise LakehouseError(f"source {source!r}: {held[0]} is at work: stop it, then run this again")


@contextmanager
def kept_alive(settings: Settings, lease: Lease) -> Iterator[None]:
    """Renews the lease in the background while the body runs, then releases it."""
    seconds = settings.ingestion.lease_seconds
    stop = threading.Event()

    def renew() -> None:
        while not stop.wait(seconds / 3):
            try:
                with connect_catalog(settings) as connection:
                    check(connection, lease, seconds)
            except LeaseLost:
                return
            except (LakehouseError, psycopg.Error):
                continue  # the catalog is away: the publish will find out, and its token decides

    thread = threading.Thread(target=renew, name=f"lease-{lease.source}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(timeout=seconds)
        try:
            with connect_catalog(settings) as connection:
                release(connection, lease)
        except (LakehouseError, psycopg.Error):
            pass  # it runs out by itself

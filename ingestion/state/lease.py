"""One writer per source: a lease with a fencing token in the catalog database.

Whoever takes over raises the token, and every publish checks its own token in the same SQL transaction, so a writer
that stalled and woke up cannot publish. Time is the database's clock.

The holder keeps a session open in the catalog database. When that session has ended, the holder was killed, and the
next writer takes over at once instead of waiting until the lease runs out. After a restart of the database every
session has ended, which says nothing about the holders: then only time counts.
"""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Literal, LiteralString

import psycopg

from ingestion.state.store import connect_catalog
from lakehouse.errors import LakehouseError
from lakehouse.servers.database import CatalogConnection
from lakehouse.settings import Settings

Mode = Literal["once", "follow"]
Follower = Literal["none", "alive", "hung", "dead"]
RECONNECT_SECONDS = 1.0

_SESSION: LiteralString = """SELECT FROM pg_stat_activity WHERE pid = held.session_pid
 AND coalesce(backend_start, held.session_began) = held.session_began"""
_HOLDER_IS_GONE: LiteralString = f"""held.session_token IS NOT DISTINCT FROM held.token
 AND held.session_began > pg_postmaster_start_time() AND NOT EXISTS ({_SESSION})"""
_IS_FREE: LiteralString = f"(held.expires_at <= clock_timestamp() OR {_HOLDER_IS_GONE})"


@dataclass(frozen=True)
class Lease:
    """The right to publish for one source."""

    source: str
    token: int
    holder: str


def mirrors_of(source: str) -> str:
    """What the lease of a source's mirrors is called; no source has a slash in its name."""
    return f"{source}/mirrors"


class LeaseLost(LakehouseError):
    """Another writer has taken the source over."""


def acquire(connection: CatalogConnection, source: str, seconds: float, mode: Mode) -> Lease | None:
    """Takes the lease when it is free, has run out or its holder was killed; None when another writer holds it."""
    holder = f"{socket.gethostname()}:{os.getpid()}:{threading.get_ident()}"
    row = connection.execute(
        "INSERT INTO lakehouse.leases AS held (source, token, holder, mode, acquired_at, expires_at, follower_token)"
        " VALUES (%(source)s, 1, %(holder)s, %(mode)s, clock_timestamp(),"
        "  clock_timestamp() + make_interval(secs => %(seconds)s), CASE WHEN %(mode)s = 'follow' THEN 1 END)"
        " ON CONFLICT (source) DO UPDATE SET token = held.token + 1, holder = excluded.holder, mode = excluded.mode,"
        "  acquired_at = excluded.acquired_at, expires_at = excluded.expires_at,"
        "  follower_token = CASE WHEN excluded.mode = 'follow' THEN held.token + 1 ELSE held.follower_token END"
        f" WHERE {_IS_FREE} RETURNING token",
        {"source": source, "holder": holder, "mode": mode, "seconds": seconds},
    ).fetchone()
    return Lease(source, row[0], holder) if row else None


def take_over(connection: CatalogConnection, source: str, seconds: float) -> Lease:
    """Takes the lease for one command; raises LakehouseError that names who holds it."""
    lease = acquire(connection, source, seconds, "once")
    if lease is None:
        held = holder_of(connection, source)
        raise LakehouseError(
            f"source {source!r}: {held[0] if held else 'another session'} is at work: stop it (a killed one is out "
            f"after {seconds:.0f} s), then run this again"
        )
    return lease


def check(connection: CatalogConnection, lease: Lease, seconds: float) -> None:
    """Renews the lease, and locks its row when inside a transaction; raises LeaseLost when the token has moved on."""
    done = connection.execute(
        "UPDATE lakehouse.leases SET expires_at = clock_timestamp() + make_interval(secs => %s)"
        " WHERE source = %s AND token = %s AND holder = %s",
        (seconds, lease.source, lease.token, lease.holder),
    )
    if done.rowcount != 1:
        raise LeaseLost(f"source {lease.source!r}: another writer took the lease over; this one stops")


def hold_off(connection: CatalogConnection, source: str) -> None:
    """Waits for the publish of a source that is in its transaction, and has the next wait for the end of this one."""
    connection.execute("SELECT FROM lakehouse.leases WHERE source = %s FOR SHARE", (source,))


def _renew(connection: CatalogConnection, lease: Lease, seconds: float) -> bool:
    """Renews the lease and binds it to this session; False when the token has moved on."""
    done = connection.execute(
        "UPDATE lakehouse.leases SET expires_at = clock_timestamp() + make_interval(secs => %s), session_token = token,"
        " session_pid = pg_backend_pid(),"
        " session_began = (SELECT backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid())"
        " WHERE source = %s AND token = %s AND holder = %s",
        (seconds, lease.source, lease.token, lease.holder),
    )
    return done.rowcount == 1


def release(connection: CatalogConnection, lease: Lease) -> None:
    """Lets the next writer in at once; does nothing when the lease is lost already."""
    connection.execute(
        "UPDATE lakehouse.leases SET expires_at = clock_timestamp(), session_token = NULL,"
        " follower_token = nullif(follower_token, token)"
        " WHERE source = %s AND token = %s AND holder = %s",
        (lease.source, lease.token, lease.holder),
    )


def holder_of(connection: CatalogConnection, source: str) -> tuple[str, Mode] | None:
    """Holder and mode of a lease that is in force, or None."""
    row = connection.execute(
        f"SELECT holder, mode FROM lakehouse.leases AS held WHERE source = %s AND NOT {_IS_FREE}", (source,)
    ).fetchone()
    return (row[0], row[1]) if row else None


def follower_of(connection: CatalogConnection, source: str) -> Follower:
    """Whether the source has a follower, and if the last one did not end by itself, what became of it."""
    row = connection.execute(
        "SELECT follower_token IS NULL, token = follower_token, token = follower_token AND session_token = token"
        f" AND EXISTS ({_SESSION}), {_IS_FREE} FROM lakehouse.leases AS held WHERE source = %s",
        (source,),
    ).fetchone()
    none, is_last, has_session, is_free = row or (True, False, False, True)
    if none:
        return "none"
    if is_last and not is_free:
        return "alive"
    return "hung" if has_session else "dead"


def refuse_writers(connection: CatalogConnection) -> None:
    """Raises LakehouseError while somebody ingests: what is done needs the state to itself.

    It goes by time alone, because state of an earlier release does not tell the holders' sessions.
    """
    if connection.execute("SELECT to_regclass('lakehouse.leases')").fetchone() == (None,):
        return
    held = connection.execute(
        "SELECT source, holder FROM lakehouse.leases WHERE expires_at > clock_timestamp() ORDER BY source"
    ).fetchone()
    if held is not None:
        raise LakehouseError(f"source {held[0]!r}: {held[1]} is at work: stop it, then run this again")


@contextmanager
def kept_alive(settings: Settings, lease: Lease) -> Iterator[None]:
    """Renews the lease in the background while the body runs, then releases it.

    The session that renews it stays open: its end tells others that this process has ended.
    """
    seconds = settings.ingestion.lease_seconds
    stop, ready = threading.Event(), threading.Event()

    def renew() -> None:
        while not stop.is_set():
            with suppress(LakehouseError, psycopg.Error):  # the catalog is away: a publish finds out, its token decides
                with connect_catalog(settings, tcp_user_timeout="10000") as connection:
                    while _renew(connection, lease, seconds):
                        ready.set()
                        if stop.wait(seconds / 3):
                            release(connection, lease)
                            return
                return  # another writer has taken over
            ready.set()
            stop.wait(min(seconds / 3, RECONNECT_SECONDS))

    thread = threading.Thread(target=renew, name=f"lease-{lease.source}", daemon=True)
    thread.start()
    ready.wait(seconds)
    try:
        yield
    finally:
        stop.set()
        thread.join(timeout=seconds)

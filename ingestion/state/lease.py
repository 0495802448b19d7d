"""One writer per source, or several that share it: leases with a fencing token in the catalog database.

Whoever takes over raises the token, and every publish checks its own token in the same SQL transaction, so a writer
that stalled and woke up cannot publish. Time is the database's clock.

The holder keeps a session open in the catalog database. When that session has ended, the holder was killed, and the
next writer takes over at once instead of waiting until the lease runs out. After a restart of the database every
session has ended, which says nothing about the holders: then only time counts.

A source's lease is a claim of all of it. Followers that share a source hold that lease together, and each holds one of
its own beside it, its seat, under the same rules. What they claim of the source is in `claims`.
"""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Literal, LiteralString

import psycopg

from ingestion.state.store import connect_catalog
from lakehouse.errors import LakehouseError
from lakehouse.servers.database import CatalogConnection
from lakehouse.settings import Settings
from lakehouse.text.log_lines import as_here

Mode = Literal["once", "follow"]
Follower = Literal["none", "alive", "hung", "dead"]
RECONNECT_SECONDS = 1.0

SHARED: LiteralString = "a group of followers"  # the holder of a lease that several followers hold together

_SESSION: LiteralString = """SELECT FROM pg_stat_activity WHERE pid = held.session_pid
 AND coalesce(backend_start, held.session_began) = held.session_began"""
_HOLDER_IS_GONE: LiteralString = f"""held.session_token IS NOT DISTINCT FROM held.token
 AND held.session_began > pg_postmaster_start_time() AND NOT EXISTS ({_SESSION})"""
HAS_ENDED: LiteralString = f"(held.expires_at <= clock_timestamp() OR {_HOLDER_IS_GONE})"
"""Of a lease `held` that is no shared one: whether it has run out, or its holder is gone."""
AT_WORK: LiteralString = "expires_at > clock_timestamp()"
"""Of a lease whose holder's session is unknown: whether it is in force."""
_SEATS: LiteralString = f"""SELECT FROM (SELECT held.source AS shared) AS of_all, lakehouse.leases AS held
 WHERE starts_with(held.source, shared || '/follower/') AND NOT {HAS_ENDED}"""
_IS_FREE: LiteralString = f"({HAS_ENDED} OR held.holder = '{SHARED}' AND NOT EXISTS ({_SEATS}))"


@dataclass(frozen=True)
class Lease:
    """The right to publish for one source. That of a follower among others is a seat, and `group` the lease of the
    source that they hold together."""

    source: str
    token: int
    holder: str
    group: "Lease | None" = None

    @property
    def of(self) -> str:
        """The source's name."""
        return self.group.source if self.group else self.source


def mirrors_of(source: str) -> str:
    """What the lease of a source's mirrors is called; no source has a slash in its name."""
    return f"{source}/mirrors"


class LeaseLost(LakehouseError):
    """Another writer has taken the source over."""


def acquire(connection: CatalogConnection, source: str, seconds: float, mode: Mode) -> Lease | None:
    """Takes the lease when it is free, has run out or its holder was killed; None when another writer holds it."""
    with connection.transaction():
        lock(connection, source)
        return _take(connection, source, seconds, mode, f"{socket.gethostname()}:{os.getpid()}:{threading.get_ident()}")


def lock(connection: CatalogConnection, source: str) -> None:
    """Locks the row of a lease until the transaction ends: nobody takes it or publishes under it meanwhile.

    What a statement after this one sees of seats is then as it stays.
    """
    query: LiteralString = "SELECT FROM lakehouse.leases WHERE source = %s FOR UPDATE"
    if connection.execute(query, (source,)).rowcount == 0:
        connection.execute(
            "INSERT INTO lakehouse.leases (source, token, holder, mode, acquired_at, expires_at)"
            " VALUES (%s, 0, '', 'once', clock_timestamp(), clock_timestamp()) ON CONFLICT DO NOTHING",
            (source,),
        )
        connection.execute(query, (source,))


def _take(connection: CatalogConnection, source: str, seconds: float, mode: Mode, holder: str) -> Lease | None:
    row = connection.execute(
        "UPDATE lakehouse.leases AS held SET token = token + 1, holder = %(holder)s, mode = %(mode)s,"
        " acquired_at = clock_timestamp(), expires_at = clock_timestamp() + make_interval(secs => %(seconds)s),"
        " follower_token = CASE WHEN %(mode)s = 'follow' THEN token + 1 ELSE follower_token END"
        f" WHERE source = %(source)s AND {_IS_FREE} RETURNING token",
        {"source": source, "holder": holder, "mode": mode, "seconds": seconds},
    ).fetchone()
    return Lease(source, row[0], holder) if row else None


def take_seat(connection: CatalogConnection, source: str, seconds: float) -> Lease | None:
    """A seat beside the other followers that share the source, or as the first of them; None while somebody has the
    source alone."""
    with connection.transaction():
        lock(connection, source)
        group = _shared(connection, source, seconds) or _begin_sharing(connection, source, seconds)
        if group is None:
            return None
        known = connection.execute(
            f"SELECT source, {HAS_ENDED} FROM lakehouse.leases AS held WHERE starts_with(source, %s)"
            " ORDER BY length(source), source",
            (_seats_of(source),),
        ).fetchall()
        for name in (*(name for name, has_ended in known if has_ended), f"{_seats_of(source)}{len(known) + 1}"):
            if (seat := acquire(connection, name, seconds, "follow")) is not None:  # else it was renewed just now
                return replace(seat, group=group)
    raise AssertionError("a seat that nobody has had is free")


def _shared(connection: CatalogConnection, source: str, seconds: float) -> Lease | None:
    """The lease that others hold together."""
    row = connection.execute(
        "UPDATE lakehouse.leases AS held"
        " SET expires_at = greatest(expires_at, clock_timestamp() + make_interval(secs => %s))"
        f" WHERE source = %s AND holder = %s AND NOT {_IS_FREE} RETURNING token",
        (seconds, source, SHARED),
    ).fetchone()
    return Lease(source, row[0], SHARED) if row else None


def _begin_sharing(connection: CatalogConnection, source: str, seconds: float) -> Lease | None:
    """The same, held anew: nobody who has sat there before can publish."""
    group = _take(connection, source, seconds, "follow", SHARED)
    if group is not None:
        connection.execute(
            "UPDATE lakehouse.leases SET token = token + 1, expires_at = clock_timestamp(), session_token = NULL"
            " WHERE starts_with(source, %s)",
            (_seats_of(source),),
        )
        connection.execute("DELETE FROM lakehouse.turns WHERE source = %s", (source,))
    return group


def _seats_of(source: str) -> str:
    """What the names of seats begin with."""
    return f"{source}/follower/"


def seats(connection: CatalogConnection, source: str) -> dict[str, str]:
    """Seats that are taken, by name, each with its holder, in the order of their numbers."""
    rows = connection.execute(
        f"SELECT source, holder FROM lakehouse.leases AS held WHERE starts_with(source, %s) AND NOT {HAS_ENDED}"
        " ORDER BY length(source), source",
        (_seats_of(source),),
    )
    return dict(rows.fetchall())


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
    """Renews the lease, and locks its row when inside a transaction; raises LeaseLost when the token has moved on.

    Of a seat, the row that is locked is that of the source: whoever shares it publishes one after the other.
    """
    for held in (lease.group, lease):
        if held is not None and not _renewed(connection, held, seconds):
            raise LeaseLost(f"source {lease.of!r}: another writer took the lease over; this one stops")


def _renewed(connection: CatalogConnection, lease: Lease, seconds: float) -> bool:
    done = connection.execute(
        "UPDATE lakehouse.leases"
        " SET expires_at = greatest(expires_at, clock_timestamp() + make_interval(secs => %s))"
        " WHERE source = %s AND token = %s AND holder = %s",
        (seconds, lease.source, lease.token, lease.holder),
    )
    return done.rowcount == 1


def hold_off(connection: CatalogConnection, source: str) -> None:
    """Waits for the publish of a source that is in its transaction, and has the next wait for the end of this one."""
    connection.execute("SELECT FROM lakehouse.leases WHERE source = %s FOR SHARE", (source,))


def _renew(connection: CatalogConnection, lease: Lease, seconds: float) -> bool:
    """Renews the lease and binds it to this session; False when the token has moved on."""
    if lease.group is not None and not _renewed(connection, lease.group, seconds):
        return False
    done = connection.execute(
        "UPDATE lakehouse.leases SET expires_at = clock_timestamp() + make_interval(secs => %s), session_token = token,"
        " session_pid = pg_backend_pid(),"
        " session_began = (SELECT backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid())"
        " WHERE source = %s AND token = %s AND holder = %s",
        (seconds, lease.source, lease.token, lease.holder),
    )
    return done.rowcount == 1


def release(connection: CatalogConnection, lease: Lease, in_order: bool = True) -> None:
    """Lets the next writer in at once; does nothing when the lease is lost already.

    A follower that has not ended `in_order` is missed from now on, until one follows again.
    """
    with connection.transaction():
        lock(connection, lease.of)
        _release(connection, lease, in_order)
        if lease.group is not None and not seats(connection, lease.of):
            _release(connection, lease.group, in_order)


def _release(connection: CatalogConnection, lease: Lease, in_order: bool) -> None:
    connection.execute(
        "UPDATE lakehouse.leases SET expires_at = clock_timestamp(), session_token = NULL,"
        " follower_token = CASE WHEN %s THEN nullif(follower_token, token) ELSE follower_token END"
        " WHERE source = %s AND token = %s AND holder = %s",
        (in_order, lease.source, lease.token, lease.holder),
    )


def leave(settings: Settings, source: str) -> None:
    """A follower that has failed ends in order: nobody misses it any more, unless somebody else is at work by now."""
    with suppress(LakehouseError, psycopg.Error), connect_catalog(settings) as connection:  # else it is missed
        lease = acquire(connection, source, settings.ingestion.lease_seconds, "follow")
        if lease is not None:
            release(connection, lease)


def holder_of(connection: CatalogConnection, source: str) -> tuple[str, Mode] | None:
    """Holder and mode of a lease that is in force, or None; followers that share it are named together."""
    row = connection.execute(
        f"SELECT holder, mode FROM lakehouse.leases AS held WHERE source = %s AND NOT {_IS_FREE}", (source,)
    ).fetchone()
    if row is None or row[0] != SHARED:
        return (row[0], row[1]) if row else None
    return f"{SHARED} ({', '.join(seats(connection, source).values())})", row[1]


def holders_of(connection: CatalogConnection, source: str) -> list[str]:
    """Who holds the lease, alone or with others."""
    held = holder_of(connection, source)
    return list(seats(connection, source).values()) or ([held[0]] if held else [])


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


def refuse_writers(connection: CatalogConnection, but: str = "") -> None:
    """Raises LakehouseError while somebody ingests, `but` that holder: what is done needs the state to itself.

    It goes by time alone, because state of an earlier release does not tell the holders' sessions.
    """
    _refuse(connection, AT_WORK, but)


def refuse_living_writers(connection: CatalogConnection) -> None:
    """The same, but one that was killed is none: what is done leaves the state alone."""
    _refuse(connection, f"NOT {_IS_FREE}")


def _refuse(connection: CatalogConnection, holding: LiteralString, but: str = "") -> None:
    if connection.execute("SELECT to_regclass('lakehouse.leases')").fetchone() == (None,):
        return
    held = connection.execute(
        f"SELECT source, holder FROM lakehouse.leases AS held WHERE {holding} AND holder <> %s ORDER BY source",
        (but,),
    ).fetchone()
    if held is not None:
        raise LakehouseError(f"source {held[0]!r}: {held[1]} is at work: stop it, then run this again")


@contextmanager
def kept_alive(settings: Settings, lease: Lease) -> Iterator[None]:
    """Renews the lease in the background while the body runs, then releases it; in order, unless the body raises.

    The session that renews it stays open: its end tells others that this process has ended.
    """
    seconds = settings.ingestion.lease_seconds
    stop, ready, is_done = threading.Event(), threading.Event(), threading.Event()

    def renew() -> None:
        while not stop.is_set():
            with suppress(LakehouseError, psycopg.Error):  # the catalog is away: a publish finds out, its token decides
                with connect_catalog(settings, tcp_user_timeout="10000") as connection:
                    while _renew(connection, lease, seconds):
                        ready.set()
                        if stop.wait(seconds / 3):
                            release(connection, lease, in_order=is_done.is_set())
                            return
                return  # another writer has taken over
            ready.set()
            stop.wait(min(seconds / 3, RECONNECT_SECONDS))

    thread = threading.Thread(target=as_here(renew), name=f"lease-{lease.source}", daemon=True)
    thread.start()
    ready.wait(seconds)
    try:
        yield
        is_done.set()
    finally:
        stop.set()
        thread.join(timeout=seconds)

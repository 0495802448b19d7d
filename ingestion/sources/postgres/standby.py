"""A standby that is read in place of its primary (Postgres 16 and newer): the slot and all snapshots are its own.

What only the primary has is asked there: how far its WAL goes and what time it is, so that a standby that lost its
primary is not taken for one where nothing happens. And what only the primary can write is written there: the mark of an
epoch, and the list of running transactions for which a new slot on the standby waits.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime

import psycopg

from ingestion.schema.positions import Lsn
from ingestion.sources.base import SourceNow
from ingestion.sources.postgres import connection as src
from ingestion.sources.postgres.history.server import started_at
from ingestion.state.store import Cluster
from lakehouse.errors import LakehouseError
from lakehouse.servers.database import SourceConnection
from lakehouse.settings import Settings

REPLAY_PATIENCE_SECONDS = 2.0
PREPARED_PATIENCE_SECONDS = 60.0
HASTEN_SECONDS = 0.5
_REPLAYED = f"""
SELECT ({src.WAL_END} - '0/0'::pg_lsn)::bigint, pg_last_xact_replay_timestamp()
"""


@contextmanager
def primary_of(settings: Settings, source: str, connection: SourceConnection) -> Iterator[SourceConnection]:
    """The connection to the primary: `connection` itself unless the source is a standby."""
    if settings.source(source).primary_url is None:
        yield connection
        return
    with src.connect_source(settings, source, primary=True) as primary:
        yield primary


def source_now(source: str, connection: SourceConnection, primary: SourceConnection) -> SourceNow[Lsn]:
    """The primary's present, once the standby has replayed it; one that is behind has the moment of its last commit."""
    now, deadline = src.source_now(primary), time.monotonic() + REPLAY_PATIENCE_SECONDS
    if primary is connection:
        return now
    while (replayed := _replayed(connection))[0] < now.position:
        if time.monotonic() > deadline:
            position, at = replayed
            if at is None:
                raise LakehouseError(
                    f"source {source!r}: its standby has replayed {position.text} and no transaction since its start, "
                    f"and its primary is at {now.position.text}: wait, or look why it does not follow"
                )
            return SourceNow(position, min(at, now.at), now.xid)
        time.sleep(0.01)
    return now


def check_standby(settings: Settings, source: str, connection: SourceConnection, primary: SourceConnection) -> None:
    """Raises LakehouseError where `url` does not lead to a standby of that primary, on its timeline.

    A standby that was promoted is its own primary.
    """
    where = f"source {source!r}"
    if connection.info.dbname != primary.info.dbname:
        raise LakehouseError(
            f"{where}: url leads to database {connection.info.dbname!r} and primary_url to {primary.info.dbname!r}: "
            "correct one of them"
        )
    if is_in_recovery(primary):
        raise LakehouseError(f"{where}: primary_url leads to a standby: correct it to the primary")
    if not is_in_recovery(connection) and started_at(connection) != started_at(primary):
        raise LakehouseError(
            f"{where}: url leads to a primary that is not the one of primary_url: correct them, so that both lead to "
            "the server that the application writes to, or url to a standby of it"
        )
    here, there = (_identity(settings, source, at, at is primary) for at in (connection, primary))
    if here != there:
        raise LakehouseError(
            f"{where}: url does not lead to a standby that follows primary_url (system identifier, timeline: "
            f"{here.system_identifier}, {here.timeline}; the primary's {there.system_identifier}, {there.timeline}): "
            "wait if it is about to follow a new primary, or correct the URLs"
        )


def is_in_recovery(connection: SourceConnection) -> bool:
    """Whether the server is a standby."""
    return connection.execute("SELECT pg_is_in_recovery()").fetchone() == (True,)


def hasten(primary: SourceConnection) -> Callable[[], None]:
    """What to call while a new slot on a standby is waited for: it waits for a list of the running transactions.

    A primary writes one within 15 seconds of any change; a role that may ask for it does not wait for that.
    """
    last = 0.0

    def ask() -> None:
        nonlocal last
        if time.monotonic() - last < HASTEN_SECONDS:
            return
        last = time.monotonic()
        try:
            primary.execute("SELECT pg_log_standby_snapshot()")
        except psycopg.errors.InsufficientPrivilege:
            primary.execute("SELECT pg_logical_emit_message(true, 'lakehouse', 'a slot on a standby')")
            last += 10 * HASTEN_SECONDS

    return ask


def until_replayed(settings: Settings, source: str) -> None:
    """Waits until a standby has what was done on its primary; raises LakehouseError."""
    with src.connect_source(settings, source) as connection, primary_of(settings, source, connection) as primary:
        if primary is connection:
            return
        end, deadline = src.source_now(primary).position, time.monotonic() + PREPARED_PATIENCE_SECONDS
        while _replayed(connection)[0] < end:
            if time.monotonic() > deadline:
                raise LakehouseError(
                    f"source {source!r}: the primary is prepared, but its standby has not replayed that within "
                    f"{PREPARED_PATIENCE_SECONDS:.0f} s: look why it does not follow"
                )
            time.sleep(0.05)


def _replayed(connection: SourceConnection) -> tuple[Lsn, datetime | None]:
    row = connection.execute(_REPLAYED).fetchone()
    assert row is not None
    return Lsn(row[0] or 0), row[1]


def _identity(settings: Settings, source: str, beside: SourceConnection, primary: bool) -> Cluster:
    return src.identify(settings, source, beside, primary=primary)

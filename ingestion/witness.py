"""Whether the source's WAL is still the one the lake was read from, also where identity, timeline and LSN agree.

A source restored from a copy of its files keeps system identifier, timeline and slot, and soon has written past the
lake's position: other transactions stand where those stood that the lake has. The newest transaction below the
position is the witness. It is written down in the publish, and a slot that stands behind the position (after a
crash here or there, or in such a copy) must show the same one there, or the same silence.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg

from ingestion.source import peek

DDL = """
CREATE TABLE IF NOT EXISTS lakehouse.witnesses (
  source text PRIMARY KEY, epoch integer NOT NULL, commit_lsn bigint NOT NULL, committed_at timestamptz NOT NULL)
"""
POSTGRES_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Witness:
    """One transaction: no other history of the cluster has its commit at that LSN and microsecond."""

    commit_lsn: int
    committed_at: datetime


def put_witness(connection: psycopg.Connection[Any], source: str, epoch: int, witness: Witness) -> None:
    """Keeps the newest transaction that a publish brings; belongs into the publish's transaction."""
    if connection.execute("SELECT to_regclass('lakehouse.witnesses')").fetchone() == (None,):
        connection.execute("SELECT pg_advisory_xact_lock(hashtext('lakehouse.state'))")
        connection.execute(DDL)
    connection.execute(
        "INSERT INTO lakehouse.witnesses VALUES (%s, %s, %s, %s) ON CONFLICT (source) DO UPDATE"
        " SET epoch = excluded.epoch, commit_lsn = excluded.commit_lsn, committed_at = excluded.committed_at",
        (source, epoch, witness.commit_lsn, witness.committed_at),
    )


def read_witness(connection: psycopg.Connection[Any], source: str, epoch: int) -> Witness | None:
    """The witness of this epoch; None when no transaction was read in it."""
    if connection.execute("SELECT to_regclass('lakehouse.witnesses')").fetchone() == (None,):
        return None
    row = connection.execute(
        "SELECT commit_lsn, committed_at FROM lakehouse.witnesses WHERE source = %s AND epoch = %s", (source, epoch)
    ).fetchone()
    return Witness(*row) if row else None


def newest_in_slot(connection: psycopg.Connection[Any], slot: str, publication: str, below: int) -> Witness | None:
    """The newest transaction that the slot would send again from below an LSN; consumes nothing."""
    row = connection.execute(
        "SELECT lsn, at FROM (SELECT number, ('x' || encode(substring(data, 2, 8), 'hex'))::bit(64)::bigint AS lsn,"
        " ('x' || encode(substring(data, 10, 8), 'hex'))::bit(64)::bigint AS at"
        f" FROM {peek(slot, publication, below)}"
        " WITH ORDINALITY AS message(start, xid, data, number) WHERE get_byte(data, 0) = ascii('B')) begun"
        " WHERE lsn < %s ORDER BY number DESC LIMIT 1",
        (below,),
    ).fetchone()
    return Witness(row[0], POSTGRES_EPOCH + timedelta(microseconds=row[1])) if row else None


def same_history(kept: Witness | None, seen: Witness | None, confirmed_lsn: int) -> bool:
    """Whether a slot at `confirmed_lsn` shows what the lake was read from; pure. Without a witness nothing is known."""
    if kept is None:
        return True
    return seen == kept if kept.commit_lsn >= confirmed_lsn else seen is None

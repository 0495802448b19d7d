"""Whether the source's WAL is still the one the lake was read from, also where identity, timeline and LSN agree.

A source restored from a copy of its files keeps system identifier, timeline and slot, and soon has written past the
lake's position: other transactions stand where those stood that the lake has. The newest transaction below the
position is the witness. It is written down in the publish, and a slot that stands behind the position (after a
crash here or there, or in such a copy) must show the same one there. A slot that was confirmed beyond the witness
cannot show it: then it must be ours (`signature`) and show the same silence.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from ingestion.sources.postgres.connection import peek
from lakehouse.errors import LakehouseError
from lakehouse.servers.database import CatalogConnection, SourceConnection

POSTGRES_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Witness:
    """One transaction: no other history of the cluster has its commit at that LSN and microsecond."""

    commit_lsn: int
    committed_at: datetime


def put_witness(connection: CatalogConnection, source: str, epoch: int, witness: Witness) -> None:
    """Keeps the newest transaction that a publish brings; belongs into the publish's transaction."""
    connection.execute(
        "INSERT INTO lakehouse.witnesses VALUES (%s, %s, %s, %s) ON CONFLICT (source) DO UPDATE"
        " SET epoch = excluded.epoch, commit_lsn = excluded.commit_lsn, committed_at = excluded.committed_at",
        (source, epoch, witness.commit_lsn, witness.committed_at),
    )


def read_witness(connection: CatalogConnection, source: str, epoch: int) -> Witness | None:
    """The witness of this epoch; None when no transaction was read in it."""
    row = connection.execute(
        "SELECT commit_lsn, committed_at FROM lakehouse.witnesses WHERE source = %s AND epoch = %s", (source, epoch)
    ).fetchone()
    return Witness(*row) if row else None


def newest_in_slot(connection: SourceConnection, slot: str, publication: str, below: int) -> Witness | None:
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


def leave_mark(connection: SourceConnection, source: str) -> None:
    """A transaction without rows for the slot to send: the first witness of an epoch that has none.

    Raises LakehouseError when the role may not write it.
    """
    check_may_mark(connection, source)
    connection.execute("SELECT pg_logical_emit_message(true, 'lakehouse', %s)", (source,))


def check_may_mark(connection: SourceConnection, source: str) -> None:
    """Raises LakehouseError when the role may not leave a mark."""
    row = connection.execute(
        "SELECT quote_ident(current_user), oid::regprocedure::text, has_function_privilege(oid, 'EXECUTE') FROM pg_proc"
        " WHERE proname = 'pg_logical_emit_message' AND proargtypes[2] = 'text'::regtype"
    ).fetchone()
    if row is not None and not row[2]:
        raise LakehouseError(
            f"source {source!r}: role {row[0]} may not mark its WAL, by which a restored source is found out: "
            f"run `GRANT EXECUTE ON FUNCTION {row[1]} TO {row[0]}`"
        )


def proves(kept: Witness | None, confirmed_lsn: int) -> bool:
    """Whether a slot at `confirmed_lsn` has to show the witness; pure."""
    return kept is not None and kept.commit_lsn >= confirmed_lsn


def same_history(kept: Witness | None, seen: Witness | None, confirmed_lsn: int) -> bool:
    """Whether a slot at `confirmed_lsn` shows what the lake was read from; pure. Without a witness nothing is known."""
    if kept is None:
        return True
    return seen == kept if proves(kept, confirmed_lsn) else seen is None

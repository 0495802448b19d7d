"""The authority on what is in the lake: a few tables beside the Iceberg catalog's rows.

They live in the catalog's database so that one SQL transaction can swap table metadata, move positions and check
the writer's lease. Positions are exclusive: every transaction with a commit LSN below `lsn` is in the lake.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

import psycopg
from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from lakehouse.retry import Unreachable
from lakehouse.settings import Settings

DDL = """
CREATE TABLE IF NOT EXISTS lakehouse.streams (
  source text PRIMARY KEY, epoch integer NOT NULL, lsn bigint NOT NULL, slot text NOT NULL,
  system_identifier text NOT NULL, timeline integer NOT NULL, publication_oid bigint NOT NULL,
  cut_lsn bigint, cut_at timestamptz, cut_tables text[] NOT NULL DEFAULT '{}',
  updated_at timestamptz NOT NULL DEFAULT clock_timestamp());
CREATE TABLE IF NOT EXISTS lakehouse.positions (
  source text, "table" text, epoch integer NOT NULL, lsn bigint NOT NULL, state text NOT NULL,
  facts jsonb NOT NULL DEFAULT '{}', updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (source, "table"));
CREATE TABLE IF NOT EXISTS lakehouse.leases (
  source text PRIMARY KEY, token bigint NOT NULL, holder text NOT NULL, mode text NOT NULL,
  acquired_at timestamptz NOT NULL, expires_at timestamptz NOT NULL);
CREATE TABLE IF NOT EXISTS lakehouse.staged_files (
  cycle_id text, source text NOT NULL, prefix text, created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (cycle_id, prefix));
CREATE TABLE IF NOT EXISTS lakehouse.cycles (
  cycle_id text PRIMARY KEY, source text NOT NULL, epoch integer NOT NULL, cut_lsn bigint,
  published_at timestamptz NOT NULL DEFAULT clock_timestamp());
"""

TableState = Literal["streaming", "parked"]


@dataclass(frozen=True)
class Cluster:
    """Which cluster a source is, on which timeline."""

    system_identifier: str
    timeline: int


@dataclass(frozen=True)
class Stream:
    """How far the slot of a source has been read, and which cluster it belongs to."""

    source: str
    epoch: int
    lsn: int
    slot: str
    system_identifier: str
    timeline: int
    publication_oid: int
    cut_lsn: int | None
    cut_at: datetime | None
    cut_tables: list[str]
    updated_at: datetime


@dataclass(frozen=True)
class Position:
    """How far one table is in the lake; `facts` are the type facts its Iceberg schema was made from."""

    table: str
    epoch: int
    lsn: int
    state: TableState
    facts: dict[str, Any]


def connect_catalog(settings: Settings) -> psycopg.Connection:
    """A connection to the catalog database in autocommit mode; raises Unreachable (a LakehouseError)."""
    try:
        return psycopg.connect(settings.catalog_dsn(), autocommit=True, connect_timeout=10)
    except psycopg.OperationalError as error:
        reason = str(error).strip().splitlines()[0]
        raise Unreachable(f"catalog database: {reason}; check LAKEHOUSE_CATALOG_URL or run `lakehouse up`") from None


def ensure_state(connection: psycopg.Connection) -> None:
    """Creates the state tables where they are missing."""
    if connection.execute("SELECT to_regclass('lakehouse.cycles')").fetchone() == (None,):
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(hashtext('lakehouse.state'))")
            if connection.execute("SELECT to_regnamespace('lakehouse')").fetchone() == (None,):
                connection.execute("CREATE SCHEMA lakehouse")
            connection.execute(DDL)


def read_stream(connection: psycopg.Connection, source: str) -> Stream | None:
    """The stream of a source, or None before its first cycle."""
    with connection.cursor(row_factory=class_row(Stream)) as cursor:
        return cursor.execute("SELECT * FROM lakehouse.streams WHERE source = %s", (source,)).fetchone()


def read_positions(connection: psycopg.Connection, source: str) -> dict[str, Position]:
    """The positions of a source's tables by table name."""
    with connection.cursor(row_factory=class_row(Position)) as cursor:
        rows = cursor.execute(
            'SELECT "table", epoch, lsn, state, facts FROM lakehouse.positions WHERE source = %s', (source,)
        )
        return {row.table: row for row in rows}


def create_stream(
    connection: psycopg.Connection, source: str, slot: str, cluster: Cluster, publication_oid: int
) -> None:
    """Records a stream whose slot is about to be made; its LSN is 0 until then."""
    connection.execute(
        "INSERT INTO lakehouse.streams (source, epoch, lsn, slot, system_identifier, timeline, publication_oid)"
        " VALUES (%s, 1, 0, %s, %s, %s, %s)",
        (source, slot, cluster.system_identifier, cluster.timeline, publication_oid),
    )


def restart_stream(
    connection: psycopg.Connection, source: str, slot: str, cluster: Cluster, publication_oid: int
) -> None:
    """Begins the next epoch: no slot yet, no table with a position, no cut of this epoch."""
    connection.execute(
        "UPDATE lakehouse.streams SET epoch = epoch + 1, lsn = 0, slot = %s, system_identifier = %s, timeline = %s,"
        " publication_oid = %s, cut_tables = '{}', updated_at = clock_timestamp() WHERE source = %s",
        (slot, cluster.system_identifier, cluster.timeline, publication_oid, source),
    )
    connection.execute("DELETE FROM lakehouse.positions WHERE source = %s", (source,))


def forget_positions(connection: psycopg.Connection, source: str, tables: list[str]) -> None:
    """Forgets tables that are no longer declared: declared again, they need a new snapshot."""
    connection.execute('DELETE FROM lakehouse.positions WHERE source = %s AND "table" = ANY(%s)', (source, tables))


def put_position(connection: psycopg.Connection, source: str, position: Position) -> None:
    """Inserts or replaces one table's position."""
    connection.execute(
        'INSERT INTO lakehouse.positions (source, "table", epoch, lsn, state, facts) VALUES (%s, %s, %s, %s, %s, %s)'
        ' ON CONFLICT (source, "table") DO UPDATE SET epoch = excluded.epoch, lsn = excluded.lsn,'
        " state = excluded.state, facts = excluded.facts, updated_at = clock_timestamp()",
        (source, position.table, position.epoch, position.lsn, position.state, Jsonb(position.facts)),
    )


def advance_positions(connection: psycopg.Connection, source: str, lsn: int) -> None:
    """Moves the stream and every streaming table that is behind up to `lsn`."""
    connection.execute(
        "UPDATE lakehouse.streams SET lsn = greatest(lsn, %s), updated_at = clock_timestamp() WHERE source = %s",
        (lsn, source),
    )
    connection.execute(
        "UPDATE lakehouse.positions SET lsn = %s, updated_at = clock_timestamp()"
        " WHERE source = %s AND state = 'streaming' AND lsn < %s",
        (lsn, source, lsn),
    )


def catalog_clock(connection: psycopg.Connection) -> datetime:
    """The catalog database's clock: one clock for all writers, whatever host they run on."""
    row = connection.execute("SELECT clock_timestamp()").fetchone()
    assert row is not None
    return row[0]


def register_staged(connection: psycopg.Connection, cycle_id: str, source: str, prefixes: list[str]) -> None:
    """Names the object prefixes a cycle is about to write, so that orphan removal spares them.

    Prefixes of the source's earlier, unpublished cycles are forgotten: the lease's holder knows that they can never
    be published any more.
    """
    with connection.transaction():
        connection.execute("DELETE FROM lakehouse.staged_files WHERE source = %s", (source,))
        with connection.cursor() as cursor:
            cursor.executemany(
                "INSERT INTO lakehouse.staged_files (cycle_id, source, prefix) VALUES (%s, %s, %s)",
                [(cycle_id, source, prefix) for prefix in prefixes],
            )


def finish_cycle(
    connection: psycopg.Connection,
    cycle_id: str,
    source: str,
    epoch: int,
    cut: tuple[int, datetime, list[str]] | None,
) -> None:
    """Records a published cycle (to answer "did it land?"), its cut, and forgets its staged prefixes."""
    connection.execute(
        "INSERT INTO lakehouse.cycles (cycle_id, source, epoch, cut_lsn) VALUES (%s, %s, %s, %s)",
        (cycle_id, source, epoch, cut[0] if cut else None),
    )
    if cut:
        connection.execute(
            "UPDATE lakehouse.streams SET cut_lsn = %s, cut_at = %s, cut_tables = %s WHERE source = %s", (*cut, source)
        )
    connection.execute("DELETE FROM lakehouse.staged_files WHERE cycle_id = %s", (cycle_id,))
    connection.execute(
        "DELETE FROM lakehouse.cycles WHERE source = %s AND published_at < clock_timestamp() - interval '7 days'",
        (source,),
    )


def cycle_landed(connection: psycopg.Connection, cycle_id: str) -> bool:
    """Whether the publish of a cycle committed."""
    found = connection.execute("SELECT 1 FROM lakehouse.cycles WHERE cycle_id = %s", (cycle_id,)).fetchone()
    return found is not None

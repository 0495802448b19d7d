"""The authority on what is in the lake: a few tables beside the Iceberg catalog's rows.

They live in the catalog's database so that one SQL transaction can swap table metadata, move positions and check
the writer's lease. Positions are exclusive: every transaction with a commit LSN below `lsn` is in the lake.
"""

from collections.abc import Collection
from dataclasses import dataclass, fields, replace
from datetime import datetime

from psycopg import sql
from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from ingestion.schema.facts import TableFacts, facts_from_json
from ingestion.schema.positions import Lsn
from ingestion.state.transitions import STATES, Mover, moved_by, sources_of
from ingestion.state.transitions import TableState as TableState
from lakehouse.errors import LakehouseError
from lakehouse.migrations import ensure_state as ensure_state
from lakehouse.servers.database import CUTS_CHANNEL, CatalogConnection
from lakehouse.servers.database import connect_catalog as connect_catalog  # beside the state it is used for

START = Lsn(0)  # before everything


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
    lsn: Lsn
    slot: str
    system_identifier: str
    timeline: int
    publication_oid: int
    cut_lsn: Lsn | None
    cut_at: datetime | None
    cut_tables: list[str]
    updated_at: datetime
    revision: int


@dataclass(frozen=True)
class Position:
    """How far one table is in the lake.

    Everything below `lsn` has landed or is in the spool. `point` is the consistent point of its newest snapshot rows:
    a cut that names the table must not be before it. `versions` are the descriptions that records from here on may be
    of; while they go to the spool, the raw table does not follow the newest of them (`unfollowed`), and `doubt` is why
    a repair will be due. `former` is the newest description of a table that is to be read anew, which has no versions:
    by it columns that were left out are known under new names.
    """

    table: str
    epoch: int
    lsn: Lsn
    state: TableState
    point: Lsn = START
    reason: str | None = None
    versions: tuple[TableFacts, ...] = ()
    fingerprint: str = ""
    unfollowed: int = 0
    doubt: str | None = None
    former: TableFacts | None = None

    @property
    def facts(self) -> TableFacts:
        """The newest description."""
        return self.versions[-1]

    @property
    def followed(self) -> TableFacts:
        """The newest description that the raw table follows."""
        return self.versions[-1 - self.unfollowed]

    @property
    def landed(self) -> frozenset[str]:
        """Names of the raw table's columns that the source had when it was last followed."""
        newest = self.followed if self.versions else self.former
        return frozenset(column.lake for column in newest.columns) if newest else frozenset()

    @property
    def forgotten(self) -> "Position":
        """The same, of which nothing is known that a new reading will tell."""
        former = self.facts if self.versions else self.former
        return replace(self, versions=(), fingerprint="", unfollowed=0, doubt=None, former=former)

    @property
    def lands(self) -> bool:
        """Whether its records land rather than being spooled."""
        return self.state in ("streaming", "loading", "stale")


def read_stream(connection: CatalogConnection, source: str) -> Stream | None:
    """The stream of a source, or None before its first cycle."""
    with connection.cursor(row_factory=class_row(Stream)) as cursor:
        columns = sql.SQL(", ").join(sql.Identifier(field.name) for field in fields(Stream))
        named = sql.SQL("SELECT {} FROM lakehouse.streams WHERE source = %s").format(columns)
        stream = cursor.execute(named, (source,)).fetchone()
    if stream is None:
        return None
    return replace(stream, lsn=Lsn(stream.lsn), cut_lsn=None if stream.cut_lsn is None else Lsn(stream.cut_lsn))


def read_positions(connection: CatalogConnection, source: str) -> dict[str, Position]:
    """The positions of a source's tables by table name."""
    rows = connection.execute(
        'SELECT "table", epoch, lsn, state, point, reason, facts FROM lakehouse.positions WHERE source = %s', (source,)
    )
    positions = {}
    for table, epoch, lsn, table_state, point, reason, kept in rows:
        stored = kept.get("versions", [kept] if kept else [])
        versions = tuple(facts_from_json(facts) for facts in stored)
        fingerprint = kept.get("fingerprint", "")
        more = {name: kept[name] for name in ("unfollowed", "doubt") if name in kept}
        more |= {"former": facts_from_json(kept["former"])} if kept.get("former") else {}
        at = Lsn(lsn), table_state, Lsn(point)
        positions[table] = Position(table, epoch, *at, reason, versions, fingerprint, **more)
    return positions


def create_stream(
    connection: CatalogConnection, source: str, slot: str, cluster: Cluster, publication_oid: int
) -> None:
    """Records a stream whose slot is about to be made; its LSN is 0 until then."""
    connection.execute(
        "INSERT INTO lakehouse.streams (source, epoch, lsn, slot, system_identifier, timeline, publication_oid)"
        " VALUES (%s, 1, 0, %s, %s, %s, %s)",
        (source, slot, cluster.system_identifier, cluster.timeline, publication_oid),
    )


def restart_stream(
    connection: CatalogConnection, source: str, slot: str, cluster: Cluster, publication_oid: int
) -> None:
    """Begins the next epoch: no slot yet, no cut of this epoch, and every table that has rows is in doubt."""
    connection.execute(
        "UPDATE lakehouse.streams SET epoch = epoch + 1, lsn = 0, slot = %s, system_identifier = %s, timeline = %s,"
        " publication_oid = %s, cut_tables = '{}', revision = revision + 1, updated_at = clock_timestamp()"
        " WHERE source = %s",
        (slot, cluster.system_identifier, cluster.timeline, publication_oid, source),
    )
    connection.execute(
        "UPDATE lakehouse.positions SET epoch = epoch + 1, lsn = 0, point = 0, facts = '{}',"
        " state = %s::jsonb ->> state WHERE source = %s",
        (Jsonb({state: moved_by("recovery", state) for state in STATES}), source),
    )
    connection.execute("DELETE FROM lakehouse.chunks WHERE source = %s", (source,))


def revise(connection: CatalogConnection, source: str) -> None:
    """Makes a publish that was planned before this fail: what it went by has changed."""
    connection.execute("UPDATE lakehouse.streams SET revision = revision + 1 WHERE source = %s", (source,))


def forget_positions(connection: CatalogConnection, source: str, tables: Collection[str]) -> None:
    """Forgets tables: declared again, they need a new snapshot."""
    for name in ("positions", "chunks"):
        connection.execute(
            f'DELETE FROM lakehouse.{name} WHERE source = %s AND "table" = ANY(%s)', (source, list(tables))
        )


def put_position(connection: CatalogConnection, source: str, position: Position, by: Mover) -> None:
    """Inserts or replaces one table's position; within an epoch its LSN never goes back.

    Raises LakehouseError where `by` may not move the table there from the state that it is in.
    """
    allowed = sources_of(by, position.state)
    kept = {
        "fingerprint": position.fingerprint,
        "versions": [facts.to_json() for facts in position.versions],
        "unfollowed": position.unfollowed,
        "doubt": position.doubt,
        "former": position.former.to_json() if position.former else None,
    }
    done = connection.execute(
        'INSERT INTO lakehouse.positions (source, "table", epoch, lsn, state, point, reason, facts)'
        " SELECT given.* FROM (VALUES (%s, %s, %s::integer, %s::bigint, %s, %s::bigint, %s, %s::jsonb))"
        ' AS given(source, "table", epoch, lsn, state, point, reason, facts)'
        " WHERE %s OR EXISTS (SELECT FROM lakehouse.positions known"
        '  WHERE (known.source, known."table") = (given.source, given."table"))'
        ' ON CONFLICT (source, "table") DO UPDATE SET epoch = excluded.epoch,'
        " lsn = CASE WHEN positions.epoch = excluded.epoch THEN greatest(positions.lsn, excluded.lsn) ELSE excluded.lsn"
        " END, state = excluded.state, point = excluded.point, reason = excluded.reason,"
        " facts = excluded.facts, updated_at = clock_timestamp() WHERE positions.state = ANY(%s)",
        (source, position.table, position.epoch, position.lsn, position.state, position.point, position.reason,
         Jsonb(kept), "new" in allowed, list(allowed)),
    )  # fmt: skip
    if done.rowcount != 1:
        there = read_positions(connection, source).get(position.table)
        raise LakehouseError(
            f"source {source!r}, table {position.table!r}: it is {there.state if there else 'not known'}, from where a "
            f"{by} does not make it {position.state}; nothing was written: the next run goes by what it is now"
        )


def note_new(connection: CatalogConnection, source: str, table: str, epoch: int, problem: str | None) -> None:
    """Records a table that has not begun, and what is in its way."""
    connection.execute(
        'INSERT INTO lakehouse.positions AS known (source, "table", epoch, lsn, state, reason)'
        ' VALUES (%s, %s, %s, 0, %s, %s) ON CONFLICT (source, "table") DO UPDATE SET reason = excluded.reason'
        " WHERE known.state = excluded.state",
        (source, table, epoch, "new", problem),
    )


def advance_positions(connection: CatalogConnection, source: str, lsn: int) -> None:
    """Moves the stream and every table that is behind up to `lsn`."""
    connection.execute(
        "UPDATE lakehouse.streams SET lsn = greatest(lsn, %s), updated_at = clock_timestamp() WHERE source = %s",
        (lsn, source),
    )
    connection.execute(
        "UPDATE lakehouse.positions SET lsn = %s, updated_at = clock_timestamp()"
        " WHERE source = %s AND state <> 'new' AND lsn < %s",
        (lsn, source, lsn),
    )


def catalog_clock(connection: CatalogConnection) -> datetime:
    """The catalog database's clock: one clock for all writers, whatever host they run on."""
    row = connection.execute("SELECT clock_timestamp()").fetchone()
    assert row is not None
    return row[0]


def ingestion_clock(connection: CatalogConnection, source: str) -> datetime:
    """The catalog's clock, but never before a cycle that is published.

    Loads go by the moment of ingestion: after a clock that was put back they would pass over what comes next.
    """
    row = connection.execute(
        "SELECT greatest(clock_timestamp(), (SELECT max(published_at) FROM lakehouse.cycles WHERE source = %s))",
        (source,),
    ).fetchone()
    assert row is not None
    return row[0]


def register_staged(
    connection: CatalogConnection, cycle_id: str, source: str, prefixes: list[str], live: Collection[str] = ()
) -> None:
    """Names the object prefixes a cycle is about to write, so that orphan removal spares them.

    Prefixes of the source's other cycles are forgotten unless they are `live`: the lease's holder knows that they can
    never be published any more.
    """
    with connection.transaction():
        connection.execute(
            "DELETE FROM lakehouse.staged_files WHERE source = %s AND cycle_id <> ALL(%s)", (source, [cycle_id, *live])
        )
        with connection.cursor() as cursor:
            cursor.executemany(
                "INSERT INTO lakehouse.staged_files (cycle_id, source, prefix) VALUES (%s, %s, %s)"
                " ON CONFLICT DO NOTHING",
                [(cycle_id, source, prefix) for prefix in prefixes],
            )


def finish_cycle(
    connection: CatalogConnection,
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
        connection.execute("SELECT pg_notify(%s, %s)", (CUTS_CHANNEL, source))
    connection.execute("DELETE FROM lakehouse.staged_files WHERE cycle_id = %s", (cycle_id,))
    connection.execute(
        "DELETE FROM lakehouse.cycles WHERE source = %s AND published_at < clock_timestamp() - interval '7 days'",
        (source,),
    )


def cycle_landed(connection: CatalogConnection, cycle_id: str) -> bool:
    """Whether the publish of a cycle committed."""
    found = connection.execute("SELECT 1 FROM lakehouse.cycles WHERE cycle_id = %s", (cycle_id,)).fetchone()
    return found is not None

"""The authority on what is in the lake: a few tables beside the Iceberg catalog's rows.

They live in the catalog's database so that one SQL transaction can swap table metadata, move positions and check
the writer's lease. Positions are exclusive: every transaction below one is in the lake.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, LiteralString

from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from ingestion.schema.facts import TOPIC, TableFacts
from ingestion.schema.positions import Position
from ingestion.state import described, stored
from ingestion.state.described import Known
from ingestion.state.transitions import ACTORS, STATES, Mover, moved_by, sources_of
from ingestion.state.transitions import TableState as TableState
from lakehouse.catalog.views.view_versions import Since
from lakehouse.errors import LakehouseError
from lakehouse.migrations import ensure_state as ensure_state
from lakehouse.servers.database import CUTS_CHANNEL, CatalogConnection
from lakehouse.servers.database import connect_catalog as connect_catalog  # beside the state it is used for

INGESTION_CLOCK: LiteralString = (
    "greatest(clock_timestamp(), (SELECT max(published_at) FROM lakehouse.cycles WHERE source = %(source)s)"
    " + interval '1 microsecond', %(not_before)s::timestamptz)"
)
RESTORED = "restored from a backup"  # how the system identifier begins of a source that is to be recovered, before why


@dataclass(frozen=True)
class Cluster:
    """Which cluster a source is, on which timeline."""

    system_identifier: str
    timeline: int


@dataclass(frozen=True)
class Stream:
    """How far the stream of a source has been read, and which cluster its slot belongs to.

    `publication_oid` is the number of what tells the stream: a publication, or a topic of transactions (0: not there
    yet). `cut_lsn` is the newest cut's, as `meta.cuts` has it: the rows of that cut have it or a smaller `_commit_lsn`.
    `flush_asked` is whether somebody waits for what a follower has read and not published.
    """

    source: str
    epoch: int
    position: Any
    slot: str
    system_identifier: str
    timeline: int
    publication_oid: int
    cut_lsn: int | None
    cut_position: Any | None
    cut_at: datetime | None
    cut_tables: list[str]
    updated_at: datetime
    revision: int
    kind: str = "postgres"
    flush_asked: bool = False


@dataclass(frozen=True)
class TablePosition:
    """How far one table is in the lake.

    Everything below `position` has landed or is in the spool. `point` is the consistent point of its newest snapshot
    rows: a cut that names the table must not be before it. `versions` are the descriptions that records from here on
    may be of; while they go to the spool, the raw table does not follow the newest of them (`unfollowed`), and
    `resync_reason` is why the table will need a resync. `former` is the newest description of a table that is to be
    snapshotted again, which has no versions: by it withheld columns are known under new names. A source that has moved
    to topics keeps that of each table by its slot there.
    """

    table: str
    epoch: int
    position: Any
    state: TableState
    point: Any
    reason: str | None = None
    versions: tuple[TableFacts, ...] = ()
    fingerprint: str = ""
    unfollowed: int = 0
    resync_reason: str | None = None
    former: TableFacts | None = None

    @property
    def known(self) -> Known:
        """What is kept beside where the table stands."""
        return Known(self.versions, self.fingerprint, self.unfollowed, self.resync_reason, self.former)

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
    def forgotten(self) -> "TablePosition":
        """The same, of which nothing is known that a new reading will tell."""
        return replace(self, versions=(), fingerprint="", unfollowed=0, resync_reason=None, former=self._newest_former)

    @property
    def _newest_former(self) -> TableFacts | None:
        """The newest description; of a table whose source has moved to topics, the one from before, as these tell no
        numbers of its columns."""
        came_by_slot = self.former is not None and self.former.relkind != TOPIC
        if not self.versions or (came_by_slot and self.facts.relkind == TOPIC):
            return self.former
        return self.facts

    @property
    def lands(self) -> bool:
        """Whether its records land rather than being spooled."""
        return self.state in ("streaming", "loading", "stale")


def has_state(connection: CatalogConnection) -> bool:
    """Whether the lake has a state; without one nothing was ever ingested."""
    return connection.execute("SELECT to_regclass('lakehouse.streams') IS NOT NULL").fetchone() == (True,)


def read_stream(connection: CatalogConnection, source: str) -> Stream | None:
    """The stream of a source, or None before its first cycle."""
    with connection.cursor(row_factory=dict_row) as cursor:
        row = cursor.execute(
            "SELECT source, epoch, lsn, position, slot, system_identifier, timeline, publication_oid, cut_lsn,"
            " cut_position, cut_at, cut_tables, updated_at, revision, kind, flush_asked_at IS NOT NULL AS flush_asked"
            " FROM lakehouse.streams WHERE source = %s",
            (source,),
        ).fetchone()
    if row is None:
        return None
    kind, cut_lsn = row["kind"], row["cut_lsn"]
    row["position"] = stored.read(kind, row["position"], row.pop("lsn"))
    row["cut_position"] = None if cut_lsn is None else stored.read(kind, row["cut_position"], cut_lsn + 1)
    return Stream(**row)


def read_slots(connection: CatalogConnection) -> dict[str, str]:
    """The slot of each source that is read by one, or was and has it still."""
    return dict(
        connection.execute("SELECT source, slot FROM lakehouse.streams WHERE slot <> '' ORDER BY source").fetchall()
    )


def kind_of(connection: CatalogConnection, source: str) -> str:
    """The kind of a source, by which its positions are read."""
    row = connection.execute("SELECT kind FROM lakehouse.streams WHERE source = %s", (source,)).fetchone()
    return str(row[0]) if row else "postgres"


def read_positions(
    connection: CatalogConnection, source: str, tables: Collection[str] | None = None
) -> dict[str, TablePosition]:
    """The positions of a source's tables by table name: of all, or of those."""
    kind = kind_of(connection, source)
    rows = connection.execute(
        'SELECT "table", epoch, position, lsn, state, snapshot_position, point, reason, facts::text'
        ' FROM lakehouse.positions WHERE source = %s AND (%s::text[] IS NULL OR "table" = ANY(%s))',
        (source, *[None if tables is None else list(tables)] * 2),
    )
    return {
        table: TablePosition(
            table,
            epoch,
            stored.read(kind, position, lsn),
            table_state,
            stored.read(kind, snapshot_position, point),
            reason,
            *described.read(kept),
        )
        for table, epoch, position, lsn, table_state, snapshot_position, point, reason, kept in rows
    }


def create_stream(
    connection: CatalogConnection, source: str, slot: str, cluster: Cluster, publication_oid: int,
    kind: str = "postgres",
) -> None:  # fmt: skip
    """Records a stream whose slot is about to be made; nothing has been read of it until then."""
    connection.execute(
        "INSERT INTO lakehouse.streams (source, epoch, lsn, slot, system_identifier, timeline, publication_oid, kind)"
        " VALUES (%s, 1, 0, %s, %s, %s, %s, %s)",
        (source, slot, cluster.system_identifier, cluster.timeline, publication_oid, kind),
    )


def follow_timeline(connection: CatalogConnection, source: str, timeline: int) -> None:
    """The source went on on a later timeline, with all that was read of it."""
    connection.execute("UPDATE lakehouse.streams SET timeline = %s WHERE source = %s", (timeline, source))


def note_publication(connection: CatalogConnection, source: str, oid: int) -> None:
    """Records what a stream is told by, where that was not there when the stream began."""
    connection.execute("UPDATE lakehouse.streams SET publication_oid = %s WHERE source = %s", (oid, source))


def restart_stream(
    connection: CatalogConnection, source: str, slot: str, cluster: Cluster, publication_oid: int
) -> None:
    """Begins the next epoch: no slot yet, no cut of this epoch, and every table that has rows needs a resync. Of how
    tables were described, what withheld columns are known by is kept."""
    known = read_positions(connection, source).values()
    connection.execute(
        "UPDATE lakehouse.streams SET epoch = epoch + 1, position = NULL, lsn = 0, slot = %s, system_identifier = %s,"
        " timeline = %s, publication_oid = %s, cut_tables = '{}', revision = revision + 1,"
        " updated_at = clock_timestamp() WHERE source = %s",
        (slot, cluster.system_identifier, cluster.timeline, publication_oid, source),
    )
    connection.execute(
        "UPDATE lakehouse.positions SET epoch = epoch + 1, position = NULL, lsn = 0, snapshot_position = NULL,"
        " point = 0, state = %s::jsonb ->> state WHERE source = %s",
        (Jsonb({state: moved_by("recovery", state) for state in STATES}), source),
    )
    with connection.cursor() as cursor:
        cursor.executemany(
            'UPDATE lakehouse.positions SET facts = %s WHERE source = %s AND "table" = %s',
            [(described.written(position.forgotten.known), source, position.table) for position in known],
        )
    for table in ("chunks", "live"):
        connection.execute(f"DELETE FROM lakehouse.{table} WHERE source = %s", (source,))


def set_kind(connection: CatalogConnection, source: str, kind: str) -> None:
    """A stream that has just been restarted goes on as one of another kind: nothing is read of it yet, and the newest
    cut, whose position is of the former kind, is no cut of it."""
    connection.execute(
        "UPDATE lakehouse.streams SET kind = %s, cut_position = NULL, cut_lsn = NULL, cut_at = NULL"
        " WHERE source = %s AND position IS NULL",
        (kind, source),
    )


def begin_as(connection: CatalogConnection, source: str, kind: str) -> None:
    """The next epoch of a stream of which no table is left begins as one of another kind; nothing is read of it."""
    stream = read_stream(connection, source)
    assert stream is not None
    forget_positions(connection, source, list(read_positions(connection, source)))
    restart_stream(connection, source, stream.slot, Cluster(stream.system_identifier, stream.timeline), 0)
    set_kind(connection, source, kind)
    for table in ("claims", "turns"):
        connection.execute(f"DELETE FROM lakehouse.{table} WHERE source = %s", (source,))
    connection.execute("UPDATE lakehouse.streams SET topics = '{}' WHERE source = %s", (source,))


def hand_over(
    connection: CatalogConnection, source: str, kind: str, position: Position, tables: Mapping[str, Known]
) -> None:
    """A stream that has just been restarted goes on as one of another kind at a position; so do these tables, whose
    rows are there up to it. Others are forgotten."""
    set_kind(connection, source, kind)
    row = connection.execute("SELECT epoch FROM lakehouse.streams WHERE source = %s", (source,)).fetchone()
    assert row is not None
    text, bound = stored.written(position)
    connection.execute("UPDATE lakehouse.streams SET position = %s, lsn = %s WHERE source = %s", (text, bound, source))
    forget_positions(connection, source, list(read_positions(connection, source).keys() - tables.keys()))
    for table, known in tables.items():
        connection.execute(
            "UPDATE lakehouse.positions SET position = %s, lsn = %s, state = %s, snapshot_position = NULL, point = 0,"
            ' reason = NULL, facts = %s WHERE source = %s AND "table" = %s',
            (text, bound, "streaming", described.written(known), source, table),
        )


def note_slot(connection: CatalogConnection, source: str, slot: str) -> None:
    """Records the slot of a stream, empty once it is dropped; one of topics has that which was read before them until
    then."""
    connection.execute("UPDATE lakehouse.streams SET slot = %s WHERE source = %s", (slot, source))


def revise(connection: CatalogConnection, source: str) -> None:
    """Makes a publish that was planned before this fail: what it went by has changed."""
    connection.execute("UPDATE lakehouse.streams SET revision = revision + 1 WHERE source = %s", (source,))


def note_topic(connection: CatalogConnection, source: str, topic: str, table: str, number: int) -> None:
    """From now on the topic of that number is read for this table. That outlasts the table's position, as what has been
    read of the topic does."""
    connection.execute(
        "UPDATE lakehouse.streams SET topics = topics || %s WHERE source = %s",
        (Jsonb({topic: [table, number]}), source),
    )


def topics_read(connection: CatalogConnection, source: str) -> dict[str, tuple[str, int]]:
    """By topic the table for which it was last read, and the topic's number then, where that is known."""
    row = connection.execute("SELECT topics FROM lakehouse.streams WHERE source = %s", (source,)).fetchone()
    return {topic: (table, number) for topic, (table, number) in row[0].items()} if row else {}


def forget_positions(connection: CatalogConnection, source: str, tables: Collection[str]) -> None:
    """Forgets tables: declared again, they need a new snapshot."""
    for name in ("positions", "chunks", "live"):
        connection.execute(
            f'DELETE FROM lakehouse.{name} WHERE source = %s AND "table" = ANY(%s)', (source, list(tables))
        )


def put_position(connection: CatalogConnection, source: str, position: TablePosition, by: Mover) -> None:
    """Inserts or replaces one table's position; within an epoch it never goes back.

    Raises LakehouseError where `by` may not move the table there from the state that it is in.
    """
    allowed = sources_of(by, position.state)
    with connection.transaction():
        known = connection.execute(
            'SELECT state, epoch, position, lsn FROM lakehouse.positions WHERE source = %s AND "table" = %s FOR UPDATE',
            (source, position.table),
        ).fetchone()
        state, epoch, *before = known or ("new", None)
        if state not in allowed:
            raise LakehouseError(
                f"source {source!r}, table {position.table!r}: {ACTORS[by]} cannot change its state from {state} to "
                f"{position.state}; nothing was written, and the next run starts from the present state"
            )
        reached = position.position
        if epoch == position.epoch:
            reached = stored.read(kind_of(connection, source), *before).join(reached)
        connection.execute(
            'INSERT INTO lakehouse.positions (source, "table", epoch, position, lsn, state, snapshot_position, point,'
            " reason, facts) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
            ' ON CONFLICT (source, "table") DO UPDATE SET epoch = excluded.epoch, position = excluded.position,'
            " lsn = excluded.lsn, state = excluded.state, snapshot_position = excluded.snapshot_position,"
            " point = excluded.point, reason = excluded.reason, facts = excluded.facts,"
            " updated_at = clock_timestamp()",
            (source, position.table, position.epoch, *stored.written(reached), position.state,
             *stored.written(position.point), position.reason, described.written(position.known)),
        )  # fmt: skip


def note_new(connection: CatalogConnection, source: str, table: str, epoch: int, problem: str | None) -> None:
    """Records a table that has not been snapshotted, and what prevents it."""
    connection.execute(
        'INSERT INTO lakehouse.positions AS known (source, "table", epoch, lsn, state, reason)'
        ' VALUES (%s, %s, %s, 0, %s, %s) ON CONFLICT (source, "table") DO UPDATE SET reason = excluded.reason'
        " WHERE known.state = excluded.state",
        (source, table, epoch, "new", problem),
    )


def advance_positions(connection: CatalogConnection, source: str, position: Position) -> None:
    """Moves the stream, and every table that has begun, on to what they and `position` have reached together.

    What is there already keeps the moment at which it got there: a source that waits is behind since then.
    """
    with connection.transaction():
        kind = kind_of(connection, source)
        rows = connection.execute(
            "SELECT position, lsn FROM lakehouse.streams WHERE source = %(source)s"
            " UNION SELECT position, lsn FROM lakehouse.positions WHERE source = %(source)s AND state <> 'new'",
            {"source": source},
        ).fetchall()
        for text, lsn in rows:
            joined = stored.written(stored.read(kind, text, lsn).join(position))
            if joined == (text, lsn):
                continue
            for table, begun in (("streams", ""), ("positions", " AND state <> 'new'")):
                connection.execute(
                    f"UPDATE lakehouse.{table} SET position = %s, lsn = %s, updated_at = clock_timestamp()"
                    f" WHERE source = %s AND lsn = %s AND position IS NOT DISTINCT FROM %s{begun}",
                    (*joined, source, lsn, text),
                )


def note_read(connection: CatalogConnection, source: str, at: datetime) -> None:
    """Everything that the source had committed until then has been published, but for what is shown and held."""
    connection.execute(
        "UPDATE lakehouse.streams AS s SET read_at = greatest(read_at, %s) WHERE source = %s AND NOT EXISTS"
        " (SELECT FROM lakehouse.live AS l WHERE l.source = s.source AND metadata_location IS NOT NULL)",
        (at, source),
    )


def set_positions(connection: CatalogConnection, source: str, position: Position) -> None:
    """Moves the stream, and every table that has begun, to a position that they may be beyond: the lake lost rows."""
    with connection.transaction():
        connection.execute("UPDATE lakehouse.streams SET read_at = NULL WHERE source = %s", (source,))
        for table, begun in (("streams", ""), ("positions", " AND state <> 'new'")):
            connection.execute(
                f"UPDATE lakehouse.{table} SET position = %s, lsn = %s, updated_at = clock_timestamp()"
                f" WHERE source = %s{begun}",
                (*stored.written(position), source),
            )


def catalog_clock(connection: CatalogConnection) -> datetime:
    """The catalog database's clock: one clock for all writers, whatever host they run on."""
    row = connection.execute("SELECT clock_timestamp()").fetchone()
    assert row is not None
    return row[0]


def ingestion_clock(connection: CatalogConnection, source: str, not_before: datetime | None = None) -> datetime:
    """The catalog's clock, but always after every cycle that is published, and never before that moment.

    Loads go by the moment of ingestion: after a clock that was put back they would pass over what comes next.
    """
    row = connection.execute(f"SELECT {INGESTION_CLOCK}", {"source": source, "not_before": not_before}).fetchone()
    assert row is not None
    return row[0]


def last_publish(connection: CatalogConnection, source: str) -> datetime | None:
    """When the newest cycle was published; every cut of a later one has a later `published_at`."""
    row = connection.execute("SELECT max(published_at) FROM lakehouse.cycles WHERE source = %s", (source,)).fetchone()
    assert row is not None
    return row[0]


def irregular_since(connection: CatalogConnection, source: str, seen: datetime, cut_lsn: int | None = None) -> Since:
    """The tables that publishes after that one brought irregular rows to, and those whose cut is not after this one:
    what a repair or a replay lands may be of before it."""
    rows = connection.execute(
        "SELECT irregular, %(cut)s::bigint IS NULL OR cut_lsn IS NULL OR cut_lsn <= %(cut)s FROM lakehouse.cycles"
        " WHERE source = %(source)s AND published_at > %(seen)s",
        {"source": source, "seen": seen, "cut": cut_lsn},
    ).fetchall()
    every, late = [tables for tables, _ in rows], [tables for tables, is_late in rows if is_late]
    return Since(_together(every), _together(late))


def _together(brought: Sequence[Sequence[str] | None]) -> frozenset[str] | None:
    """The tables of these publishes; None if one of them does not tell."""
    told = [tables for tables in brought if tables is not None]
    return frozenset(table for tables in told for table in tables) if len(told) == len(brought) else None


def register_staged(
    connection: CatalogConnection, cycle_id: str, source: str, prefixes: list[str], live: Collection[str] = (),
    writer: str = "",
) -> None:  # fmt: skip
    """Names the object prefixes a cycle is about to write, so that orphan removal spares them.

    Prefixes of the source's other cycles are forgotten unless they are `live`: the lease's holder knows that they can
    never be published any more. A `writer` beside others knows that of its own.
    """
    with connection.transaction():
        connection.execute(
            "DELETE FROM lakehouse.staged_files WHERE source = %(source)s AND cycle_id <> ALL(%(live)s)"
            " AND %(writer)s IN ('', writer)",
            {"source": source, "live": [cycle_id, *live], "writer": writer},
        )
        with connection.cursor() as cursor:
            cursor.executemany(
                "INSERT INTO lakehouse.staged_files (cycle_id, source, prefix, writer) VALUES (%s, %s, %s, %s)"
                " ON CONFLICT DO NOTHING",
                [(cycle_id, source, prefix, writer) for prefix in prefixes],
            )


def finish_cycle(
    connection: CatalogConnection,
    cycle_id: str,
    source: str,
    epoch: int,
    cut: tuple[Position, datetime, list[str]] | None,
    irregular: Sequence[str] = (),
    ingested_at: datetime | None = None,
    rows: int = 0,
) -> None:
    """Records a published cycle (to answer "did it land?"), its cut, and forgets its staged prefixes.

    `irregular` are the tables to which it brought rows that the short text of a fresh view cannot follow,
    `ingested_at` is the latest that a row of it carries, and `rows` came to raw tables.
    """
    lsn = cut[0].commit_bound - 1 if cut else None
    connection.execute(
        "INSERT INTO lakehouse.cycles (cycle_id, source, epoch, cut_lsn, irregular, rows, published_at)"
        f" VALUES (%(cycle)s, %(source)s, %(epoch)s, %(lsn)s, %(irregular)s, %(rows)s, {INGESTION_CLOCK})",
        {
            "cycle": cycle_id,
            "source": source,
            "epoch": epoch,
            "lsn": lsn,
            "irregular": list(irregular),
            "rows": rows,
            "not_before": ingested_at,
        },
    )
    if cut:
        put_cut(connection, source, *cut)
        connection.execute("SELECT pg_notify(%s, %s)", (CUTS_CHANNEL, source))
    connection.execute("DELETE FROM lakehouse.staged_files WHERE cycle_id = %s", (cycle_id,))
    connection.execute(
        "DELETE FROM lakehouse.cycles WHERE source = %s AND published_at < clock_timestamp() - interval '7 days'",
        (source,),
    )


def put_cut(connection: CatalogConnection, source: str, position: Position, at: datetime, tables: list[str]) -> None:
    """Records the newest cut of a source."""
    text, bound = stored.written(position)
    connection.execute(
        "UPDATE lakehouse.streams SET cut_position = %s, cut_lsn = %s, cut_at = %s, cut_tables = %s WHERE source = %s",
        (text, bound - 1, at, tables, source),
    )


def cycle_landed(connection: CatalogConnection, cycle_id: str) -> bool:
    """Whether the publish of a cycle committed."""
    found = connection.execute("SELECT 1 FROM lakehouse.cycles WHERE cycle_id = %s", (cycle_id,)).fetchone()
    return found is not None

"""A key column is renamed under each replica identity, and rows change their keys before, between and after: what lands
is what the source holds, however it was read, or the table says that it needs a resync."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from psycopg.rows import dict_row
from pyiceberg.catalog.sql import SqlCatalog

from ingestion.pipeline.session import Cycle, target
from ingestion.pipeline.survey import Outlook
from ingestion.pipeline.table_plans import Course, plan_course
from ingestion.schema.evolve import name_columns, resync_reason
from ingestion.schema.facts import TableFacts
from ingestion.schema.positions import Lsn
from ingestion.sink.meta_tables import ensure_meta
from ingestion.sink.raw_tables import ensure_raw_table, follow_source
from ingestion.sink.writer import writable_metadata
from ingestion.sources.postgres.catalog.describe import read_facts
from ingestion.sources.postgres.connection import free_slot
from ingestion.sources.postgres.history.server import started_at
from ingestion.sources.postgres.live import LiveStream
from ingestion.sources.postgres.reading import SlotReader
from ingestion.sources.postgres.records import PgoutputRecords
from ingestion.state.store import TablePosition
from ingestion.tasks.changes import ChangePlan, read_changes
from ingestion.tasks.replay import ReplayPlan, replay
from lakehouse.declarations import RawTable
from lakehouse.declarations.policies import RawPolicy
from tests.clusters import Cluster, cluster
from tests.marks import slow
from tests.world import Row, declared_source, position
from tests.world import replay as replayed

pytestmark = pytest.mark.stack

WAYS = ("peek", "live", "kept")
TABLES = {
    "full": "CREATE TABLE t (id int PRIMARY KEY, b int DEFAULT 0, v text); ALTER TABLE t REPLICA IDENTITY FULL",
    "default": "CREATE TABLE t (id int PRIMARY KEY, b int DEFAULT 0, v text)",
    "index": "CREATE TABLE t (id int NOT NULL UNIQUE, b int DEFAULT 0, v text);"
    "ALTER TABLE t REPLICA IDENTITY USING INDEX t_id_key",
    "shared": "CREATE TABLE t (id int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED, b int DEFAULT 0, v text);"
    "ALTER TABLE t REPLICA IDENTITY FULL",
}
PAIRS = {name: ddl.replace("id int PRIMARY KEY", "id int").replace("v text", "v text, PRIMARY KEY (id, b)")
         for name, ddl in TABLES.items() if name in ("full", "default")}  # fmt: skip
PAIRS["shared"] = PAIRS["full"].replace("PRIMARY KEY (id, b)", "PRIMARY KEY (id, b) DEFERRABLE INITIALLY DEFERRED")
KEYED: dict[str, tuple[str, tuple[str, ...]]] = {
    **{name: (ddl, ()) for name, ddl in TABLES.items()},
    **{f"pair_{name}": (ddl, ("b",)) for name, ddl in PAIRS.items()},
}
BEGINS = "INSERT INTO t (id, b, v) SELECT i, 0, 'v' || i FROM generate_series(1, 9) i"
SWAP = "ALTER TABLE t RENAME {id} TO x; ALTER TABLE t RENAME b TO {id}; ALTER TABLE t RENAME x TO b"


def changes(name: str, n: int) -> str:
    """Rows change their keys, go and come; `n` makes those of one time differ from those of another one."""
    return (
        f"UPDATE t SET {name} = {10 * n} WHERE {name} = {n}; UPDATE t SET v = 'w' WHERE {name} = {10 * n};"
        f"DELETE FROM t WHERE {name} = {n + 3}; INSERT INTO t ({name}, v) VALUES ({n}, 'again');"
        f"BEGIN; UPDATE t SET {name} = {100 * n} WHERE {name} = {n}; UPDATE t SET {name} = {n} WHERE {name} = {n + 6};"
        "COMMIT"
    )


@dataclass(frozen=True)
class Alteration:
    """Statements by turns with looks at the source, where there is None; and what the key is called in the end.

    `exact` says that the stream alone tells everything.
    """

    script: tuple[str | None, ...]
    ends: str = "pk"
    exact: bool = True


RENAME = "ALTER TABLE t RENAME {} TO {}"
ALTERATIONS = {
    "renamed": Alteration((changes("id", 1), RENAME.format("id", "pk"), changes("pk", 2))),
    "renamed_after_all": Alteration((changes("id", 1), RENAME.format("id", "pk"))),
    "renamed_while_seen": Alteration((changes("id", 1), RENAME.format("id", "pk"), None, changes("pk", 2))),
    "renamed_and_back_while_seen": Alteration(
        (changes("id", 1), RENAME.format("id", "pk"), None, changes("pk", 2), RENAME.format("pk", "id"),
         changes("id", 3)), "id",
    ),
    "renamed_twice_while_seen": Alteration(
        (changes("id", 1), RENAME.format("id", "k"), None, changes("k", 2), RENAME.format("k", "pk"), changes("pk", 3)),
    ),
    "renamed_twice_unseen": Alteration(
        (changes("id", 1), RENAME.format("id", "k"), changes("k", 2), RENAME.format("k", "pk"), changes("pk", 3)),
        exact=False,
    ),
    "renamed_and_back_unseen": Alteration(
        (changes("id", 1), RENAME.format("id", "pk"), changes("pk", 2), RENAME.format("pk", "id"), changes("id", 3)),
        "id", exact=False,
    ),
    "swapped": Alteration((changes("id", 1), SWAP.format(id="id"), changes("b", 2)), "b", exact=False),
    "swapped_while_seen": Alteration((changes("id", 1), SWAP.format(id="id"), None, changes("b", 2)), "b", exact=False),
}  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[Cluster]:
    with cluster() as made:
        yield made


@dataclass
class Altered:
    """The source, the table as it is declared in the end, and the course of its records."""

    url: str
    connection: psycopg.Connection[Any]
    table: RawTable
    course: Course

    @property
    def now(self) -> TableFacts:
        return self.course.position.facts

    def rows(self) -> list[Row]:
        names = ", ".join(f'{column.name} AS "{column.lake}"' for column in self.now.columns)
        with self.connection.cursor(row_factory=dict_row) as cursor:
            return cursor.execute(f"SELECT {names} FROM t").fetchall()  # type: ignore[arg-type]


def declared(*key: str) -> RawTable:
    return declared_source("s", {"t": RawPolicy(relation="public.t", key=key)}).tables[0]


def alter(connection: psycopg.Connection[Any], url: str, alteration: Alteration, key: tuple[str, ...]) -> Altered:
    """Plays the script on a new table, which is looked at as ingestion does, and parked while its key is not there."""
    table = declared("id", *key)
    first = name_columns(table, None, look(connection, table))
    at = TablePosition("t", 1, Lsn(1), "parked", Lsn(1), versions=(first,), fingerprint="first")
    for number, statement in enumerate((BEGINS, *alteration.script)):
        if statement is None:
            seen = name_columns(table, at.facts, look(connection, table))
            at = plan_course(at, Outlook(table, str(number), seen)).position
            continue
        for each in statement.split("BEGIN;"):
            inside, _, apart = each.partition("COMMIT") if "COMMIT" in each else ("", "", each)
            for part in (inside, *apart.split(";")):
                if part.strip():
                    connection.execute(part)  # type: ignore[arg-type]
    table = declared(alteration.ends, *("id" if name == alteration.ends else name for name in key))
    now = name_columns(table, at.facts, look(connection, table))
    return Altered(url, connection, table, plan_course(replace(at, state="streaming"), Outlook(table, "now", now)))


def look(connection: psycopg.Connection[Any], table: RawTable) -> TableFacts:
    facts, _ = read_facts(connection, table, "p")  # type: ignore[arg-type]
    assert facts is not None
    return facts


@dataclass(frozen=True)
class Landed:
    """The rows of the raw table, and why it needs a resync."""

    rows: list[Row]
    stale: str | None


def land(altered: Altered, folder: Path, way: str, came: pa.Array) -> Landed:
    """Reads the slot as ingestion does, by a peek or what came by the live stream; or lands what a read kept aside."""
    catalog = SqlCatalog("lake", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/warehouse")
    for namespace in ("raw_s", "meta"):
        catalog.create_namespace(namespace)
    first, now = altered.course.position.versions[0], altered.now
    before = altered.course.before.versions[0]
    raw = ensure_raw_table(
        catalog, declared(*(n for n in ("id", "b") if n in before.key or n == "id")), before, datetime.now(UTC)
    )
    at = datetime.now(UTC)
    raw = follow_source(raw, altered.table, altered.course.steps, before, now, at)
    cycle = Cycle("c", 1, at)
    mine = target(altered.table, raw, now, cycle, 0, altered.course.position.versions)
    metas = {name: ensure_meta(catalog, name) for name in ("spool", "quarantine", "unrepresentable")}
    templates = {name: writable_metadata(table, "c") for name, table in metas.items()}
    upto = 1 << 62
    reader = SlotReader("s", altered.url, started_at(altered.connection), "s", "p", upto, 0, None, 1 << 20)  # type: ignore[arg-type]
    if way != "peek":
        reader = replace(reader, received=came)
    aside = {} if way != "kept" else {"t": "parked"}
    plan = ChangePlan("s", reader, PgoutputRecords(), (mine,), aside, templates, {}, 1 << 20)
    result = read_changes(plan)
    written, noticed = result.written, result.noticed
    if aside:
        kept = metas["spool"]
        with kept.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
            for file in result.meta_files["spool"]:
                append.append_data_file(file)
        kept = kept.refresh()
        tasks = tuple(kept.scan().plan_files())
        text = kept.metadata.model_dump_json()
        later = replay(ReplayPlan(text, tasks, mine, templates, {}, 1 << 20, PgoutputRecords()))
        written, noticed = later.written, noticed | later.noticed
    paths = [file.file_path.removeprefix("file://") for each in written for file in each.files]
    rows = [row for path in paths for row in pq.read_table(path, partitioning=None).to_pylist()]
    stale = noticed["t"].stale if "t" in noticed else None
    return Landed(sorted(rows, key=position), stale or resync_reason(first, now))


def received(altered: Altered) -> pa.Array:
    """What the live stream brings."""
    connection = altered.connection
    end = connection.execute("SELECT (pg_current_wal_lsn() - '0/0')::bigint").fetchone()
    start = connection.execute("SELECT (confirmed_flush_lsn - '0/0')::bigint FROM pg_replication_slots").fetchone()
    assert end is not None and start is not None
    stream = LiveStream(altered.url, "s", "p", start[0], 1 << 26, started_at(connection))  # type: ignore[arg-type]
    try:
        stream.reach(end[0], 30)
        return stream.below(end[0] + 1)
    finally:
        stream.close()
        free_slot(connection, "s", "s")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("which", "name"),
    [
        (which, name) if which == "full" or name == "renamed" else slow(which, name)
        for which in KEYED
        for name in ALTERATIONS
    ],
)
def test_what_lands_is_what_the_source_holds(server: Cluster, tmp_path: Path, which: str, name: str) -> None:
    ddl, key = KEYED[which]
    alteration = ALTERATIONS[name]
    server.admin("CREATE DATABASE s")
    url = server.url("s") + "?application_name=test"
    try:
        with psycopg.connect(server.url("s"), autocommit=True) as connection:
            connection.execute(ddl)  # type: ignore[arg-type]
            connection.execute("CREATE PUBLICATION p FOR TABLE t")
            connection.execute("SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
            altered = alter(connection, url, alteration, key)
            came = received(altered)
            for way in WAYS:
                (tmp_path / way).mkdir()
                landed = land(altered, tmp_path / way, way, came)
                if alteration.exact:
                    assert landed.stale is None, way
                if landed.stale is None:
                    lake = {column.name: column.lake for column in altered.now.columns}
                    held = replayed(landed.rows, tuple(lake[name] for name in altered.table.key))
                    assert by_value(held.values()) == by_value(altered.rows()), way
            connection.execute("SELECT pg_drop_replication_slot('s')")
    finally:
        server.admin("DROP DATABASE s WITH (FORCE)")


def by_value(rows: Any) -> list[str]:
    return sorted(repr(sorted((n, v) for n, v in row.items() if not n.startswith("_"))) for row in rows)

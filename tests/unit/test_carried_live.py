"""A table whose rows come as another one's for a while is told so by the live stream, as by a peek."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from ingestion.pipeline.load_changes import tables_of
from ingestion.pipeline.session import Cycle, target
from ingestion.pipeline.survey import Outlook
from ingestion.pipeline.table_plans import Course, plan_course
from ingestion.schema.evolve import name_columns
from ingestion.schema.facts import TableFacts
from ingestion.schema.positions import Lsn
from ingestion.sink.meta_tables import ensure_meta
from ingestion.sink.raw_tables import ensure_raw_table
from ingestion.sink.writer import writable_metadata
from ingestion.sources.postgres.catalog.describe import read_facts
from ingestion.sources.postgres.connection import free_slot
from ingestion.sources.postgres.history.server import started_at
from ingestion.sources.postgres.live import LiveStream
from ingestion.sources.postgres.reading import SlotReader
from ingestion.sources.postgres.records import PgoutputRecords
from ingestion.state.store import TablePosition
from ingestion.tasks.changes import ChangePlan, read_changes
from ingestion.tasks.lanes import Findings
from lakehouse.declarations import RawTable
from lakehouse.declarations.policies import RawPolicy
from tests.clusters import Cluster, cluster
from tests.world import declared_source

pytestmark = pytest.mark.stack

PLAIN = "CREATE TABLE {} (id int PRIMARY KEY, v int)"
PARTED = PLAIN + " PARTITION BY RANGE (id)"
ATTACH = "ALTER TABLE {} ATTACH PARTITION {} FOR VALUES FROM (0) TO (100)"
DETACH = "ALTER TABLE {} DETACH PARTITION {}"
CHANGES = "INSERT INTO t VALUES (1, 1), (2, 2); UPDATE t SET v = 3 WHERE id = 1; DELETE FROM t WHERE id = 2"
PUBLISH, WITHDRAW = (f"ALTER PUBLICATION p {verb} TABLE root" for verb in ("ADD", "DROP"))
SETUPS = {
    "plain": (PLAIN.format("t"),),
    "branch": (PARTED.format("t"), "CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM (0) TO (100)"),
}
ALTERATIONS = {
    "attached_and_detached": (PUBLISH, ATTACH.format("root", "t"), CHANGES, DETACH.format("root", "t")),
    "root_published_and_withdrawn": (ATTACH.format("root", "t"), PUBLISH, CHANGES, WITHDRAW),
    "in_one_transaction": (
        PUBLISH, f"BEGIN; {ATTACH.format('root', 't')}; {CHANGES}; {DETACH.format('root', 't')}; COMMIT",
    ),
    "two_levels_up": (
        PUBLISH, PARTED.format("middle"), ATTACH.format("root", "middle"), ATTACH.format("middle", "t"), CHANGES,
        DETACH.format("root", "middle"),
    ),
}  # fmt: skip
BEFORE = "INSERT INTO t VALUES (50, 1); INSERT INTO other VALUES (1, 1)"
AFTER = "INSERT INTO t VALUES (51, 1); INSERT INTO other VALUES (2, 2)"


@pytest.fixture(scope="module")
def server() -> Iterator[Cluster]:
    with cluster() as made:
        yield made


@pytest.fixture
def source(server: Cluster) -> Iterator[tuple[str, psycopg.Connection[Any]]]:
    server.admin("CREATE DATABASE s")
    with psycopg.connect(server.url("s"), autocommit=True) as connection:
        yield server.url("s") + "?application_name=test", connection
        connection.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
    server.admin("DROP DATABASE s WITH (FORCE)")


@pytest.mark.parametrize("name", ALTERATIONS)
@pytest.mark.parametrize("setup", SETUPS)
def test_a_table_is_told_that_its_rows_came_as_those_of_another_one(
    source: tuple[str, psycopg.Connection[Any]], tmp_path: Path, setup: str, name: str
) -> None:
    url, connection = source
    run(connection, *SETUPS[setup], PLAIN.format("other"), PLAIN.format("idle"), PARTED.format("root"))
    run(connection, "CREATE PUBLICATION p FOR TABLE t, other, idle WITH (publish_via_partition_root = true)")
    run(connection, *(f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')" for slot in ("s", "peeked")))
    tables = {t: declared_source("s", {t: RawPolicy(relation=f"public.{t}", key=("id",))}).tables[0]
              for t in ("t", "other", "idle")}  # fmt: skip
    courses = {name: course(connection, table) for name, table in tables.items()}
    stream = LiveStream(url, "s", "p", lsn(connection, "confirmed_flush_lsn"), 1 << 26, started(connection))
    try:
        run(connection, BEFORE)
        came = brought(connection, stream)
        assert told(url, connection, tmp_path / "before", tables, courses, came) == {}
        run(connection, *ALTERATIONS[name])
        came = brought(connection, stream)
        found = told(url, connection, tmp_path / "while", tables, courses, came)
        assert "came as those of another table" in (found["t"].stale or "") and found.keys() == {"t"}
        run(connection, AFTER)
        came = brought(connection, stream)
        assert told(url, connection, tmp_path / "after", tables, courses, came) == {}, "it is told once"
        assert set(tables_of(tables, courses, reader(url, connection, came).relations)) <= {"t", "other"}
    finally:
        stream.close()
        free_slot(connection, "s", "s")  # type: ignore[arg-type]
    found = told(url, connection, tmp_path / "peek", tables, courses, None)
    assert "came as those of another table" in (found["t"].stale or "")


def run(connection: psycopg.Connection[Any], *statements: str) -> None:
    for statement in statements:
        connection.execute(statement)  # type: ignore[arg-type]


def lsn(connection: psycopg.Connection[Any], what: str) -> int:
    row = connection.execute(f"SELECT ({what} - '0/0')::bigint FROM pg_replication_slots").fetchone()  # type: ignore[arg-type]
    assert row is not None
    return int(row[0])


def started(connection: psycopg.Connection[Any]) -> int:
    return started_at(connection)  # type: ignore[arg-type]


def brought(connection: psycopg.Connection[Any], stream: LiveStream) -> pa.Array:
    """What the stream brings since it was asked last."""
    end = lsn(connection, "pg_current_wal_lsn()")
    stream.reach(end, 30)
    came = stream.below(end + 1)
    stream.confirm(end + 1)
    return came


def course(connection: psycopg.Connection[Any], table: RawTable) -> Course:
    facts, problem = read_facts(connection, table, "p")  # type: ignore[arg-type]
    assert facts is not None and problem is None
    facts = name_columns(table, None, facts)
    at = TablePosition(table.name, 1, Lsn(1), "streaming", Lsn(1), versions=(facts,), fingerprint="f")
    return plan_course(at, Outlook(table, "f", facts))


def reader(url: str, connection: psycopg.Connection[Any], came: pa.Array | None) -> SlotReader:
    return SlotReader("s", url, started(connection), "peeked", "p", 1 << 62, 0, came, 1 << 20)


def told(
    url: str, connection: psycopg.Connection[Any], folder: Path, tables: dict[str, RawTable],
    courses: dict[str, Course], came: pa.Array | None,
) -> dict[str, Findings]:  # fmt: skip
    """What a read notices of the tables, each of which a task is told of if the read is of it."""
    folder.mkdir(exist_ok=True)
    catalog = SqlCatalog("lake", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/warehouse")
    for namespace in ("raw_s", "meta"):
        catalog.create_namespace(namespace)
    read = reader(url, connection, came)
    cycle = Cycle("c", 1, datetime.now(UTC))

    def facts(name: str) -> TableFacts:
        return courses[name].position.facts

    targets = tuple(
        target(table, ensure_raw_table(catalog, table, facts(name), datetime.now(UTC)), facts(name), cycle, 0)
        for name, table in tables_of(tables, courses, read.relations).items()
    )
    kept_in = ("spool", "quarantine", "unrepresentable")
    meta = {name: writable_metadata(ensure_meta(catalog, name), "c") for name in kept_in}
    result = read_changes(ChangePlan("s", read, PgoutputRecords(), targets, {}, meta, {}, 1 << 20))
    return {name: replace(found, partitions={}) for name, found in result.noticed.items() if found.stale}

"""The follower on its live stream: everything once, at steady cost, and by peeks again whenever the stream is lost."""

import os
import signal
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import psutil
import psycopg
import pytest

from ingestion.pipeline.session import RowCounts, Session
from ingestion.run import follow
from ingestion.state import lease, store
from ingestion.tasks.runner import run_tasks
from lakehouse.catalog.open import open_catalog
from lakehouse.declarations.policies import RawPolicy
from lakehouse.settings import Settings
from tests.clusters import Cluster, cluster, world_in
from tests.slots import following, slot_of, until
from tests.test_ingestion import ORDERS, TABLES, assert_equal, assert_order_is_unique
from tests.test_parking import meta
from tests.world import World, make_world

pytestmark = pytest.mark.stack


@pytest.fixture(scope="module")
def source() -> Iterator[Cluster]:
    with cluster() as made:
        yield made


@contextmanager
def streaming(made: Cluster, settings: Settings, spark: Any, **limits: Any) -> Iterator[World]:
    """A world whose follower reads by a live stream."""
    limits = {"flush_interval_seconds": 0.2, "poll_seconds": 0.2} | limits
    world = world_in(made, settings, f"t{uuid.uuid4().hex[:10]}", ORDERS, TABLES, **limits)
    insert(world, 1, 20)
    world.ingest(spark)
    with following(world):
        until(lambda: walsender(made, world) is not None)
        yield world


def insert(world: World, first: int, last: int) -> None:
    world.sql(f"INSERT INTO orders SELECT i, 'c', i, NULL FROM generate_series({first}, {last}) i")


def walsender(made: Cluster, world: World) -> int | None:
    """The process that streams the world's slot."""
    rows = made.admin(
        "SELECT active_pid FROM pg_replication_slots s JOIN pg_stat_replication r ON r.pid = s.active_pid"
        f" WHERE slot_name = '{slot_of(world)}'"
    )
    return rows[0][0] if rows else None


def cpu_seconds(*pids: int) -> float:
    times = [psutil.Process(pid).cpu_times() for pid in pids]
    return sum(spent.user + spent.system for spent in times)


def assert_arrives(world: World, rows: int) -> None:
    """The lake comes to hold exactly the source's rows, each event once."""
    until(lambda: len(world.current("orders")) == rows)
    assert_equal(world, "orders")
    assert_order_is_unique(world, "orders")


def test_changes_come_by_the_stream_and_once(source: Cluster, settings: Settings, spark: Any) -> None:
    with streaming(source, settings, spark) as world:
        reader = walsender(source, world)
        insert(world, 21, 500)
        world.sql("UPDATE orders SET customer = 'd' WHERE id <= 10", "DELETE FROM orders WHERE id > 490")
        assert_arrives(world, 490)
        assert walsender(source, world) == reader
    assert len(world.raw("orders")) == 20 + 480 + 10 + 10


@pytest.mark.slow
def test_an_idle_follower_rests(source: Cluster, settings: Settings, spark: Any) -> None:
    """Nothing is asked and nothing answered but for a sign of life: neither side may take a core for it."""
    with streaming(source, settings, spark) as world:
        time.sleep(2.0)
        pid = walsender(source, world)
        assert pid is not None
        before = cpu_seconds(pid, os.getpid())
        time.sleep(4.0)
        assert cpu_seconds(pid, os.getpid()) - before < 1.0


def test_an_alteration_is_followed_on_the_stream(source: Cluster, settings: Settings, spark: Any) -> None:
    with streaming(source, settings, spark) as world:
        insert(world, 21, 30)
        world.sql("ALTER TABLE orders ADD COLUMN remark text", "UPDATE orders SET remark = 'n' WHERE id <= 25")
        insert(world, 31, 40)
        assert_arrives(world, 40)
        until(lambda: sum(row.get("remark") == "n" for row in world.current("orders").values()) == 25)


def test_an_alteration_without_a_change_is_followed_on_the_stream(
    source: Cluster, settings: Settings, spark: Any
) -> None:
    """Its column was never added: a cycle without a message took the table for followed."""
    with streaming(source, settings, spark) as world:
        insert(world, 21, 21)
        assert_arrives(world, 21)
        world.sql("ALTER TABLE orders ADD COLUMN remark text")
        time.sleep(3)
        world.sql("UPDATE orders SET remark = 'n' WHERE id <= 5")
        until(lambda: sum(row.get("remark") == "n" for row in world.current("orders").values()) == 5)


@pytest.mark.slow
def test_a_lost_stream_costs_nothing_but_a_peek(source: Cluster, settings: Settings, spark: Any) -> None:
    with streaming(source, settings, spark) as world:
        for first in (21, 121, 221):
            reader = walsender(source, world)
            insert(world, first, first + 99)
            if reader is not None:
                source.admin(f"SELECT pg_terminate_backend({reader})")
            assert_arrives(world, first + 99)
        until(lambda: walsender(source, world) is not None)


@pytest.mark.slow
def test_what_is_too_large_to_hold_is_peeked(source: Cluster, settings: Settings, spark: Any) -> None:
    with streaming(source, settings, spark, flush_bytes=100_000) as world:
        reader = walsender(source, world)
        insert(world, 21, 20_000)
        assert_arrives(world, 20_000)
        until(lambda: walsender(source, world) not in (None, reader))
        insert(world, 20_001, 20_010)
        assert_arrives(world, 20_010)


@pytest.mark.slow
def test_metadata_stays_small_however_often_is_published(source: Cluster, settings: Settings, spark: Any) -> None:
    with streaming(source, settings, spark, max_snapshots=10) as world:
        for row in range(21, 35):
            insert(world, row, row)
            until(lambda row=row: len(world.raw("orders")) >= row)
        assert_arrives(world, 34)
        catalog = open_catalog(world.settings)
        try:
            tables = catalog.load_tables([(f"raw_{world.source.name}", "orders"), ("meta", "cuts")])
        finally:
            catalog.close()
        assert all(2 <= len(table.metadata.snapshots) <= 11 for table in tables.values())


@pytest.mark.slow
def test_an_old_open_transaction_does_not_make_cycles_cost_more(
    source: Cluster, settings: Settings, spark: Any
) -> None:
    """A peek would decode everything since the old transaction began, each time."""

    def decoded(world: World) -> int:
        source.admin("SELECT pg_stat_force_next_flush()")
        query = f"SELECT total_bytes FROM pg_stat_replication_slots WHERE slot_name = '{slot_of(world)}'"
        return int(source.admin(query)[0][0])

    with streaming(source, settings, spark) as world, psycopg.connect(world.owner_url) as old:
        old.execute("SELECT pg_current_xact_id()")
        growth = []
        for first in range(1001, 7001, 1000):
            before = decoded(world)
            insert(world, first, first + 999)
            until(lambda first=first: len(world.current("orders")) == 20 + first - 1001 + 1000)
            time.sleep(0.5)
            growth.append(decoded(world) - before)
        assert max(growth) < 2 * min(growth), growth
        assert_equal(world, "orders")


@pytest.mark.slow
def test_a_killed_follower_does_not_keep_the_slot(source: Cluster, settings: Settings, spark: Any) -> None:
    world = world_in(source, settings, f"t{uuid.uuid4().hex[:10]}", ORDERS, TABLES, flush_interval_seconds=0.2)
    insert(world, 1, 20)
    process = world.start_driver("--follow")
    try:
        until(lambda: walsender(source, world) is not None, seconds=120)
        insert(world, 21, 40)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    insert(world, 41, 60)
    until(lambda: lease_is_free(world))
    world.ingest(spark)
    assert_equal(world, "orders")
    assert_order_is_unique(world, "orders")


@pytest.mark.slow
def test_a_follower_whose_jvm_is_gone_ends_and_the_next_one_goes_on(
    source: Cluster, settings: Settings, spark: Any
) -> None:
    world = world_in(source, settings, f"t{uuid.uuid4().hex[:10]}", ORDERS, TABLES, flush_interval_seconds=0.2)
    insert(world, 1, 20)
    process = world.start_driver("--follow")
    until(lambda: walsender(source, world) is not None, seconds=120)
    insert(world, 21, 40)
    next(child for child in psutil.Process(process.pid).children() if child.name() == "java").kill()
    _, said = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "Spark's JVM has ended" in said
    assert said.partition("Traceback")[0] == "", "it is the first that is said; the driver prints it with its traceback"
    insert(world, 41, 60)
    world.ingest(spark)
    assert_equal(world, "orders")
    assert_order_is_unique(world, "orders")


def lease_is_free(world: World) -> bool:
    with store.connect_catalog(world.settings) as states:
        return lease.holder_of(states, world.source.name) is None


def test_a_partition_that_passed_leads_to_one_repair_on_the_stream(
    source: Cluster, settings: Settings, spark: Any
) -> None:
    """The stream goes on to describe what it described once: the table was repaired again and again."""

    def repairs() -> int:
        return sum(row["kind"] == "table stale" for row in meta(world, "schema_changes"))

    def lines() -> dict[tuple[int, ...], str]:
        return {key: row["note"] for key, row in world.current("parted").items()}

    def write(first: int) -> None:
        world.sql(f"INSERT INTO parted VALUES ({first}, 'n')")
        until(lambda: (first,) in lines())

    limits = {"flush_interval_seconds": 0.2, "poll_seconds": 0.2}
    ddl = (
        "CREATE TABLE parted (id int PRIMARY KEY, note text) PARTITION BY RANGE (id);"
        "CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (100)"
    )
    tables = {"parted": RawPolicy(relation="public.parted", key=("id",))}
    world = world_in(source, settings, f"t{uuid.uuid4().hex[:10]}", ddl, tables, **limits)
    world.ingest(spark)
    with following(world):
        until(lambda: walsender(source, world) is not None)
        write(1)
        with psycopg.connect(world.owner_url, autocommit=True) as owner:  # faster than any look between
            owner.execute(
                "CREATE TABLE parted_2 PARTITION OF parted FOR VALUES FROM (100) TO (200);"
                "INSERT INTO parted VALUES (100, 'gone'); DROP TABLE parted_2"
            )
        write(2)
        until(lambda: (100,) not in lines())
        seen = repairs()
        for row in (3, 4, 5):
            write(row)
        assert repairs() == seen == 1
    assert_equal(world, "parted")


def test_a_follower_that_is_to_stop_does_not_wait_for_the_load_of_a_table(
    settings: Settings, spark: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It went on with a resync for as long as that took, deaf to SIGTERM."""
    world = make_world(settings, ORDERS, TABLES)
    begun, stop = threading.Event(), threading.Event()

    def load(session: Session, *_: object) -> RowCounts:
        begun.set()
        run_tasks(session.spark, time.sleep, [600])
        return {}

    monkeypatch.setattr(follow, "load_tables", load)
    with closing(open_catalog(world.settings)) as catalog:
        session = Session(world.settings, catalog, spark, lease.Lease(world.source.name, 1, "me"), world.source)
        loader = follow.Loader(session)
        loader.start_if_needed(list(world.source.tables))
        assert begun.wait(60)
        time.sleep(3)
        since = time.monotonic()
        stop.set()
        session.stop.set()
        loader.join(stop)
    assert time.monotonic() - since < 30
    assert not caplog.records

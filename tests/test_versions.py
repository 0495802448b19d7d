"""The core of ingestion against each version of Postgres that is on this machine; other tests use the newest."""

import signal
import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from ingestion import recover_source
from lakehouse.declarations.policies import RawPolicy
from lakehouse.settings import Settings
from tests.clusters import Cluster, cluster, world_in
from tests.marks import slow
from tests.slots import slot_of, until
from tests.test_ingestion import ORDERS, TABLES, assert_equal, assert_order_is_unique
from tests.test_kills import STEPS, fill
from tests.world import World

pytestmark = pytest.mark.stack

DDL = (
    ORDERS + ";CREATE TABLE events (id int, day date, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);"
    "CREATE TABLE events_1 PARTITION OF events FOR VALUES FROM ('2026-01-01') TO ('2026-02-01');"
    "CREATE TABLE events_2 PARTITION OF events FOR VALUES FROM ('2026-02-01') TO ('2026-03-01');"
    "CREATE TABLE wide (id int PRIMARY KEY, a text, b text); ALTER TABLE wide REPLICA IDENTITY FULL"
)
ALL_TABLES = TABLES | {
    "events": RawPolicy(relation="public.events", key=("id", "day")),
    "wide": RawPolicy(relation="public.wide", key=("id",)),
}
BIG = "(SELECT string_agg(md5(i::text), '') FROM generate_series(1, 2000) i)"


@pytest.fixture(scope="module", params=["15", *(slow(v) for v in ("16", "17", "18"))])
def version(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with cluster(request.param, client_connection_check_interval="1s") as made:
        assert made.admin("SHOW server_version")[0][0].startswith(request.param)
        yield made


def world_of(made: Cluster, settings: Settings) -> World:
    return world_in(made, settings, f"t{uuid.uuid4().hex[:10]}", DDL, ALL_TABLES, lease_seconds=2)


def limited(settings: Settings, **limits: Any) -> Settings:
    return settings.model_copy(update={"ingestion": settings.ingestion.model_copy(update=limits)})


def assert_right(world: World) -> None:
    for table in ALL_TABLES:
        assert_equal(world, table)
        assert_order_is_unique(world, table)


def change_everything(world: World) -> None:
    """Each operation, several in a transaction, and two transactions that interleave."""
    world.sql(
        f"INSERT INTO orders VALUES (5001, 'a', 1, {BIG})",
        "UPDATE orders SET amount = 2 WHERE id = 5001",
        "UPDATE orders SET id = 5002 WHERE id = 5001",
        "INSERT INTO events VALUES (1, '2026-01-05'), (2, '2026-02-05')",
        "UPDATE events SET day = '2026-02-01' WHERE id = 1",
        f"INSERT INTO wide SELECT i, {BIG}, 'b' FROM generate_series(1, 5) i",
        "UPDATE wide SET b = 'c' WHERE id < 3",
        "DELETE FROM wide WHERE id = 5",
    )
    with psycopg.connect(world.owner_url) as slow, psycopg.connect(world.owner_url) as fast:
        slow.execute("INSERT INTO lines VALUES (1, 1, 1)")
        for old, new in ((1, 900), (2, 1), (900, 2)):
            fast.execute(f"UPDATE wide SET id = {new} WHERE id = {old}")
        fast.commit()
        slow.execute("SAVEPOINT s")
        slow.execute("INSERT INTO lines VALUES (1, 2, 1)")
        slow.execute("ROLLBACK TO SAVEPOINT s")
        slow.execute("UPDATE wide SET b = 'late' WHERE id = 1")
    with psycopg.connect(world.owner_url) as truncating:
        truncating.execute("INSERT INTO wide VALUES (70, 'gone', '')")
        truncating.execute("TRUNCATE lines, events")
        truncating.execute("INSERT INTO events VALUES (9, '2026-01-09')")


def test_snapshot_and_all_operations_on_this_version(version: Cluster, settings: Settings, spark: Any) -> None:
    world = world_of(version, settings)
    fill(world, 1, 100)
    world.ingest(spark)
    change_everything(world)
    world.ingest(spark)
    assert_right(world)


def test_transactions_too_large_for_the_sources_memory_on_this_version(
    version: Cluster, settings: Settings, spark: Any
) -> None:
    """They come in blocks, before their end; what rolls back, and what has not ended, does not land."""
    world = world_of(version, settings)
    world = replace(world, settings=limited(world.settings, decoding_memory_bytes=64 * 1024))
    fill(world, 1, 100)
    world.ingest(spark)
    with psycopg.connect(world.owner_url) as one, psycopg.connect(world.owner_url) as other:
        for first in (10_000, 20_000):
            one.execute(f"INSERT INTO wide SELECT i, 'one', 'kept' FROM generate_series({first}, {first + 2000}) i")
            one.execute("SAVEPOINT s")
            one.execute("UPDATE wide SET b = 'rolled back' WHERE id >= 10000")
            other.execute(f"INSERT INTO orders SELECT i, 'o', i, {BIG} FROM generate_series({first}, {first + 50}) i")
            one.execute("ROLLBACK TO SAVEPOINT s")
            world.sql(f"INSERT INTO events VALUES ({first}, '2026-01-05')")
        world.ingest(spark)
        assert_right(world)
        one.commit()
        world.ingest(spark)
        assert_right(world)
        other.rollback()
    change_everything(world)
    world.ingest(spark)
    assert_right(world)
    streamed = "SELECT stream_txns > 0 FROM pg_stat_replication_slots WHERE slot_name = %s"
    with psycopg.connect(world.owner_url) as connection:
        assert connection.execute(streamed, [slot_of(world)]).fetchone() == (True,)


def test_recovery_from_a_dropped_slot_on_this_version(version: Cluster, settings: Settings, spark: Any) -> None:
    world = world_of(version, settings)
    fill(world, 1, 100)
    world.ingest(spark)
    version.admin(f"SELECT pg_drop_replication_slot('lakehouse_{world.source.name}')")
    world.sql("DELETE FROM orders WHERE id < 20")
    recover_source(settings=world.settings, declarations=world.declarations, source=world.source.name, spark=spark)
    fill(world, 1001, 20)
    world.ingest(spark)
    assert_right(world)


def killed_at(made: Cluster, settings: Settings, spark: Any, fault: str) -> None:
    world = world_of(made, settings)
    fill(world, 1, 100)
    if "load_tables" not in fault and "create_slot" not in fault:
        world.ingest(spark)
        change_everything(world)
    killed = world.driver(fault)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    fill(world, 2001, 20)
    world.ingest(spark)
    assert_right(world)
    slots = f"SELECT slot_name FROM pg_replication_slots WHERE database = '{world.source.name}'"
    until(lambda: made.admin(slots) == [(slot_of(world),)])  # no temporary slot outlives the killed process


@pytest.mark.slow
def test_killed_after_the_publish_on_this_version(version: Cluster, settings: Settings, spark: Any) -> None:
    killed_at(version, settings, spark, "ingestion.sink.publish:_swap:after")


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", STEPS)
def test_killed_at_any_step_on_this_version(
    version: Cluster, settings: Settings, spark: Any, step: str, when: str
) -> None:
    killed_at(version, settings, spark, f"{step}:{when}")

"""Others' transactions and locks in the source: who is in the way is named, nothing of ours is in anybody's way."""

import logging
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from ingestion.sources.postgres import connection as source
from ingestion.sources.postgres.points import Blocked
from ingestion.sources.postgres.points.together import heap_bytes
from ingestion.state import store
from lakehouse.declarations.policies import RawPolicy
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings
from lakehouse.text.urls import parse_url
from tests.clusters import Cluster, cluster, world_in
from tests.marks import slow
from tests.slots import following, until
from tests.test_ingestion import assert_equal, assert_order_is_unique
from tests.test_loading import states
from tests.world import World, make_world

pytestmark = pytest.mark.stack
DDL = "CREATE TABLE orders (id int PRIMARY KEY, v text); CREATE TABLE lines (id int PRIMARY KEY, v text)"
TABLES = {name: RawPolicy(relation=f"public.{name}", key=("id",)) for name in ("orders", "lines")}


@pytest.fixture(scope="module", params=["15", slow("18")])
def prepared(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A cluster that allows prepared transactions, with a database beside the source's."""
    with cluster(request.param, max_prepared_transactions="5") as made:
        made.admin("CREATE DATABASE elsewhere")
        yield made


def impatient(world: World, seconds: float) -> World:
    ingestion = world.settings.ingestion.model_copy(update={"wait_seconds": seconds})
    return replace(world, settings=world.settings.model_copy(update={"ingestion": ingestion}))


@contextmanager
def open_transaction(url: str, *statements: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(url, application_name="careless") as connection:
        for statement in statements:
            connection.execute(statement)
        yield connection


WRITES = "SELECT pg_current_xact_id()"


def test_an_open_transaction_of_another_database_is_named_and_then_waited_for(
    prepared: Cluster, settings: Settings, spark: Any, caplog: pytest.LogCaptureFixture
) -> None:
    world = world_in(prepared, settings, f"t{uuid.uuid4().hex[:10]}", DDL, TABLES)
    world.sql("INSERT INTO orders VALUES (1, 'a')")
    with open_transaction(prepared.url("elsewhere"), WRITES) as careless:
        pid = careless.info.backend_pid
        with pytest.raises(Blocked, match="nothing was lost") as refused:
            impatient(world, 3).ingest(spark)
        for said in (
            f"process {pid} ",
            "database elsewhere",
            "user postgres",
            "application careless",
            "transactions old",
        ):
            assert said in str(refused.value)
        assert f"SELECT pg_terminate_backend({pid})" in str(refused.value)
        caplog.clear()
        with caplog.at_level(logging.WARNING, "lakehouse.waiting"):
            ends = threading.Thread(target=lambda: (until(lambda: bool(caplog.records)), careless.rollback()))
            ends.start()
            world.ingest(spark)
            ends.join()
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2 and f"held up by process {pid}" in told[0] and "goes on after" in told[1]
    assert_equal(world, "orders")


def test_a_prepared_transaction_is_named_with_its_way_out_when_a_table_is_loaded(
    prepared: Cluster, settings: Settings, spark: Any
) -> None:
    """The slot is there already: what waits is the temporary one of the load."""
    world = world_in(prepared, settings, f"t{uuid.uuid4().hex[:10]}", DDL, TABLES)
    world.without("lines").ingest(spark)
    with psycopg.connect(prepared.url("elsewhere"), autocommit=True) as other:
        other.execute("BEGIN")
        other.execute(WRITES)
        other.execute("PREPARE TRANSACTION 'left ''behind'")
        world.sql("INSERT INTO orders VALUES (1, 'a')")
        with pytest.raises(Blocked) as refused:
            impatient(world, 2).ingest(spark)
        assert "prepared transaction 'left ''behind' (database elsewhere, user postgres, open for" in str(refused.value)
        assert "ROLLBACK PREPARED 'left ''behind'" in str(refused.value)
        assert_equal(world, "orders")  # which did not wait
        other.execute("ROLLBACK PREPARED 'left ''behind'")
    world.ingest(spark)
    for table in TABLES:
        assert_equal(world, table)


def test_who_waits_for_a_lock_is_named_with_whom_it_waits_for(settings: Settings, spark: Any) -> None:
    """A queued ALTER TABLE keeps out readers and new slots for as long as the reader it waits for takes."""
    world = make_world(settings, DDL, TABLES)
    world.sql("INSERT INTO orders VALUES (1, 'a')", "INSERT INTO lines VALUES (1, 'a')")
    with open_transaction(world.owner_url, "SELECT FROM lines") as careless:
        altering = threading.Thread(target=world.sql, args=("ALTER TABLE lines ADD COLUMN w int DEFAULT 7",))
        altering.start()
        until(lambda: world.rows("SELECT 1 FROM pg_locks WHERE mode = 'AccessExclusiveLock' AND NOT granted"))
        with pytest.raises(Blocked) as refused:
            impatient(world, 2).ingest(spark)
        assert f"process {careless.info.backend_pid} (database {world.source.name}, user" in str(refused.value)
        assert str(refused.value).count("pg_terminate_backend") == 2, "the ALTER, and the reader it waits for"
    altering.join()
    world.ingest(spark)
    assert_equal(world, "lines")


def test_the_sizes_of_tables_are_known_while_others_have_them_locked(settings: Settings) -> None:
    """A partition tree waits for who has any of it locked; the sizes of the others are not kept from us by that."""
    parted = """CREATE TABLE orders (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
        CREATE TABLE orders_1 PARTITION OF orders FOR VALUES FROM (0) TO (10) PARTITION BY RANGE (id);
        CREATE TABLE orders_1_1 PARTITION OF orders_1 FOR VALUES FROM (0) TO (5);
        CREATE TABLE orders_2 PARTITION OF orders FOR VALUES FROM (10) TO (20);
        CREATE TABLE lines (id int PRIMARY KEY, v text)"""
    world = make_world(settings, parted, TABLES)
    world.sql(*(f"INSERT INTO {table} VALUES (1, 'a')" for table in ("orders", "lines")))
    with psycopg.connect(world.owner_url, autocommit=True) as connection:
        connection.execute("SET lock_timeout = '1s'")
        found = heap_bytes(connection, world.source.tables)
        assert {name: sorted(sizes) for name, sizes in found.items()} == {"orders": [0, 8192], "lines": [8192]}
        with open_transaction(world.owner_url, "LOCK TABLE orders, lines"):
            assert heap_bytes(connection, world.source.tables) == {"orders": [0, 0], "lines": [0]}


def test_who_alters_a_type_while_the_stream_is_read_is_named(
    settings: Settings, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server looks composite types up as it decodes, and waits there for whoever alters one."""
    types = "CREATE TYPE pair AS (x int, y text); CREATE TABLE orders (id int PRIMARY KEY, v pair)"
    world = make_world(settings, types, {"orders": TABLES["orders"]})
    world.sql("INSERT INTO orders VALUES (1, '(1,a)')")
    world.ingest(spark)
    world.sql("INSERT INTO orders VALUES (2, '(2,b)')")
    monkeypatch.setitem(source.PINNED, "lock_timeout", "2000")
    with open_transaction(world.owner_url, "ALTER TYPE pair ADD ATTRIBUTE z int") as careless:
        pid = careless.info.backend_pid
        with pytest.raises(Blocked) as refused:
            world.ingest(spark)
    assert f"held up by process {pid} (database {world.source.name}" in str(refused.value)
    world.ingest(spark)
    assert_equal(world, "orders")


def test_while_a_load_waits_the_application_may_alter_and_lock_its_tables(settings: Settings, spark: Any) -> None:
    """A read lock of ours that waited would queue the application's DDL, and behind that its reads."""
    world = make_world(settings, DDL, TABLES)
    world.sql("INSERT INTO orders VALUES (1, 'a')", "INSERT INTO lines VALUES (1, 'a')")
    world.without("lines").ingest(spark)
    errors: list[Exception] = []

    def load() -> None:
        try:
            world.ingest(spark)
        except LakehouseError as error:
            errors.append(error)

    with open_transaction(world.owner_url, WRITES):
        loading = threading.Thread(target=load)
        loading.start()
        until(lambda: slots_under_way(world))
        for statement in ("TRUNCATE lines", "ALTER TABLE lines ADD COLUMN extra int DEFAULT 7", "VACUUM FULL lines"):
            world.sql("SET lock_timeout = '1s'", statement)
        world.sql("INSERT INTO lines VALUES (2, 'b')")
    loading.join(60)
    assert not errors and not loading.is_alive()
    for table in TABLES:
        assert_equal(world, table)
        assert_order_is_unique(world, table)
    assert [row["extra"] for row in world.raw("lines") if row["_op"] in "rc"] == [7]


def slots_under_way(world: World) -> bool:
    sql = f"SELECT 1 FROM pg_replication_slots WHERE temporary AND database = '{world.source.name}'"
    return bool(world.rows(sql))


def test_the_follower_streams_while_a_new_table_waits(
    settings: Settings, spark: Any, caplog: pytest.LogCaptureFixture
) -> None:
    world = make_world(settings, DDL, TABLES, flush_interval_seconds=0.2, poll_seconds=0.2)
    world.without("lines").ingest(spark)
    world.sql("INSERT INTO lines VALUES (1, 'a')")
    caplog.set_level(logging.WARNING)
    with following(world):
        with open_transaction(world.owner_url, WRITES) as careless:
            said = f"held up by process {careless.info.backend_pid}"
            until(lambda: any(said in record.getMessage() for record in caplog.records))
            world.sql("INSERT INTO orders VALUES (7, 'b')")
            until(lambda: (7,) in world.current("orders"))
            assert states(world)["lines"] != "streaming"
        until(lambda: states(world).get("lines") == "streaming")
    assert not [record for record in caplog.records if record.exc_info]
    assert_equal(world, "lines")


def test_a_follower_that_waits_for_a_transaction_ends_when_it_is_told_to(settings: Settings, spark: Any) -> None:
    world = make_world(settings, DDL, TABLES)
    with open_transaction(world.owner_url, WRITES):
        with following(world):
            until(lambda: waits_for_a_slot(world))
            stopped_at = time.monotonic()
        assert time.monotonic() - stopped_at < 10
    with store.connect_catalog(settings) as catalog:
        stream = store.read_stream(catalog, world.source.name)
    assert stream is not None and stream.position == 0
    world.ingest(spark)


def waits_for_a_slot(world: World) -> bool:
    return bool(world.rows("SELECT 1 FROM pg_locks WHERE locktype = 'transactionid' AND NOT granted"))


def test_a_table_altered_between_the_point_and_its_lock_is_read_at_another_point(
    settings: Settings, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ingestion.sources.postgres.points import point as points

    world = make_world(
        settings,
        "CREATE TABLE items (id int PRIMARY KEY, v text)",
        {"items": RawPolicy(relation="public.items", key=("id",))},
    )
    world.sql("INSERT INTO items SELECT i, 'v' FROM generate_series(1, 10) i")
    lock, times = points._lock, []

    def late(*arguments: Any) -> Any:
        times.append(1)
        if len(times) == 1:  # the point is made
            world.sql("ALTER TABLE items ALTER id TYPE bigint", "INSERT INTO items VALUES (99, 'later')")
        return lock(*arguments)

    monkeypatch.setattr(points, "_lock", late)
    world.ingest(spark)
    assert len(times) == 2
    assert_equal(world, "items")


@pytest.mark.slow
@pytest.mark.parametrize(
    "away", ["DROP TABLE lines", "ALTER TABLE lines RENAME TO rows", "REVOKE SELECT ON lines FROM {role}"]
)
def test_a_table_that_goes_while_its_point_is_made_holds_up_no_other(
    settings: Settings, spark: Any, monkeypatch: pytest.MonkeyPatch, away: str
) -> None:
    from ingestion.sources.postgres.points import point as points

    world = make_world(settings, DDL, TABLES)
    world.sql("INSERT INTO orders VALUES (1, 'a')", "INSERT INTO lines VALUES (1, 'a')")
    lock, times = points._lock, []

    def late(*arguments: Any) -> Any:
        times.append(1)
        if len(times) == 1:
            world.sql(away.format(role=parse_url(world.settings.source(world.source.name).url.get_secret_value()).user))
        return lock(*arguments)

    monkeypatch.setattr(points, "_lock", late)
    world.ingest(spark)
    assert_equal(world, "orders")
    with store.connect_catalog(world.settings) as connection:
        standing = store.read_positions(connection, world.source.name)
    assert standing["lines"].state == "new" and standing["lines"].reason


@pytest.mark.parametrize("step", ["_begin", "_snapshot"])
def test_a_truncate_that_waits_for_a_load_goes_first(
    settings: Settings, spark: Any, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """It waited for the load's point, and reading the table waited behind it, until both had failed after a minute."""
    from ingestion.pipeline import load_tables

    world, begun = make_world(settings, DDL, TABLES), time.monotonic()
    world.sql("INSERT INTO orders SELECT i, 'a' FROM generate_series(1, 9) i")
    original, truncates = getattr(load_tables, step), list[threading.Thread]()

    def behind_a_truncate(*args: Any) -> Any:
        if not truncates:
            statements = ("TRUNCATE orders", "INSERT INTO orders VALUES (10, 'b')")
            truncates.append(threading.Thread(target=world.sql, args=statements))
            truncates[0].start()
            until(lambda: waits(world, "orders"))
        return original(*args)

    monkeypatch.setattr(load_tables, step, behind_a_truncate)
    world.ingest(spark)
    truncates[0].join(30)
    assert time.monotonic() - begun < 50
    world.ingest(spark)
    assert_equal(world, "orders")


def waits(world: World, table: str) -> bool:
    with psycopg.connect(world.owner_url) as connection:
        query = "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND relation = %s::regclass)"
        return connection.execute(query, (table,)).fetchone() == (True,)

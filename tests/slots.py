"""A source whose slot tests play with: its orders, what the lake has of them, and what must hold whatever happened."""

import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from ingestion import follow_sources, recover_source
from ingestion.schema.positions import Lsn
from ingestion.state import store
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings
from tests.clusters import NEWEST, ROLE, ROLE_PASSWORD, Cluster, cluster, world_in
from tests.test_ingestion import ORDERS, TABLES, assert_equal, assert_order_is_unique, cuts
from tests.world import World


def orders_in(made: Cluster, settings: Settings, **limits: Any) -> World:
    world = world_in(made, settings, f"t{uuid.uuid4().hex[:10]}", ORDERS, TABLES, **limits)
    world.sql("INSERT INTO orders SELECT i, 'c', i, NULL FROM generate_series(1, 20) i")
    return world


@contextmanager
def ingested(settings: Settings, spark: Any, version: str = NEWEST, **server: str) -> Iterator[tuple[Cluster, World]]:
    """A cluster of the test's own, whose orders are in the lake."""
    with cluster(version, **server) as made:
        world = orders_in(made, settings)
        world.ingest(spark)
        yield made, world


def slot_of(world: World) -> str:
    return f"lakehouse_{world.source.name}"


def slot_lsn(made: Cluster, world: World, column: str) -> int:
    query = f"SELECT {column}::text FROM pg_replication_slots WHERE slot_name = '{slot_of(world)}'"
    return Lsn.parse(made.admin(query)[0][0])


def stream_of(world: World) -> store.Stream:
    with store.connect_catalog(world.settings) as states:
        stream = store.read_stream(states, world.source.name)
    assert stream is not None
    return stream


def written(world: World) -> list[Any]:
    """Everything that a cycle may have changed in the lake."""
    with store.connect_catalog(world.settings) as states:
        stream = store.read_stream(states, world.source.name)
        positions = store.read_positions(states, world.source.name)
    return [world.raw("orders"), world.raw("lines"), cuts(world), stream, positions]


def assert_refused(world: World, spark: Any, message: str) -> None:
    """In one line that says what to do, with nothing written."""
    before = written(world)
    with pytest.raises(LakehouseError, match=message) as caught:
        world.ingest(spark)
    assert "\n" not in str(caught.value)
    assert f"lakehouse ingest --recover {world.source.name}" in str(caught.value)
    assert written(world) == before


def assert_repaired(world: World, spark: Any) -> None:
    """`--recover` brings back the truth, missed deletes included, and the stream goes on."""
    recover_source(settings=world.settings, declarations=world.declarations, source=world.source.name, spark=spark)
    world.sql("INSERT INTO orders VALUES (9999, 'after', 1, NULL)")
    world.ingest(spark)
    assert_equal(world, "orders")
    assert_order_is_unique(world, "orders")


@contextmanager
def following(world: World) -> Iterator[None]:
    """The follower, in a thread of this process."""
    stop = threading.Event()
    arguments = (world.settings, world.declarations, [world.source.name], stop)
    thread = threading.Thread(target=follow_sources, args=arguments)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(timeout=60)
        assert not thread.is_alive()


def until(fact: Any, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not fact():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.2)


def wal_end(made: Cluster) -> int:
    return Lsn.parse(made.admin("SELECT pg_current_wal_flush_lsn()::text")[0][0])


def goes_on(world: World, spark: Any, number: int) -> None:
    """The source has lost nothing, and the lake takes what is new, each event once."""
    world.sql(f"INSERT INTO orders VALUES ({number}, 'after', 1, NULL)")
    world.ingest(spark)
    assert_equal(world, "orders")
    assert_order_is_unique(world, "orders")


def make_slot_again(made: Cluster, world: World) -> int:
    with psycopg.connect(made.url(world.source.name, ROLE, ROLE_PASSWORD), autocommit=True) as role:
        role.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot_of(world),))
    return slot_lsn(made, world, "confirmed_flush_lsn")

"""Repair and reconcile on real servers: the lake made wrong on purpose, the oracle is SQL against the source."""

import uuid
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from ingestion import lease as leases
from ingestion import state
from ingestion.context import Cycle, Writer, append_of, register
from ingestion.describe import describe
from ingestion.publish import Publication, publish
from ingestion.repair import KeyRange, stage_repair
from ingestion.snapshot import consistent_point
from ingestion.source import connect_source
from lakehouse.catalog import open_catalog
from lakehouse.policies import RawPolicy
from lakehouse.settings import Settings
from tests.test_ingestion import assert_equal, assert_order_is_unique
from tests.world import World, make_world

pytestmark = pytest.mark.stack

ITEMS = "CREATE TABLE items (id bigint PRIMARY KEY, name text, price numeric(12,2), big text)"
TABLES = {"items": RawPolicy(relation="public.items", key=("id",))}


def repair(world: World, spark: Any, table: str, key_range: KeyRange | None = None) -> dict[str, int]:
    """Stages and publishes a repair of what is in the lake now, at a new point; gives rows by operation."""
    catalog = open_catalog(world.settings)
    with state.connect_catalog(world.settings) as states:
        lease = leases.acquire(states, world.source.name, 60, "once")
        assert lease is not None
        try:
            writer = Writer(world.settings, catalog, spark, lease, world.source)
            declared = world.source.table(table)
            with connect_source(world.settings, world.source.name) as connection:
                facts = describe(connection, declared, writer.publication)
            stream = state.read_stream(states, world.source.name)
            assert stream is not None
            cycle = Cycle(uuid.uuid4().hex, stream.epoch, state.catalog_clock(states))
            iceberg = catalog.load_table(declared.identifier)
            register(states, writer, cycle, [iceberg])
            with consistent_point(world.settings, world.source.name, [declared]) as point:
                written = stage_repair(writer, cycle, declared, iceberg, facts, point, key_range)
            appends = (append_of(writer, cycle, written),)
            publish(world.settings, catalog, lease, Publication(cycle.id, world.source.name, stream.epoch, appends))
            return written.operations
        finally:
            leases.release(states, lease)
            catalog.close()


def spoil(world: World, table: str, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> None:
    """Rewrites the raw rows as `change` has them."""
    catalog = open_catalog(world.settings)
    try:
        iceberg = catalog.load_table((f"raw_{world.source.name}", table))
        rows = change(iceberg.scan().to_arrow().to_pylist())
        iceberg.overwrite(pa.Table.from_pylist(rows, schema=iceberg.schema().as_arrow()))
    finally:
        catalog.close()


def test_a_right_lake_needs_no_repair(settings: Settings, spark: Any) -> None:
    world = make_world(settings, ITEMS, TABLES)
    world.sql("INSERT INTO items SELECT i, 'n' || i, i * 1.5, repeat('x', i) FROM generate_series(1, 500) i")
    world.ingest(spark)
    world.sql(
        "UPDATE items SET price = 0.00 WHERE id < 10", "DELETE FROM items WHERE id > 490", "UPDATE items SET id = -id"
    )
    world.ingest(spark)
    assert repair(world, spark, "items") == {}


def test_rows_lost_changed_and_invented_in_the_lake_are_repaired(settings: Settings, spark: Any) -> None:
    world = make_world(settings, ITEMS, TABLES)
    world.sql("INSERT INTO items SELECT i, 'n' || i, i * 1.5, NULL FROM generate_series(1, 500) i")
    world.ingest(spark)

    def change(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        kept = [row for row in rows if row["id"] not in (3, 4)]
        invented = [row | {"id": 10_000 + row["id"], "_seq": row["_seq"] + 10_000} for row in rows if row["id"] <= 5]
        for row in kept:
            if row["id"] == 7:
                row["name"] = ""
            if row["id"] == 8:
                row["big"] = ""
        return kept + invented

    spoil(world, "items", change)
    assert repair(world, spark, "items") == {"r": 4, "d": 5}
    assert_equal(world, "items")
    assert_order_is_unique(world, "items")
    assert repair(world, spark, "items") == {}
    world.sql("UPDATE items SET name = 'later' WHERE id = 3")
    world.ingest(spark)
    assert_equal(world, "items")

"""What was under way with a table when something else stopped it is finished later, and nothing is read twice."""

from typing import Any

import pytest

from ingestion import pause, resnapshot, resume
from ingestion.pipeline import load_tables
from lakehouse.declarations.policies import RawPolicy
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings
from tests.test_ingestion import ORDERS, TABLES, assert_equal, assert_order_is_unique
from tests.test_loading import states
from tests.test_parking import do
from tests.world import World, make_world

pytestmark = pytest.mark.stack


def cut_off(world: World, spark: Any, waves: int) -> None:
    """A first load that ends, with an error of the source, after so many waves of one range each."""
    original, calls = load_tables.run_tasks, []

    def run_tasks(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) > waves:
            raise LakehouseError("cut off")
        return original(*arguments)

    with pytest.MonkeyPatch.context() as patched, pytest.raises(LakehouseError, match="cut off"):
        patched.setattr(load_tables, "WAVE_CHUNKS", 1)
        patched.setattr(load_tables, "SMALL_TABLES", 1)
        patched.setattr(load_tables, "run_tasks", run_tasks)
        world.ingest(spark)


def half_loaded(settings: Settings, spark: Any) -> World:
    """Orders of several ranges, the first of which has been read."""
    world = make_world(settings, ORDERS, TABLES, snapshot_chunk_bytes=8192)
    world.sql("INSERT INTO orders SELECT i, 'somebody', i, NULL FROM generate_series(1, 600) i")
    cut_off(world, spark, waves=2)
    assert 0 < len(world.raw("orders")) < 600 and states(world)["orders"] == "loading"
    return world


def operations(world: World, table: str) -> list[str]:
    return [row["_op"] for row in world.raw(table)]


def test_a_table_parked_within_its_snapshot_is_whole_once_it_resumes(settings: Settings, spark: Any) -> None:
    world = half_loaded(settings, spark)
    world.sql("REVOKE SELECT ON orders FROM lakehouse_ingest")
    assert [aside.state for aside in world.ingest(spark).aside] == ["parked"]
    world.sql("GRANT SELECT ON orders TO lakehouse_ingest", "DELETE FROM orders WHERE id = 7")
    assert not do(world, resume, spark, "orders").aside
    assert_equal(world, "orders")
    assert_order_is_unique(world, "orders")


def test_a_table_renamed_within_its_snapshot_is_read_by_its_new_name(settings: Settings, spark: Any) -> None:
    world = half_loaded(settings, spark)
    world.sql(
        "ALTER TABLE orders RENAME TO sales", "CREATE TABLE orders (LIKE sales)",
        "INSERT INTO orders VALUES (1000, 'of another table', 1, NULL)", "GRANT SELECT ON orders TO lakehouse_ingest",
    )  # fmt: skip
    renamed = world.declaring("orders", relation="public.sales")
    assert not renamed.ingest(spark).aside
    assert_equal(renamed, "orders")
    assert_order_is_unique(world, "orders")


def test_small_tables_that_a_cut_off_load_has_read_are_not_read_again(settings: Settings, spark: Any) -> None:
    world = make_world(settings, ORDERS, TABLES)
    world.sql("INSERT INTO orders VALUES (1, 'a', 1, NULL)", "INSERT INTO lines VALUES (1, 1, 1)")
    cut_off(world, spark, waves=1)
    world.sql("UPDATE orders SET amount = 2", "UPDATE lines SET quantity = 2")
    world.ingest(spark)
    assert operations(world, "orders") == ["r", "u"]
    for table in TABLES:
        assert_equal(world, table)


def test_a_bad_table_among_small_ones_does_not_land_the_others_twice(
    settings: Settings, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_tables, "WAVE_CHUNKS", 1)
    monkeypatch.setattr(load_tables, "SMALL_TABLES", 1)
    ddl = """CREATE TABLE log (line text); CREATE TABLE other (id int PRIMARY KEY); CREATE TABLE days (day date);
    INSERT INTO log VALUES ('a'), ('a'); INSERT INTO other VALUES (1); INSERT INTO days VALUES ('infinity')"""
    keys = {"log": (), "other": ("id",), "days": ()}
    world = make_world(settings, ddl, {name: RawPolicy(relation=f"public.{name}", key=k) for name, k in keys.items()})
    assert [aside.name for aside in world.ingest(spark).aside] == ["days"]
    assert operations(world, "log") == ["r", "r"]
    assert operations(world, "other") == ["r"]


def test_a_renamed_table_keeps_its_key_under_full_identity(settings: Settings, spark: Any) -> None:
    world = make_world(settings, ORDERS, TABLES)
    world.sql("ALTER TABLE orders REPLICA IDENTITY FULL", "INSERT INTO orders VALUES (1, 'a', 1, NULL)")
    world.ingest(spark)
    world.sql("ALTER TABLE orders RENAME TO sales", "UPDATE sales SET id = 2")
    renamed = world.declaring("orders", relation="public.sales")
    renamed.ingest(spark)
    assert operations(world, "orders") == ["r", "d", "c"]
    assert_equal(renamed, "orders")


def test_a_table_without_partitions_left_is_empty_in_the_lake(settings: Settings, spark: Any) -> None:
    ddl = """CREATE TABLE events (id int, day date) PARTITION BY RANGE (day);
    CREATE TABLE events_1 PARTITION OF events FOR VALUES FROM ('2026-01-01') TO ('2026-02-01');
    INSERT INTO events VALUES (1, '2026-01-01')"""
    world = make_world(settings, ddl, {"events": RawPolicy(relation="public.events")})
    world.ingest(spark)
    world.sql("DROP TABLE events_1")
    world.ingest(spark)
    assert operations(world, "events") == ["r", "t"]


def test_a_paused_table_altered_twice_can_be_read_anew(settings: Settings, spark: Any) -> None:
    world = make_world(settings, ORDERS, TABLES)
    world.sql("INSERT INTO orders VALUES (1, 'a', 1, NULL)")
    world.ingest(spark)
    pause(world.settings, world.source.table("orders"))
    for column in ("b", "c"):
        world.sql(f"ALTER TABLE orders ADD {column} int DEFAULT 3")
        world.ingest(spark)
    do(world, resnapshot, spark, "orders")
    world.sql("INSERT INTO orders VALUES (2, 'b', 2, NULL)")
    assert not world.ingest(spark).aside
    assert_equal(world, "orders")
    assert operations(world, "orders") == ["r", "t", "r", "c"]

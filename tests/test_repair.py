"""Repair on real servers: a lake made wrong on purpose is right again, and a right one is left alone."""

from dataclasses import replace
from typing import Any

import pytest

from ingestion.pipeline.repair.stage import DELETE_SEQ
from lakehouse.declarations.policies import RawPolicy
from lakehouse.settings import Settings
from tests.repairing import ITEMS, TABLES, repair, spoil
from tests.test_ingestion import assert_equal, assert_order_is_unique
from tests.world import declared_source, make_world

pytestmark = [pytest.mark.stack, pytest.mark.usefixtures("large")]


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


@pytest.mark.slow
def test_toast_that_updates_left_out_is_followed_through_lives_and_key_changes(settings: Settings, spark: Any) -> None:
    """Chains of key changes, a swap, and a key used again: nothing is different, so nothing may be written."""
    world = make_world(settings, ITEMS + "; ALTER TABLE items ALTER big SET STORAGE EXTERNAL", TABLES)
    world.sql("INSERT INTO items SELECT i, 'n', i, repeat(i::text, 3000) FROM generate_series(1, 40) i")
    world.ingest(spark)
    world.sql(
        "UPDATE items SET name = 'u' WHERE id <= 20",
        "UPDATE items SET id = id + 100 WHERE id <= 10",
        "UPDATE items SET id = id + 100 WHERE id BETWEEN 101 AND 105",
        "UPDATE items SET name = name || 'x' WHERE id > 100",
        "DELETE FROM items WHERE id = 20",
        "INSERT INTO items VALUES (20, 'again', 1, NULL)",
        "UPDATE items SET id = 102 WHERE id = 20",
        "UPDATE items SET price = 2 WHERE id = 102",
    )
    world.ingest(spark)
    with_toast = [row for row in world.raw("items") if row["_unchanged"]]
    assert len(with_toast) > 30 and any(row["_old_key"] for row in with_toast)
    assert repair(world, spark, "items") == {}
    spoil(world, "items", lambda rows: [row for row in rows if row["_op"] != "r" or row["id"] not in (2, 8, 15)])
    assert repair(world, spark, "items") == {"r": 3}
    repaired = {row["id"]: row["big"] for row in world.raw("items") if row["_seq"] >= DELETE_SEQ}
    assert repaired == dict(world.rows("SELECT id, big FROM items WHERE id IN (202, 108, 15)"))
    assert repair(world, spark, "items") == {}


@pytest.mark.slow
def test_toast_is_followed_where_columns_and_the_key_have_other_names_by_now(settings: Settings, spark: Any) -> None:
    """And where a former name is another column's: nothing is different, so nothing may be written."""
    world = make_world(settings, ITEMS + "; ALTER TABLE items ALTER big SET STORAGE EXTERNAL", TABLES)
    world.sql("INSERT INTO items SELECT i, 'n', i, repeat(i::text, 3000) FROM generate_series(1, 9) i")
    world.ingest(spark)
    world.sql("UPDATE items SET name = 'u' WHERE id < 6", "UPDATE items SET id = id + 100 WHERE id > 3")
    world.ingest(spark)
    assert any(row["_old_key"] and row["_unchanged"] for row in world.raw("items"))
    world.sql(
        "ALTER TABLE items RENAME id TO number", "ALTER TABLE items RENAME big TO old_big",
        "ALTER TABLE items ADD big text", "ALTER TABLE items ALTER big SET STORAGE EXTERNAL",
    )  # fmt: skip
    policy = RawPolicy(relation="public.items", key=("number",))
    world = replace(world, source=declared_source(world.source.name, {"items": policy}))
    assert world.ingest(spark).aside == ()
    assert repair(world, spark, "items") == {}
    world.sql("UPDATE items SET big = repeat('y', 3000)", "UPDATE items SET old_big = NULL WHERE number <> 2")
    world.ingest(spark)
    assert any(row["_unchanged"] == ["big"] and row["old_big"] is None for row in world.raw("items"))
    assert repair(world, spark, "items") == {}


def test_only_what_came_after_a_truncate_counts(settings: Settings, spark: Any) -> None:
    world = make_world(settings, ITEMS, TABLES)
    world.sql("INSERT INTO items SELECT i, 'n', i, NULL FROM generate_series(1, 20) i")
    world.ingest(spark)
    world.sql("BEGIN; TRUNCATE items; INSERT INTO items SELECT i, 'm', i, NULL FROM generate_series(10, 30) i; COMMIT")
    world.ingest(spark)
    assert repair(world, spark, "items") == {}
    spoil(world, "items", lambda rows: [row for row in rows if row["_op"] != "t"])
    assert repair(world, spark, "items") == {"d": 9}
    assert_equal(world, "items")

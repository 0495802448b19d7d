"""Keys and masks that are declared otherwise once rows have landed: lake, mirror and current view are the source's."""

from contextlib import closing
from typing import Any

import pytest

from ingestion import resnapshot, resume
from lakehouse.catalog.open import load_table, open_catalog
from lakehouse.declarations.policies import RawPolicy
from lakehouse.settings import Settings
from tests.fresh import in_source, make_views, seen_in_trino
from tests.marks import slow
from tests.mirrored import assert_mirrors_equal, declaring_columns, mirror, refreshed
from tests.test_ingestion import assert_equal, assert_order_is_unique
from tests.test_parking import do, meta
from tests.world import World, make_world

pytestmark = pytest.mark.stack

DDL = "CREATE TABLE items (id int PRIMARY KEY, code text NOT NULL UNIQUE, email text, n int)"
MASKED = {None: "{}", "sha256": "encode(sha256(convert_to({}::text, 'UTF8')), 'hex')", "null": "NULL"}


def make(settings: Settings, spark: Any, **policy: Any) -> World:
    """A world with rows, a mirror and a fresh view."""
    raw = RawPolicy(relation="public.items", key=("id",), **policy)
    world = declaring_columns(make_world(settings, DDL, {"items": raw}))
    world.sql("INSERT INTO items SELECT i, 'code ' || i, i || '@example.com', i FROM generate_series(1, 9) i")
    at_newest(world, spark)
    make_views(world)
    refreshed(world, spark)
    return world


def at_newest(world: World, spark: Any) -> Any:
    world.ingest(spark)
    return refreshed(world, spark)


def assert_all_equal(world: World) -> None:
    assert_equal(world, "items")
    assert_order_is_unique(world, "items")
    assert_mirrors_equal(world)
    assert seen_in_trino(world, "items") == in_source(world, "items")


@pytest.mark.parametrize("how", ["moved", slow("declared")])
def test_no_row_comes_back_under_another_key(settings: Settings, spark: Any, how: str) -> None:
    """Every row ever deleted, and every former code, was live under the code."""
    world = make(settings, spark)
    world.sql("DELETE FROM items WHERE id = 1", "UPDATE items SET code = 'other' WHERE id = 2")
    world.sql("DELETE FROM items WHERE id = 3", "INSERT INTO items VALUES (13, 'code 3')")
    at_newest(world, spark)
    world.sql("UPDATE items SET code = 'later' WHERE id = 4", "DELETE FROM items WHERE id = 5")
    world.ingest(spark)  # and the mirror has it not yet
    other = world.declaring("items", key=("code",))
    if how == "moved":
        world.sql("ALTER TABLE items DROP CONSTRAINT items_pkey, ADD PRIMARY KEY (code)")
        assert "declare that key" in world.ingest(spark).aside[0].reason
        world.sql("UPDATE items SET code = 'parked' WHERE id = 6", "DELETE FROM items WHERE id = 7")
        assert not do(other, resume, spark, "items").aside
    else:
        world.sql("ALTER TABLE items REPLICA IDENTITY FULL")
        assert not other.ingest(spark).aside
    assert any("its key is declared otherwise" in str(row["effect"]) for row in meta(world, "schema_changes"))
    assert [(m.name, m.anew) for m in refreshed(other, spark).written] == [("items", True)]
    assert_all_equal(other)
    world.sql("DELETE FROM items WHERE id = 8", "UPDATE items SET code = 'last' WHERE id = 9")
    assert [(m.name, m.anew) for m in at_newest(other, spark).written] == [("items", False)]
    assert_all_equal(other)


def test_a_mirror_waits_for_the_cycle_that_follows_another_key(settings: Settings, spark: Any) -> None:
    world = make(settings, spark)
    world.sql("UPDATE items SET code = 'other' WHERE id = 2")
    world.ingest(spark)
    world.sql("ALTER TABLE items REPLICA IDENTITY FULL")
    other = world.declaring("items", key=("code",))
    before = mirror(world, "items")
    refreshed(other, spark)
    assert mirror(world, "items") == before
    at_newest(other, spark)
    assert_all_equal(other)


@pytest.mark.parametrize(
    ("before", "now"), [(None, "sha256"), slow("sha256", None), slow(None, "null"), slow("null", None)]
)
def test_rows_that_do_not_change_follow_a_mask(
    settings: Settings, spark: Any, before: str | None, now: str | None
) -> None:
    world = make(settings, spark, mask={"email": before} if before else {})
    world.sql("DELETE FROM items WHERE id = 1", "UPDATE items SET n = 0 WHERE id = 2")
    at_newest(world, spark)
    other = world.declaring("items", mask={"email": now} if now else {})
    assert not other.ingest(spark).aside
    refreshed(other, spark)
    expected = world.rows(f"SELECT id, {MASKED[now].format('email')} FROM items ORDER BY 1")
    assert sorted(mirror(other, "items", ("id", "email"))) == expected
    assert seen_in_trino(other, "items", ("id", "email")) == sorted(map(repr, expected))
    landed = [(key, row["email"]) for (key,), row in other.current("items").items()]
    assert sorted(landed) == expected


@pytest.mark.parametrize(("before", "now"), [slow(None, "sha256"), slow("sha256", None)])
def test_a_mask_that_changes_the_type_in_the_lake_waits_for_the_user(
    settings: Settings, spark: Any, before: str | None, now: str | None
) -> None:
    """Numbers were cast to text without a word, beside digests."""
    world = make(settings, spark, mask={"n": before} if before else {})
    other = world.declaring("items", mask={"n": now} if now else {})
    world.sql("INSERT INTO items VALUES (10, 'code 10', NULL, 10)")
    assert "the mask of column n is declared otherwise" in other.ingest(spark).aside[0].reason
    assert not do(other, resume, spark, "items").aside
    refreshed(other, spark)
    expected = world.rows(f"SELECT id, {MASKED[now].format('n')} FROM items ORDER BY 1")
    assert sorted(mirror(other, "items", ("id", "n"))) == expected
    assert ("n__int" if now else "n__string") in world.raw("items")[0]


@pytest.mark.slow
def test_a_mirror_of_a_raw_table_that_was_dropped_and_loaded_again_is_made_anew(settings: Settings, spark: Any) -> None:
    """It kept the rows that the source had deleted meanwhile."""
    world = make(settings, spark)
    world.sql("DELETE FROM items WHERE id < 4")
    with closing(open_catalog(world.settings)) as catalog:
        assert load_table(catalog, *world.source.table("items").identifier) is not None
        catalog.drop_table(world.source.table("items").identifier)
    do(world, resnapshot, spark, "items")
    assert [(m.name, m.anew) for m in refreshed(world, spark).written] == [("items", True)]
    assert_all_equal(world)

"""Never back in time: what a reader of a fresh view has seen stays seen, whichever text comes next."""

from importlib import import_module
from typing import Any

import pytest

from ingestion import pause, resume
from lakehouse.settings import Settings
from tests.fresh import in_source, seen_in_spark, seen_in_trino
from tests.mirrored import refreshed, write_position_deletes
from tests.test_mirrors import make_fresh
from tests.world import World

pytestmark = pytest.mark.stack


@pytest.fixture
def world(settings: Settings, spark: Any, monkeypatch: pytest.MonkeyPatch) -> World:
    """A source whose views have short texts."""
    write_position_deletes(monkeypatch)
    return make_fresh(settings, spark)


@pytest.mark.slow
@pytest.mark.parametrize("is_refreshed", [False, True])
def test_a_table_that_was_in_no_cut_and_lacked_nothing_keeps_what_it_showed(
    world: World, spark: Any, is_refreshed: bool
) -> None:
    pause(world.settings, world.source.table("items"))
    world.sql("UPDATE pairs SET n = 0")
    world.ingest(spark)
    resume(world.settings, world.declarations, world.source.name, ["items"], spark)
    world.ingest(spark)
    if is_refreshed:
        refreshed(world, spark)
    world.sql("UPDATE items SET big = 'small' WHERE id = 1")
    world.ingest(spark)
    shown = seen_in_trino(world, "items")
    world.sql("UPDATE items SET name = 'left out' WHERE id = 3")
    world.ingest(spark)
    later = seen_in_trino(world, "items")
    assert later == seen_in_spark(world, spark, "items")
    assert later in (shown, in_source(world, "items"))


@pytest.mark.slow
def test_an_irregular_publish_before_a_refresh_reads_its_cut_leaves_the_long_text(
    world: World, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = import_module("ingestion.mirrors.refresh")
    look, views = made._raw_snapshots, made.next_views

    def irregular(*arguments: Any) -> Any:
        found = look(*arguments)
        world.sql("UPDATE items SET name = 'left out' WHERE id = 3")
        world.ingest(spark)
        return found

    shown = []

    def regular(*arguments: Any) -> Any:
        found = views(*arguments)
        world.sql("DELETE FROM items WHERE id = 4")
        world.ingest(spark)
        shown.append(seen_in_trino(world, "items"))
        return found

    world.sql("DELETE FROM items WHERE id = 1")
    world.ingest(spark)
    with monkeypatch.context() as patched:
        patched.setattr(made, "_raw_snapshots", irregular)
        patched.setattr(made, "next_views", regular)
        refreshed(world, spark)
    assert shown == [in_source(world, "items")]
    assert seen_in_trino(world, "items") == in_source(world, "items") == seen_in_spark(world, spark, "items")

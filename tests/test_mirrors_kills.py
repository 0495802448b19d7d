"""Refreshes that are killed with SIGKILL or held up: readers see the old state or the new one, never a mixture."""

import signal
import time
from typing import Any

import psutil
import pytest

from lakehouse.catalog.open import open_catalog
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings
from tests.fresh import in_source, is_fresh_view, make_views, seen_in_trino
from tests.marks import slow
from tests.mirrored import assert_mirrors_equal, listed, mirror, refreshed
from tests.slots import until
from tests.test_mirrors import at_newest, make
from tests.world import World

pytestmark = pytest.mark.stack

BUILD, COPIES, VIEWS = "ingestion.mirrors.build", "ingestion.mirrors.copies", "ingestion.mirrors.views"


def changed(settings: Settings, spark: Any) -> tuple[World, dict[str, Any]]:
    """A world in which two of three tables have changed since the refresh, and what readers see of it."""
    world = make(settings, lease_seconds=2)
    world.sql("INSERT INTO items SELECT i, 'n', i FROM generate_series(1, 9) i", "INSERT INTO still VALUES (1)")
    at_newest(world, spark)
    make_views(world)
    refreshed(world, spark)
    world.sql("DELETE FROM items WHERE id < 4", "INSERT INTO still VALUES (2)")
    world.ingest(spark)
    return world, seen(world)


def seen(world: World) -> dict[str, Any]:
    """What readers see: the rows of each mirror, and the cut."""
    return {table.name: mirror(world, table.name) for table in world.source.tables} | {"cuts": listed(world)}


def assert_goes_on(world: World, spark: Any) -> None:
    """The next refresh is right, and leaves no copies."""
    world.sql("INSERT INTO still VALUES (3)")
    at_newest(world, spark)
    catalog = open_catalog(world.settings)
    try:
        assert catalog.list_tables(f"next_mirror_{world.source.name}") == []
    finally:
        catalog.close()


@pytest.mark.parametrize(
    ("fault", "published"),
    [
        slow(f"{BUILD}:write_changes:after", False),
        slow(f"{COPIES}:_swapped:before", False),
        slow(f"{VIEWS}:write_view:after", False),
        slow(f"{COPIES}:swap:after", False),
        (f"{COPIES}:_put:after", False),  # one of two mirrors is swapped, in a transaction that nobody commits
        slow(f"{COPIES}:_swapped:after", True),
    ],
)
def test_a_refresh_that_is_killed_leaves_the_old_state_or_the_new_one(
    settings: Settings, spark: Any, fault: str, published: bool
) -> None:
    world, before = changed(settings, spark)
    killed = world.driver(fault, "--mirror")
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-2000:]
    if published:
        assert_mirrors_equal(world)
        assert len(listed(world)) == len(before["cuts"]) + 1
    else:
        assert seen(world) == before
    assert_views_are_the_source(world)
    assert_goes_on(world, spark)
    assert_views_are_the_source(world)


def assert_views_are_the_source(world: World) -> None:
    """Fresh views show the newest cut, whatever state of the mirror they name."""
    for table in world.source.tables:
        assert is_fresh_view(world, table.name)
        assert seen_in_trino(world, table.name) == in_source(world, table.name)


@pytest.mark.slow
def test_a_refresh_that_outslept_its_lease_publishes_nothing(settings: Settings, spark: Any) -> None:
    """Until it wakes up it holds the locks of the mirrors, so nobody else writes them either."""
    world, before = changed(settings, spark)
    process = world.start_driver(f"{COPIES}:_swapped:stall", "--mirror")
    try:
        until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED, 120)
        time.sleep(world.settings.ingestion.lease_seconds + 0.5)
        with pytest.raises(LakehouseError, match=r"another mirrors run .* holds it; run it again later"):
            refreshed(world, spark)
        process.send_signal(signal.SIGCONT)
        _, errors = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 1 and "another writer took the lease over" in errors, errors[-2000:]
    assert seen(world) == before
    assert_goes_on(world, spark)

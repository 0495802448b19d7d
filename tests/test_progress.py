"""What is told of long work while it goes on, and that nothing is told afterwards."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ingestion.pipeline import load_changes, load_tables
from ingestion.state import progress, store
from ingestion.state.progress import Progress
from lakehouse.settings import Settings
from lakehouse_cli.machine.lag import lag_table, source_lags
from lakehouse_cli.source.progress import pace
from tests.test_ingestion import ORDERS, TABLES, assert_equal
from tests.world import World, make_world


def test_pace_and_time_left_follow_from_what_is_done() -> None:
    began = datetime(2026, 1, 1, tzinfo=UTC)
    at = Progress("snapshot", 4, 16, 1_000_000, began, began + timedelta(seconds=10))
    assert (at.rows_per_second, at.seconds_left) == (100_000, 30)
    assert pace(at.rows_per_second, at.seconds_left) == "100,000 rows/s, 0:30 left"
    begun = Progress("changes", 0, 16, 0, began, began)
    assert (begun.rows_per_second, begun.seconds_left) == (0, None)
    assert pace(0, None) == ""


def watch(monkeypatch: pytest.MonkeyPatch, module: Any, world: World) -> list[dict[str, Any]]:
    """What `lakehouse status` shows just before each publish of that module."""
    seen: list[dict[str, Any]] = []
    original = module.publish

    def publish(*arguments: Any) -> None:
        lag = source_lags(world.settings)[0]
        lag_table([lag])
        seen.append(lag["progress"])
        original(*arguments)

    monkeypatch.setattr(module, "publish", publish)
    return seen


def left(world: World) -> Progress | None:
    with store.connect_catalog(world.settings) as states:
        return progress.read(states, world.source.name)


@pytest.mark.stack
def test_a_snapshot_of_many_ranges_tells_how_far_it_is(
    settings: Settings, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(settings, ORDERS, TABLES, snapshot_chunk_bytes=8192)
    world.sql("INSERT INTO orders SELECT i, 'c', i, NULL FROM generate_series(1, 800) i")
    monkeypatch.setattr(load_tables, "WAVE_CHUNKS", 2)
    monkeypatch.setattr(load_tables, "SMALL_TABLES", 1)
    seen = watch(monkeypatch, load_tables, world)
    world.ingest(spark)
    steps = [at for at in seen if at]
    assert [at["done"] for at in steps] == sorted({at["done"] for at in steps}) and len(steps) >= 2
    assert all(at["phase"] == "snapshot" and at["done"] < at["total"] for at in steps)
    assert steps[-1]["rows"] > 0 and steps[-1]["seconds_left"] is not None
    assert left(world) is None
    assert_equal(world, "orders")


@pytest.mark.stack
def test_a_backlog_of_several_publishes_tells_how_far_it_is(
    settings: Settings, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(settings, ORDERS, TABLES, cycle_max_bytes=100_000)
    world.ingest(spark)
    for first in range(0, 3000, 1000):
        world.sql(f"INSERT INTO orders SELECT i, 'c', i, NULL FROM generate_series({first}, {first + 999}) i")
    seen = watch(monkeypatch, load_changes, world)
    report = world.ingest(spark)
    assert [at["phase"] for at in seen if at][:2] == ["changes", "changes"]
    assert seen[0]["rows"] == 0 and seen[-1]["rows"] > 0
    assert left(world) is None
    assert report.seconds > 0 and report.rows_per_second == pytest.approx(3000 / report.seconds)
    assert_equal(world, "orders")

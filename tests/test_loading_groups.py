"""No point and no lock of a load is held for longer than a few tables take, and the lake is as exact as with one."""

import signal
import threading
from typing import Any

import psycopg
import pytest

from ingestion import recover_source
from ingestion.pipeline import load_tables
from ingestion.sources.postgres import source as postgres
from ingestion.sources.postgres.points import consistent_point
from lakehouse.declarations.policies import RawPolicy
from lakehouse.settings import Settings
from tests.test_ingestion import assert_equal, assert_order_is_unique
from tests.test_loading import BIG, WIDE, states
from tests.world import World, make_world

pytestmark = pytest.mark.stack
NAMES = ("first", "second", "third")
TABLES = {name: RawPolicy(relation=f"public.{name}", key=("id",)) for name in NAMES}
DDL = ";".join(f"CREATE TABLE {name} (id int PRIMARY KEY, v int, wide text, big text)" for name in NAMES)


def made(settings: Settings, **limits: Any) -> World:
    """Three tables of some ten pages each."""
    world = make_world(settings, DDL, TABLES, **limits)
    world.sql(*(f"INSERT INTO {name} SELECT g, g, {WIDE}, {BIG} FROM generate_series(1, 150) g" for name in NAMES))
    return world


def change(world: World, number: int) -> None:
    """An insert, updates that leave out a large value, deletes and a key change, in all tables at once."""
    world.sql(";".join(
        f"INSERT INTO {name} VALUES ({1000 + number}, 0, '', {BIG.replace('g::text', '0::text')});"
        f"UPDATE {name} SET v = v + 1 WHERE id % 10 = {number}; DELETE FROM {name} WHERE id % 11 = {number};"
        f"UPDATE {name} SET id = id + 5000 WHERE id % 13 = {number}" for name in NAMES
    ))  # fmt: skip


def assert_exact(world: World) -> None:
    for name in NAMES:
        assert_equal(world, name)
        assert_order_is_unique(world, name)


def points(world: World) -> dict[str, set[int]]:
    """The points of each table's snapshot."""
    return {name: {row["_commit_lsn"] for row in world.raw(name) if row["_op"] == "r"} for name in NAMES}


def test_a_table_that_is_loaded_is_free_while_the_others_are_read(
    settings: Settings, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, original = made(settings), load_tables.run_tasks
    third, go_on = threading.Event(), threading.Event()

    def hold_the_third(session: Any, work: Any, plans: Any) -> Any:
        if any(plan.target.name == "third" for plan in plans):
            third.set()
            assert go_on.wait(60)
        return original(session, work, plans)

    monkeypatch.setattr(load_tables, "run_tasks", hold_the_third)
    monkeypatch.setattr(load_tables, "WAVE_CHUNKS", 2)
    monkeypatch.setattr(load_tables, "SMALL_TABLES", 1)
    loading = threading.Thread(target=world.ingest, args=(spark,))
    loading.start()
    try:
        assert third.wait(120)
        assert states(world) == {"first": "streaming", "second": "streaming", "third": "loading"}
        world.sql("SET lock_timeout = '2s'; ALTER TABLE first ADD extra int; UPDATE second SET v = 0")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            world.sql("SET lock_timeout = '100ms'; ALTER TABLE third ADD extra int")
    finally:
        go_on.set()
        loading.join(120)
    world.ingest(spark)
    assert_exact(world)
    found = points(world)
    assert found["first"] == found["second"] and not found["first"] & found["third"]


@pytest.mark.slow
def test_kills_between_and_within_the_groups_of_a_load_leave_it_exact(settings: Settings, spark: Any) -> None:
    """Ranges of one page make each table a group of its own."""
    world = made(settings, snapshot_chunk_bytes=8192, lease_seconds=1.5)
    new, loading, streaming = "new", "loading", "streaming"
    for number, (fault, *stand) in enumerate((
        ("ingestion.pipeline.load_tables:publish:after:1", streaming, new, new),
        ("ingestion.pipeline.load_tables:publish:before:1", streaming, loading, new),
        # what was begun before comes after
        ("ingestion.sources.postgres.source:consistent_point:before:2", streaming, loading, streaming),
    )):  # fmt: skip
        killed = world.driver(fault)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        assert states(world) == dict(zip(NAMES, stand, strict=True)), fault
        change(world, number)
    world.ingest(spark)
    assert_exact(world)
    assert all(len(found) == 1 for found in points(world).values()), "no table is read twice"
    change(world, 7)
    world.ingest(spark)
    assert_exact(world)


@pytest.mark.slow
def test_repairs_let_their_point_go_when_it_is_old(
    settings: Settings, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, made_points = made(settings), []

    def counted(*arguments: Any) -> Any:
        made_points.append([table.name for table in arguments[2]])
        return consistent_point(*arguments)

    world.ingest(spark)
    change(world, 1)
    monkeypatch.setattr(postgres, "consistent_point", counted)
    monkeypatch.setattr(load_tables, "HELD_SECONDS", -1.0)
    recover_source(world.settings, world.declarations, world.source.name, spark)
    assert made_points == [["first", "second", "third"], ["second", "third"], ["third"]]
    assert_exact(world)
    monkeypatch.setattr(load_tables, "HELD_SECONDS", 60.0)
    change(world, 2)
    recover_source(world.settings, world.declarations, world.source.name, spark)
    assert made_points[3:] == [["first", "second", "third"]]
    assert_exact(world)

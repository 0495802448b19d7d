"""Random histories under random faults, with refreshes in between, some of them cut off.

Each mirror is what its raw log says at the cut, replayed by the plainest code, and at the end what the source says.

`RANDOM_SEED` runs one seed.
"""

import os
import random
from collections import Counter
from importlib import import_module
from typing import Any

import pytest

from ingestion import resnapshot, resume
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings
from tests.fresh import (
    has_view,
    is_fresh_view,
    make_view,
    promised,
    seen_in_spark,
    seen_in_trino,
)
from tests.mirrored import assert_mirrors_equal, declaring_columns, listed, mirror, refreshed
from tests.test_random import DDL, TABLES, Cut, History, cut_at, ingest_somehow
from tests.world import World, make_world, position, replay

pytestmark = pytest.mark.stack

POINTS = [
    "ingestion.mirrors.build:write_all",
    "ingestion.mirrors.build:write_changes",
    "ingestion.mirrors.build:_stage",
    "ingestion.mirrors.copies:create",
    "ingestion.mirrors.copies:publish",
    "ingestion.mirrors.copies:_put",
    "ingestion.mirrors.copies:swap",
    "ingestion.mirrors.views:write_view",
]
COLUMNS = {  # that keep their names in all histories
    "accounts": ("id", "owner", "balance"),
    "transfers": ("id", "debit", "credit", "memo"),
    "wide": ("a", "b", "body"),
    "events": ("id", "day", "note"),
}
SEEDS = [(int(os.environ["RANDOM_SEED"]), 6)] if "RANDOM_SEED" in os.environ else [(1, 2), (2, 6)]


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "rounds"), SEEDS)
def test_mirrors_after_a_random_history_are_the_source(
    settings: Settings, spark: Any, monkeypatch: pytest.MonkeyPatch, seed: int, rounds: int
) -> None:
    world = make_world(settings, DDL, TABLES, lease_seconds=1.5, snapshot_chunk_bytes=16384, cycle_max_bytes=262144)
    history = History(world, random.Random(seed))
    done: Counter[str] = Counter()
    for _ in range(rounds):
        monkeypatch.setattr(import_module("ingestion.mirrors.write"), "SMALL_BYTES", history.rng.choice([-1, 2**24]))
        for _ in range(history.rng.randint(1, 6)):
            history.step()
        ingest_somehow(history, spark)
        assert_views_as_promised(world, spark)
        done[refresh_somehow(history, spark)] += 1
        assert_views_as_promised(world, spark)
    finish(history, spark)
    now = declaring_columns(world)
    assert refreshed(now, spark).aside == ()
    assert_mirrors_equal(now)
    assert assert_views_as_promised(world, spark) == len(TABLES)
    print(f"seed {seed}: {dict(history.done)} {dict(done)}")


def refresh_somehow(history: History, spark: Any) -> str:
    """One refresh, cut off now and then; what became of it. What readers then see is of the cut that it names."""
    rng, world = history.rng, declaring_columns(history.world)
    became = "refreshed"
    try:
        if rng.random() < 0.4:
            with cut_at(rng.choice(POINTS), rng.choice(["before", "after"]), rng.randint(1, 2)):
                refreshed(world, spark)
        else:
            refreshed(world, spark)
    except Cut:
        became = "cut off"
    assert_at_their_cut(world)
    return became


def assert_at_their_cut(world: World) -> None:
    """The mirrors that the newest row names, compared with the raw log up to its cut."""
    rows = listed(world)
    for name in dict(rows[-1]["snapshots"]) if rows else ():
        table, cut = world.source.table(name), rows[-1]
        seen = [row for row in world.raw(name) if position(row)[:2] <= (cut["epoch"], cut["cut_lsn"])]
        there = mirror(world, name, only=(columns := COLUMNS[name]))
        wanted = [tuple(row.get(column) for column in columns) for row in replay(seen, table.key).values()]
        assert sorted(map(repr, there)) == sorted(map(repr, wanted)), name


def assert_views_as_promised(world: World, spark: Any) -> int:
    """Every view that is fresh shows the mirror and what came after; how many are. A table that has none gets one."""
    fresh = 0
    for name, shown in COLUMNS.items():
        if not world.raw(name):
            continue
        if not has_view(world, name):
            make_view(world, name, shown)
        elif is_fresh_view(world, name):
            fresh += 1
            wanted = promised(world, name, shown)
            assert seen_in_trino(world, name, shown) == wanted, name
            assert seen_in_spark(world, spark, name) == wanted, name
    return fresh


def finish(history: History, spark: Any) -> None:
    """Every table streams again, one of them snapshotted anew."""
    world = history.world
    for name in TABLES:
        try:
            resume(world.settings, world.declarations, world.source.name, [name], spark)
        except LakehouseError as error:
            assert "only a parked or paused table" in str(error), error
    again = history.rng.choice(list(TABLES))
    resnapshot(world.settings, world.declarations, world.source.name, [again], spark)
    history.step()
    assert world.ingest(spark).aside == ()

"""Ingestion killed with SIGKILL before, during and after each step: nothing lost, nothing doubled."""

import os
import pickle
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.expressions import EqualTo

from ingestion import pause, replay, resume
from ingestion.sink.meta_tables import ensure_meta
from ingestion.sink.publish import publish
from ingestion.state import store
from lakehouse.catalog.open import open_catalog
from lakehouse.settings import Settings
from tests.marks import slow
from tests.test_ingestion import ORDERS, TABLES, assert_equal, assert_order_is_unique
from tests.test_parking import do, meta
from tests.world import World, _plain, make_world

pytestmark = pytest.mark.stack

STEPS = [
    "ingestion.sources.postgres.connection:create_slot",
    "ingestion.pipeline.load_tables:run_tasks",
    "ingestion.pipeline.load_tables:publish",
    "ingestion.pipeline.load_changes:run_tasks",
    "ingestion.sink.publish:_stage_all",
    "ingestion.sink.publish:_swap",
    "ingestion.sources.postgres.connection:advance_slot",
]
WORST = ("ingestion.sink.publish:_swap",)


def fill(world: World, first: int, rows: int) -> None:
    world.sql(
        f"INSERT INTO orders SELECT i, 'c', i, NULL FROM generate_series({first}, {first + rows - 1}) i",
        f"UPDATE orders SET amount = amount + 1 WHERE id % 3 = 0 AND id >= {first}",
        f"DELETE FROM orders WHERE id % 10 = 0 AND id >= {first}",
    )


def assert_right(world: World) -> None:
    for table in TABLES:
        assert_equal(world, table)
        assert_order_is_unique(world, table)


@pytest.mark.parametrize("step", [s if s in WORST else slow(s) for s in STEPS])
@pytest.mark.parametrize("when", [slow("before"), "after"])
def test_killed_at_a_step_it_resumes_with_nothing_lost_or_doubled(
    settings: Settings, spark: Any, step: str, when: str
) -> None:
    world = make_world(settings, ORDERS, TABLES, lease_seconds=2)
    fill(world, 1, 300)
    if "load_tables" not in step and "create_slot" not in step:
        world.ingest(spark)
        fill(world, 1001, 300)
    killed = world.driver(f"{step}:{when}")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    fill(world, 2001, 50)
    world.ingest(spark)
    assert_right(world)


KEPT_STEPS = [
    "ingestion.pipeline.replay:run_tasks",
    "ingestion.pipeline.replay:publish",
    "ingestion.sink.publish:_stage_all",
    "ingestion.sink.publish:_swap",
]


@pytest.mark.slow
@pytest.mark.parametrize("command", ["resume", "replay"])
@pytest.mark.parametrize("step", KEPT_STEPS)
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_while_it_lands_what_was_kept_nothing_is_lost_or_doubled(
    settings: Settings, spark: Any, command: str, step: str, when: str
) -> None:
    world = make_world(settings, ORDERS, TABLES, lease_seconds=2)
    fill(world, 1, 30)
    world.ingest(spark)
    pause(world.settings, world.source.table("orders"))
    fill(world, 1001, 30)
    world.ingest(spark)
    count = len(meta(world, "spool"))
    assert count > 30
    if command == "replay":
        moved_to_quarantine(world)
        do(world, resume, spark, "orders")
    killed = world.driver(f"{step}:{when}", f"--{command}=orders")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    landed = [row for row in world.raw("orders") if row["_op"] != "r"]
    assert len(meta(world, "quarantine" if command == "replay" else "spool")) == (0 if landed else count)
    fill(world, 2001, 30)
    world.ingest(spark)
    if command == "replay":
        do(world, replay, spark, "orders")
    assert_right(world)
    assert meta(world, "spool") == [] and meta(world, "quarantine") == []


def moved_to_quarantine(world: World) -> None:
    """What is in the spool is dead letters instead, as if it could not have been read."""
    catalog = open_catalog(world.settings)
    try:
        spool, letters = catalog.load_table(("meta", "spool")), ensure_meta(catalog, "quarantine")
        mine = EqualTo(term="source", value=world.source.name)
        rows = spool.scan(row_filter=mine).to_arrow().to_pylist()
        schema = letters.schema().as_arrow()
        letters.append(pa.Table.from_pylist([row | {"reason": "it was not read"} for row in rows], schema=schema))
        spool.delete(mine)
    finally:
        catalog.close()


@pytest.mark.slow
def test_killed_in_the_middle_of_a_large_transaction_nothing_is_lost_or_doubled(settings: Settings, spark: Any) -> None:
    world = make_world(settings, ORDERS, TABLES, lease_seconds=2)
    world.ingest(spark)
    world.sql("INSERT INTO orders SELECT i, 'c' || i, i, repeat('n', 20) FROM generate_series(1, 100000) i")
    plan = settings.home / "large.pickle"
    plan.write_bytes(pickle.dumps((_plain(world.settings), world.source)))
    process = subprocess.Popen([sys.executable, "-m", "tests.driver", str(plan)], cwd=Path(__file__).parents[1])
    deadline = time.monotonic() + 120
    with store.connect_catalog(settings) as states:
        while time.monotonic() < deadline:
            found = states.execute(
                "SELECT 1 FROM lakehouse.staged_files WHERE source = %s", (world.source.name,)
            ).fetchone()
            if found:
                break
            time.sleep(0.02)
    time.sleep(random.Random(7).uniform(0.1, 0.6))
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    world.ingest(spark)
    assert len(world.raw("orders")) == 100_000
    assert_right(world)


def test_a_writer_that_lost_its_lease_cannot_publish(
    settings: Settings, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(settings, ORDERS, TABLES)
    world.ingest(spark)
    fill(world, 1, 100)

    def taken_over(*args: Any) -> Any:
        with store.connect_catalog(settings) as states:
            states.execute("UPDATE lakehouse.leases SET token = token + 1 WHERE source = %s", (world.source.name,))
        return publish(*args)

    monkeypatch.setattr("ingestion.pipeline.load_changes.publish", taken_over)
    with pytest.raises(Exception, match="took the lease over"):
        world.ingest(spark)
    assert world.raw("orders") == []
    monkeypatch.undo()
    with store.connect_catalog(settings) as states:
        states.execute("UPDATE lakehouse.leases SET expires_at = now() WHERE source = %s", (world.source.name,))
    world.ingest(spark)
    assert_right(world)


def test_a_publish_whose_answer_was_lost_is_not_repeated(
    settings: Settings, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import psycopg

    world = make_world(settings, ORDERS, TABLES)
    world.ingest(spark)
    fill(world, 1, 100)
    original, lost = store.connect_catalog, [True]

    class LosesTheAnswer:
        def __init__(self, connection: psycopg.Connection[Any]) -> None:
            self.connection = connection

        def __enter__(self) -> psycopg.Connection[Any]:
            return self.connection.__enter__()

        def __exit__(self, *error: Any) -> None:
            self.connection.__exit__(*error)
            if error == (None, None, None) and lost.pop():
                lost.append(False)
                raise psycopg.OperationalError("the connection broke after COMMIT")

    def connect(settings: Settings) -> Any:
        connection = original(settings)
        caller = sys._getframe(1).f_code.co_name
        return LosesTheAnswer(connection) if caller == "attempt" and lost[0] else connection

    monkeypatch.setattr("ingestion.sink.publish.store.connect_catalog", connect)
    world.ingest(spark)
    assert lost == [False]
    assert_right(world)

"""Tables are loaded beside the stream, and a load that was cut off goes on where it was."""

import signal
import threading
from contextlib import suppress
from typing import Any

import psutil
import pytest

from ingestion import pause
from ingestion.run.operate import resume
from ingestion.state import store
from lakehouse.declarations.policies import RawPolicy
from lakehouse.settings import Settings
from tests.slots import following, until
from tests.test_ingestion import ORDERS, TABLES, assert_equal, assert_order_is_unique, cuts
from tests.world import World, make_world

pytestmark = pytest.mark.stack
BIG = "(SELECT string_agg(md5(i::text || g::text), '') FROM generate_series(1, 100) i)"
WIDE = "(SELECT string_agg(md5(i::text || g::text), '') FROM generate_series(1, 15) i)"


def named_in_newest_cut(world: World) -> set[str]:
    found = cuts(world)
    return {name for name, _ in found[-1]["snapshots"]} if found else set()


def states(world: World) -> dict[str, str]:
    with store.connect_catalog(world.settings) as connection:
        return {n: p.state for n, p in store.read_positions(connection, world.source.name).items()}


@pytest.mark.slow
def test_a_killed_snapshot_reads_finished_ranges_no_more(settings: Settings, spark: Any) -> None:
    world = make_world(settings, ORDERS, TABLES, snapshot_chunk_bytes=8192, lease_seconds=2)
    world.sql(f"INSERT INTO orders SELECT g, {WIDE}, g, {BIG} FROM generate_series(1, 600) g")
    killed = world.driver("ingestion.pipeline.load_tables:publish:after:2")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    read = {row["_seq"] >> 32 for row in world.raw("orders")}
    assert len(read) == 16 and states(world)["orders"] == "loading"
    world.sql(
        "UPDATE orders SET amount = -1 WHERE id % 50 = 0", "DELETE FROM orders WHERE id % 70 = 0",
        "UPDATE orders SET id = id + 10000 WHERE id % 90 = 0",
    )  # fmt: skip
    world.ingest(spark)
    assert_equal(world, "orders")
    assert_order_is_unique(world, "orders")
    snapshots = [row for row in world.raw("orders") if row["_op"] == "r" and row["_seq"] < 1 << 61]
    points = {row["_seq"] >> 32: row["_commit_lsn"] for row in snapshots}
    assert len({points[chunk] for chunk in read}) == 1, "finished ranges have the first point alone"
    assert len(set(points.values())) == 2
    assert not any(row["_op"] == "t" for row in world.raw("orders"))


@pytest.mark.slow
def test_a_killed_snapshot_of_a_table_without_a_key_starts_again(settings: Settings, spark: Any) -> None:
    tables = {"log": RawPolicy(relation="public.log")}
    world = make_world(settings, "CREATE TABLE log (line text)", tables, snapshot_chunk_bytes=8192, lease_seconds=2)
    world.sql(f"INSERT INTO log SELECT {WIDE} FROM generate_series(1, 400) g")
    assert world.driver("ingestion.pipeline.load_tables:publish:after:1").returncode == -signal.SIGKILL
    world.sql("INSERT INTO log VALUES ('more'), ('more')")
    world.ingest(spark)
    rows = world.raw("log")
    begun = max(index for index, row in enumerate(rows) if row["_op"] == "t")
    kept = sorted(row["line"] for row in rows[begun + 1 :])
    assert kept == sorted(line for (line,) in world.rows("SELECT line FROM log"))


def test_the_stream_of_other_tables_goes_on_while_one_is_loaded(
    settings: Settings, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ingestion.pipeline import load_tables

    world = make_world(settings, ORDERS, TABLES, flush_interval_seconds=0.2)
    before = world.without("orders")
    world.sql("INSERT INTO orders SELECT i, 'a', i, NULL FROM generate_series(1, 500) i")
    before.ingest(spark)
    hold, original = threading.Event(), load_tables.run_tasks

    def slow(*args: Any) -> Any:
        assert hold.wait(60)
        return original(*args)

    monkeypatch.setattr(load_tables, "run_tasks", slow)
    with following(world):
        until(lambda: states(world).get("orders") == "loading")
        world.sql("INSERT INTO lines VALUES (1, 1, 1)", "UPDATE orders SET note = 'while loading' WHERE id < 10")
        until(lambda: len(world.raw("lines")) == 1)
        assert named_in_newest_cut(world) == {"lines"}
        hold.set()
        until(lambda: named_in_newest_cut(world) == {"lines", "orders"})
    assert_equal(world, "orders")
    assert_equal(world, "lines")


def test_the_stream_goes_on_while_a_declared_key_without_an_index_is_looked_at(
    settings: Settings, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It went past the point of the load meanwhile, each time, and the table was never loaded."""
    from ingestion.sources.postgres import source

    ddl = f"{ORDERS}; CREATE TABLE bare (id bigint, v text); ALTER TABLE bare REPLICA IDENTITY FULL"
    tables = TABLES | {"bare": RawPolicy(relation="public.bare", key=("id",))}
    world = make_world(settings, ddl, tables, flush_interval_seconds=0.2)
    world.without("bare").ingest(spark)
    world.sql("INSERT INTO bare VALUES (1, 'a')")
    original, looks = source.check_key_is_one, list[str]()

    def slow(connection: Any, table: Any, facts: Any) -> None:
        if table.name == "bare":
            looks.append(table.name)
            world.sql(f"INSERT INTO orders VALUES ({len(looks)}, 'a', 1, NULL)")
            until(lambda: len(world.raw("orders")) == len(looks))
        original(connection, table, facts)

    monkeypatch.setattr(source, "check_key_is_one", slow)
    with following(world):
        until(lambda: named_in_newest_cut(world) == {"bare", "lines", "orders"})
    assert len(looks) == 1
    assert_equal(world, "bare")


@pytest.mark.slow
def test_a_follower_goes_by_what_the_user_does_to_a_table(settings: Settings, spark: Any) -> None:
    world = make_world(settings, ORDERS, TABLES, flush_interval_seconds=0.2)
    world.sql("INSERT INTO orders VALUES (1, 'a', 1, NULL)")
    with following(world):
        until(lambda: named_in_newest_cut(world) == {"lines", "orders"})
        pause(world.settings, world.source.table("orders"))
        world.sql("INSERT INTO orders VALUES (2, 'b', 2, NULL)", "INSERT INTO lines VALUES (1, 1, 1)")
        until(lambda: named_in_newest_cut(world) == {"lines"})
        assert len(world.raw("orders")) == 1
        resume(world.settings, world.source.table("orders"))
        until(lambda: named_in_newest_cut(world) == {"lines", "orders"})
        world.sql("ALTER TABLE orders ADD rank int DEFAULT 3", "INSERT INTO orders VALUES (3, 'c', 3, NULL)")
        until(lambda: states(world)["orders"] == "streaming" and len(world.raw("orders")) >= 5)
        until(lambda: named_in_newest_cut(world) == {"lines", "orders"})
    assert_equal(world, "orders")
    assert_equal(world, "lines")
    assert_order_is_unique(world, "orders")


@pytest.mark.slow
def test_a_transaction_larger_than_memory_is_read_in_pieces(settings: Settings, spark: Any) -> None:
    """A transaction of some 400 MB in the stream, with pieces of 4 MB: the workers stay far below it."""
    tables = {"log": RawPolicy(relation="public.log", key=("id",))}
    world = make_world(
        settings, "CREATE TABLE log (id int PRIMARY KEY, line text)", tables, batch_bytes=4 << 20, file_bytes=16 << 20
    )
    world.ingest(spark)
    world.sql("INSERT INTO log SELECT i, repeat(md5(i::text), 12) FROM generate_series(1, 1000000) i")
    before, highest, done = _workers_memory(), 0, threading.Event()

    def watch() -> None:
        nonlocal highest
        while not done.wait(0.05):
            highest = max(highest, _workers_memory())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        report = world.ingest(spark)
    finally:
        done.set()
        watcher.join()
    assert report.tables[0].rows == {"c": 1_000_000}
    assert highest - before < 250 << 20, f"{(highest - before) >> 20} MB"


def _workers_memory() -> int:
    total = 0
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if "ingestion.tasks.daemon" in process.cmdline():
                total += process.memory_info().rss
    return total


@pytest.mark.parametrize("comes_back", [False, True])
def test_a_table_that_leaves_the_publication_before_it_is_read_shows_no_old_row(
    settings: Settings, spark: Any, monkeypatch: pytest.MonkeyPatch, comes_back: bool
) -> None:
    """It was loaded at its point and joined the cuts, without the changes that came after it."""
    from ingestion.pipeline import load_tables

    world = make_world(settings, ORDERS, TABLES)
    world.sql("INSERT INTO orders VALUES (1, 'a', 1, NULL)", "INSERT INTO lines VALUES (1, 1, 1)")
    unseen = ["ALTER PUBLICATION lakehouse DROP TABLE orders", "UPDATE orders SET amount = 2"]
    unseen += ["ALTER PUBLICATION lakehouse ADD TABLE orders"] if comes_back else []
    original, calls = load_tables.survey, []

    def survey(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 2:  # the point is taken between the first two
            world.sql(*unseen)
        return original(*arguments)

    monkeypatch.setattr(load_tables, "survey", survey)
    world.ingest(spark)
    assert len(calls) > 1
    assert_equal(world, "lines")
    if comes_back:
        assert_equal(world, "orders")
    else:
        assert named_in_newest_cut(world) == {"lines"} and states(world).get("orders") != "streaming"

"""Servers that stop, restart or fall silent at each step, disks that fill, writers that stall: nothing lost or doubled.

Kills of the writer itself are in test_kills.
"""

import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import psutil
import pytest

from ingestion.state import store
from ingestion.state.lease import holder_of
from lakehouse.errors import LakehouseError
from lakehouse.servers.trino import query
from lakehouse.settings import Settings
from lakehouse_stack.control.start_stop import running, up
from tests.disks import small_disk
from tests.marks import slow
from tests.slots import following, until
from tests.test_ingestion import ORDERS, TABLES
from tests.test_kills import assert_right, fill
from tests.warehouse import hand_to_store
from tests.world import World, catalog_superuser, make_world

pytestmark = pytest.mark.stack

STEPS = {
    "peek": "ingestion.pipeline.load_changes.run_tasks",
    "file write": "ingestion.sink.publish._stage_all",
    "publish": "ingestion.sink.publish._swap",
    "slot advance": "ingestion.sources.postgres.connection.advance_slot",
}
SERVERS = ("sources", "catalog", "s3")
SHORT, LONG = 8.0, 60.0
BITES = [  # the server that the step needs
    ("peek", "sources"), ("peek", "s3"), ("file write", "s3"), ("publish", "catalog"), ("slot advance", "sources"),
]  # fmt: skip


def family(settings: Settings, server: str) -> list[psutil.Process]:
    process = running(settings, server)
    assert process is not None, f"{server} is not running"
    return [process, *process.children(recursive=True)]


@contextmanager
def silence(settings: Settings, server: str, seconds: float) -> Iterator[None]:
    """The server's processes get no time for so long; what is sent to them waits in the kernel."""
    stopped = family(settings, server)
    for process in stopped:
        with suppress(psutil.NoSuchProcess):
            process.suspend()

    def wake() -> None:
        for process in stopped:
            with suppress(psutil.NoSuchProcess):
                process.resume()

    timer = threading.Timer(seconds, wake)
    timer.start()
    try:
        yield
    finally:
        timer.join()
        wake()


@contextmanager
def restart(settings: Settings, server: str, _: float) -> Iterator[None]:
    """The server is killed, and started again a moment later."""
    for process in family(settings, server):
        with suppress(psutil.NoSuchProcess):
            process.kill()
    starter = threading.Thread(target=up, args=(settings,))
    starter.start()
    try:
        yield
    finally:
        starter.join()


def ingest_with(
    fault: Any, settings: Settings, world: World, spark: Any, step: str, server: str, seconds: float
) -> str | None:
    """One cycle with the fault at that step; the error, when there was one."""
    module, _, function = STEPS[step].rpartition(".")
    with (
        pytest.MonkeyPatch.context() as patch,
        _once_before(patch, f"{module}.{function}", lambda: fault(settings, server, seconds)) as happened,
    ):
        try:
            world.ingest(spark)
            error = None
        except LakehouseError as caught:
            error = str(caught)
    assert happened, f"the step {step} was not reached"
    return error


@contextmanager
def _once_before(patch: pytest.MonkeyPatch, target: str, begin: Callable[[], Any]) -> Iterator[list[Any]]:
    """The first call of the target finds the fault begun; it has ended when the block is left."""
    import importlib

    module, _, name = target.rpartition(".")
    original, begun = getattr(importlib.import_module(module), name), []

    def call(*args: Any, **kwargs: Any) -> Any:
        if not begun:
            begun.append(begin())
            begun[0].__enter__()
        return original(*args, **kwargs)

    patch.setattr(target, call)
    try:
        yield begun
    finally:
        for fault in begun:
            fault.__exit__(None, None, None)


def assert_survives(fault: Any, settings: Settings, spark: Any, step: str, server: str, seconds: float = 0) -> None:
    world = make_world(settings, ORDERS, TABLES, lease_seconds=2, wait_seconds=150)
    fill(world, 1, 200)
    world.ingest(spark)
    fill(world, 1001, 200)
    error = ingest_with(fault, settings, world, spark, step, server, seconds)
    assert error is None or "\n" not in error
    fill(world, 2001, 50)
    world.ingest(spark)
    assert_right(world)


@pytest.mark.slow
@pytest.mark.parametrize(("step", "server"), [*BITES[2:3], *(slow(*bite) for bite in BITES[:1] + BITES[3:4])])
def test_a_server_that_is_silent_for_a_while_at_a_step(settings: Settings, spark: Any, step: str, server: str) -> None:
    assert_survives(silence, settings, spark, step, server, SHORT)


@pytest.mark.slow
@pytest.mark.parametrize(("step", "server"), list(itertools.product(STEPS, SERVERS)))
def test_a_server_that_is_silent_for_a_minute_at_a_step(settings: Settings, spark: Any, step: str, server: str) -> None:
    assert_survives(silence, settings, spark, step, server, LONG)


@pytest.mark.parametrize(("step", "server"), [BITES[0], *(slow(*bite) for bite in BITES[1:])])
def test_a_server_that_is_restarted_at_a_step(settings: Settings, spark: Any, step: str, server: str) -> None:
    assert_survives(restart, settings, spark, step, server)


@pytest.mark.slow
@pytest.mark.parametrize(("step", "server"), sorted(set(itertools.product(STEPS, SERVERS)) - set(BITES)))
def test_any_server_that_is_restarted_at_any_step(settings: Settings, spark: Any, step: str, server: str) -> None:
    assert_survives(restart, settings, spark, step, server)


@pytest.mark.slow
@pytest.mark.parametrize("fault", [silence, restart])
def test_the_follower_survives_every_server(settings: Settings, spark: Any, fault: Any) -> None:
    limits = {"lease_seconds": 3, "flush_interval_seconds": 0.5, "poll_seconds": 0.2}
    world = make_world(settings, ORDERS, TABLES, **limits)
    fill(world, 1, 100)
    with following(world):
        for number, server in enumerate(SERVERS, start=1):
            until(lambda: len(world.raw("orders")) > 0)
            with fault(settings, server, SHORT):
                time.sleep(1)
            fill(world, 1000 * number, 50)
            newest = 1000 * number + 49
            until(lambda newest=newest: any(row["id"] == newest for row in world.raw("orders")), seconds=120)
    world.ingest(spark)
    assert_right(world)


TWICE = [
    ("ingestion.sink.publish:_swap:after", "ingestion.sink.publish:_swap:before"),
    *(
        slow(step, step)
        for step in (
            "ingestion.pipeline.load_changes:run_tasks:after",
            "ingestion.sources.postgres.connection:advance_slot:before",
        )
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second"), TWICE)
def test_killed_again_while_it_recovers(settings: Settings, spark: Any, first: str, second: str) -> None:
    world = make_world(settings, ORDERS, TABLES, lease_seconds=2)
    world.ingest(spark)
    fill(world, 1, 100)
    for number, fault in enumerate((first, second), start=1):
        killed = world.driver(fault)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        fill(world, 1000 * number, 50)
    world.ingest(spark)
    assert_right(world)


@pytest.mark.slow
def test_killed_while_it_recovers_from_a_kill_in_a_snapshot(settings: Settings, spark: Any) -> None:
    world = make_world(settings, ORDERS, TABLES, lease_seconds=2)
    fill(world, 1, 100)
    for number, fault in enumerate(
        ("ingestion.pipeline.load_tables:run_tasks:after", "ingestion.pipeline.load_tables:publish:before"), start=1
    ):
        assert world.driver(fault).returncode == -signal.SIGKILL
        fill(world, 1000 * number, 50)
    world.ingest(spark)
    assert_right(world)


# writers that stall


@pytest.mark.parametrize("how", ["a second process", slow("a materialization")])
def test_a_writer_that_stalls_and_wakes_up_without_its_lease_cannot_publish(
    settings: Settings, spark: Any, how: str
) -> None:
    world = make_world(settings, ORDERS, TABLES, lease_seconds=2)
    fill(world, 1, 100)
    world.ingest(spark)
    fill(world, 1001, 100)
    stalled = world.start_driver("ingestion.sink.publish:_swap:stall", *(["--dagster"] if "mat" in how else []))
    try:
        until(lambda: psutil.Process(stalled.pid).status() == psutil.STATUS_STOPPED, seconds=120)
        with store.connect_catalog(settings) as states:
            until(lambda: holder_of(states, world.source.name) is None)
        fill(world, 2001, 100)
        world.ingest(spark)
        before = [len(world.raw(table)) for table in TABLES]
        os.kill(stalled.pid, signal.SIGCONT)
        _, errors = stalled.communicate(timeout=120)
    finally:
        with suppress(ProcessLookupError):
            os.kill(stalled.pid, signal.SIGKILL)
    assert stalled.returncode == 1 and "another writer took the lease over" in errors
    assert [len(world.raw(table)) for table in TABLES] == before
    assert_right(world)


# disks and single tables


NOISE = (
    "SELECT i, md5(random()::text) || md5(random()::text), i, (SELECT string_agg(md5(random()::text || i.i || j), '')"
    " FROM generate_series(1, 30) j) FROM generate_series({}, {}) i"
)


def test_a_full_disk_is_one_line_and_it_goes_on_when_there_is_room(settings: Settings, spark: Any) -> None:
    make_world(settings, ORDERS, TABLES).ingest(spark)  # the tables of `meta` must not be made on the small disk
    folder = f"tiny{time.time_ns()}"  # of the one bucket that the key reaches
    disk = settings.home / "data" / "s3" / "warehouse" / folder
    with small_disk(disk, 4) as resize:
        hand_to_store(settings, disk)
        tiny = settings.model_copy(update={"warehouse": f"s3://warehouse/{folder}/"})
        world = make_world(tiny, ORDERS, TABLES)
        fill(world, 1, 50)
        world.ingest(spark)
        world.sql(f"INSERT INTO orders {NOISE.format(1001, 9000)}")
        with pytest.raises(LakehouseError) as caught:
            world.ingest(spark)
        assert "\n" not in str(caught.value)
        resize(100)
        fill(world, 20001, 50)
        world.ingest(spark)
        assert_right(world)


def test_when_one_table_cannot_be_written_none_is_published(settings: Settings, spark: Any) -> None:
    """A cut is all tables or none: a file in the place of one table's folder makes its writes fail."""
    world = make_world(settings, ORDERS, TABLES)
    fill(world, 1, 50)
    world.sql("INSERT INTO lines SELECT id, 1, 1 FROM orders")
    world.ingest(spark)
    before = [len(world.raw(table)) for table in TABLES]
    [data] = (settings.home / "data" / "s3").glob(f"warehouse/raw_{world.source.name}*/lines*/data")
    data.rename(data.with_name("aside"))
    data.write_text("in the way")
    try:
        fill(world, 1001, 50)
        world.sql("UPDATE lines SET quantity = quantity + 1")
        with pytest.raises(LakehouseError) as caught:
            world.ingest(spark)
        assert "\n" not in str(caught.value)
    finally:
        data.unlink()
        data.with_name("aside").rename(data)
    assert [len(world.raw(table)) for table in TABLES] == before
    world.ingest(spark)
    assert_right(world)


def test_spark_and_trino_read_on_after_the_catalog_ended_their_connections(settings: Settings, spark: Any) -> None:
    """As Postgres does when it stops; both engines keep several connections, and use the later ones only at once."""
    world = make_world(settings, ORDERS, TABLES)
    fill(world, 1, 10)
    world.ingest(spark)
    table = f"raw_{world.source.name}.orders"
    count = f"SELECT count(*) FROM {table}"

    def read_at_once() -> list[int]:
        with ThreadPoolExecutor(8) as pool:
            by_spark = [pool.submit(spark.table(f"{settings.catalog_name}.{table}").count) for _ in range(4)]
            by_trino = [pool.submit(lambda: int(query(settings, count)[0][0])) for _ in range(4)]
            return [read.result() for read in by_spark + by_trino]

    before = read_at_once()
    with catalog_superuser(settings) as admin:
        admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename <> 'postgres'")
    assert read_at_once() == before

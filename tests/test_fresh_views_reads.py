"""Reads of a fresh view under writes, publishes, refreshes and maintenance: each is a state that the source had.

Transaction n writes n to row 0 and to the row n % ROWS, so the rows of a state are known from row 0. Trino and Spark
read at once; each makes `READS` reads, or as many as `MINUTES` allow.

Updates leave large values out, and the long text of the view follows them. Where these are small for a while, the view
has its short text from a refresh until the next update that leaves a value out.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from lakehouse.declarations.policies import MaintenancePolicy, MirrorPolicy, RawPolicy
from lakehouse.errors import LakehouseError
from lakehouse.servers.trino import connect
from lakehouse.settings import Settings
from lakehouse.text.sql import relation
from maintenance.inventory.outcome import TableName
from maintenance.inventory.session import Session
from maintenance.runner.run import ACTIONS
from tests.fresh import is_fresh_view, make_views, name_of, version_of
from tests.mirrored import declaring_columns, refreshed, write_position_deletes
from tests.slots import following
from tests.world import World, make_world

pytestmark = pytest.mark.stack

ROWS = 20
DDL = "CREATE TABLE counts (id int PRIMARY KEY, n bigint, big text); ALTER TABLE counts ALTER big SET STORAGE EXTERNAL"
TABLES = {"counts": RawPolicy(relation="public.counts", key=("id",))}
READS, MINUTES = int(os.environ.get("READS", "1000")), float(os.environ.get("MINUTES", "6"))
LARGE, SMALL = 9000, 1  # the sizes of a value; updates leave out the large one
SIZES = {"large": lambda n: LARGE, "in turn": lambda n: LARGE if n // 300 % 2 else SMALL}  # as of a transaction
SOON = MaintenancePolicy.model_validate(
    {
        "schedule_group": "nightly",
        "keep_removed_hours": 1,
        "compact": {"target_file_size_mb": 1, "min_input_files": 2, "sort_by": ["id"]},
        "expire_snapshots": {
            "older_than_hours": 0.01,
            "retain_last": 1,
            "keep_metadata_files": 5,
        },  # longer than a read
    }
)
Read = Callable[[], dict[int, int]]


def state_after(n: int) -> dict[int, int]:
    """The rows after that many transactions; those that none has written are 0."""
    return {0: n} | {row: n - (n - row) % ROWS if n >= row else 0 for row in range(1, ROWS)}


@contextmanager
def writing(world: World, size: Callable[[int], int]) -> Iterator[None]:
    """Transactions, one after the other; now and then a row is deleted and comes back in one, or changes its key."""
    stop = threading.Event()

    def write() -> None:
        with psycopg.connect(world.owner_url) as connection:
            n = 0
            while not stop.wait(0.005):
                n += 1
                with connection.transaction():
                    connection.execute("UPDATE counts SET n = %s WHERE id = 0", (n,))
                    if n % ROWS and n % 7:
                        connection.execute("UPDATE counts SET n = %s WHERE id = %s", (n, n % ROWS))
                    elif n % ROWS:
                        connection.execute("DELETE FROM counts WHERE id = %s", (n % ROWS,))
                        row = (n % ROWS, n, "x" * size(n))
                        connection.execute("INSERT INTO counts VALUES (%s, %s, %s)", row)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextmanager
def maintaining(world: World) -> Iterator[None]:
    """Compacts and expires the mirror all the time."""
    stop = threading.Event()
    name = TableName(*world.source.table("counts").mirror_identifier)

    def maintain() -> None:
        while not stop.wait(5):
            for action in ("compact", "expire_snapshots"):
                with closing(Session(world.settings)) as session, suppress(LakehouseError):  # a refresh is under way
                    ACTIONS[action](session, name, SOON)

    thread = threading.Thread(target=maintain)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def followed(settings: Settings, spark: Any, size: int) -> World:
    """A source whose mirror is refreshed each second, and whose view is fresh."""
    world = declaring_columns(make_world(settings, DDL, TABLES))
    often = [t.model_copy(update={"mirror": MirrorPolicy(refresh_seconds=1)}) for t in world.source.tables]
    world = replace(world, source=world.source.model_copy(update={"tables": tuple(often)}))
    world.sql(f"INSERT INTO counts SELECT i, 0, repeat('x', {size}) FROM generate_series(0, {ROWS - 1}) i")
    world.ingest(spark)
    make_views(world)
    refreshed(world, spark)
    assert is_fresh_view(world, "counts")
    return world


def in_trino(world: World) -> Read:
    connection = connect(world.settings)

    def read() -> dict[int, int]:
        cursor = connection.cursor()
        cursor.execute(f"SELECT id, n, length(big) FROM {relation(*name_of(world, 'counts'))}")
        return rows_of(cursor.fetchall())

    return read


def in_spark(world: World, spark: Any) -> Read:
    name = ".".join((world.settings.catalog_name, *name_of(world, "counts")))
    return lambda: rows_of(spark.sql(f"SELECT id, n, length(big) FROM {name}").collect())


def rows_of(rows: list[Any]) -> dict[int, int]:
    assert {length for _, _, length in rows} <= {LARGE, SMALL}, "a value that an update left out"
    assert len(rows) == ROWS, rows
    return {key: n for key, n, _ in rows}


def assert_prefixes(read: Read) -> tuple[int, int]:
    """Each read is a state of the source, none is older than the one before it; how many, and the newest."""
    newest, number, end = 0, 0, time.monotonic() + 60 * MINUTES
    while number < READS and time.monotonic() < end:
        found, number = read(), number + 1
        assert found == state_after(found[0]), (number, found)
        assert found[0] >= newest, (number, found[0], newest)
        newest = found[0]
    return number, newest


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("sizes", SIZES)
def test_each_read_is_a_state_that_the_source_had(
    settings: Settings, spark: Any, monkeypatch: pytest.MonkeyPatch, sizes: str
) -> None:
    write_position_deletes(monkeypatch)
    size = SIZES[sizes]
    world = followed(settings, spark, size(0))
    with following(world), maintaining(world), writing(world, size), ThreadPoolExecutor(2) as engines:
        before, begun = version_of(world, "counts")["version-id"], time.monotonic()
        reads = [engines.submit(assert_prefixes, read) for read in (in_trino(world), in_spark(world, spark))]
        (in_all, newest), (of_spark, newest_of_spark) = (done.result() for done in reads)
        seconds, swaps = time.monotonic() - begun, version_of(world, "counts")["version-id"] - before
    assert min(newest, newest_of_spark) > ROWS and swaps > 0
    print(f"{in_all} reads in Trino, {of_spark} in Spark in {seconds:.0f} s, {swaps} swaps, {newest} transactions")

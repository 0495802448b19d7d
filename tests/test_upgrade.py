"""A lake that an earlier release has left is upgraded and goes on: every row of the source, and all of the history.

The archives are made by `tests.kept_release`, one per release. A cluster cannot be restored with its system identifier
and its slot, and keeping its data folder would take 40 MB: so the source comes back as a dump, is another cluster to
the lake, and goes on by the product's own path for that, `ingest --recover`.
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.types import StringType

from ingestion import recover_source, resume
from ingestion.schema.former_names import names_of
from lakehouse.catalog.open import open_catalog
from lakehouse.catalog.relations import TableName
from lakehouse.catalog.writing.commit import retried
from lakehouse.declarations import PARSED_METADATA
from lakehouse.errors import LakehouseError
from lakehouse.migrations.parsed_flag import FORMER, RENAMED, _rename
from lakehouse.settings import Settings
from tests.kept_release import FIXTURES, drop_source, lake_of_its_own, unpack
from tests.orchestrated import BIN
from tests.test_ingestion import assert_equal, assert_order_is_unique
from tests.world import World

pytestmark = pytest.mark.stack
FLAGS = [{"id": 1, "_is_deleted": False}, {"id": 2, "_is_deleted": True}]
OF_PARSED = {
    "varchar": pa.string(), "boolean": pa.bool_(), "integer": pa.int32(), "bigint": pa.int64(),
    "timestamp(6) with time zone": pa.timestamp("us", tz="UTC"),
}  # fmt: skip
THINGS = ("id", "tags", "state", "born", "body", "big")
RELEASES = [path.name.removeprefix("release-").removesuffix(".tar.gz") for path in sorted(FIXTURES.glob("release-*"))]


@pytest.fixture(params=RELEASES)
def world(request: pytest.FixtureRequest, settings: Settings, tmp_path: Path) -> Iterator[World]:
    with lake_of_its_own(settings, request.param) as mine:
        try:
            yield unpack(request.param, mine, tmp_path)
        finally:
            drop_source(settings)


def lakehouse(world: World, *arguments: str) -> tuple[int, str]:
    own = {"LAKEHOUSE_CATALOG_URL": world.settings.catalog_dsn(), "LAKEHOUSE_WAREHOUSE": world.settings.warehouse}
    done = subprocess.run(
        [str(BIN / "lakehouse"), *arguments], capture_output=True, text=True, timeout=240, env=os.environ | own
    )
    return done.returncode, done.stdout + done.stderr


def former_names(world: World, column: str) -> list[str]:
    """What a column of `orders` was called, by the property in which each release keeps it in its own way."""
    with closing(open_catalog(world.settings)) as catalog:
        properties = catalog.load_table((f"raw_{world.source.name}", "orders")).properties
    return [called.name for called in names_of(column, properties)[1:] if called.until is not None]


def leave_parsed(world: World, *names: str) -> dict[str, Any]:
    """Parsed tables as release 0.1 made them, with rows; returns where each was left."""
    flag = {"_is_deleted": FORMER}
    schema = pa.schema(
        [("id", pa.int64())] + [(flag.get(name, name), OF_PARSED[kind]) for name, (kind, _) in PARSED_METADATA.items()]
    )
    left = {}
    with closing(open_catalog(world.settings)) as catalog:
        catalog.create_namespace_if_not_exists("parsed")
        for name in names:
            table = catalog.create_table(("parsed", name), schema)
            table.append(pa.Table.from_pylist([{"id": 1, FORMER: False}, {"id": 2, FORMER: True}], schema))
            left[name] = table
    return left


@pytest.mark.slow
def test_the_flag_of_parsed_tables_is_renamed_without_a_file_and_by_the_next_run_after_a_kill(world: World) -> None:
    names = [f"parsed_kept_shop__{table}" for table in ("orders", "things", "paused")]
    left = leave_parsed(world, *names)
    with left["parsed_kept_shop__paused"].update_schema() as update:  # a column of the source, loaded before
        update.add_column("_is_deleted", StringType())
    status, planned = lakehouse(world, "upgrade", "--check")
    for name in names[:2]:
        assert f"parsed.{name}: rename _deleted to _is_deleted\n" in planned
    assert status == 1 and "parsed.parsed_kept_shop__paused: its source has a column _is_deleted" in planned
    with closing(open_catalog(world.settings)) as catalog:
        retried(catalog, TableName("parsed", names[0]), _rename)  # then it was killed
    assert lakehouse(world, "upgrade")[0] == 1, "one is left"
    assert lakehouse(world, "upgrade", "--check")[1].splitlines() == planned.splitlines()[-1:]
    with closing(open_catalog(world.settings)) as catalog:
        for name in names[:2]:
            now = catalog.load_table(("parsed", name))
            assert now.metadata.snapshots == left[name].metadata.snapshots, "no file was written"
            assert now.scan(selected_fields=("id", "_is_deleted")).to_arrow().to_pylist() == FLAGS
            assert FORMER not in now.schema().column_names and RENAMED not in now.properties


def test_a_lake_of_an_earlier_release_is_upgraded_and_goes_on(world: World, spark: Any) -> None:
    tables = [table.name for table in world.source.tables]
    history = {name: world.raw(name) for name in tables}
    assert "customer" in former_names(world, "buyer")
    status, planned = lakehouse(world, "upgrade", "--check")
    assert status == 1 and "state: step 1" in planned and "state: step 2" in planned, planned
    assert lakehouse(world, "upgrade")[0] == 0
    assert lakehouse(world, "upgrade", "--check") == (0, "nothing to do\n")
    with pytest.raises(LakehouseError, match="--recover kept_shop"):
        world.ingest(spark)
    world = world.declaring("things", on_unrepresentable="null")
    recover_source(world.settings, world.declarations, world.source.name, spark)
    resume(world.settings, world.declarations, world.source.name, ["things", "paused"], spark)
    world.sql(
        "UPDATE orders SET note = 'after', amount = amount * 2 WHERE id % 4 = 0",
        "DELETE FROM orders WHERE id % 9 = 0",
        "INSERT INTO orders (id, buyer, amount) VALUES (5000, 'new', 1)",
        "DELETE FROM things WHERE born IN ('infinity', '0044-03-15 BC')",
        "UPDATE things SET tags = array_append(tags, 'more') WHERE id % 3 = 0",
        "UPDATE paused SET v = 'awake' WHERE id < 5",
    )
    world.ingest(spark)
    assert_equal(world, "orders")
    assert_equal(world, "paused")
    things = [tuple(row[column] for column in THINGS) for row in world.current("things").values()]
    assert sorted(things) == sorted(world.rows("SELECT id, tags::text, state::text, born, body::text, big FROM things"))
    for name in tables:
        assert_order_is_unique(world, name)
        assert world.raw(name)[: len(history[name])] == history[name] and history[name], "history is what it was"

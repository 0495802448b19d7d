"""Every type through the whole path, by the snapshot and by the stream, against what the source says of its values.

test_types_live has the same values through the decoder and the conversion alone.
"""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from ingestion.schema.evolve import source_type
from ingestion.schema.types import target_type
from ingestion.schema.types.model import Form
from ingestion.sources.postgres.catalog.describe import describe
from lakehouse.catalog.open import changes_rows, history, open_catalog
from lakehouse.declarations.policies import RawPolicy
from lakehouse.errors import LakehouseError
from lakehouse.servers.trino import query
from lakehouse.settings import Settings
from tests.clusters import Cluster, cluster, world_in
from tests.type_values import ORACLE, SETUP, VALUES, exact, plain
from tests.world import World

pytestmark = pytest.mark.stack

BY_STREAM = 1000  # added to the ids of rows that arrive by the stream
LIBRARY_VALUES = {
    "xml": ["'<a b=\"1\">ž<c/></a>'", "'text &amp; <x/>'", "'<?xml version=\"1.0\"?><x/>'"],
    "hstore": ['\'a=>1, "b \\""=>NULL\'', "''"],
    "citext": ["'MiXed'", "''"],
    "ltree": ["'Top.Science'"],
}


@dataclass(frozen=True)
class Landed:
    """A table with a column per type in the source, and what of it is in the lake."""

    world: World
    lake: pa.Table
    number: dict[str, int]


def columns_of(values: dict[str, list[str]]) -> dict[str, int]:
    return {name: number for number, name in enumerate(values)}


def fill(world: World, values: dict[str, list[str]], first_id: int) -> None:
    """Row n has the n-th value of each type, NULL where a type has fewer; the last row has NULLs alone."""
    with psycopg.connect(world.owner_url, autocommit=True) as connection:
        for row in range(max(map(len, values.values())) + 1):
            listed = [f"({v[row]})::{name}" if row < len(v) else "NULL" for name, v in values.items()]
            connection.execute(f"INSERT INTO everything VALUES ({first_id + row}, {', '.join(listed)})")


def land(made: Cluster, settings: Settings, spark: Any, setup: tuple[str, ...], values: dict[str, list[str]]) -> Landed:
    name, number = f"t{uuid.uuid4().hex[:10]}", columns_of(values)
    listed = ", ".join(f"v{n} {kind}" for kind, n in number.items())
    ddl = ";".join([*setup, f"CREATE TABLE everything (id int PRIMARY KEY, {listed})"])
    policy = RawPolicy(relation="public.everything", key=("id",), on_unrepresentable="null")
    world = world_in(made, settings, name, ddl, {"everything": policy})
    fill(world, values, 0)
    world.ingest(spark)
    fill(world, values, BY_STREAM)
    world.ingest(spark)
    catalog = open_catalog(settings)
    try:
        lake = catalog.load_table((f"raw_{name}", "everything")).scan().to_arrow()
    finally:
        catalog.close()
    return Landed(world, lake.sort_by("id"), number)


def assert_as_in_the_source(landed: Landed, kind: str, count: int) -> None:
    table, column = landed.world.source.table("everything"), f"v{landed.number[kind]}"
    with psycopg.connect(landed.world.owner_url) as reader:
        facts = describe(reader, table, "lakehouse")
        target = target_type(source_type(next(c for c in facts.columns if c.name == column)))
        rows = reader.execute(
            f"SELECT {ORACLE[target.form]} FROM (SELECT id, {column} AS v FROM everything) seen ORDER BY id",
            binary=target.form is not Form.TEXT,
        ).fetchall()
    expected = [exact(row[0]) for row in rows]
    actual = [exact(value) for value in plain(landed.lake.column(column).combine_chunks())]
    assert actual == expected
    assert sum(value is not None for value in expected[: len(expected) // 2]) >= count - 1, "NaN alone may be null"


@pytest.fixture(scope="module")
def server() -> Iterator[Cluster]:
    with cluster() as made:
        yield made


@pytest.fixture(scope="module")
def newest(server: Cluster, settings: Settings, spark: Any) -> Landed:
    return land(server, settings, spark, SETUP, VALUES)


@pytest.fixture(scope="module")
def with_libraries(settings: Settings, spark: Any) -> Iterator[Landed]:
    """A server that was built with libxml and has contrib: Debian's."""
    with cluster("15") as made:
        extensions = ("hstore", "citext", "ltree")
        available = {name for (name,) in made.admin("SELECT name FROM pg_available_extensions")}
        if not set(extensions) <= available:
            pytest.skip("this machine's Postgres 15 has no contrib extensions (postgresql-contrib)")
        made.admin(*(f"CREATE EXTENSION {name}" for name in extensions), database="template1")
        yield land(made, settings, spark, (), LIBRARY_VALUES)


@pytest.mark.parametrize("kind", VALUES)
def test_a_value_in_raw_is_the_value_in_the_source(newest: Landed, kind: str) -> None:
    assert_as_in_the_source(newest, kind, len(VALUES[kind]))


@pytest.mark.parametrize("kind", LIBRARY_VALUES)
def test_a_value_of_a_library_type_in_raw_is_the_value_in_the_source(with_libraries: Landed, kind: str) -> None:
    assert_as_in_the_source(with_libraries, kind, len(LIBRARY_VALUES[kind]))


def test_a_table_of_all_types_is_readable_in_trino(newest: Landed) -> None:
    rows = query(newest.world.settings, f"SELECT * FROM raw_{newest.world.source.name}.everything")
    assert len(rows) == newest.lake.num_rows


def test_snapshot_and_stream_give_the_same_value_for_the_same_value(newest: Landed) -> None:
    """One code path converts both; the texts that Postgres prints for both have to be the same, too."""
    half = newest.lake.num_rows // 2
    assert newest.lake.column("_op").to_pylist() == ["r"] * half + ["c"] * half
    for number in newest.number.values():
        column = newest.lake.column(f"v{number}").combine_chunks()
        assert [exact(v) for v in plain(column[:half])] == [exact(v) for v in plain(column[half:])]


def test_empty_text_null_and_a_backslash_n_are_three_values(newest: Landed) -> None:
    column = newest.lake.column(f"v{newest.number['text']}").to_pylist()
    assert {"", None, "\\N", "NULL", "x" * 1_000_000} <= set(column)


# what the lake cannot hold


ODD = "('infinity', '-infinity', 'infinity', 'NaN'), ('0044-03-15 BC', '10000-01-01', '4713-01-01 BC', 'NaN')"
ODD_DDL = "CREATE TABLE odd (id serial PRIMARY KEY, d date, t timestamp, z timestamptz, n numeric(6,2))"
LOWEST, HIGHEST = "0001-01-01", "9999-12-31"


def odd_world(made: Cluster, settings: Settings, policy: str) -> World:
    raw = RawPolicy(relation="public.odd", key=("id",), on_unrepresentable=policy)
    return world_in(made, settings, f"t{uuid.uuid4().hex[:10]}", ODD_DDL, {"odd": raw})


@pytest.mark.parametrize(
    ("policy", "by"),
    [(policy, by) for policy in ("error", "clamp", "null") for by in ("snapshot", "stream")],
)
def test_a_value_that_the_lake_cannot_hold_follows_the_declared_policy_and_is_counted(
    server: Cluster, settings: Settings, spark: Any, policy: str, by: str
) -> None:
    world = odd_world(server, settings, policy)
    if by == "stream":
        world.ingest(spark)
    world.sql(f"INSERT INTO odd (d, t, z, n) VALUES {ODD}")
    if policy == "error":
        try:
            told = world.ingest(spark).aside[0].reason
        except LakehouseError as error:  # no table is left that could be brought up
            told = str(error)
        assert "declare meta.raw.on_unrepresentable: clamp, or null in quotes" in told and "\n" not in told
        assert world.raw("odd") == []
        return
    world.ingest(spark)
    rows = [[str(row[c])[:10] if row[c] else None for c in "dtz"] + [row["n"]] for row in world.raw("odd")]
    if policy == "null":
        assert rows == [[None] * 4] * 2
    else:
        assert rows == [[HIGHEST, LOWEST, HIGHEST, None], [LOWEST, HIGHEST, LOWEST, None]]
    catalog = open_catalog(settings)
    try:
        table = catalog.load_table((f"raw_{world.source.name}", "odd"))
    finally:
        catalog.close()
    snapshot = next(filter(changes_rows, history(table.metadata)))
    counted = {c: snapshot.summary[f"lakehouse.unrepresentable.{c}"] for c in "dtzn"}
    assert counted == dict.fromkeys("dtzn", "2")


def test_postgis_is_the_text_that_it_prints(settings: Settings, spark: Any) -> None:
    values = {"geometry": ["'POINT(1 2)'", "'SRID=4326;LINESTRING(0 0, 1 1)'"]}
    with cluster("15") as made:
        if made.admin("SELECT count(*) FROM pg_available_extensions WHERE name = 'postgis'") == [(0,)]:
            pytest.skip("PostGIS is not installed on this machine")
        made.admin("CREATE EXTENSION postgis", database="template1")
        assert_as_in_the_source(land(made, settings, spark, (), values), "geometry", 2)

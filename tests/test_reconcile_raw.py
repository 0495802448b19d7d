"""Raw layer and source compared at one point while both are busy, by key ranges, and repaired where asked for."""

import threading
from typing import Any

import psycopg
import pytest

from ingestion import lease as leases
from ingestion import state
from ingestion.repair import KeyRange
from ingestion.repair.stage import DELETE_SEQ
from lakehouse.errors import LakehouseError
from lakehouse.policies import RawPolicy
from lakehouse.settings import Settings
from tests.repairing import ITEMS, TABLES, compared, spoil
from tests.test_ingestion import assert_equal, assert_order_is_unique, cuts
from tests.world import make_world

pytestmark = pytest.mark.stack


def test_reconcile_names_what_differs_and_repairs_it(settings: Settings, spark: Any) -> None:
    world = make_world(settings, ITEMS, TABLES)
    world.sql("INSERT INTO items SELECT i, 'n' || i, i * 1.5, NULL FROM generate_series(1, 100) i")
    assert compared(world, spark, "items").equal, "it brings the lake up by itself"
    world.sql("UPDATE items SET big = 'b' WHERE id = 50")

    def change(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        changed = {7: {"name": ""}, 8: {"big": ""}, 9: {"id": 900}}
        return [row | changed.get(row["id"], {}) for row in rows if row["id"] != 3]

    spoil(world, "items", change)
    found = compared(world, spark, "items")
    assert (found.source_rows, found.lake_rows) == (100, 99)
    assert (found.missing, found.extra, found.differing) == (2, 1, 2)
    assert found.differing_columns == {"name": 1, "big": 1}
    examples = {(e.kind, e.key["id"]): e.columns for e in found.examples}
    assert examples == {
        ("missing", "3"): {}, ("missing", "9"): {}, ("extra", "900"): {},
        ("differs", "7"): {"name": ("n7", "")}, ("differs", "8"): {"big": (None, "")},
    }  # fmt: skip
    assert compared(world, spark, "items", repair=True).repaired == {"r": 4, "d": 1}
    events = [row for row in world.raw("items") if row["_xid"] is None and row["_seq"] >= DELETE_SEQ]
    newest = cuts(world)[-1]
    assert [row["_op"] for row in events] == ["d", "r", "r", "r", "r"], "deletes come first"
    assert newest["cut_lsn"] >= events[-1]["_commit_lsn"], "readers go no further than the newest cut"
    assert compared(world, spark, "items", repair=True).repaired == {}
    assert_equal(world, "items")


def test_reconcile_is_right_while_the_source_is_written_to(settings: Settings, spark: Any) -> None:
    """Compared at a point: what commits meanwhile is neither missing nor different."""
    world = make_world(settings, ITEMS, TABLES)
    world.sql("INSERT INTO items SELECT i, 'n', 0, repeat('x', 50) FROM generate_series(1, 2000) i")
    world.ingest(spark)
    spoil(world, "items", lambda rows: [row for row in rows if row["id"] != 777])
    stop = threading.Event()

    def write() -> None:
        with psycopg.connect(world.owner_url, autocommit=True) as connection:
            n = 10_000
            while not stop.is_set():
                n += 1
                connection.execute("INSERT INTO items VALUES (%s, 'new', 1, NULL)", (n,))
                connection.execute("UPDATE items SET price = price + 1 WHERE id > 1000 AND id %% 97 = %s", (n % 97,))
                connection.execute("DELETE FROM items WHERE id = %s", (n - 50,))

    thread = threading.Thread(target=write)
    thread.start()
    try:
        found = compared(world, spark, "items", repair=True)
        again = compared(world, spark, "items")
    finally:
        stop.set()
        thread.join()
    assert (found.missing, found.extra, found.differing, found.repaired) == (1, 0, 0, {"r": 1})
    assert again.equal
    (event,) = [row for row in world.raw("items") if row["_seq"] >= DELETE_SEQ]
    before = [row["_commit_lsn"] for row in world.raw("items") if row["_ingested_at"] < event["_ingested_at"]]
    assert max(before) < event["_commit_lsn"], "later changes may leave out values that the repair restates"
    world.ingest(spark)
    assert_equal(world, "items")
    assert_order_is_unique(world, "items")


DAYS = "CREATE TABLE days (day timestamptz, n int, v text, PRIMARY KEY (day, n))"
DAY_TABLES = {"days": RawPolicy(relation="public.days", key=("day", "n"))}


def test_a_key_range_leaves_the_rest_alone(settings: Settings, spark: Any) -> None:
    world = make_world(settings, DAYS, DAY_TABLES)
    world.sql(
        "INSERT INTO days SELECT '2024-01-01'::timestamptz + i * interval '1 day', i, 'v' FROM generate_series(0, 9) i"
    )
    world.ingest(spark)
    spoil(world, "days", lambda rows: [row | {"v": "wrong", "n": row["n"] + (row["n"] == 3) * 100} for row in rows])
    part = KeyRange("2024-01-03", "2024-01-06 00:00:00+00")
    found = compared(world, spark, "days", key_range=part)
    assert (found.source_rows, found.lake_rows, found.missing, found.extra, found.differing) == (3, 3, 1, 1, 2)
    assert compared(world, spark, "days", key_range=part, repair=True).repaired == {"r": 3, "d": 1}
    assert compared(world, spark, "days", key_range=part).equal
    assert compared(world, spark, "days", key_range=KeyRange(None, "2024-01-03")).differing == 2
    assert compared(world, spark, "days", key_range=KeyRange("2024-01-06", None)).differing == 5
    with pytest.raises(LakehouseError, match="'soon' is no bound for key column 'day'"):
        compared(world, spark, "days", key_range=KeyRange("soon", None))


def test_a_range_of_keys_whose_order_the_lake_cannot_follow_is_refused(settings: Settings, spark: Any) -> None:
    """An enum is ordered by its declaration, char(n) without its padding, text by its collation."""
    ddl = """CREATE TYPE mood AS ENUM ('z', 'a'); CREATE TABLE moods (k mood PRIMARY KEY);
        CREATE TABLE padded (k char(3) PRIMARY KEY); CREATE TABLE codes (k text COLLATE "C" PRIMARY KEY)"""
    policies = {name: RawPolicy(relation=f"public.{name}", key=("k",)) for name in ("moods", "padded", "codes")}
    world = make_world(settings, ddl, policies)
    world.sql("INSERT INTO codes VALUES ('a'), ('B'), ('é'), ('z')")
    for table in ("moods", "padded"):
        with pytest.raises(LakehouseError, match="the lake cannot follow its order in Postgres"):
            compared(world, spark, table, key_range=KeyRange("a", "b"))
    assert compared(world, spark, "codes", key_range=KeyRange("C", "z")).source_rows == 1
    found = compared(world, spark, "codes", key_range=KeyRange("C", None))
    assert found.equal and (found.source_rows, found.lake_rows) == (3, 3)


def test_a_table_without_a_key_is_refused_with_the_command_that_helps(settings: Settings, spark: Any) -> None:
    world = make_world(settings, "CREATE TABLE log (line text)", {"log": RawPolicy(relation="public.log")})
    with pytest.raises(LakehouseError, match=r"has no key.*lakehouse ingest --resnapshot"):
        compared(world, spark, "log")


def test_a_repair_waits_for_no_other_writer(settings: Settings, spark: Any) -> None:
    world = make_world(settings, ITEMS, TABLES)
    world.ingest(spark)
    with state.connect_catalog(settings) as states:
        lease = leases.acquire(states, world.source.name, 60, "follow")
        assert lease is not None
        with pytest.raises(LakehouseError, match="is at work: stop it, then repair"):
            compared(world, spark, "items", repair=True)
        leases.release(states, lease)

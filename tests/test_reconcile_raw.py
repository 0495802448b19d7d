"""Raw layer and source compared at one point while both are busy, by key ranges, and repaired where asked for."""

import sys
import threading
from typing import Any

import psycopg
import pytest

from ingestion.pipeline.repair import KeyRange
from ingestion.pipeline.repair.stage import DELETE_SEQ
from ingestion.sources.postgres import source as postgres
from ingestion.state import lease as leases
from ingestion.state import store
from ingestion.verify import raw
from lakehouse.declarations.policies import RawPolicy
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings
from tests.repairing import ITEMS, TABLES, compared, spoil
from tests.test_ingestion import assert_equal, assert_order_is_unique, cuts
from tests.test_repair_values import EVERY
from tests.world import declared_source, make_world

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


def test_rows_that_are_there_twice_are_told(settings: Settings, spark: Any) -> None:
    """By its key each was the lake's row: "equal", with a count of its own on either side."""
    world = make_world(
        settings, "CREATE TABLE items (id int, name text); ALTER TABLE items REPLICA IDENTITY FULL", TABLES
    )
    world.sql("INSERT INTO items SELECT i, 'n' FROM generate_series(1, 10) i")
    assert compared(world, spark, "items").equal
    world.sql("INSERT INTO items VALUES (3, 'n')", "INSERT INTO items VALUES (4, 'other')")
    for repair in (False, True):
        found = compared(world, spark, "items", repair=repair)
        assert not found.equal and "2 rows have the declared key (id) of another one" in (found.aside or ""), found
    spoil(world, "items", lambda rows: [row for row in rows if row["id"] not in (1, 7)])
    found = compared(world, spark, "items", repair=True)
    assert (found.missing, found.differing, found.repaired) == (2, 0, {"r": 2}), "what is not doubled is repaired"
    assert found.verdict == "DIFFERENT" and "2 rows have the declared key (id) of another one" in (found.doubled or "")
    found = compared(world, spark, "items")
    assert "2 rows have the declared key (id) of another one" in (found.aside or ""), found
    world.sql("DELETE FROM items WHERE id IN (3, 4)", "INSERT INTO items VALUES (3, 'n'), (4, 'other')")
    assert compared(world, spark, "items").equal


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_point_is_let_go_after_its_time_and_every_table_is_compared_once(
    settings: Settings, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables of different columns are compared together, one that lacks a value and one that was truncated too."""
    ddl = """CREATE TABLE a (id int PRIMARY KEY, v text, big text); CREATE TABLE b (k text PRIMARY KEY, n numeric(9,2));
        CREATE TABLE c (id int, day date, PRIMARY KEY (id, day)); CREATE TABLE d (id int PRIMARY KEY)"""
    keys = {"a": ("id",), "b": ("k",), "c": ("id", "day"), "d": ("id",)}
    world = make_world(settings, ddl, {n: RawPolicy(relation=f"public.{n}", key=key) for n, key in keys.items()})
    world.sql(
        "ALTER TABLE a ALTER big SET STORAGE EXTERNAL",
        "INSERT INTO a SELECT i, 'v', repeat('x', 9000) FROM generate_series(1, 5) i",
        "INSERT INTO b VALUES ('p', 1.5), ('q', NULL)", "INSERT INTO c VALUES (1, '2026-01-01')",
        "INSERT INTO d VALUES (1), (2)",
    )  # fmt: skip
    world.ingest(spark)
    world.sql("UPDATE a SET v = 'w' WHERE id = 3", "TRUNCATE d", "INSERT INTO d VALUES (3)")
    world.ingest(spark)
    spoil(world, "b", lambda rows: [row for row in rows if row["k"] != "q"])
    points, made = [], postgres.consistent_point

    def counted(*arguments: Any) -> Any:
        points.append([table.name for table in arguments[2]])
        return made(*arguments)

    monkeypatch.setattr(postgres, "consistent_point", counted)

    def found() -> dict[str, tuple[int, int, bool]]:
        results = list(raw.reconcile_raw(world.settings, world.declarations, spark=spark))
        assert len(results) == 4
        return {result.table: (result.source_rows, result.lake_rows, result.equal) for result in results}

    expected = {"a": (5, 5, True), "b": (2, 1, False), "c": (1, 1, True), "d": (1, 1, True)}
    assert found() == expected
    assert points == [["a", "b", "c", "d"]]
    monkeypatch.setattr(raw, "TABLES_TOGETHER", 2)
    monkeypatch.setattr(raw, "HELD_SECONDS", 0.0)
    assert found() == expected
    assert points[1:] == [["a", "b", "c", "d"], ["c", "d"]]
    assert not world.rows(f"SELECT 1 FROM pg_replication_slots WHERE temporary AND database = '{world.source.name}'")


@pytest.mark.slow
def test_small_tables_are_compared_without_a_query_of_spark(
    settings: Settings, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every type, keys that changed, deletes, a truncate: equal by digests made here alone."""
    width = max(len(values) for _, _, values in EVERY)
    ddl = f"CREATE TABLE types (n int PRIMARY KEY, {', '.join(f'v_{name} {kind}' for name, kind, _ in EVERY)})"
    rows = [", ".join(values[n] if n < len(values) else "NULL" for _, _, values in EVERY) for n in range(width)]
    world = make_world(settings, f"{ddl}; {ITEMS}", {"types": RawPolicy(relation="public.types", key=("n",))} | TABLES)
    world.sql(*(f"INSERT INTO types VALUES ({n}, {values})" for n, values in enumerate(rows)))
    world.sql("INSERT INTO items SELECT i, 'é' || i, i, NULL FROM generate_series(1, 50) i")
    world.ingest(spark)
    world.sql("BEGIN; TRUNCATE items; INSERT INTO items SELECT i, 'm', i, NULL FROM generate_series(1, 30) i; COMMIT")
    world.sql("DELETE FROM items WHERE id > 25", "UPDATE items SET id = id + 100, name = '' WHERE id < 5")
    world.ingest(spark)

    def asked(*arguments: Any) -> Any:
        raise AssertionError("Spark was asked about a small table")

    with monkeypatch.context() as patched:
        patched.setattr(sys.modules["ingestion.pipeline.repair.compare"], "lake_sides", asked)
        assert compared(world, spark, "types").equal
        found = compared(world, spark, "items")
        assert (found.source_rows, found.lake_rows, found.equal) == (25, 25, True)
    spoil(world, "types", lambda rows: [row | {"v_t": 5} if row["n"] == 0 else row for row in rows])
    assert compared(world, spark, "types").differing_columns == {"v_t": 1}


def test_a_large_table_has_a_point_of_its_own() -> None:
    tables = list(declared_source("shop", {name: RawPolicy(relation=f"public.{name}") for name in "abcd"}).tables)
    sizes = {"a": 10, "b": 1000, "c": 10, "d": 10}
    assert [table.name for table in raw.at_one_point(tables, sizes, 100)] == ["a", "c", "d"]
    assert [table.name for table in raw.at_one_point(tables[1:], sizes, 100)] == ["b"]


DAYS = "CREATE TABLE days (day timestamptz, n int, v text, PRIMARY KEY (day, n))"
DAY_TABLES = {"days": RawPolicy(relation="public.days", key=("day", "n"))}


@pytest.mark.slow
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


def test_a_table_without_a_key_is_named_with_what_helps_and_the_others_are_compared(
    settings: Settings, spark: Any
) -> None:
    """It ended the whole comparison: nothing was compared at all."""
    tables = {"log": RawPolicy(relation="public.log"), **TABLES}
    world = make_world(settings, f"CREATE TABLE log (line text); {ITEMS}", tables)
    world.sql("INSERT INTO items VALUES (1, 'n', 2, NULL)", "INSERT INTO log VALUES ('l')")
    log, items = raw.reconcile_raw(world.settings, world.declarations, spark=spark)
    assert items.equal and items.lake_rows == 1
    assert (log.equal, log.verdict) == (False, "not compared")
    assert log.aside is not None and f"`lakehouse ingest --resnapshot {world.source.name}.log`" in log.aside
    for repair in (False, True):
        assert compared(world, spark, "log", repair=repair).aside == log.aside, "also where it alone is named"


def test_a_repair_waits_for_no_other_writer(settings: Settings, spark: Any) -> None:
    world = make_world(settings, ITEMS, TABLES)
    world.ingest(spark)
    with store.connect_catalog(settings) as states:
        lease = leases.acquire(states, world.source.name, 60, "follow")
        assert lease is not None
        with pytest.raises(LakehouseError, match="is at work: stop it, then repair"):
            compared(world, spark, "items", repair=True)
        leases.release(states, lease)

"""Repair and reconcile on real servers: the lake made wrong on purpose, the oracle is SQL against the source."""

import threading
from collections.abc import Callable
from typing import Any, Literal

import psycopg
import pyarrow as pa
import pytest

from ingestion import lease as leases
from ingestion import state
from ingestion.context import Writer, append_of, begin_cycle, register
from ingestion.publish import Publication, publish
from ingestion.reconcile import TableComparison, reconcile_raw
from ingestion.repair import KeyRange, stage_repair
from ingestion.repair.stage import DELETE_SEQ
from ingestion.snapshot import consistent_point
from lakehouse.catalog import open_catalog
from lakehouse.errors import LakehouseError
from lakehouse.policies import RawPolicy
from lakehouse.settings import Settings
from tests.test_ingestion import assert_equal, assert_order_is_unique, cuts
from tests.world import World, make_world

pytestmark = pytest.mark.stack

ITEMS = "CREATE TABLE items (id bigint PRIMARY KEY, name text, price numeric(12,2), big text)"
TABLES = {"items": RawPolicy(relation="public.items", key=("id",))}


def repair(world: World, spark: Any, table: str, key_range: KeyRange | None = None) -> dict[str, int]:
    """Stages and publishes a repair of what is in the lake now, at a new point; gives rows by operation."""
    catalog = open_catalog(world.settings)
    with state.connect_catalog(world.settings) as states:
        lease = leases.acquire(states, world.source.name, 60, "once")
        assert lease is not None
        try:
            writer = Writer(world.settings, catalog, spark, lease, world.source)
            declared = world.source.table(table)
            stream, position = (
                state.read_stream(states, world.source.name),
                state.read_positions(states, world.source.name)[table],
            )
            assert stream is not None
            iceberg = catalog.load_table(declared.identifier)
            points = consistent_point(world.settings, world.source.name, [declared])
            with points as point, begin_cycle(writer, states, stream.epoch) as cycle:
                register(states, writer, cycle, [iceberg])
                written = stage_repair(writer, cycle, declared, iceberg, position.facts, point, key_range)
                appends = (append_of(writer, cycle, written),)
                publish(world.settings, catalog, lease, Publication(cycle.id, world.source.name, stream.epoch, appends))
            return written.operations
        finally:
            leases.release(states, lease)
            catalog.close()


def spoil(world: World, table: str, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> None:
    """Rewrites the raw rows as `change` has them."""
    catalog = open_catalog(world.settings)
    try:
        iceberg = catalog.load_table((f"raw_{world.source.name}", table))
        rows = change(iceberg.scan().to_arrow().to_pylist())
        iceberg.overwrite(pa.Table.from_pylist(rows, schema=iceberg.schema().as_arrow()))
    finally:
        catalog.close()


def test_a_right_lake_needs_no_repair(settings: Settings, spark: Any) -> None:
    world = make_world(settings, ITEMS, TABLES)
    world.sql("INSERT INTO items SELECT i, 'n' || i, i * 1.5, repeat('x', i) FROM generate_series(1, 500) i")
    world.ingest(spark)
    world.sql(
        "UPDATE items SET price = 0.00 WHERE id < 10", "DELETE FROM items WHERE id > 490", "UPDATE items SET id = -id"
    )
    world.ingest(spark)
    assert repair(world, spark, "items") == {}


def test_rows_lost_changed_and_invented_in_the_lake_are_repaired(settings: Settings, spark: Any) -> None:
    world = make_world(settings, ITEMS, TABLES)
    world.sql("INSERT INTO items SELECT i, 'n' || i, i * 1.5, NULL FROM generate_series(1, 500) i")
    world.ingest(spark)

    def change(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        kept = [row for row in rows if row["id"] not in (3, 4)]
        invented = [row | {"id": 10_000 + row["id"], "_seq": row["_seq"] + 10_000} for row in rows if row["id"] <= 5]
        for row in kept:
            if row["id"] == 7:
                row["name"] = ""
            if row["id"] == 8:
                row["big"] = ""
        return kept + invented

    spoil(world, "items", change)
    assert repair(world, spark, "items") == {"r": 4, "d": 5}
    assert_equal(world, "items")
    assert_order_is_unique(world, "items")
    assert repair(world, spark, "items") == {}
    world.sql("UPDATE items SET name = 'later' WHERE id = 3")
    world.ingest(spark)
    assert_equal(world, "items")


def test_toast_that_updates_left_out_is_followed_through_lives_and_key_changes(settings: Settings, spark: Any) -> None:
    """Chains of key changes, a swap, and a key used again: nothing is different, so nothing may be written."""
    world = make_world(settings, ITEMS + "; ALTER TABLE items ALTER big SET STORAGE EXTERNAL", TABLES)
    world.sql("INSERT INTO items SELECT i, 'n', i, repeat(i::text, 3000) FROM generate_series(1, 40) i")
    world.ingest(spark)
    world.sql(
        "UPDATE items SET name = 'u' WHERE id <= 20",
        "UPDATE items SET id = id + 100 WHERE id <= 10",
        "UPDATE items SET id = id + 100 WHERE id BETWEEN 101 AND 105",
        "UPDATE items SET name = name || 'x' WHERE id > 100",
        "DELETE FROM items WHERE id = 20",
        "INSERT INTO items VALUES (20, 'again', 1, NULL)",
        "UPDATE items SET id = 102 WHERE id = 20",
        "UPDATE items SET price = 2 WHERE id = 102",
    )
    world.ingest(spark)
    with_toast = [row for row in world.raw("items") if row["_unchanged"]]
    assert len(with_toast) > 30 and any(row["_old_key"] for row in with_toast)
    assert repair(world, spark, "items") == {}
    spoil(world, "items", lambda rows: [row for row in rows if row["_op"] != "r" or row["id"] not in (2, 8, 15)])
    assert repair(world, spark, "items") == {"r": 3}
    repaired = {row["id"]: row["big"] for row in world.raw("items") if row["_seq"] >= DELETE_SEQ}
    assert repaired == dict(world.rows("SELECT id, big FROM items WHERE id IN (202, 108, 15)"))
    assert repair(world, spark, "items") == {}


def test_only_what_came_after_a_truncate_counts(settings: Settings, spark: Any) -> None:
    world = make_world(settings, ITEMS, TABLES)
    world.sql("INSERT INTO items SELECT i, 'n', i, NULL FROM generate_series(1, 20) i")
    world.ingest(spark)
    world.sql("BEGIN; TRUNCATE items; INSERT INTO items SELECT i, 'm', i, NULL FROM generate_series(10, 30) i; COMMIT")
    world.ingest(spark)
    assert repair(world, spark, "items") == {}
    spoil(world, "items", lambda rows: [row for row in rows if row["_op"] != "t"])
    assert repair(world, spark, "items") == {"d": 9}
    assert_equal(world, "items")


ODD = """CREATE TABLE "Odd Été" ("Gruppe é" text, "the ""day" date, "select" int, "Wert`s" text, skipped text,
 secret text, hidden text, PRIMARY KEY ("Gruppe é", "the ""day"))"""
ODD_POLICY = RawPolicy(
    relation='public."Odd Été"', key=("Gruppe é", 'the "day'), exclude=("skipped",), alias={"select": "chosen"},
    mask={"secret": "sha256", "hidden": "null"},
)  # fmt: skip


def test_composite_quoted_keys_masks_and_aliases(settings: Settings, spark: Any) -> None:
    world = make_world(settings, ODD, {"odd": ODD_POLICY})
    names = ["", "a", "a:1", "B", "é", "\U0001f600", "x''y", "1:a"]
    for name in names:
        world.sql(f"""INSERT INTO "Odd Été" SELECT '{name}', '2024-01-01'::date + i, i, NULLIF('{name}', 'B'),
            's' || i, 'geheim' || i, 'h' FROM generate_series(1, 5) i""")  # fmt: skip
    world.ingest(spark)
    assert repair(world, spark, "odd") == {}

    def change(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for row in rows:
            where = (row["Gruppe é"], row["chosen"])
            row["Wert`s"] = {("", 1): None, ("B", 2): ""}.get(where, row["Wert`s"])
            row["secret"] = "seen" if where == ("é", 3) else row["secret"]
            row["hidden"] = "seen" if where == ("a", 4) else None
        return [row for row in rows if (row["Gruppe é"], row["chosen"]) != ("a:1", 5)]

    spoil(world, "odd", change)
    assert repair(world, spark, "odd") == {"r": 5}
    assert repair(world, spark, "odd") == {}
    assert len(world.current("odd")) == 40
    assert {row["secret"] for row in world.current("odd").values()} == {
        secret for (secret,) in world.rows("SELECT encode(sha256(secret::bytea), 'hex') FROM \"Odd Été\"")
    }


EVERY = (
    ("a", "boolean", ("true", "false", "NULL")),
    ("b", "real", ("'NaN'", "'-0'", "'0'", "'Infinity'", "0.1", "3e-40", "16777216")),
    ("c", "double precision", ("'NaN'", "'-0'", "'0'", "'-Infinity'", "0.1", "1e-320", "1e22")),
    ("d", "numeric(12,2)", ("0", "-0.01", "1234567890.12")),
    ("e", "numeric(20,12)", ("0.000000000000", "0.000000000001", "12345678.5")),
    ("f", "numeric", ("'NaN'", "0.10", "1e40", "'-Infinity'")),
    ("g", "date", ("'0001-01-01'", "'1582-10-10'", "'9999-12-31'", "'1900-02-28'")),
    ("h", "timestamp", ("'0001-01-01 00:00:00'", "'1582-10-10 10:00:00.1'", "'2024-03-31 02:30:00.000001'")),
    ("i", "timestamptz", ("'0001-01-01 00:00:00+00'", "'1890-01-01 01:02:03+00'", "'9999-12-31 23:59:59.999999+00'")),
    ("j", "time", ("'00:00:00'", "'24:00:00'", "'23:59:59.999999'", "'01:02:03.5'")),
    ("k", "bytea", ("''", r"'\x00ff'", "NULL")),
    ("l", "text", ("''", "NULL", r"'\N'", r"E'a\nb\t\\'", "'\U0001f600é'")),
    ("m", "char(5)", ("''", "'ab'")),
    ("n", "uuid", ("'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'",)),
    ("o", "jsonb", ("""'{"b": 1, "a": "é"}'""", "'null'")),
    ("p", "text[]", ("ARRAY['a b', NULL]", "'{}'")),
    ("q", "oid", ("4294967295",)),
    ("r", "interval", ("'1 mon -2 days 03:04:05.6'",)),
    ("s", "smallint", ("-32768",)),
    ("t", "bigint", ("-9223372036854775808",)),
    ("u", "numeric(5,-2)", ("12300", "0")),
)


@pytest.mark.slow
def test_every_type_is_spelled_alike_by_both_servers(settings: Settings, spark: Any) -> None:
    """Each value stands in a row of its own, and the key is each type in turn (its `_old_key` too)."""
    ddl, tables, inserts, moves = [], {}, [], []
    for name, kind, values in EVERY:
        ddl.append(f"CREATE TABLE t_{name} (n int, v {kind}, big text)")
        ddl.append(f"CREATE TABLE k_{name} (v {kind} PRIMARY KEY, n int, big text STORAGE EXTERNAL)")
        tables[f"t_{name}"] = RawPolicy(relation=f"public.t_{name}", key=("n",))
        ddl.append(f"ALTER TABLE t_{name} ADD PRIMARY KEY (n)")
        tables[f"k_{name}"] = RawPolicy(relation=f"public.k_{name}", key=("v",))
        keys = [value for value in values if value not in ("NULL", "'0'")]
        inserts += [f"INSERT INTO t_{name} VALUES ({n}, {value})" for n, value in enumerate(values)]
        inserts += [
            f"INSERT INTO k_{name} VALUES ({value}, {n}, repeat('x', 3000))" for n, value in enumerate(keys[:-1])
        ]
        moves += [f"UPDATE k_{name} SET v = {keys[-1]} WHERE v = {keys[0]}"] if len(keys) > 1 else []
    world = make_world(settings, ";".join(ddl), tables)
    world.sql(*inserts)
    world.ingest(spark)
    world.sql(*moves)
    world.ingest(spark)
    assert {name: found for name in tables if (found := repair(world, spark, name))} == {}


def compared(world: World, spark: Any, table: str, **options: Any) -> TableComparison:
    wanted = [f"{world.source.name}.{table}"]
    (result,) = reconcile_raw(world.settings, world.declarations, wanted, session=spark, **options)
    return result


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


INFINITE = "CREATE TABLE infinite (id int PRIMARY KEY, at timestamptz, amount numeric(6,2), x double precision)"


@pytest.mark.parametrize("policy", ["clamp", "null"])
def test_values_that_a_policy_replaced_are_counted_apart_and_not_repaired(
    settings: Settings, spark: Any, policy: Literal["clamp", "null"]
) -> None:
    tables = {"infinite": RawPolicy(relation="public.infinite", key=("id",), on_unrepresentable=policy)}
    world = make_world(settings, INFINITE, tables)
    world.sql(
        "INSERT INTO infinite VALUES (1, 'infinity', 'NaN', 'NaN'), (2, now(), 1.50, '-0'), (3, '-infinity', 1, 2)"
    )
    found = compared(world, spark, "infinite", repair=True)
    assert found.equal and found.unrepresentable == 3 and found.repaired == {}
    spoil(world, "infinite", lambda rows: [row | {"x": 0.5} if row["id"] < 3 else row for row in rows])
    found = compared(world, spark, "infinite")
    assert (found.differing, found.differing_columns) == (2, {"x": 2})
    assert {e.key["id"]: e.columns["x"] for e in found.examples} == {"1": ("NaN", "0.5"), "2": ("-0.0", "0.5")}
    assert compared(world, spark, "infinite", repair=True).repaired == {"r": 2}
    assert compared(world, spark, "infinite", repair=True).equal


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

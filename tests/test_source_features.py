"""What sources look like: identities, keys, names, columns, each through the snapshot and the stream."""

from typing import Any

import psycopg
import pytest

from lakehouse.declarations.policies import RawPolicy
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings
from tests.test_ingestion import ORDERS, TABLES, assert_equal, assert_order_is_unique, cuts
from tests.world import World, make_world, position

pytestmark = pytest.mark.stack

BIG = "(SELECT string_agg(md5(i::text), '') FROM generate_series(1, 2000) i)"


def things(identity: str, key: tuple[str, ...] = ("id",)) -> tuple[str, dict[str, RawPolicy]]:
    ddl = f"CREATE TABLE things (id int PRIMARY KEY, code text NOT NULL UNIQUE, big text, n int); {identity}"
    return ddl, {"things": RawPolicy(relation="public.things", key=key)}


IDENTITIES = {
    "default": things(""),
    "full": things("ALTER TABLE things REPLICA IDENTITY FULL"),
    "index": things("ALTER TABLE things REPLICA IDENTITY USING INDEX things_code_key", key=("code",)),
}


@pytest.mark.parametrize("identity", IDENTITIES)
def test_each_replica_identity_replays_to_the_table(settings: Settings, spark: Any, identity: str) -> None:
    """Updates, deletes, a key change, and TOASTed values that an update does not carry."""
    world = make_world(settings, *IDENTITIES[identity])
    world.sql(f"INSERT INTO things SELECT i, 'c' || i, {BIG}, 0 FROM generate_series(1, 6) i")
    world.ingest(spark)
    world.sql(
        f"INSERT INTO things VALUES (7, 'c7', {BIG}, 0)",
        "UPDATE things SET n = 1 WHERE id <= 3",
        "UPDATE things SET code = 'new' WHERE id = 2",
        "UPDATE things SET id = 70 WHERE id = 7",
        "UPDATE things SET big = NULL WHERE id = 4",
        "DELETE FROM things WHERE id = 5",
    )
    world.ingest(spark)
    assert_equal(world, "things")
    assert_order_is_unique(world, "things")


def test_a_table_without_a_key_keeps_every_row_also_equal_ones(settings: Settings, spark: Any) -> None:
    world = make_world(settings, "CREATE TABLE log (t text)", {"log": RawPolicy(relation="public.log")})
    world.sql("INSERT INTO log VALUES ('same'), ('same')")
    world.ingest(spark)
    world.sql("INSERT INTO log VALUES ('same'), ('same'), ('other')")
    world.ingest(spark)
    assert [row["t"] for row in world.raw("log")] == ["same"] * 4 + ["other"]
    assert_order_is_unique(world, "log")


def test_replica_identity_nothing_is_refused_with_the_reason(settings: Settings, spark: Any) -> None:
    world = make_world(settings, *things("ALTER TABLE things REPLICA IDENTITY NOTHING"))
    with pytest.raises(LakehouseError, match="makes updates and deletes of a published table fail"):
        world.ingest(spark)
    assert world.raw("things") == []


def test_a_publication_of_inserts_and_truncates_only_has_to_be_declared(settings: Settings, spark: Any) -> None:
    ddl = "CREATE TABLE log (id int PRIMARY KEY, t text); ALTER TABLE log REPLICA IDENTITY NOTHING"
    world = make_world(settings, ddl, {"log": RawPolicy(relation="public.log", key=("id",))})
    world.sql("ALTER PUBLICATION lakehouse SET (publish = 'insert, truncate')", "INSERT INTO log VALUES (1, 'a')")
    with pytest.raises(LakehouseError, match=r"declare meta\.raw\.changes: inserts"):
        world.ingest(spark)
    log = world.declaring("log", changes="inserts")
    log.ingest(spark)
    world.sql(
        "INSERT INTO log VALUES (2, 'b')", "UPDATE log SET t = 'c'", "TRUNCATE log", "INSERT INTO log VALUES (3, 'c')"
    )
    log.ingest(spark)
    assert [(row["_op"], row["id"]) for row in world.raw("log")] == [("r", 1), ("c", 2), ("t", None), ("c", 3)]


NAMES = """CREATE SCHEMA sales; CREATE SCHEMA "Über Schema"; CREATE TABLE sales.t (id int PRIMARY KEY, v text);
CREATE TABLE "Über Schema"."MixedCase" ("ID" int PRIMARY KEY, "select" text, "Straße 1" text, "日本" text);
CREATE TABLE "order" ("group" int PRIMARY KEY, "_hidden" text, "%s {x}" text, "a.b" text)"""
NAMED = {
    "sales_t": RawPolicy(relation="sales.t", key=("id",)),
    "mixed": RawPolicy(relation='"Über Schema"."MixedCase"', key=("ID",)),
    "reserved": RawPolicy(relation='public."order"', key=("group",)),
}


def test_several_schemas_and_quoted_mixed_case_unicode_and_reserved_names(settings: Settings, spark: Any) -> None:
    world = make_world(settings, NAMES, NAMED)
    insert = (
        "INSERT INTO sales.t VALUES ({0}, 'v')",
        "INSERT INTO \"Über Schema\".\"MixedCase\" VALUES ({0}, 's', 'ß', '本')",
        "INSERT INTO \"order\" VALUES ({0}, 'h', 'p', 'dot')",
    )
    world.sql(*(statement.format(1) for statement in insert))
    world.ingest(spark)
    world.sql(*(statement.format(2) for statement in insert), 'UPDATE "order" SET "_hidden" = NULL WHERE "group" = 1')
    world.ingest(spark)
    assert {k: row["v"] for k, row in world.current("sales_t").items()} == {(1,): "v", (2,): "v"}
    mixed = [(r["ID"], r["select"], r["Straße 1"], r["日本"]) for r in world.raw("mixed")]
    assert mixed == [(1, "s", "ß", "本"), (2, "s", "ß", "本")]
    reserved = [(r["group"], r["_hidden"], r["%s {x}"], r["a.b"]) for r in world.raw("reserved")]
    assert reserved == [(1, "h", "p", "dot"), (2, "h", "p", "dot"), (1, None, "p", "dot")]


def test_names_that_collide_in_lower_case_need_an_alias(settings: Settings, spark: Any) -> None:
    ddl = 'CREATE TABLE t (id int PRIMARY KEY, "Name" text, name text, _op text)'
    world = make_world(settings, ddl, {"t": RawPolicy(relation="public.t", key=("id",))})
    with pytest.raises(LakehouseError, match=r"declare meta\.raw\.alias"):
        world.ingest(spark)
    alias = RawPolicy(relation="public.t", key=("id",), alias={"Name": "name_2", "_op": "op"})
    world = make_world(settings, ddl, {"t": alias})
    world.sql("INSERT INTO t VALUES (1, 'a', 'b', 'c')")
    world.ingest(spark)
    [row] = world.raw("t")
    assert (row["name_2"], row["name"], row["op"], row["_op"]) == ("a", "b", "c", "r")


def test_identity_columns_land_and_generated_ones_are_left_to_the_reader(settings: Settings, spark: Any) -> None:
    """Stored generated columns are in a snapshot but not in the stream, virtual ones in neither: none lands."""
    ddl = """CREATE TABLE g (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, a int,
    s int GENERATED ALWAYS AS (a * 2) STORED, v int GENERATED ALWAYS AS (a * 3) VIRTUAL)"""
    world = make_world(settings, ddl, {"g": RawPolicy(relation="public.g", key=("id",))})
    world.sql("INSERT INTO g (a) VALUES (1)")
    world.ingest(spark)
    world.sql("INSERT INTO g (a) VALUES (2)", "UPDATE g SET a = 5 WHERE id = 1")
    world.ingest(spark)
    rows = world.raw("g")
    assert [(row["_op"], row["id"], row["a"]) for row in rows] == [("r", 1, 1), ("c", 2, 2), ("u", 1, 5)]
    assert all({"s", "v"}.isdisjoint(row) for row in rows)


def test_one_key_many_times_in_a_batch_ends_as_its_last_version(settings: Settings, spark: Any) -> None:
    world = make_world(settings, ORDERS, TABLES)
    world.ingest(spark)
    with psycopg.connect(world.owner_url) as connection:
        for number in range(200):
            connection.execute(
                "INSERT INTO orders VALUES (1, 'x', %s, NULL) ON CONFLICT (id) DO UPDATE SET amount = excluded.amount",
                (number,),
            )
            if number % 50 == 49:
                connection.execute("DELETE FROM orders WHERE id = 1")
                connection.commit()
    world.sql("INSERT INTO orders VALUES (1, 'last', 7, NULL)")
    world.ingest(spark)
    assert_equal(world, "orders")
    rows = world.raw("orders")
    assert len(rows) == 205 and rows == sorted(rows, key=position)


def test_the_rows_of_a_copy_share_an_lsn_and_keep_their_order(settings: Settings, spark: Any) -> None:
    world = make_world(settings, ORDERS, TABLES)
    world.ingest(spark)
    with (
        psycopg.connect(world.owner_url) as connection,
        connection.cursor() as cursor,
        cursor.copy("COPY orders (id, customer) FROM STDIN") as copy,
    ):
        for number in range(5000):
            copy.write_row((number, f"c{number}"))
    world.ingest(spark)
    assert [row["id"] for row in world.raw("orders")] == list(range(5000))
    assert_order_is_unique(world, "orders")


def test_a_transfer_is_never_seen_by_half_at_any_cut(settings: Settings, spark: Any) -> None:
    """Debit and credit are in two tables; many transactions are open at once and cycles end in between."""
    ddl = "CREATE TABLE debits (id int PRIMARY KEY, amount int); CREATE TABLE credits (id int PRIMARY KEY, amount int)"
    tables = {name: RawPolicy(relation=f"public.{name}", key=("id",)) for name in ("debits", "credits")}
    world = make_world(settings, ddl, tables, cycle_max_bytes=30_000)
    world.ingest(spark)
    for first in range(0, 300, 10):
        opened = [psycopg.connect(world.owner_url) for _ in range(10)]
        for number, connection in enumerate(opened):
            connection.execute("INSERT INTO debits VALUES (%s, %s)", (first + number, number))
        for number, connection in reversed(list(enumerate(opened))):
            connection.execute("INSERT INTO credits VALUES (%s, %s)", (first + number, number))
            connection.commit()
            connection.close()
    world.ingest(spark)
    debits, credits = world.raw("debits"), world.raw("credits")
    published = cuts(world)
    assert len(published) > 2 and len(debits) == len(credits) == 300
    for cut in published:
        seen = [{r["id"] for r in side if r["_commit_lsn"] <= cut["cut_lsn"]} for side in (debits, credits)]
        assert seen[0] == seen[1]


def test_a_declared_table_added_later_is_snapshotted_and_the_others_go_on(settings: Settings, spark: Any) -> None:
    world = make_world(settings, ORDERS, TABLES)
    world.sql("INSERT INTO orders VALUES (1, 'a', 1, NULL)", "INSERT INTO lines VALUES (1, 1, 1)")
    few = World(
        world.settings, world.source.model_copy(update={"tables": (world.source.table("orders"),)}), world.owner_url
    )
    few.ingest(spark)
    world.sql("INSERT INTO orders VALUES (2, 'b', 1, NULL)")
    report = world.ingest(spark)
    assert {t.name: t.rows for t in report.tables} == {"orders": {"c": 1}, "lines": {"r": 1}}
    for table in TABLES:
        assert_equal(world, table)

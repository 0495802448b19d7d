"""A table with a problem of its own waits with its records in the spool, and the others go on."""

from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from ingestion import bring_up, forget, pause, recover_source, replay, resume
from lakehouse.catalog.open import load_table, newest_data_snapshot, open_catalog
from lakehouse.declarations.policies import RawPolicy
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings
from tests.marks import slow
from tests.test_ingestion import ORDERS, TABLES, assert_equal, assert_order_is_unique, cuts
from tests.world import World, declared_source, make_world, set_up, superuser

pytestmark = pytest.mark.stack
PEOPLE = {"people": RawPolicy(relation="public.people", key=("id",))}


def meta(world: World, table: str) -> list[dict[str, Any]]:
    """The world's rows of a `meta` table."""
    catalog = open_catalog(world.settings)
    try:
        iceberg = load_table(catalog, "meta", table)
        rows = iceberg.scan().to_arrow().to_pylist() if iceberg else []
    finally:
        catalog.close()
    return [row for row in rows if row["source"] == world.source.name]


def do(world: World, command: Any, spark: Any, *tables: str) -> Any:
    return command(world.settings, world.declarations, world.source.name, list(tables), spark)


def begin(settings: Settings, spark: Any) -> World:
    world = make_world(settings, ORDERS, TABLES)
    world.sql("INSERT INTO orders VALUES (1, 'a', 1, NULL), (2, 'b', 2, NULL)", "INSERT INTO lines VALUES (1, 1, 1)")
    world.ingest(spark)
    return world


@pytest.mark.parametrize(
    ("break_it", "mend_it", "message"),
    [
        slow("ALTER TABLE orders REPLICA IDENTITY NOTHING", "ALTER TABLE orders REPLICA IDENTITY DEFAULT", "REPLICA"),
        slow(
            "ALTER TABLE orders RENAME TO orders2",
            "ALTER TABLE orders2 RENAME TO orders",
            "is called public.orders2 now",
        ),
        ("REVOKE SELECT ON orders FROM lakehouse_ingest", "GRANT SELECT ON orders TO lakehouse_ingest", "no SELECT"),
        slow(
            "ALTER TABLE orders RENAME id TO number", "ALTER TABLE orders RENAME number TO id", "key column id does not"
        ),
    ],
)
def test_a_table_with_a_problem_is_parked_alone_and_loses_nothing(
    settings: Settings, spark: Any, break_it: str, mend_it: str, message: str
) -> None:
    world = begin(settings, spark)
    world.sql(break_it)
    renamed = "orders2" if "orders2" in break_it else "orders"
    world.sql(f"INSERT INTO {renamed} VALUES (3, 'kept', 3, NULL)", "INSERT INTO lines VALUES (1, 2, 1)")
    report = world.ingest(spark)
    assert [(aside.name, aside.state) for aside in report.aside] == [("orders", "parked")]
    assert message in report.aside[0].reason and "\n" not in report.aside[0].reason
    assert {t.name: t.rows for t in report.tables} == {"lines": {"c": 1}}
    assert_equal(world, "lines")
    assert [name for name, _ in cuts(world)[-1]["snapshots"]] == ["lines"]
    world.sql(mend_it, "INSERT INTO orders VALUES (4, 'after', 4, NULL)")
    assert len(meta(world, "spool")) == 1
    report = do(world, resume, spark, "orders")
    assert not report.aside and {t.name: t.rows for t in report.tables}["orders"] == {"c": 2}
    assert meta(world, "spool") == []
    for table in TABLES:
        assert_equal(world, table)
        assert_order_is_unique(world, table)


def test_a_paused_table_spools_and_lands_everything_when_it_resumes(settings: Settings, spark: Any) -> None:
    world = begin(settings, spark)
    pause(world.settings, world.source.table("orders"))
    with pytest.raises(LakehouseError, match="only a table that streams"):
        pause(world.settings, world.source.table("orders"))
    big = "(SELECT string_agg(md5(i::text), '') FROM generate_series(1, 2000) i)"
    world.sql(
        f"UPDATE orders SET note = {big} WHERE id = 1", "UPDATE orders SET amount = 7 WHERE id = 1",
        "UPDATE orders SET id = 9 WHERE id = 2", "BEGIN; DELETE FROM lines; INSERT INTO lines VALUES (1, 5, 5); COMMIT",
    )  # fmt: skip
    world.ingest(spark)
    world.sql("DELETE FROM orders WHERE id = 9", "INSERT INTO orders VALUES (2, 'again', 2, NULL)")
    report = world.ingest(spark)
    assert [aside.state for aside in report.aside] == ["paused"]
    assert_equal(world, "lines")
    assert len(world.raw("orders")) == 2
    do(world, resume, spark, "orders")
    assert_equal(world, "orders")
    assert_order_is_unique(world, "orders")
    assert [row["_op"] for row in world.raw("orders")] == ["r", "r", "u", "u", "d", "c", "d", "c"]


def test_a_relation_renamed_while_its_table_is_paused_streams_as_another_table(settings: Settings, spark: Any) -> None:
    """Its rows went to the spool as those of the paused table."""
    world = begin(settings, spark)
    pause(world.settings, world.source.table("orders"))
    world.sql(
        "ALTER TABLE orders RENAME TO orders_2023",
        "CREATE TABLE orders (id bigint PRIMARY KEY, customer text, amount numeric(12,2), note text)",
    )
    tables = TABLES | {"orders_2023": RawPolicy(relation="public.orders_2023", key=("id",))}
    more = replace(world, source=declared_source(world.source.name, tables))
    set_up(more)
    more.ingest(spark)
    more.sql("INSERT INTO orders_2023 VALUES (3, 'c', 3, NULL)", "INSERT INTO orders VALUES (1, 'anew', 1, NULL)")
    report = more.ingest(spark)
    assert [(aside.name, aside.state) for aside in report.aside] == [("orders", "paused")]
    assert {row["table"] for row in meta(more, "spool")} == {"orders"}
    assert_equal(more, "orders_2023")
    do(more, resume, spark, "orders")
    for table in tables:
        assert_equal(more, table)


@pytest.mark.slow
def test_a_table_whose_relation_is_another_declared_table_for_a_while_is_repaired(
    settings: Settings, spark: Any
) -> None:
    """What was committed before the next read landed in the other one, and the table was resumed without it."""
    ddl = "CREATE TABLE orders (id int PRIMARY KEY, note text); CREATE TABLE sales (id int PRIMARY KEY, note text)"
    tables = {name: RawPolicy(relation=f"public.{name}", key=("id",)) for name in ("orders", "sales")}
    world = make_world(settings, ddl, tables)
    world.sql("INSERT INTO orders VALUES (1, 'gone')", "INSERT INTO sales VALUES (1, 'sold'), (2, 'sold')")
    world.ingest(spark)
    world.sql(
        "INSERT INTO sales VALUES (3, 'before')", "DROP TABLE orders", "ALTER TABLE sales RENAME TO orders",
        "DELETE FROM orders WHERE id = 2",
    )  # fmt: skip
    report = world.ingest(spark)
    assert [(aside.name, aside.state) for aside in report.aside] == [("sales", "parked")]
    assert_equal(world, "orders")
    world.sql("ALTER TABLE orders RENAME TO sales")
    do(world, resume, spark, "sales")
    assert_equal(world, "sales")


def test_a_table_that_is_in_the_cuts_again_has_a_new_snapshot_of_that_cut(settings: Settings, spark: Any) -> None:
    """A load that looks at it while it is in no cut leaves its newest rows out, and looks again for new snapshots."""
    world = begin(settings, spark)
    pause(world.settings, world.source.table("orders"))
    world.ingest(spark)
    assert "orders" not in dict(cuts(world)[-1]["snapshots"])
    with closing(open_catalog(world.settings)) as catalog:
        before = newest_data_snapshot(catalog, f"raw_{world.source.name}", "orders")
        do(world, resume, spark, "orders")
        after = newest_data_snapshot(catalog, f"raw_{world.source.name}", "orders")
    assert before and after and after.snapshot_id != before.snapshot_id
    assert dict(cuts(world)[-1]["snapshots"])["orders"] == str(after.snapshot_id)
    assert_equal(world, "orders")


def test_a_table_out_of_the_publication_for_a_while_is_repaired(settings: Settings, spark: Any) -> None:
    world = begin(settings, spark)
    world.sql("ALTER PUBLICATION lakehouse DROP TABLE orders", "INSERT INTO orders VALUES (3, 'unseen', 3, NULL)")
    report = world.ingest(spark)
    assert "is not in publication" in report.aside[0].reason
    world.sql("DELETE FROM orders WHERE id = 2", "ALTER PUBLICATION lakehouse ADD TABLE orders")
    report = do(world, resume, spark, "orders")
    assert report.aside == ()
    assert {t.name: t.rows for t in report.tables}["orders"] == {"d": 1, "r": 1}
    assert_equal(world, "orders")
    assert_order_is_unique(world, "orders")


ALL, SOME = "'insert, update, delete, truncate'", "'insert, truncate'"


@pytest.mark.parametrize(
    ("break_it", "mend_it", "message"),
    [
        ("ALTER TABLE orders RENAME TO orders2", "ALTER TABLE orders2 RENAME TO orders", "is called public.orders2"),
        (
            "ALTER PUBLICATION lakehouse DROP TABLE orders",
            "ALTER PUBLICATION lakehouse ADD TABLE orders",
            "is not in publication",
        ),
        slow(
            f"ALTER PUBLICATION lakehouse SET (publish = {SOME})",
            f"ALTER PUBLICATION lakehouse SET (publish = {ALL})",
            "leaves out updates",
        ),
        slow("ALTER TABLE orders REPLICA IDENTITY NOTHING", "ALTER TABLE orders REPLICA IDENTITY DEFAULT", "REPLICA"),
        slow("REVOKE SELECT ON orders FROM lakehouse_ingest", "GRANT SELECT ON orders TO lakehouse_ingest", "no SEL"),
    ],
)
def test_a_table_that_is_resumed_before_it_is_mended_is_parked_again(
    settings: Settings, spark: Any, break_it: str, mend_it: str, message: str
) -> None:
    """It was looked at while it was parked, so nothing seemed to have changed, and it joined the cuts as it was."""
    world = begin(settings, spark)
    world.sql(break_it)
    assert message in world.ingest(spark).aside[0].reason
    for _ in range(2):
        again = do(world, resume, spark, "orders").aside
        assert "orders" in [aside.name for aside in again if message in aside.reason]
    assert "orders" not in [name for name, _ in cuts(world)[-1]["snapshots"]]
    world.sql(mend_it, "INSERT INTO orders VALUES (4, 'after', 4, NULL)")
    do(world, resume, spark, "orders")
    assert_equal(world, "orders")


@pytest.mark.parametrize("looked_meanwhile", [slow(True), False])
def test_a_publication_that_left_changes_out_for_a_while_leads_to_a_repair(
    settings: Settings, spark: Any, looked_meanwhile: bool
) -> None:
    world = begin(settings, spark)
    world.sql(
        f"ALTER PUBLICATION lakehouse SET (publish = {SOME})",
        "UPDATE orders SET amount = 9 WHERE id = 2", "DELETE FROM lines",
    )  # fmt: skip
    if looked_meanwhile:
        assert {"leaves out updates" in aside.reason for aside in world.ingest(spark).aside} == {True}
    world.sql(f"ALTER PUBLICATION lakehouse SET (publish = {ALL})")
    report = do(world, resume, spark, *TABLES) if looked_meanwhile else world.ingest(spark)
    assert not report.aside
    for table in TABLES:
        assert_equal(world, table)


def test_a_partitioned_table_that_is_published_by_its_partitions_is_parked(settings: Settings, spark: Any) -> None:
    ddl = """CREATE TABLE events (id int PRIMARY KEY) PARTITION BY RANGE (id);
    CREATE TABLE events_1 PARTITION OF events FOR VALUES FROM (0) TO (100)"""
    world = make_world(settings, ddl, {"events": RawPolicy(relation="public.events", key=("id",))})
    world.ingest(spark)
    world.sql(
        "ALTER PUBLICATION lakehouse SET (publish_via_partition_root = false)", "INSERT INTO events VALUES (1)",
    )  # fmt: skip
    assert "publish_via_partition_root = true" in world.ingest(spark).aside[0].reason
    world.sql("ALTER PUBLICATION lakehouse SET (publish_via_partition_root = true)")
    assert not do(world, resume, spark, "events").aside
    assert_equal(world, "events")


@pytest.mark.parametrize("looked_meanwhile", [slow(True), False])
def test_changes_under_another_replica_identity_lead_to_a_repair(
    settings: Settings, spark: Any, looked_meanwhile: bool
) -> None:
    world = make_world(settings, "CREATE TABLE people (id int PRIMARY KEY, mail text NOT NULL UNIQUE)", PEOPLE)
    world.sql("INSERT INTO people VALUES (1, 'a'), (2, 'b'), (3, 'c')")
    world.ingest(spark)
    world.sql(
        "ALTER TABLE people REPLICA IDENTITY USING INDEX people_mail_key", "DELETE FROM people WHERE id = 1",
        "UPDATE people SET id = 7 WHERE id = 2",
    )  # fmt: skip
    if looked_meanwhile:
        assert "not within the replica identity" in world.ingest(spark).aside[0].reason
    world.sql("ALTER TABLE people REPLICA IDENTITY DEFAULT", "UPDATE people SET mail = 'd' WHERE id = 3")
    report = do(world, resume, spark, "people") if looked_meanwhile else world.ingest(spark)
    assert not report.aside
    assert_equal(world, "people")


def test_what_was_spooled_before_a_recovery_does_not_bring_a_row_back(settings: Settings, spark: Any) -> None:
    world = begin(settings, spark)
    pause(world.settings, world.source.table("orders"))
    world.sql("INSERT INTO orders VALUES (9, 'gone soon', 1, NULL)")
    world.ingest(spark)
    with superuser(settings) as admin:
        admin.execute(f"SELECT pg_drop_replication_slot('lakehouse_{world.source.name}')")
    with pytest.raises(LakehouseError, match="--recover"):
        do(world, resume, spark, "orders")
    world.sql("DELETE FROM orders WHERE id = 9")
    recover_source(world.settings, world.declarations, world.source.name, spark)
    do(world, replay, spark, "orders")
    assert_equal(world, "orders")


def test_a_value_that_the_policy_refuses_parks_its_table_until_the_declaration_allows_it(
    settings: Settings, spark: Any
) -> None:
    ddl = "CREATE TABLE days (id int PRIMARY KEY, day date); CREATE TABLE other (id int PRIMARY KEY)"
    tables = {
        "days": RawPolicy(relation="public.days", key=("id",)),
        "other": RawPolicy(relation="public.other", key=("id",)),
    }
    world = make_world(settings, ddl, tables)
    world.ingest(spark)
    world.sql("INSERT INTO days VALUES (1, '2026-01-01')", "INSERT INTO days VALUES (2, 'infinity')")
    world.sql("INSERT INTO other VALUES (1)")
    report = world.ingest(spark)
    assert "on_unrepresentable" in report.aside[0].reason
    assert {t.name: t.rows for t in report.tables} == {"other": {"c": 1}}
    assert world.raw("days") == [] and len(meta(world, "spool")) == 2
    lenient = world.declaring("days", on_unrepresentable="null")
    do(lenient, resume, spark, "days")
    assert [(row["id"], str(row["day"])) for row in world.raw("days")] == [(1, "2026-01-01"), (2, "None")]
    kept = meta(world, "unrepresentable")
    assert [(row["column"], row["text"]) for row in kept] == [("day", "infinity")]
    assert (kept[0]["commit_lsn"], kept[0]["seq"]) == (
        world.raw("days")[1]["_commit_lsn"],
        world.raw("days")[1]["_seq"],
    )


def test_a_value_that_the_policy_refuses_in_a_snapshot_parks_its_table_alone(settings: Settings, spark: Any) -> None:
    ddl = """CREATE TABLE days (id int PRIMARY KEY, day date); CREATE TABLE other (id int PRIMARY KEY);
    INSERT INTO days VALUES (1, 'infinity'); INSERT INTO other VALUES (1)"""
    tables = {
        "days": RawPolicy(relation="public.days", key=("id",)),
        "other": RawPolicy(relation="public.other", key=("id",)),
    }
    world = make_world(settings, ddl, tables)
    report = world.ingest(spark)
    assert "on_unrepresentable" in report.aside[0].reason
    assert {t.name: t.rows for t in report.tables} == {"other": {"r": 1}}
    world.sql("INSERT INTO days VALUES (2, '2026-01-01')")
    lenient = world.declaring("days", on_unrepresentable="clamp")
    do(lenient, resume, spark, "days")
    assert [(row["id"], str(row["day"])) for row in world.raw("days")] == [(1, "9999-12-31"), (2, "2026-01-01")]
    assert [row["text"] for row in meta(world, "unrepresentable")] == ["infinity"]


def test_a_table_declared_no_longer_leaves_the_cuts_and_comes_back_with_a_new_snapshot(
    settings: Settings, spark: Any
) -> None:
    world = begin(settings, spark)
    with pytest.raises(LakehouseError, match="it is declared"):
        forget(world.settings, world.source.name, "orders", {"orders", "lines"})
    fewer = world.without("orders")
    world.sql("DELETE FROM orders WHERE id = 2", "INSERT INTO lines VALUES (1, 2, 1)")
    bring_up(fewer.settings, fewer.declarations, fewer.source.name, spark)
    assert [name for name, _ in cuts(world)[-1]["snapshots"]] == ["lines"]
    report = world.ingest(spark)
    assert {t.name: t.rows for t in report.tables}["orders"] == {"t": 1, "r": 1}
    assert_equal(world, "orders")


def test_a_record_that_cannot_be_read_goes_to_quarantine_and_the_rest_goes_on(settings: Settings, spark: Any) -> None:
    """A database in SQL_ASCII may hold text that is not UTF-8: Postgres sends it as it is."""
    ddl = "CREATE TABLE names (id int PRIMARY KEY, name text); CREATE TABLE other (id int PRIMARY KEY)"
    tables = {
        "names": RawPolicy(relation="public.names", key=("id",)),
        "other": RawPolicy(relation="public.other", key=("id",)),
    }
    world = make_world(settings, ddl, tables, encoding="SQL_ASCII")
    world.ingest(spark)
    with superuser(settings, world.source.name) as admin:
        admin.execute("SET client_encoding = 'SQL_ASCII'")
        admin.execute("BEGIN")
        admin.execute("INSERT INTO names VALUES (1, 'good')")
        admin.execute(b"INSERT INTO names VALUES (2, E'b\\351d')")
        admin.execute("INSERT INTO other VALUES (1)")
        admin.execute("INSERT INTO names VALUES (3, 'fine')")
        admin.execute("COMMIT")
    report = world.ingest(spark)
    assert {t.name: t.rows for t in report.tables} == {"names": {"c": 2}, "other": {"c": 1}}
    kept = meta(world, "quarantine")
    assert len(kept) == 1 and "UTF-8" in kept[0]["reason"] and b"b\xe9d" in kept[0]["message"]
    rows = world.raw("names")
    assert [row["id"] for row in rows] == [1, 3]
    assert [rows[0]["_seq"], kept[0]["seq"], rows[1]["_seq"]] == [0, 2, 6], "each keeps its place"
    do(world, replay, spark, "names")
    assert len(meta(world, "quarantine")) == 1, "it still cannot be read, and still is not lost"

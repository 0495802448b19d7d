"""Source to raw on real servers, compared with SQL against the source."""

import threading
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from ingestion import bring_up, recover_source, resnapshot
from ingestion.run import api
from ingestion.state.store import connect_catalog
from lakehouse.catalog.lake_catalog import LakeCatalog
from lakehouse.catalog.open import open_catalog
from lakehouse.declarations.policies import RawPolicy
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings
from lakehouse.text.urls import parse_url
from tests.world import World, make_world, position, superuser

pytestmark = pytest.mark.stack

ORDERS = """
CREATE TABLE orders (id bigint PRIMARY KEY, customer text, amount numeric(12,2), note text);
CREATE TABLE lines (order_id bigint REFERENCES orders, line int, quantity int, PRIMARY KEY (order_id, line))
"""
TABLES = {
    "orders": RawPolicy(relation="public.orders", key=("id",)),
    "lines": RawPolicy(relation="public.lines", key=("order_id", "line")),
}
HOSTILE = (
    "search_path = public, pg_catalog", "DateStyle = 'SQL, DMY'", "IntervalStyle = sql_standard",
    "TimeZone = 'Asia/Kolkata'", "bytea_output = escape", "extra_float_digits = -3", "client_encoding = LATIN1",
    "quote_all_identifiers = on", "standard_conforming_strings = off", "transform_null_equals = on",
    "default_transaction_deferrable = on", "default_transaction_isolation = serializable", "statement_timeout = 1",
)  # fmt: skip


def assert_equal(world: World, table: str) -> None:
    """Every column of every row: what the raw layer replays to, against the table."""
    relation, key = world.source.table(table).raw.relation, world.source.table(table).key
    names = [n for (n,) in world.rows(
        f"SELECT attname FROM pg_attribute WHERE attrelid = '{relation}'::regclass AND attnum > 0 AND NOT attisdropped"
        " ORDER BY attnum"
    )]  # fmt: skip
    expected = {}
    for values in world.rows(f"SELECT {', '.join(names)} FROM {relation}"):
        row = dict(zip(names, values, strict=True))
        expected[tuple(row[k] for k in key)] = row
    actual = {k: {n: row[n] for n in names} for k, row in world.current(table).items()}
    assert actual == expected


def assert_order_is_unique(world: World, table: str) -> None:
    positions = [position(row) for row in world.raw(table)]
    assert len(positions) == len(set(positions))


def cuts(world: World) -> list[dict[str, Any]]:
    catalog = open_catalog(world.settings)
    try:
        rows = catalog.load_table(("meta", "cuts")).scan().to_arrow().to_pylist()
    finally:
        catalog.close()
    return sorted(
        (r for r in rows if r["source"] == world.source.name),
        key=lambda r: (r["epoch"], r["cut_lsn"], r["published_at"]),
    )


def test_snapshot_then_changes_equal_the_source(settings: Settings, spark: Any) -> None:
    world = make_world(settings, ORDERS, TABLES)
    world.sql(
        "INSERT INTO orders SELECT i, 'c' || i % 7, i * 1.5, NULL FROM generate_series(1, 1000) i",
        "INSERT INTO lines SELECT i, 1, i % 5 FROM generate_series(1, 1000) i",
    )
    first = world.ingest(spark)
    assert {t.name: t.rows for t in first.tables} == {"orders": {"r": 1000}, "lines": {"r": 1000}}
    world.sql(
        "UPDATE orders SET amount = amount + 1 WHERE id <= 10",
        "DELETE FROM lines WHERE order_id > 990",
        "DELETE FROM orders WHERE id > 990",
        "INSERT INTO orders VALUES (2000, '', 0.01, E'a\\nb\"c')",
    )
    second = world.ingest(spark)
    assert {t.name: t.rows for t in second.tables} == {
        "orders": {"u": 10, "d": 10, "c": 1},
        "lines": {"d": 10},
    }
    for table in TABLES:
        assert_equal(world, table)
        assert_order_is_unique(world, table)
    assert world.current("orders")[(2000,)]["amount"] == Decimal("0.01")


def test_snapshot_in_many_chunks_reads_every_row_once(settings: Settings, spark: Any) -> None:
    world = make_world(settings, ORDERS, TABLES, snapshot_chunk_bytes=8192 * 4)
    world.sql("INSERT INTO orders SELECT i, repeat('x', 50), i, 'n' FROM generate_series(1, 5000) i")
    world.ingest(spark)
    assert_equal(world, "orders")
    assert_order_is_unique(world, "orders")


def test_nothing_new_makes_no_iceberg_snapshot(settings: Settings, spark: Any) -> None:
    world = make_world(settings, ORDERS, TABLES)
    world.ingest(spark)
    before = [t.snapshot_id for t in world.ingest(spark).tables], len(cuts(world))
    world.sql("CREATE TABLE unrelated (x int)", "INSERT INTO unrelated VALUES (1)")
    assert ([t.snapshot_id for t in world.ingest(spark).tables], len(cuts(world))) == before


def test_a_report_of_what_changed_asks_nothing_of_other_tables(
    settings: Settings, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 1,000 tables, a cycle without changes took a third of a second, and its report twenty times as long."""
    world = make_world(settings, ORDERS, TABLES)
    world.ingest(spark)
    world.sql("INSERT INTO orders (id) VALUES (9000)")
    asked: list[Any] = []
    load, report = LakeCatalog.load_tables, api._report
    changed = bring_up(world.settings, world.declarations, world.source.name, spark, only_changed=True)
    monkeypatch.setattr(LakeCatalog, "load_tables", lambda self, names: asked.append(names) or load(self, names))
    # the cycle before it may well ask: whatever the server writes to its WAL by itself is read
    monkeypatch.setattr(api, "_report", lambda *args: asked.clear() or report(*args))
    none = bring_up(world.settings, world.declarations, world.source.name, spark, only_changed=True)
    assert [(t.name, t.rows) for t in changed.tables] == [("orders", {"c": 1})]
    assert {*changed.unchanged, "orders"} == set(none.unchanged) == {t.name for t in world.source.tables}
    assert none.tables == () and asked == [[]]


def test_a_cut_names_every_table_and_a_snapshot_that_holds_it(settings: Settings, spark: Any) -> None:
    world = make_world(settings, ORDERS, TABLES)
    world.ingest(spark)
    world.sql("INSERT INTO orders VALUES (1, 'a', 1, NULL)")
    world.ingest(spark)
    newest = cuts(world)[-1]
    assert {name for name, _ in newest["snapshots"]} == set(TABLES)
    catalog = open_catalog(settings)
    for name, snapshot in newest["snapshots"]:
        assert catalog.load_table((f"raw_{world.source.name}", name)).snapshot_by_id(int(snapshot))
    catalog.close()
    assert newest["cut_lsn"] >= max(row["_commit_lsn"] for row in world.raw("orders"))


def test_every_cut_shows_lines_only_with_their_order(settings: Settings, spark: Any) -> None:
    world = make_world(settings, ORDERS, TABLES, cycle_max_bytes=65536)
    world.ingest(spark)
    for first in range(0, 400, 20):
        world.sql(
            "WITH o AS (INSERT INTO orders SELECT i, 'x', 1, repeat('y', 300)"
            f" FROM generate_series({first}, {first + 19}) i RETURNING id) INSERT INTO lines SELECT id, 1, 1 FROM o"
        )  # fmt: skip
    world.ingest(spark)
    orders, lines = world.raw("orders"), world.raw("lines")
    several = cuts(world)
    assert len(several) > 2
    for cut in several:
        seen = {r["id"] for r in orders if r["_commit_lsn"] <= cut["cut_lsn"]}
        assert {r["order_id"] for r in lines if r["_commit_lsn"] <= cut["cut_lsn"]} == seen


def test_interleaved_transactions_follow_commit_order(settings: Settings, spark: Any) -> None:
    import psycopg

    world = make_world(settings, ORDERS, TABLES)
    world.ingest(spark)
    with psycopg.connect(world.owner_url) as slow, psycopg.connect(world.owner_url) as fast:
        slow.execute("INSERT INTO orders VALUES (1, 'slow', 1, NULL)")
        fast.execute("INSERT INTO orders VALUES (2, 'fast', 1, NULL)")
        fast.commit()
        world.ingest(spark)
        slow.execute("UPDATE orders SET note = 'late' WHERE id = 2")
        slow.commit()
    world.ingest(spark)
    assert_equal(world, "orders")
    assert [row["id"] for row in world.raw("orders")] == [2, 1, 2]


def test_savepoints_and_a_rolled_back_part_leave_only_what_committed(settings: Settings, spark: Any) -> None:
    import psycopg

    world = make_world(settings, ORDERS, TABLES)
    world.ingest(spark)
    with psycopg.connect(world.owner_url) as connection:
        connection.execute("INSERT INTO orders VALUES (1, 'kept', 1, NULL)")
        connection.execute("SAVEPOINT s")
        connection.execute("INSERT INTO orders VALUES (2, 'gone', 1, NULL)")
        connection.execute("ROLLBACK TO SAVEPOINT s")
        connection.execute("INSERT INTO orders VALUES (3, 'kept', 1, NULL)")
    world.ingest(spark)
    assert_equal(world, "orders")


def test_unchanged_toast_values_are_named_and_not_overwritten(settings: Settings, spark: Any) -> None:
    world = make_world(settings, ORDERS, TABLES)
    world.ingest(spark)
    big = "(SELECT string_agg(md5(i::text), '') FROM generate_series(1, 2000) i)"
    world.sql(
        f"INSERT INTO orders VALUES (1, 'a', 1, {big})",
        "UPDATE orders SET amount = 2 WHERE id = 1",
        "UPDATE orders SET id = 5 WHERE id = 1",
    )
    world.ingest(spark)
    assert_equal(world, "orders")
    assert [row["_unchanged"] for row in world.raw("orders")] == [None, ["note"], None, ["note"]]


def test_key_changes_and_swaps_leave_no_ghost(settings: Settings, spark: Any) -> None:
    world = make_world(settings, ORDERS, TABLES)
    world.sql("INSERT INTO orders VALUES (1, 'one', 1, NULL), (2, 'two', 2, NULL)")
    world.ingest(spark)
    import psycopg

    with psycopg.connect(world.owner_url) as connection:
        for old, new in ((1, 9), (2, 1), (9, 2)):
            connection.execute(f"UPDATE orders SET id = {new} WHERE id = {old}")
    world.ingest(spark)
    assert_equal(world, "orders")


def test_a_clock_that_is_put_back_does_not_put_back_the_moment_of_ingestion(settings: Settings, spark: Any) -> None:
    """Parsed would pass over rows older than the newest that it has, and mirrors over late ones of the same moment."""
    world = make_world(settings, ORDERS, TABLES)
    world.sql("INSERT INTO orders VALUES (1, 'one', 1, NULL)")
    world.ingest(spark)
    with connect_catalog(settings) as states:
        states.execute(
            "UPDATE lakehouse.cycles SET published_at = published_at + interval '1 hour' WHERE source = %s",
            (world.source.name,),
        )
    for value in ("two", "three"):
        before = max(row["_ingested_at"] for row in world.raw("orders"))
        world.sql(f"UPDATE orders SET note = '{value}'")
        world.ingest(spark)
        assert max(row["_ingested_at"] for row in world.raw("orders")) > before
    assert before > datetime.now(UTC) + timedelta(minutes=50)


def test_truncate_empties_the_table_in_the_order_of_its_transaction(settings: Settings, spark: Any) -> None:
    import psycopg

    world = make_world(settings, ORDERS, TABLES)
    world.sql("INSERT INTO orders VALUES (1, 'a', 1, NULL)", "INSERT INTO lines VALUES (1, 1, 1)")
    world.ingest(spark)
    with psycopg.connect(world.owner_url) as connection:
        connection.execute("INSERT INTO orders VALUES (2, 'before', 1, NULL)")
        connection.execute("TRUNCATE orders CASCADE")
        connection.execute("INSERT INTO orders VALUES (3, 'after', 1, NULL)")
    world.ingest(spark)
    for table in TABLES:
        assert_equal(world, table)
    assert set(world.current("orders")) == {(3,)}


def test_a_column_added_while_running_lands(settings: Settings, spark: Any) -> None:
    world = make_world(settings, ORDERS, TABLES)
    world.sql("INSERT INTO orders VALUES (1, 'a', 1, NULL)")
    world.ingest(spark)
    world.sql("ALTER TABLE orders ADD COLUMN colour text", "INSERT INTO orders VALUES (2, 'b', 1, NULL, 'red')")
    world.ingest(spark)
    assert_equal(world, "orders")


def test_a_partitioned_table_lands_under_its_root(settings: Settings, spark: Any) -> None:
    ddl = """CREATE TABLE events (id int, day date, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);
    CREATE TABLE events_1 PARTITION OF events FOR VALUES FROM ('2026-01-01') TO ('2026-02-01');
    CREATE TABLE events_2 PARTITION OF events FOR VALUES FROM ('2026-02-01') TO ('2026-03-01');
    INSERT INTO events VALUES (1, '2026-01-05'), (2, '2026-02-05')"""
    world = make_world(settings, ddl, {"events": RawPolicy(relation="public.events", key=("id", "day"))})
    world.ingest(spark)
    world.sql("INSERT INTO events VALUES (3, '2026-02-07')", "UPDATE events SET day = '2026-02-01' WHERE id = 1")
    world.ingest(spark)
    assert_equal(world, "events")


def test_excluded_columns_never_land_and_masked_ones_only_as_hashes(settings: Settings, spark: Any) -> None:
    ddl = "CREATE TABLE people (id int PRIMARY KEY, secret text, email text); INSERT INTO people VALUES (1, 's', 'e')"
    policy = RawPolicy(relation="public.people", key=("id",), exclude=("secret",), mask={"email": "sha256"})
    world = make_world(settings, ddl, {"people": policy})
    world.ingest(spark)
    world.sql("INSERT INTO people VALUES (2, 's', 'e')")
    world.ingest(spark)
    rows = world.raw("people")
    assert all("secret" not in row for row in rows)
    assert {row["email"] for row in rows} == {"3f79bb7b435b05321651daefd374cdc681dc06faa65e374e38337b88ca046dea"}


def test_a_misspelt_column_to_leave_out_lands_nothing(settings: Settings, spark: Any) -> None:
    ddl = ORDERS + "; CREATE TABLE people (id int PRIMARY KEY, secret text); INSERT INTO people VALUES (1, 'private')"
    misspelt = RawPolicy(relation="public.people", key=("id",), exclude=("Secret",))
    world = make_world(settings, ddl, {"people": misspelt, "orders": TABLES["orders"]})
    (aside,) = world.ingest(spark).aside
    assert aside.name == "people" and "meta.raw.exclude names Secret, which does not exist" in aside.reason
    assert world.raw("people") == []


def test_settings_of_the_runtime_role_change_nothing(settings: Settings, spark: Any) -> None:
    world = make_world(settings, ORDERS, TABLES)
    url = parse_url(world.settings.source(world.source.name).url.get_secret_value())
    with superuser(settings) as admin:
        for setting in HOSTILE:
            admin.execute(f'ALTER ROLE {url.user} IN DATABASE "{url.database}" SET {setting}')
    world.sql("INSERT INTO orders SELECT i, 'x', 1.5, NULL FROM generate_series(1, 5) i")
    world.ingest(spark)
    world.sql("UPDATE orders SET amount = 2.5 WHERE id < 3", "DELETE FROM orders WHERE id = 5")
    world.ingest(spark)
    assert_equal(world, "orders")


def test_a_second_writer_waits_for_the_first_and_both_see_everything(settings: Settings, spark: Any) -> None:
    world = make_world(settings, ORDERS, TABLES)
    world.sql("INSERT INTO orders SELECT i, 'x', 1, NULL FROM generate_series(1, 500) i")
    problems: list[BaseException] = []

    def run() -> None:
        try:
            world.ingest(spark)
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems
    assert_equal(world, "orders")
    assert_order_is_unique(world, "orders")


def test_a_missing_publication_is_refused_in_one_line(settings: Settings, spark: Any) -> None:
    world = make_world(settings, ORDERS, TABLES)
    world.ingest(spark)
    world.sql("DROP PUBLICATION lakehouse")
    with pytest.raises(LakehouseError, match="does not exist") as caught:
        world.ingest(spark)
    assert "\n" not in str(caught.value)


def test_a_slot_that_is_gone_or_was_consumed_is_detected(settings: Settings, spark: Any) -> None:
    world = make_world(settings, ORDERS, TABLES)
    world.ingest(spark)
    slot = f"lakehouse_{world.source.name}"
    world.sql("INSERT INTO orders VALUES (1, 'a', 1, NULL)")
    with superuser(settings, world.source.name) as admin:
        admin.execute(f"SELECT pg_replication_slot_advance('{slot}', pg_current_wal_lsn())")
        with pytest.raises(LakehouseError, match="something else consumed it"):
            world.ingest(spark)
        admin.execute(f"SELECT pg_drop_replication_slot('{slot}')")
    with pytest.raises(LakehouseError, match="is gone"):
        world.ingest(spark)
    assert world.raw("orders") == []


def test_recover_goes_on_after_a_lost_slot_with_what_was_missed_and_deleted(settings: Settings, spark: Any) -> None:
    world = make_world(settings, ORDERS, TABLES)
    world.sql("INSERT INTO orders SELECT i, 'a', i, NULL FROM generate_series(1, 50) i")
    world.ingest(spark)
    with superuser(settings, world.source.name) as admin:
        admin.execute("SELECT pg_drop_replication_slot(%s)", (f"lakehouse_{world.source.name}",))
    world.sql("DELETE FROM orders WHERE id <= 10", "UPDATE orders SET note = 'missed' WHERE id = 20")
    with pytest.raises(LakehouseError, match="--recover"):
        world.ingest(spark)
    recover_source(settings=world.settings, declarations=world.declarations, source=world.source.name, spark=spark)
    world.sql("INSERT INTO orders VALUES (99, 'after', 1, NULL)")
    world.ingest(spark)
    assert_equal(world, "orders")
    assert_order_is_unique(world, "orders")
    assert {row["_epoch"] for row in world.raw("orders")} == {1, 2}
    assert [cut["epoch"] for cut in cuts(world)] == [1, 2, 2]


def test_one_table_is_snapshotted_again_while_the_others_go_on(settings: Settings, spark: Any) -> None:
    world = make_world(settings, ORDERS, TABLES)
    world.sql("INSERT INTO orders VALUES (1, 'a', 1, NULL), (2, 'b', 2, NULL)", "INSERT INTO lines VALUES (1, 1, 1)")
    world.ingest(spark)
    world.sql("DELETE FROM orders WHERE id = 2", "INSERT INTO lines VALUES (1, 2, 1)")
    report = resnapshot(world.settings, world.declarations, world.source.name, ["orders"], spark)
    assert {t.name: t.rows for t in report.tables} == {"orders": {"t": 1, "r": 1}, "lines": {"c": 1}}
    for table in TABLES:
        assert_equal(world, table)
        assert_order_is_unique(world, table)

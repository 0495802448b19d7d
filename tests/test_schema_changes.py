"""DDL under a running pipeline: each change takes effect, or the table is read anew; never a wrong value in between."""

from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from ingestion import pause, resume
from lakehouse.catalog.open import open_catalog
from lakehouse.declarations.policies import RawPolicy
from lakehouse.settings import Settings
from tests.marks import slow
from tests.test_ingestion import ORDERS, TABLES, assert_equal, assert_order_is_unique, cuts
from tests.test_parking import do, meta
from tests.world import World, make_world

pytestmark = pytest.mark.stack
ITEMS = {"items": RawPolicy(relation="public.items", key=("id",))}
EVENTS = """CREATE TABLE events (id int, day date, note text, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);
CREATE TABLE events_1 PARTITION OF events FOR VALUES FROM ('2026-01-01') TO ('2026-02-01');
CREATE TABLE events_2 PARTITION OF events FOR VALUES FROM ('2026-02-01') TO ('2026-03-01');
INSERT INTO events VALUES (1, '2026-01-05', 'a'), (2, '2026-02-05', 'b'), (3, '2026-02-06', 'c')"""
EVENT_TABLES = {"events": RawPolicy(relation="public.events", key=("id", "day"))}


def rows_of(report: Any, table: str) -> dict[str, int]:
    return {t.name: t.rows for t in report.tables}[table]


def kinds(world: World) -> list[str]:
    return [row["kind"] for row in meta(world, "schema_changes")]


def begin(settings: Settings, spark: Any, ddl: str) -> World:
    """Three rows, one of them with a TOASTed value."""
    world = make_world(settings, f"CREATE TABLE items (id int PRIMARY KEY, {ddl})", ITEMS)
    world.sql("INSERT INTO items (id) VALUES (1), (2), (3)")
    world.ingest(spark)
    return world


@pytest.mark.parametrize(
    ("ddl", "alter", "added", "kind"),
    [
        slow("a text", "ADD b text", {"c": 1, "u": 1}, "column added"),
        slow("a text", "ADD b text DEFAULT 'x'", {"c": 1, "u": 1, "r": 2}, "column added"),
        ("a text", "ADD b int DEFAULT (random() * 1e6)::int", {"c": 1, "u": 1, "r": 2}, "column added"),
        slow("a text, b text", "DROP b", {"c": 1, "u": 1}, "column dropped"),
        ("a text DEFAULT 'old', b int", "RENAME a TO z", {"c": 1, "u": 1}, "column renamed"),
        slow("a int DEFAULT 7", "ALTER a TYPE bigint", {"c": 1, "u": 1}, "type changed"),
        slow("a real DEFAULT 0.1", "ALTER a TYPE double precision", {"c": 1, "u": 1}, "type changed"),
        slow("a numeric(8,2) DEFAULT 1.25", "ALTER a TYPE numeric(12,2)", {"c": 1, "u": 1}, "type changed"),
        ("a int DEFAULT 7", "ALTER a TYPE int USING a * 2", {"c": 1, "u": 1, "r": 3}, "table stale"),
        slow("a varchar(5) DEFAULT 'v'", "ALTER a TYPE text", {"c": 1, "u": 1}, "type changed"),
        slow("a int DEFAULT 7, a_new bigint DEFAULT 8", "DROP a; ALTER TABLE items RENAME a_new TO a",
             {"c": 1, "u": 1, "r": 3}, "column renamed"),
    ],
)  # fmt: skip
def test_an_alteration_takes_effect_and_every_row_reads_as_in_postgres(
    settings: Settings, spark: Any, ddl: str, alter: str, added: dict[str, int], kind: str
) -> None:
    world = begin(settings, spark, ddl)
    with closing(open_catalog(world.settings)) as catalog:
        before = catalog.load_table((f"raw_{world.source.name}", "items")).current_snapshot()
    world.sql(
        "INSERT INTO items (id) VALUES (4)", f"ALTER TABLE items {alter}", "UPDATE items SET id = id WHERE id = 1"
    )
    report = world.ingest(spark)
    assert report.aside == ()
    rows = rows_of(report, "items")
    assert {op: n for op, n in rows.items() if op != "r"} == {"c": 1, "u": 1}
    assert rows.get("r", 0) <= 4 and bool(rows.get("r")) == bool(added.get("r"))
    assert_equal(world, "items")
    assert_order_is_unique(world, "items")
    assert kind in kinds(world)
    world.sql("INSERT INTO items (id) VALUES (5)")
    assert rows_of(world.ingest(spark), "items") == {"c": 1}
    assert_equal(world, "items")
    assert before is not None
    with closing(open_catalog(world.settings)) as catalog:
        old = catalog.load_table((f"raw_{world.source.name}", "items"))
    assert old.scan(snapshot_id=before.snapshot_id).to_arrow().num_rows == 3, "the old snapshot is readable"


@pytest.mark.parametrize(
    "alter",
    [
        ("ALTER TABLE items DROP a", "ALTER TABLE items ADD a text"),
        slow(("ALTER TABLE items RENAME a TO z", "ALTER TABLE items ADD a text DEFAULT 'new'")),
        slow(("ALTER TABLE items ADD b text DEFAULT 'b'", "ALTER TABLE items RENAME a TO c",
              "ALTER TABLE items RENAME b TO a", "ALTER TABLE items RENAME c TO b")),
        slow(("DROP TABLE items", "CREATE TABLE items (id int PRIMARY KEY, a text, c int)",
              "INSERT INTO items VALUES (9)", "ALTER PUBLICATION lakehouse ADD TABLE items",
              "GRANT SELECT ON items TO lakehouse_ingest")),
        slow(("CREATE TABLE twin (LIKE items INCLUDING ALL)", "INSERT INTO twin VALUES (8, 'twin')",
              "ALTER TABLE items RENAME TO gone", "ALTER TABLE twin RENAME TO items",
              "ALTER PUBLICATION lakehouse ADD TABLE items", "GRANT SELECT ON items TO lakehouse_ingest",
              "INSERT INTO gone VALUES (77)")),
        slow(("VACUUM FULL items",)),
    ],
)  # fmt: skip
def test_what_the_stream_cannot_tell_is_read_anew(settings: Settings, spark: Any, alter: tuple[str, ...]) -> None:
    world = begin(settings, spark, "a text DEFAULT 'old'")
    world.sql("UPDATE items SET a = 'x' WHERE id = 2", *alter, "INSERT INTO items (id) VALUES (5)")
    report = world.ingest(spark)
    assert report.aside == ()
    assert_equal(world, "items")
    assert_order_is_unique(world, "items")
    assert "table stale" in kinds(world)
    world.sql("UPDATE items SET a = 'again' WHERE id = 5", "DELETE FROM items WHERE id < 3")
    world.ingest(spark)
    assert_equal(world, "items")


def test_a_column_that_comes_back_empty_under_its_name_reads_empty(settings: Settings, spark: Any) -> None:
    world = begin(settings, spark, "a text DEFAULT 'old'")
    world.sql("ALTER TABLE items DROP a", "INSERT INTO items VALUES (4)")
    [items] = world.ingest(spark).tables
    assert items.left == ("a",)
    world.sql("ALTER TABLE items ADD a text", "INSERT INTO items VALUES (5, 'new')")
    [items] = world.ingest(spark).tables
    assert items.left == ()
    assert_equal(world, "items")
    assert "table stale" in kinds(world)


@pytest.mark.parametrize(
    ("prepare", "alter"),
    [
        (  # the way to a bigger key without a rewrite
            ("ALTER TABLE items ADD id_new bigint", "UPDATE items SET id_new = id"),
            ("ALTER TABLE items DROP CONSTRAINT items_pkey, ALTER id DROP NOT NULL",
             "ALTER TABLE items RENAME id TO id_old", "ALTER TABLE items RENAME id_new TO id",
             "ALTER TABLE items ADD PRIMARY KEY (id)"),
        ),
        slow(
            (),
            ("ALTER TABLE items DROP id",
             "ALTER TABLE items ADD id int GENERATED BY DEFAULT AS IDENTITY (START 100) PRIMARY KEY"),
        ),
    ],
)  # fmt: skip
def test_a_key_that_becomes_another_column_leaves_no_row_behind(
    settings: Settings, spark: Any, prepare: tuple[str, ...], alter: tuple[str, ...]
) -> None:
    world = begin(settings, spark, "a text DEFAULT 'old'")
    if prepare:
        world.sql(*prepare)
        world.ingest(spark)
    world.sql(*alter, "UPDATE items SET a = 'new' WHERE id IN (2, 101)")
    assert world.ingest(spark).aside == ()
    assert_equal(world, "items")
    world.sql("INSERT INTO items (id) VALUES (7)", "DELETE FROM items WHERE id IN (3, 102)")
    world.ingest(spark)
    assert_equal(world, "items")
    assert all(row["id"] is not None for row in world.raw("items"))
    assert_order_is_unique(world, "items")


def test_an_alteration_that_the_lake_cannot_follow_parks_the_table_until_the_user_consents(
    settings: Settings, spark: Any
) -> None:
    world = begin(settings, spark, "a int DEFAULT 7")
    world.sql(
        "INSERT INTO items VALUES (4, 4)", "ALTER TABLE items ALTER a TYPE text USING 'n' || a",
        "INSERT INTO items VALUES (5, 'five')",
    )  # fmt: skip
    report = world.ingest(spark)
    assert "lakehouse ingest --resume" in report.aside[0].reason and "a__int" in report.aside[0].reason
    assert len(world.raw("items")) == 3, "no row of an ambiguous schema has landed"
    do(world, resume, spark, "items")
    assert_equal(world, "items")
    assert {row["id"]: row["a__int"] for row in world.raw("items") if row["_op"] == "c"}[4] == 4
    assert_order_is_unique(world, "items")


def test_a_type_change_without_a_rewrite_restates_the_rows_too(settings: Settings, spark: Any) -> None:
    world = begin(settings, spark, "a numeric(10,2) DEFAULT 1.25")
    world.sql("ALTER TABLE items ALTER a TYPE numeric")
    assert "a__decimal_10_2" in world.ingest(spark).aside[0].reason
    do(world, resume, spark, "items")
    assert {str(row["a"]) for row in world.current("items").values()} == {"1.25"}


def test_a_type_that_prints_its_values_otherwise_restates_the_rows(settings: Settings, spark: Any) -> None:
    columns = "m mood DEFAULT 'sad', p pair DEFAULT '(1,2)', n cidr DEFAULT '10.1.2.3'"
    types = "CREATE TYPE mood AS ENUM ('sad', 'happy'); CREATE TYPE pair AS (a int, b int)"
    world = make_world(settings, f"{types}; CREATE TABLE items (id int PRIMARY KEY, {columns})", ITEMS)
    world.sql("INSERT INTO items (id) VALUES (1), (2), (3)", "INSERT INTO items VALUES (4, NULL, NULL, NULL)")
    world.ingest(spark)
    for alter, n in (
        (("ALTER TYPE mood ADD VALUE 'calm'",), 0),
        (("ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'", "ALTER TYPE pair ADD ATTRIBUTE c int",
          "ALTER TABLE items ALTER n TYPE inet"), 3),
    ):  # fmt: skip
        world.sql(*alter)
        assert rows_of(world.ingest(spark), "items").get("r", 0) == n
    printed = world.rows("SELECT id, m::text, p::text, textin(inet_out(n)) FROM items ORDER BY id")
    assert printed[0] == (1, "blue", "(1,2,)", "10.1.2.3")
    assert [tuple(row.values()) for _, row in sorted(world.current("items").items())] == printed


def test_a_column_added_and_renamed_while_the_table_is_paused_keeps_its_values(settings: Settings, spark: Any) -> None:
    """Those that came under the new name were discarded."""
    world = begin(settings, spark, "z text DEFAULT 'z'")
    pause(world.settings, world.source.table("items"))
    world.sql("ALTER TABLE items ADD a text", "INSERT INTO items VALUES (4, 'z', 'first')")
    world.ingest(spark)
    world.sql("ALTER TABLE items RENAME a TO b", "INSERT INTO items VALUES (5, 'z', 'second')")
    world.ingest(spark)
    do(world, resume, spark, "items")
    assert_equal(world, "items")
    world.sql("UPDATE items SET b = 'third' WHERE id = 1")
    assert rows_of(world.ingest(spark), "items") == {"u": 1}
    assert_equal(world, "items")


def test_a_truncate_needs_no_resync(settings: Settings, spark: Any) -> None:
    world = begin(settings, spark, "a text")
    world.sql("TRUNCATE items", "INSERT INTO items VALUES (1, 'new')")
    assert rows_of(world.ingest(spark), "items") == {"t": 1, "c": 1}
    world.sql("BEGIN; SAVEPOINT s; TRUNCATE items; RELEASE s; INSERT INTO items VALUES (2, 'newer'); COMMIT")
    assert rows_of(world.ingest(spark), "items") == {"t": 1, "c": 1}, "its id in the catalog is the savepoint's"
    assert_equal(world, "items")


@pytest.mark.parametrize(
    ("alter", "repaired"),
    [
        slow(("CREATE TABLE events_3 PARTITION OF events FOR VALUES FROM ('2026-03-01') TO ('2026-04-01')",), {}),
        (("CREATE TABLE p (LIKE events INCLUDING ALL)", "INSERT INTO p VALUES (9, '2026-03-02', 'in')",
          "ALTER TABLE events ATTACH PARTITION p FOR VALUES FROM ('2026-03-01') TO ('2026-04-01')"), {"r": 1}),
        slow(("ALTER TABLE events DETACH PARTITION events_2",), {"d": 2}),
        slow(("DROP TABLE events_2",), {"d": 2}),
        slow(("TRUNCATE events_2",), {"d": 2}),
        slow(("TRUNCATE events",), {"t": 1}),
    ],
)  # fmt: skip
def test_partitions_come_and_go(
    settings: Settings, spark: Any, alter: tuple[str, ...], repaired: dict[str, int]
) -> None:
    world = make_world(settings, EVENTS, EVENT_TABLES)
    world.ingest(spark)
    world.sql(*alter)
    assert rows_of(world.ingest(spark), "events") == repaired
    assert_equal(world, "events")
    world.sql("INSERT INTO events VALUES (7, '2026-01-09', 'later')")
    assert rows_of(world.ingest(spark), "events") == {"c": 1}
    assert_equal(world, "events")


def test_an_excluded_column_that_is_renamed_does_not_land(settings: Settings, spark: Any) -> None:
    policy = RawPolicy(relation="public.people", key=("id",), exclude=("secret",), mask={"mail": "sha256"})
    world = make_world(settings, "CREATE TABLE people (id int PRIMARY KEY, secret text, mail text)", {"people": policy})
    world.ingest(spark)
    world.sql("ALTER TABLE people RENAME secret TO open", "INSERT INTO people VALUES (1, 'private', 'm')")
    report = world.ingest(spark)
    assert "meta.raw.exclude" in report.aside[0].reason
    world.sql("ALTER TABLE people RENAME open TO secret", "ALTER TABLE people RENAME mail TO email")
    again = do(world, resume, spark, "people")
    assert "left out or masked" in again.aside[0].reason
    assert world.raw("people") == []


@pytest.mark.parametrize("moment", [slow("before"), "after"])
def test_an_alteration_during_a_read_is_noticed_before_anything_is_published(
    settings: Settings, spark: Any, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    from ingestion.pipeline import load_changes

    world = begin(settings, spark, "a int DEFAULT 7")
    world.sql("INSERT INTO items VALUES (4, 4)")
    original: Callable[..., Any] = load_changes.run_tasks
    done: list[bool] = []

    def altered(*args: Any) -> Any:
        result = original(*args) if moment == "after" else None
        if not done:
            done.append(True)
            world.sql("ALTER TABLE items ALTER a TYPE int USING a * 3", "INSERT INTO items VALUES (5, 5)")
        return result if moment == "after" else original(*args)

    monkeypatch.setattr(load_changes, "run_tasks", altered)
    world.ingest(spark)
    assert done
    assert_equal(world, "items")


def test_other_tables_do_not_wait_for_one_that_needs_a_resync(settings: Settings, spark: Any) -> None:
    world = make_world(settings, ORDERS, TABLES)
    world.sql("INSERT INTO orders VALUES (1, 'a', 1, NULL)")
    world.ingest(spark)
    world.sql("ALTER TABLE orders ADD rank int DEFAULT 3", "INSERT INTO lines VALUES (1, 1, 1)")
    world.ingest(spark)
    named = [[name for name, _ in cut["snapshots"]] for cut in cuts(world)]
    assert ["lines"] in named and named[-1] == ["lines", "orders"]
    assert_equal(world, "orders")

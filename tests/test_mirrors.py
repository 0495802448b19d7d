"""Mirrors on real servers: equal to the source at each cut, whatever happened in between."""

from dataclasses import replace
from importlib import import_module
from typing import Any, Literal

import pytest

from ingestion import mirrors_held, pause, refresh_mirrors, resnapshot, resume
from ingestion.mirrors.refresh import IN_NO_CUT, LACKING
from ingestion.mirrors.write import FAN
from ingestion.run.operate import read_anew
from ingestion.state.refreshes import Refreshes, mirror_refreshes
from ingestion.verify import TableComparison, reconcile_raw
from lakehouse.catalog.views.current_views import TAG
from lakehouse.catalog.views.mirrored import tag_of
from lakehouse.declarations.policies import MirrorPolicy, RawPolicy
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings
from tests.fresh import is_fresh_view, make_views, seen_in_spark, seen_in_trino
from tests.marks import slow
from tests.mirrored import (
    assert_mirrors_equal,
    declaring_columns,
    drop_mirror,
    listed,
    metadata,
    mirror,
    properties,
    refreshed,
    write_position_deletes,
)
from tests.repairing import spoil
from tests.slots import following, until
from tests.world import World, make_world, without_mirrors

pytestmark = pytest.mark.stack

DDL = """
CREATE TABLE items (id int PRIMARY KEY, name text, price numeric(10,2), big text);
ALTER TABLE items ALTER big SET STORAGE EXTERNAL;
CREATE TABLE pairs (a int, b text, n bigint, PRIMARY KEY (a, b));
CREATE TABLE still (id int PRIMARY KEY)
"""
LOOSE = """
CREATE TABLE loose (id int, part text, raw bytea, name text, UNIQUE NULLS NOT DISTINCT (id, part, raw));
ALTER TABLE loose REPLICA IDENTITY FULL
"""
SWAP = """
BEGIN;
UPDATE pairs SET a = -1 WHERE a = 1; UPDATE pairs SET a = 1 WHERE a = 2; UPDATE pairs SET a = 2 WHERE a = -1;
COMMIT
"""
TABLES = {
    "items": RawPolicy(relation="public.items", key=("id",)),
    "pairs": RawPolicy(relation="public.pairs", key=("a", "b")),
    "still": RawPolicy(relation="public.still", key=("id",)),
}


@pytest.fixture(params=[slow("anew"), "merged"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How refreshes write: all rows of a small mirror, or the changed ones with position deletes."""
    if request.param == "merged":
        write_position_deletes(monkeypatch)
    return request.param


def make(settings: Settings, **limits: Any) -> World:
    return declaring_columns(make_world(settings, DDL, TABLES, **limits))


def at_newest(world: World, spark: Any) -> Any:
    """Ingests, refreshes and compares."""
    world.ingest(spark)
    report = refreshed(world, spark)
    assert_mirrors_equal(world)
    return report


def make_fresh(settings: Settings, spark: Any, *more: str) -> World:
    """A world with rows, of these statements too, whose views are fresh."""
    world = make(settings)
    world.sql(
        "INSERT INTO items SELECT i, 'n' || i, i * 1.5, repeat(i::text, 3000) FROM generate_series(1, 40) i",
        "INSERT INTO pairs SELECT i % 7, 'b' || i, i FROM generate_series(1, 30) i",
        *more,
    )
    at_newest(world, spark)
    make_views(world)
    refreshed(world, spark)
    return world


def test_mirrors_follow_their_source(settings: Settings, spark: Any, form: str) -> None:
    world = make(settings)
    world.sql(
        "INSERT INTO items SELECT i, 'n' || i, i * 1.5, repeat(i::text, 3000) FROM generate_series(1, 60) i",
        "INSERT INTO pairs SELECT i % 7, 'b' || i, i FROM generate_series(1, 30) i",
        "INSERT INTO still VALUES (1)",
    )
    report = at_newest(world, spark)
    assert {m.name: (m.rows, m.anew) for m in report.written} == {
        "items": (60, True), "pairs": (30, True), "still": (1, True),
    }  # fmt: skip
    still = metadata(world, "still").metadata_location
    world.sql(
        "UPDATE items SET name = 'u' WHERE id <= 20",  # leaves out the large value
        "UPDATE items SET id = id + 100 WHERE id <= 10",
        "UPDATE items SET id = id + 100 WHERE id BETWEEN 101 AND 105",
        "UPDATE items SET name = name || 'x' WHERE id > 100",
        "DELETE FROM items WHERE id = 20",
        "INSERT INTO items VALUES (20, 'again', 1, NULL)",
        "UPDATE items SET id = 102 WHERE id = 20",
        "UPDATE items SET price = 2 WHERE id = 102",
        "DELETE FROM pairs WHERE a = 3",
        SWAP,
    )
    report = at_newest(world, spark)
    assert {m.name: m.anew for m in report.written} == {"items": False, "pairs": False}
    assert report.unchanged == ("still",)
    assert metadata(world, "still").metadata_location == still
    assert properties(world, "items")["lakehouse.position"] == f"1:{report.position}"
    newest = listed(world)[-1]
    assert dict(newest["snapshots"])["still"] == str(metadata(world, "still").current_snapshot().snapshot_id)
    assert at_newest(world, spark).written == ()
    world.sql("BEGIN; TRUNCATE items; INSERT INTO items VALUES (7, 'after', 1, 'x'); COMMIT", "DELETE FROM pairs")
    report = at_newest(world, spark)
    assert {m.name: (m.rows, m.anew) for m in report.written} == {"items": (1, True), "pairs": (0, False)}


@pytest.mark.slow
def test_what_refreshes_add_is_merged_and_readers_open_few_files(
    settings: Settings, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refresh a minute added four files a minute until maintenance came, at night."""
    write_position_deletes(monkeypatch)
    world, counts = make(settings), []
    world.sql("INSERT INTO items SELECT i, 'n', i FROM generate_series(1, 500) i")
    at_newest(world, spark)
    for number in range(20):
        world.sql(
            f"UPDATE items SET price = price + 1 WHERE id % 7 = {number % 7}",
            f"DELETE FROM items WHERE id = {number + 1}",
        )
        assert at_newest(world, spark).written
        counts.append(metadata(world, "items").current_snapshot().summary["total-data-files"])
        assert_mirrors_equal(world)
    assert max(map(int, counts)) <= FAN + 2, counts
    found = reconcile_raw(world.settings, world.declarations, mirrors=True, spark=spark)
    assert all(table.equal for table in found)


@pytest.mark.slow
def test_a_traveller_in_time_meets_no_half_of_a_refresh(
    settings: Settings, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Changed rows are deleted in one commit and written in the next."""
    write_position_deletes(monkeypatch)
    world = make(settings)
    world.sql("INSERT INTO items SELECT i, 'n', i FROM generate_series(1, 9) i")
    at_newest(world, spark)
    world.sql("UPDATE items SET price = 0", "INSERT INTO items VALUES (10)")
    at_newest(world, spark)
    found = metadata(world, "items")
    assert set(found.refs()) == {"main", TAG, *(tag_of(entry.snapshot_id) for entry in found.history())}
    rows = [found.scan(snapshot_id=entry.snapshot_id).to_arrow().num_rows for entry in found.history()]
    assert rows == [9, 10]


def test_an_idle_source_refreshes_nothing(settings: Settings, spark: Any) -> None:
    world = make(settings)
    world.sql("INSERT INTO still VALUES (1)")
    at_newest(world, spark)
    rows, before = listed(world), metadata(world, "still").metadata_location
    at_newest(world, spark)
    assert listed(world) == rows and metadata(world, "still").metadata_location == before


@pytest.mark.slow
def test_keys_of_floats_are_merged(settings: Settings, spark: Any, form: str) -> None:
    """Spark refused the DELETE, as the keys of the changes had been spelt by Java."""
    ddl = "CREATE TABLE floats (f float8, r real, n int, PRIMARY KEY (f, r))"
    world = make_world(settings, ddl, {"floats": RawPolicy(relation="public.floats", key=("f", "r"))})
    world = declaring_columns(world)
    world.sql("INSERT INTO floats SELECT f, f, 1 FROM unnest('{NaN,Infinity,-Infinity,0.1,1e-30,3}'::float8[]) f")
    world.ingest(spark)
    refreshed(world, spark)
    world.sql(
        "UPDATE floats SET n = 2 WHERE f > 1", "DELETE FROM floats WHERE f = 3", "UPDATE floats SET r = 7, f = -f"
    )
    world.ingest(spark)
    (report,) = refreshed(world, spark).written
    assert not report.anew
    (found,) = reconcile_raw(world.settings, world.declarations, mirrors=True, spark=spark)
    assert found.equal, found.as_dict()


ENDLESS = """
CREATE TABLE prices (id int, valid_to timestamptz, doc text, PRIMARY KEY (valid_to, id));
ALTER TABLE prices ALTER doc SET STORAGE EXTERNAL
"""


@pytest.mark.parametrize("policy", ["clamp", slow("null")])
def test_a_value_follows_its_row_from_a_key_that_the_lake_cannot_hold(
    settings: Settings, spark: Any, form: str, policy: Literal["clamp", "null"]
) -> None:
    """The end of a price's validity was set: the mirror had null where the source has the document."""
    tables = {
        "prices": RawPolicy(relation="public.prices", key=("valid_to", "id"), on_unrepresentable=policy),
    }
    world = declaring_columns(make_world(settings, ENDLESS, tables))
    world.sql("INSERT INTO prices SELECT i, 'infinity', repeat(i::text, 10000) FROM generate_series(1, 3) i")
    world.ingest(spark)
    refreshed(world, spark)
    world.sql(
        "UPDATE prices SET valid_to = '2026-01-01' WHERE id = 1",
        "UPDATE prices SET valid_to = '-infinity' WHERE id = 2",
    )
    world.ingest(spark)
    refreshed(world, spark)
    docs = world.rows("SELECT id, doc FROM prices ORDER BY id")
    assert sorted(mirror(world, "prices", ("id", "doc"))) == docs
    lax = world.declaring("prices", on_unrepresentable="null" if policy == "clamp" else "clamp")
    world.sql("UPDATE prices SET valid_to = '2026-01-02' WHERE id = 1")
    drop_mirror(world, "prices")
    lax.ingest(spark)
    assert [(m.name, m.anew) for m in refreshed(lax, spark).written] == [("prices", True)]
    assert sorted(mirror(lax, "prices", ("id", "doc"))) == docs, "rows keep what the former policy made of a key"


def test_a_mirror_has_no_null_for_a_value_that_raw_lacks(settings: Settings, spark: Any) -> None:
    """It was written whether the value was found or not."""
    world = make(settings)
    world.sql(
        "INSERT INTO items SELECT i, 'n', i, repeat('x', 3000) FROM generate_series(1, 5) i",
        "INSERT INTO still VALUES (1)",
    )
    at_newest(world, spark)
    before = metadata(world, "items").metadata_location
    world.sql("UPDATE items SET id = 9 WHERE id = 1", "INSERT INTO still VALUES (2)")
    world.ingest(spark)
    lost = {"_old_key": '{"id":"77"}'}
    spoil(world, "items", lambda rows: [row | lost if row["_old_key"] else row for row in rows])
    report = refreshed(world, spark)
    assert report.aside == ("items",) and [m.name for m in report.written] == ["still"]
    assert report.reasons == {"items": LACKING}
    kept = kept_of(world)
    assert kept.behind_seconds is None and [why for _, why in kept.aside.values()] == [LACKING]
    assert metadata(world, "items").metadata_location == before
    assert set(dict(listed(world)[-1]["snapshots"])) == {"pairs", "still"}
    (found,) = reconcile_raw(
        world.settings, world.declarations, [f"{world.source.name}.items"], repair=True, spark=spark
    )
    assert found.repaired == {"r": 1}
    assert refreshed(world, spark).aside == () and kept_of(world).aside == {}
    assert_mirrors_equal(world)


def test_behind_a_truncate_too_a_mirror_has_no_null_for_a_value_that_raw_lacks(
    settings: Settings, spark: Any, form: str
) -> None:
    """The insert of a key was a dead letter, and an update left the value out."""
    world = make(settings)
    world.sql("INSERT INTO items SELECT i, 'n', i, repeat('x', 3000) FROM generate_series(1, 5) i")
    at_newest(world, spark)
    before = metadata(world, "items").metadata_location
    world.sql(
        "TRUNCATE items", "INSERT INTO items VALUES (1, 'n', 1, repeat('y', 3000))",
        "UPDATE items SET name = 'u' WHERE id = 1",
    )  # fmt: skip
    world.ingest(spark)
    spoil(world, "items", lambda rows: [row for row in rows if row["_op"] != "c"])
    report = refreshed(world, spark)
    assert report.reasons == {"items": LACKING} and metadata(world, "items").metadata_location == before


def kept_of(world: World) -> Refreshes:
    return mirror_refreshes(world.settings)[world.source.name][1]


def test_what_becomes_of_refreshes_is_kept_for_those_who_watch(
    settings: Settings, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that failed each minute was a line in a log, and readers took old mirrors for fresh ones."""
    world = make(settings)
    world.sql("INSERT INTO still VALUES (1)")
    world.ingest(spark)
    assert kept_of(world).behind_seconds is not None and not kept_of(world).was_done
    refreshed(world, spark)
    assert (kept_of(world).behind_seconds, kept_of(world).outcome) == (None, "done")
    world.sql("INSERT INTO still VALUES (2)")
    world.ingest(spark)
    with monkeypatch.context() as patch:

        def build_all(*_: Any) -> None:
            raise LakehouseError("Spark: there is no room")

        patch.setattr(import_module("ingestion.mirrors.refresh"), "build_all", build_all)
        with pytest.raises(LakehouseError, match="no room"):
            refreshed(world, spark)
    kept = kept_of(world)
    assert (kept.outcome, kept.said, kept.at_work) == ("failed", "Spark: there is no room", False)
    assert kept.behind_seconds is not None and kept.was_done
    at_newest(world, spark)
    assert (kept_of(world).behind_seconds, kept_of(world).said) == (None, None)


@pytest.mark.slow
def test_views_of_a_source_without_mirrors_get_their_own_text_from_its_follower(
    settings: Settings, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No refresh came: they stayed before the next truncate, and failed once somebody had dropped the mirrors."""
    world = make_fresh(settings, spark)
    assert is_fresh_view(world, "items")
    monkeypatch.setattr("lakehouse.declarations.declared.REFRESH_SECONDS", 1.0)
    with following(replace(world, source=without_mirrors(world.source))):
        until(lambda: not is_fresh_view(world, "items"))


def test_rows_whose_key_has_a_null_are_followed(settings: Settings, spark: Any, form: str) -> None:
    """They were in the view twice after an update, and stayed after a delete; in a large mirror too."""
    key = ("id", "part", "raw")
    world = declaring_columns(make_world(settings, LOOSE, {"loose": RawPolicy(relation="public.loose", key=key)}))
    world.sql(
        "INSERT INTO loose VALUES (NULL, 'a', 'x', '1'), (2, NULL, '', '2'), (2, '', NULL, '3'), (2, '', '', '4'),"
        " (NULL, NULL, NULL, '5'), (7, 'p', 'x', '6'), (9, 'p', 'x', '7')"
    )
    at_newest(world, spark)
    shown = ("id", "part", "name")
    make_views(world, {"loose": shown})
    refreshed(world, spark)

    def assert_followed() -> None:
        world.ingest(spark)
        there = sorted(map(repr, world.rows("SELECT id, part, name FROM loose")))
        assert is_fresh_view(world, "loose")
        assert seen_in_trino(world, "loose", shown) == there == seen_in_spark(world, spark, "loose")
        at_newest(world, spark)
        assert seen_in_trino(world, "loose", shown) == there == seen_in_spark(world, spark, "loose")

    world.sql("UPDATE loose SET name = name || 'u' WHERE name NOT IN ('4', '7')", "DELETE FROM loose WHERE id = 7")
    assert_followed()
    world.sql("DELETE FROM loose WHERE id IS NULL", "UPDATE loose SET id = NULL WHERE id = 9")
    assert_followed()


@pytest.mark.slow
def test_columns_come_go_and_are_renamed(settings: Settings, spark: Any, form: str) -> None:
    """Names may change hands: the mirror goes by the raw table's fields."""
    world = make(settings)
    world.sql("INSERT INTO items SELECT i, 'n' || i, i, repeat('x', 3000) FROM generate_series(1, 20) i")
    at_newest(world, spark)
    world.sql("ALTER TABLE items ADD extra int", "UPDATE items SET extra = 1 WHERE id < 3")
    report = at_newest(declaring_columns(world), spark)
    assert [(m.name, m.anew) for m in report.written] == [("items", False)]
    world.sql("ALTER TABLE items DROP extra", "ALTER TABLE items ALTER id TYPE bigint")
    world.sql("UPDATE items SET id = 1099511627776 WHERE id = 5")
    at_newest(declaring_columns(world), spark)
    world.sql(
        "ALTER TABLE items RENAME name TO t",
        "ALTER TABLE items RENAME big TO name",
        "ALTER TABLE items RENAME t TO big",
    )
    world.sql("UPDATE items SET price = 7 WHERE id = 6")
    at_newest(declaring_columns(world), spark)
    world.sql("ALTER TABLE items RENAME name TO title", "UPDATE items SET price = 8 WHERE id = 6")
    report = at_newest(declaring_columns(world), spark)
    assert [(m.name, m.anew) for m in report.written] == [("items", True)]
    at_newest(declaring_columns(world, but={"items": {"price"}}), spark)
    report = at_newest(declaring_columns(world), spark)  # declared again: its older values are in raw
    assert [(m.name, m.anew) for m in report.written] == [("items", True)]


@pytest.mark.slow
def test_a_table_out_of_the_cut_keeps_its_mirror(settings: Settings, spark: Any) -> None:
    world = make(settings)
    world.sql("INSERT INTO items SELECT i, 'n', i FROM generate_series(1, 5) i", "INSERT INTO pairs VALUES (1, 'b', 1)")
    at_newest(world, spark)
    pause(world.settings, world.source.table("items"))
    world.sql("DELETE FROM items WHERE id = 1", "UPDATE pairs SET n = 2")
    world.ingest(spark)
    before = metadata(world, "items").metadata_location
    report = refreshed(world, spark)
    assert report.aside == ("items",) and metadata(world, "items").metadata_location == before
    assert set(dict(listed(world)[-1]["snapshots"])) == {"pairs", "still"}
    resume(world.settings, world.declarations, world.source.name, ["items"], spark)
    report = refreshed(world, spark)
    assert [(m.name, m.anew) for m in report.written] == [("items", False)]
    assert_mirrors_equal(world)
    read_anew(world.settings, world.source.table("items"))
    assert refreshed(world, spark).reasons == {"items": IN_NO_CUT}, "it has no columns until it is read"
    resnapshot(world.settings, world.declarations, world.source.name, ["items"], spark)
    report = refreshed(world, spark)
    assert [(m.name, m.anew) for m in report.written] == [("items", True)]
    assert_mirrors_equal(world)


@pytest.mark.slow
def test_what_comes_late_is_in_the_mirror(settings: Settings, spark: Any) -> None:
    """A repair's events are of the cut at which the mirror stands."""
    world = make(settings)
    world.sql("INSERT INTO items SELECT i, 'n', i FROM generate_series(1, 9) i")
    world.ingest(spark)
    spoil(world, "items", lambda rows: [row | {"name": "wrong"} if row["id"] == 3 else row for row in rows])
    refreshed(world, spark)
    assert [row for row in mirror(world, "items") if row[1] == "wrong"]
    (result,) = reconcile_raw(
        world.settings, world.declarations, [f"{world.source.name}.items"], repair=True, spark=spark
    )
    assert result.repaired == {"r": 1}
    assert [m.name for m in refreshed(world, spark).written] == ["items"]
    assert_mirrors_equal(world)


@pytest.mark.slow
def test_a_mirror_that_was_rolled_back_is_written_anew(settings: Settings, spark: Any) -> None:
    world = make(settings)
    world.sql("INSERT INTO items SELECT i, 'n', i FROM generate_series(1, 9) i")
    at_newest(world, spark)
    older = metadata(world, "items")
    world.sql("DELETE FROM items WHERE id < 4")
    at_newest(world, spark)
    with metadata(world, "items").manage_snapshots() as manage:
        manage.set_current_snapshot(older.current_snapshot().snapshot_id)
    report = at_newest(world, spark)
    assert [(m.name, m.anew) for m in report.written] == [("items", True)]


@pytest.mark.slow
def test_reconcile_finds_what_a_mirror_has_wrong(settings: Settings, spark: Any) -> None:
    world = make(settings)
    world.sql(
        "INSERT INTO items SELECT i, 'n', i, 'x' FROM generate_series(1, 50) i", "INSERT INTO pairs VALUES (1, 'b')"
    )
    world.ingest(spark)
    found = {result.table: result for result in reconciled(world, spark)}
    assert {name: result.verdict for name, result in found.items()} == dict.fromkeys(TABLES, "equal")
    assert (found["items"].source_rows, found["items"].lake_rows) == (50, 50)
    table = ".".join(f"`{part}`" for part in ("lake", *world.source.table("items").mirror_identifier))
    spark.sql(f"UPDATE {table} SET name = 'wrong' WHERE id = 7")
    spark.sql(f"INSERT INTO {table} SELECT * FROM {table} WHERE id = 8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(import_module("ingestion.verify.raw"), "_refresh", lambda session: None)
        result = next(result for result in reconciled(world, spark) if result.table == "items")
    assert (result.differing, result.extra, result.lake_rows) == (1, 1, 51)
    assert all(result.equal for result in reconciled(world, spark)), "the next refresh writes it anew"


def reconciled(world: World, spark: Any) -> list[TableComparison]:
    return list(reconcile_raw(world.settings, world.declarations, mirrors=True, spark=spark))


def test_a_follower_refreshes_mirrors_and_others_may_in_between(settings: Settings, spark: Any) -> None:
    world = make(settings)
    often = [t.model_copy(update={"mirror": MirrorPolicy(refresh_seconds=1)}) for t in world.source.tables]
    world = replace(world, source=world.source.model_copy(update={"tables": tuple(often)}))
    world.sql("INSERT INTO items SELECT i, 'n', i FROM generate_series(1, 9) i")
    with following(world):
        until(lambda: [dict(row["snapshots"]).keys() for row in listed(world)][-1:] == [TABLES.keys()], 60)
        world.sql("DELETE FROM items WHERE id < 4")
        until(lambda: len(mirror(world, "items")) == 6, 60)
        refreshed(world, spark)
        with mirrors_held(world.settings, world.source.name):
            hasty = world.settings.model_copy(
                update={"ingestion": world.settings.ingestion.model_copy(update={"wait_seconds": 1.0})}
            )
            with pytest.raises(LakehouseError, match="has been writing its mirrors for 1 s"):
                refresh_mirrors(hasty, world.declarations, world.source.name, spark)
    assert_mirrors_equal(world)

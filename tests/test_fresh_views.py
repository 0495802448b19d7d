"""Fresh views on real servers: the source at the newest cut, in Trino and Spark, whatever happened since a refresh."""

import json
from dataclasses import replace
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from pyarrow.fs import FileSelector

from ingestion import pause, resnapshot, resume
from ingestion.mirrors import views
from ingestion.sink import cuts as publishing
from lakehouse.catalog.file_io import open_io
from lakehouse.catalog.views.current_views import MARK, TAG
from lakehouse.servers.trino import query
from lakehouse.settings import Settings
from lakehouse.text.sql import relation
from tests.fresh import (
    in_source,
    is_fresh_view,
    is_plain_view,
    is_short_view,
    make_view,
    name_of,
    promised,
    seen_in_spark,
    seen_in_trino,
    texts,
    version_of,
    view_metadata,
)
from tests.mirrored import declaring_columns, metadata, refreshed, write_position_deletes
from tests.readers import declared_as_is, project_of
from tests.test_ingestion import cuts
from tests.test_mirrors import SWAP, at_newest, make, make_fresh
from tests.world import World

pytestmark = pytest.mark.stack


@pytest.fixture
def world(settings: Settings, spark: Any, monkeypatch: pytest.MonkeyPatch) -> World:
    """A source whose mirrors are refreshed with position deletes, and whose views are fresh."""
    write_position_deletes(monkeypatch)
    return make_fresh(settings, spark, "INSERT INTO still VALUES (1)")


def assert_fresh(world: World, spark: Any, *tables: str) -> None:
    """Each view is fresh, and shows what the source has."""
    for table in tables or ("items", "pairs", "still"):
        assert is_fresh_view(world, table), table
        assert seen_in_trino(world, table) == in_source(world, table), table
        assert seen_in_spark(world, spark, table) == in_source(world, table), table


def test_a_fresh_view_is_the_source_at_the_newest_cut(world: World, spark: Any) -> None:
    assert_fresh(world, spark)
    assert all(is_plain_view(world, table) for table in ("items", "pairs", "still"))
    world.sql(
        "UPDATE pairs SET n = n + 1 WHERE a = 4",
        "INSERT INTO pairs VALUES (9, 'z', 1)",
        "DELETE FROM pairs WHERE a = 5",
        "UPDATE items SET big = 'small' WHERE id = 30",
    )
    world.ingest(spark)
    assert_fresh(world, spark)
    assert all(is_short_view(world, table) for table in ("items", "pairs", "still"))
    assert [table for table in ("items", "pairs", "still") if is_plain_view(world, table)] == ["still"]
    world.sql(
        "UPDATE items SET name = 'u' WHERE id <= 20",  # leaves out the large value
        "DELETE FROM items WHERE id = 20",
        "INSERT INTO items VALUES (20, 'again', 1, NULL), (50, NULL, NULL, 'x')",
        "UPDATE items SET name = 'v' WHERE id IN (1, 50)",
        SWAP,
        "DELETE FROM pairs WHERE a = 3",
    )
    world.ingest(spark)
    assert_fresh(world, spark)
    assert not is_short_view(world, "items") and is_short_view(world, "pairs")
    before = seen_in_trino(world, "items")
    world.sql("BEGIN; TRUNCATE items; INSERT INTO items VALUES (7, 'after', 1, 'x'); COMMIT", "DELETE FROM still")
    world.ingest(spark)
    assert seen_in_trino(world, "items") == before == seen_in_spark(world, spark, "items")
    assert_fresh(world, spark, "pairs", "still")
    refreshed(world, spark)
    assert_fresh(world, spark)
    assert all(is_plain_view(world, table) for table in ("items", "pairs", "still"))


@pytest.mark.slow
def test_a_key_change_that_left_a_value_out_is_shown_with_the_next_refresh(world: World, spark: Any) -> None:
    before = seen_in_trino(world, "items")
    world.sql("UPDATE items SET id = id + 100 WHERE id = 3", "DELETE FROM items WHERE id = 5")
    world.ingest(spark)
    assert seen_in_trino(world, "items") == before == seen_in_spark(world, spark, "items")
    refreshed(world, spark)
    assert_fresh(world, spark, "items")


@pytest.mark.slow
def test_what_lands_while_a_table_is_in_no_cut_is_not_shown(world: World, spark: Any) -> None:
    before = seen_in_trino(world, "items")
    assert is_short_view(world, "items")
    pause(world.settings, world.source.table("items"))
    world.sql("DELETE FROM items WHERE id < 9", "UPDATE pairs SET n = 0")
    world.ingest(spark)
    refreshed(world, spark)
    assert seen_in_trino(world, "items") == before and is_fresh_view(world, "items")
    assert_fresh(world, spark, "pairs")
    resume(world.settings, world.declarations, world.source.name, ["items"], spark)
    world.ingest(spark)
    assert seen_in_trino(world, "items") == before, "until the next refresh"
    assert not is_short_view(world, "items")
    refreshed(world, spark)
    assert_fresh(world, spark)
    assert is_short_view(world, "items")
    world.sql("UPDATE items SET name = 'w'")
    resnapshot(world.settings, world.declarations, world.source.name, ["items"], spark)
    refreshed(world, spark)
    assert_fresh(world, spark)


@pytest.mark.slow
def test_a_view_reads_the_cuts_of_many_publishes_from_one_file(
    world: World, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "GROWS", timedelta(hours=1))  # longer than this test on a busy machine
    seen = json.loads(version_of(world, "items")["summary"]["lakehouse.mirror"])["seen"]
    for number in range(6):
        world.sql(f"UPDATE items SET name = 'n{number}' WHERE id = {number + 1}")
        world.ingest(spark)
    assert_fresh(world, spark, "items")
    since = f"source = '{world.source.name}' AND published_at > from_iso8601_timestamp_nanos('{seen}')"
    [[found, files]] = query(world.settings, f'SELECT count(*), count(DISTINCT "$path") FROM meta.cuts WHERE {since}')
    assert (found, files) == (6, 1)
    in_spark = spark.table(f"{world.settings.catalog_name}.meta.cuts").where(f"source = '{world.source.name}'")
    assert in_spark.count() == len(cuts(world))


def test_a_view_keeps_the_snapshot_that_it_names_and_what_dbt_gave_it(world: World, spark: Any) -> None:
    world.sql("DELETE FROM items WHERE id = 1")
    at_newest(world, spark)
    named = json.loads(version_of(world, "items")["summary"]["lakehouse.mirror"])["snapshot"]
    assert metadata(world, "items").metadata.refs[TAG].snapshot_id == named
    found = view_metadata(world, "items")
    assert MARK in found["properties"]["comment"] and "trino.run-as-owner" in json.dumps(found)
    view = relation(*name_of(world, "items"))
    [[text]] = query(world.settings, f"SHOW CREATE VIEW {view}")
    assert f"{MARK}test]" in text and "SECURITY DEFINER" in text, "so dbt leaves it as it is"
    make_view(world, "items", world.source.table("items").landed)
    assert not is_fresh_view(world, "items") and list(texts(world, "items")) == ["trino"]
    assert seen_in_trino(world, "items") == [], "the last load found nothing"
    assert refreshed(world, spark).written == ()
    assert_fresh(world, spark)


@pytest.mark.slow
def test_metadata_files_that_no_view_names_any_more_are_deleted(
    world: World, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = set(metadata_files(world))
    monkeypatch.setattr(views, "EVERY", 1)
    world.sql("DELETE FROM items WHERE id = 1")
    at_newest(world, spark)
    assert set(metadata_files(world)) > before, "those of three days stay"
    monkeypatch.setattr(views, "KEPT", timedelta())
    world.sql("DELETE FROM items WHERE id = 2")
    at_newest(world, spark)
    assert len(metadata_files(world)) == 3, "that of the view, the short one that it has not got, and the one before"
    assert_fresh(world, spark, "items")


def metadata_files(world: World) -> list[str]:
    """Those of the view of `items`."""
    io = open_io(world.settings)
    scheme, authority, path = io.parse_location(view_metadata(world, "items")["location"], io.properties)
    found = io.fs_by_scheme(scheme, authority).get_file_info(FileSelector(f"{path}/metadata"))
    return [file.path for file in found]


@pytest.mark.slow
def test_a_view_with_sql_of_its_own_or_with_other_columns_is_left_as_it_is(world: World, spark: Any) -> None:
    make_view(world, "items", ("id", "name"), "A view with a filter. [definition test]")
    make_view(world, "pairs", ("a", "_epoch"))
    world.sql("INSERT INTO items VALUES (99, 'z')", "INSERT INTO pairs VALUES (99, 'z', 1)")
    at_newest(world, spark)
    assert not is_fresh_view(world, "items") and not is_fresh_view(world, "pairs")
    make_view(world, "items", ("name", "id"))
    refreshed(world, spark)
    assert is_fresh_view(world, "items") and "('z', 99)" in seen_in_trino(world, "items", ("name", "id"))


@pytest.mark.slow
def test_a_view_reads_parsed_again_while_a_declared_column_has_not_landed(world: World, spark: Any) -> None:
    shown = world.source.table("items").landed
    world.sql("ALTER TABLE items ADD COLUMN extra int", "INSERT INTO items VALUES (99, 'z')")
    later = declaring_columns(world)
    refreshed(later, spark)
    assert not is_fresh_view(world, "items") and is_fresh_view(world, "pairs")
    at_newest(later, spark)
    assert is_fresh_view(world, "items")
    assert "(99, 'z', None, None)" in seen_in_trino(world, "items", shown)


@pytest.mark.slow
def test_names_that_change_hands_hold_the_view_until_the_rows_are_read_again(world: World, spark: Any) -> None:
    shown = world.source.table("items").landed
    world.sql(
        "UPDATE items SET name = 'before' WHERE id < 4",
        "ALTER TABLE items RENAME name TO t",
        "ALTER TABLE items RENAME big TO name",
        "ALTER TABLE items RENAME t TO big",
        "UPDATE items SET name = 'after' WHERE id = 4",
    )
    world.ingest(spark)
    assert seen_in_trino(world, "items") == promised(world, "items", shown) == seen_in_spark(world, spark, "items")
    at_newest(world, spark)
    world.sql("UPDATE items SET name = NULL WHERE id = 7", "UPDATE items SET big = NULL WHERE id = 8")
    world.ingest(spark)
    assert_fresh(world, spark, "items")


def renamed_and_declared(world: World, spark: Any) -> World:
    """Its raw table has a column less, and one more, of which the view's text knows nothing."""
    world.sql("ALTER TABLE pairs RENAME n TO m", "DELETE FROM pairs WHERE a = 1")
    later = declaring_columns(world)
    later.ingest(spark)
    return later


@pytest.mark.slow
def test_a_rename_has_the_view_read_parsed_until_the_next_refresh(world: World, spark: Any) -> None:
    later = renamed_and_declared(world, spark)
    assert not is_fresh_view(world, "pairs") and list(texts(world, "pairs")) == ["trino"]
    refreshed(later, spark)
    assert not is_fresh_view(world, "pairs"), "the view's column is gone"
    make_view(later, "pairs", later.source.table("pairs").landed)
    refreshed(later, spark)
    assert_fresh(later, spark, "pairs")


@pytest.mark.slow
def test_a_refresh_does_not_undo_what_a_rename_did_meanwhile(
    world: World, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = import_module("ingestion.mirrors.refresh")
    begin = made.next_views

    def meanwhile(*arguments: Any) -> Any:
        found = begin(*arguments)
        renamed_and_declared(world, spark)
        return found

    world.sql("DELETE FROM items WHERE id = 1", "DELETE FROM pairs WHERE a = 2")
    world.ingest(spark)
    monkeypatch.setattr(made, "next_views", meanwhile)
    refreshed(world, spark)
    assert not is_fresh_view(world, "pairs")
    assert_fresh(world, spark, "items")


@pytest.mark.slow
def test_a_publish_while_a_refresh_reads_its_cut_is_not_passed_over(
    world: World, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = import_module("ingestion.mirrors.refresh")
    begin = made.store.last_publish

    def later(*arguments: Any) -> Any:
        world.sql("DELETE FROM items WHERE id = 2")
        world.ingest(spark)
        return begin(*arguments)

    world.sql("DELETE FROM items WHERE id = 1")
    world.ingest(spark)
    monkeypatch.setattr(made.store, "last_publish", later)
    refreshed(world, spark)
    assert_fresh(world, spark, "items")


@pytest.mark.slow
@pytest.mark.parametrize("before", ["next_views", "_publish"])
def test_what_lands_during_a_refresh_and_no_short_text_follows_leaves_the_long_one(
    world: World, spark: Any, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    made = import_module("ingestion.mirrors.refresh")
    begin = getattr(made, before)

    def later(*arguments: Any) -> Any:
        world.sql("UPDATE items SET name = 'left out' WHERE id = 3", "TRUNCATE pairs")
        world.ingest(spark)
        return begin(*arguments)

    world.sql("DELETE FROM items WHERE id = 1", "UPDATE pairs SET n = 0")
    world.ingest(spark)
    pairs = seen_in_trino(world, "pairs")
    with monkeypatch.context() as patched:
        patched.setattr(made, before, later)
        refreshed(world, spark)
    assert not is_short_view(world, "items") and not is_short_view(world, "pairs")
    assert_fresh(world, spark, "items")
    assert seen_in_trino(world, "pairs") == pairs == seen_in_spark(world, spark, "pairs")
    refreshed(world, spark)
    assert_fresh(world, spark)
    assert is_short_view(world, "items") and is_short_view(world, "pairs")


@pytest.mark.slow
def test_a_column_that_came_without_a_row_is_in_the_snapshot_that_the_view_names(world: World, spark: Any) -> None:
    world.sql("ALTER TABLE items ADD COLUMN extra int")
    later = declaring_columns(world)
    later.ingest(spark)
    refreshed(later, spark)
    make_view(world, "items", later.source.table("items").landed)
    refreshed(later, spark)
    assert_fresh(later, spark, "items")


@pytest.mark.slow
def test_the_view_of_a_table_that_is_to_have_no_mirror_any_more_reads_parsed(world: World, spark: Any) -> None:
    tables = [t.model_copy(update={"mirror": "none"}) if t.name == "items" else t for t in world.source.tables]
    later = replace(world, source=world.source.model_copy(update={"tables": tuple(tables)}))
    refreshed(later, spark)
    assert not is_fresh_view(world, "items") and is_fresh_view(world, "pairs")


@pytest.mark.slow
def test_dbt_leaves_a_fresh_view_alone_and_makes_one_that_is_right_as_of_its_load(
    settings: Settings, spark: Any, tmp_path: Path
) -> None:
    world = make(settings)
    world.sql("INSERT INTO items SELECT i, 'n', i, repeat(i::text, 3000) FROM generate_series(1, 9) i")
    world.ingest(spark)
    with project_of(world, tmp_path) as project:
        project.declare({"items": declared_as_is(world, "items")})
        project.load()
        loaded = seen_in_trino(world, "items")
        assert loaded == in_source(world, "items") and not is_fresh_view(world, "items")
        refreshed(world, spark)
        project.load()
        world.sql("DELETE FROM items WHERE id < 4", "UPDATE items SET name = 'u'")
        world.ingest(spark)
        assert_fresh(world, spark, "items")
        project.load("run", "--full-refresh", "--exclude", "path:models/parsed", "path:models/vault")
        assert not is_fresh_view(world, "items") and seen_in_trino(world, "items") == loaded
        refreshed(world, spark)
        assert_fresh(world, spark, "items")

"""Mirrors under maintenance, after a backup was restored or the source recovered, and by the commands a user types."""

import json
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from trino.exceptions import TrinoUserError
from trino.transaction import IsolationLevel

from ingestion import recover_source
from lakehouse.catalog.row_groups import LEAST_BYTES, PROPERTY
from lakehouse.errors import LakehouseError
from lakehouse.servers.trino import connect, query
from lakehouse.settings import Settings
from lakehouse.text.sql import relation
from lakehouse_backup.run import Warehouse, make_backup, restore_backup
from maintenance.actions.compact import compact
from maintenance.actions.exclusion import exclusive
from maintenance.inventory.outcome import TableName
from maintenance.inventory.session import Session
from maintenance.runner.run import ACTIONS
from tests.fresh import in_source, is_plain_view, name_of, seen_in_spark, seen_in_trino
from tests.mirrored import assert_mirrors_equal, metadata, refreshed, write_position_deletes
from tests.orchestrated import make_orchestrated
from tests.test_backup import destroy_catalog
from tests.test_maintenance_kills import EVERYTHING
from tests.test_mirrors import at_newest, make, make_fresh
from tests.world import World

pytestmark = pytest.mark.stack


def deletes(world: World) -> int:
    """The position deletes of the mirror of `items`."""
    summary = metadata(world, "items").current_snapshot().summary
    return int(summary["total-position-deletes"])


@pytest.mark.slow
def test_maintenance_applies_deletes_and_the_next_refresh_goes_on(
    settings: Settings, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_position_deletes(monkeypatch)
    world = make(settings)
    name = TableName(*world.source.table("items").mirror_identifier)
    world.sql("INSERT INTO items SELECT i, 'n', i FROM generate_series(1, 60) i")
    at_newest(world, spark)
    for key in (10, 20):
        world.sql(f"UPDATE items SET price = 0 WHERE id < {key}", f"DELETE FROM items WHERE id = {key}")
        at_newest(world, spark)
    assert deletes(world) > 0
    with closing(Session(world.settings)) as session:
        world.sql("DELETE FROM items WHERE id = 30")
        world.ingest(spark)
        with exclusive(session, name), pytest.raises(LakehouseError, match=r"another maintenance run .* run it again"):
            refreshed(world, spark)
    at_newest(world, spark)
    for action in ("compact", "expire_snapshots", "remove_orphan_files"):
        with closing(Session(world.settings)) as session:
            outcome = ACTIONS[action](session, name, EVERYTHING)
        assert outcome.status == "done", outcome
    assert deletes(world) == 0
    assert_mirrors_equal(world)
    assert at_newest(world, spark).written == (), "it stands where it stood"
    world.sql("DELETE FROM items WHERE id = 40")
    assert [(m.name, m.anew) for m in at_newest(world, spark).written] == [("items", False)]


@pytest.mark.slow
def test_a_view_to_which_nothing_has_come_reads_what_a_compaction_has_written(
    settings: Settings, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_position_deletes(monkeypatch)
    monkeypatch.setattr("lakehouse.catalog.row_groups.ROWS", 10)
    world = make_fresh(settings, spark)
    for key in (10, 20):
        world.sql(f"UPDATE items SET price = 0 WHERE id < {key}", f"DELETE FROM items WHERE id = {key}")
        at_newest(world, spark)
    assert is_plain_view(world, "items") and deletes(world) > 0
    assert metadata(world, "items").properties[PROPERTY] == str(LEAST_BYTES)
    with closing(Session(world.settings)) as session:
        assert compact(session, TableName(*world.source.table("items").mirror_identifier), EVERYTHING).status == "done"
    assert is_plain_view(world, "items") and deletes(world) == 0
    plan = query(world.settings, f"EXPLAIN SELECT * FROM {relation(*name_of(world, 'items'))}")[0][0]
    assert f"items$data@{metadata(world, 'items').current_snapshot().snapshot_id}" in plan
    assert seen_in_trino(world, "items") == in_source(world, "items") == seen_in_spark(world, spark, "items")
    world.sql("UPDATE items SET price = 0 WHERE id = 7", "DELETE FROM items WHERE id = 8")
    world.ingest(spark)
    assert not is_plain_view(world, "items") and seen_in_trino(world, "items") == in_source(world, "items")


@pytest.mark.slow
def test_a_transaction_that_knows_the_mirror_from_before_is_not_shown_it_again(settings: Settings, spark: Any) -> None:
    world = make_fresh(settings, spark)
    known = connect(world.settings)
    known._isolation_level = IsolationLevel.READ_UNCOMMITTED  # Trino remembers the tables in it, and not the views
    count = f"SELECT count(*) FROM {relation(*name_of(world, 'items'))}"
    assert known.cursor().execute(count).fetchall() == [[40]]
    world.sql("DELETE FROM items WHERE id = 8")
    at_newest(world, spark)
    assert is_plain_view(world, "items") and query(world.settings, count) == [[39]]
    with pytest.raises(TrinoUserError, match="lakehouse_view_"):
        known.cursor().execute(count).fetchall()


@pytest.mark.slow
def test_mirrors_go_on_after_the_catalog_was_restored_and_are_new_after_a_recovery(
    settings: Settings, spark: Any, tmp_path: Path
) -> None:
    world = make(settings, lease_seconds=2)
    world.sql("INSERT INTO items SELECT i, 'n', i FROM generate_series(1, 20) i", "INSERT INTO still VALUES (1)")
    at_newest(world, spark)
    make_backup(world.settings, tmp_path, catalog_only=True)
    world.sql("DELETE FROM items WHERE id < 4", "INSERT INTO pairs VALUES (1, 'b', 1)")
    at_newest(world, spark)
    world.sql("UPDATE items SET price = 0 WHERE id = 7")
    world.ingest(spark)
    assert world.driver("ingestion.mirrors.copies:_swapped:before", "--mirror").returncode != 0
    time.sleep(world.settings.ingestion.lease_seconds)
    destroy_catalog(world.settings)
    done = restore_backup(world.settings, tmp_path, Warehouse.KEPT)
    assert world.source.name in done.forward.going_on, done.forward
    at_newest(world, spark)
    world.sql("DELETE FROM items WHERE id = 8")
    assert [(m.name, m.anew) for m in at_newest(world, spark).written] == [("items", False)]
    recover_source(world.settings, world.declarations, world.source.name, spark)
    report = refreshed(world, spark)
    assert {m.name: m.anew for m in report.written} == {"items": True, "pairs": True, "still": True}
    assert_mirrors_equal(world)


@pytest.mark.slow
def test_mirrors_are_refreshed_and_compared_by_commands(settings: Settings, tmp_path: Path) -> None:
    o = make_orchestrated(settings, tmp_path, 20261123)
    o.command("lakehouse", "ingest", o.name, "--once")
    o.command("lakehouse", "run", f"mirror_{o.name}")
    (report,) = json.loads(o.command("lakehouse", "mirror", o.name, "--json"))
    assert report["written"] == [] and report["unchanged"] == sorted(table.name for table in o.tables)
    assert [o.count(f"mirror_{o.name}", table.name) for table in o.tables] == [500, 500]
    o.world.sql(f'DELETE FROM "{o.tables[0].name}" WHERE "{o.tables[0].key}" = 7')
    found = json.loads(o.command("lakehouse", "reconcile", o.name, "--mirrors", "--json"))
    rows = {result["table"]: (result["equal"], result["lake_rows"]) for result in found}
    assert rows == {o.tables[0].name: (True, 499), o.tables[1].name: (True, 500)}

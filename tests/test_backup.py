"""The catalog is lost, restored from an older backup, and rolled forward: no row of history is lost, and ingestion goes
on where it stopped."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ingestion.state import lease as leases
from ingestion.state import store
from lakehouse.catalog.objects import list_objects
from lakehouse.errors import LakehouseError
from lakehouse.servers.trino import query
from lakehouse.settings import Settings
from lakehouse_backup.run import Warehouse, make_backup, restore_backup
from maintenance.inventory.session import Session
from tests.test_ingestion import ORDERS, TABLES
from tests.test_kills import assert_right, fill
from tests.test_maintenance_kills import act
from tests.world import World, make_world

pytestmark = pytest.mark.stack


def destroy_catalog(settings: Settings) -> None:
    """What a new, empty catalog database holds after `lakehouse up`."""
    with store.connect_catalog(settings) as catalog:
        tables = catalog.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'lakehouse'").fetchall()
        for (name,) in tables:
            catalog.execute(f"DROP TABLE lakehouse.{name}")
        catalog.execute("DELETE FROM iceberg_tables")
        catalog.execute("DELETE FROM iceberg_namespace_properties")


def checksums(world: World) -> dict[str, Any]:
    """Of every row of the world's tables and of its cuts, by Trino."""
    name = world.source.name
    found = {}
    for table in TABLES:
        relation = f'raw_{name}."{table}"'
        columns = ", ".join(f'"{row[0]}"' for row in query(world.settings, f"DESCRIBE {relation}"))
        found[table] = query(world.settings, f"SELECT count(*), to_hex(checksum(row({columns}))) FROM {relation}")
    cuts = f"SELECT max(cut_lsn), count(*) FROM meta.cuts WHERE source = '{name}'"
    return found | {"cuts": query(world.settings, cuts)}


def begin(settings: Settings, spark: Any, folder: Path) -> World:
    """A world with a backup, and with rows and maintenance after it."""
    world = make_world(settings, ORDERS, TABLES, lease_seconds=2)
    fill(world, 1, 100)
    world.ingest(spark)
    make_backup(world.settings, folder, catalog_only=True)
    for first in (1001, 2001):
        fill(world, first, 100)
        world.ingest(spark)
    return world


def test_a_catalog_that_was_lost_comes_back_with_every_row_and_ingestion_goes_on(
    settings: Settings, spark: Any, tmp_path: Path
) -> None:
    world = begin(settings, spark, tmp_path)
    act(world, "compact", "expire_snapshots", "remove_orphan_files")
    before, raw = checksums(world), {table: world.raw(table) for table in TABLES}
    destroy_catalog(world.settings)
    done = restore_backup(world.settings, tmp_path, Warehouse.KEPT)
    assert world.source.name in done.forward.going_on, done.forward
    assert checksums(world) == before
    fill(world, 3001, 50)
    world.ingest(spark)
    assert_right(world)
    for table in TABLES:
        assert world.raw(table)[: len(raw[table])] == raw[table], "history is what it was, and goes on behind it"


@pytest.mark.slow
def test_a_publish_whose_slot_was_not_moved_is_not_read_twice(settings: Settings, spark: Any, tmp_path: Path) -> None:
    world = begin(settings, spark, tmp_path)
    fill(world, 3001, 20)
    killed = world.driver("ingestion.sources.postgres.connection:advance_slot:before")
    assert killed.returncode != 0
    before = checksums(world)
    destroy_catalog(world.settings)
    restore_backup(world.settings, tmp_path, Warehouse.KEPT)
    assert checksums(world) == before
    world.ingest(spark)
    assert checksums(world)["orders"] == before["orders"]
    assert_right(world)


@pytest.mark.slow
def test_a_publish_that_was_staged_and_never_made_is_made_by_the_restore(
    settings: Settings, spark: Any, tmp_path: Path
) -> None:
    world = begin(settings, spark, tmp_path)
    fill(world, 3001, 20)
    assert world.driver("ingestion.sink.publish:_swap:before").returncode != 0
    destroy_catalog(world.settings)
    restore_backup(world.settings, tmp_path, Warehouse.KEPT)
    fill(world, 4001, 20)
    world.ingest(spark)
    assert_right(world)


@pytest.mark.slow
def test_a_table_that_was_altered_since_the_backup_has_to_be_recovered_and_keeps_its_history(
    settings: Settings, spark: Any, tmp_path: Path
) -> None:
    from ingestion import recover_source

    world = begin(settings, spark, tmp_path)
    world.sql("ALTER TABLE orders ADD COLUMN more text")
    fill_more = "INSERT INTO orders (id, customer, amount, more) VALUES (5000, 'x', 1, 'm')"
    world.sql(fill_more)
    world.ingest(spark)
    raw = world.raw("orders")
    destroy_catalog(world.settings)
    done = restore_backup(world.settings, tmp_path, Warehouse.KEPT)
    assert "orders was altered" in done.forward.to_recover.get(world.source.name, ""), done.forward
    with pytest.raises(LakehouseError, match=r"restored from a backup.*--recover"):
        world.ingest(spark)
    recover_source(world.settings, world.declarations, world.source.name, spark)
    fill(world, 6001, 20)
    world.ingest(spark)
    assert_right(world)
    assert world.raw("orders")[: len(raw)] == raw


@pytest.mark.slow
def test_a_source_that_was_added_since_the_backup_has_to_be_recovered_and_keeps_its_history(
    settings: Settings, spark: Any, tmp_path: Path
) -> None:
    """It was taken for one that nobody had read yet, and what the lake had of it for nobody's files."""
    from ingestion import recover_source

    make_backup(settings, tmp_path, catalog_only=True)
    world = make_world(settings, ORDERS, TABLES, lease_seconds=2)
    for first in (1, 1001):
        fill(world, first, 100)
        world.ingest(spark)
    raw = world.raw("orders")
    destroy_catalog(world.settings)
    done = restore_backup(world.settings, tmp_path, Warehouse.KEPT)
    assert done.forward.to_recover.get(world.source.name) == "it was added since the backup", done.forward
    assert world.raw("orders") == raw
    world.sql("DELETE FROM orders WHERE id = 1")
    with pytest.raises(LakehouseError, match=r"restored from a backup.*--recover"):
        world.ingest(spark)
    recover_source(world.settings, world.declarations, world.source.name, spark)
    assert_right(world)
    assert world.raw("orders")[: len(raw)] == raw


@pytest.mark.slow
def test_the_warehouse_that_was_lost_too_comes_back_as_it_was_backed_up(
    settings: Settings, spark: Any, tmp_path: Path
) -> None:
    world = make_world(settings, ORDERS, TABLES, lease_seconds=2)
    fill(world, 1, 100)
    world.ingest(spark)
    before = checksums(world)
    made = make_backup(world.settings, tmp_path)
    assert made.objects > 0 and make_backup(world.settings, tmp_path).objects == 0
    with closing(Session(world.settings)) as session:
        location = session.catalog.load_table((f"raw_{world.source.name}", "orders")).location()
        scheme, authority, path = session.io.parse_location(location, session.io.properties)
        session.io.fs_by_scheme(scheme, authority).delete_dir(path)
    destroy_catalog(world.settings)
    done = restore_backup(world.settings, tmp_path, Warehouse.LOST)
    assert done.objects > 0 and checksums(world) == before
    fill(world, 1001, 20)
    world.ingest(spark)
    assert_right(world)


@pytest.mark.slow
def test_a_warehouse_that_came_back_as_of_an_earlier_time_has_its_source_recovered(
    settings: Settings, spark: Any, tmp_path: Path
) -> None:
    """It was taken for one that had lost nothing: the source went on from its slot, without what had come between."""
    from ingestion import recover_source

    world = begin(settings, spark, tmp_path)
    with closing(Session(world.settings)) as session:
        copied = {stored.path for stored in list_objects(session.io, world.settings.warehouse)}
        fill(world, 3001, 100)
        world.ingest(spark)
        for stored in list_objects(session.io, world.settings.warehouse):
            if stored.path not in copied:
                session.io.delete(stored.path)
    destroy_catalog(world.settings)
    done = restore_backup(world.settings, tmp_path, Warehouse.RESTORED)
    found = done.forward.to_recover.get(world.source.name)
    assert found == "its slot is beyond the newest restored cut", done.forward
    recover_source(world.settings, world.declarations, world.source.name, spark)
    assert_right(world)


def test_nothing_is_restored_while_somebody_ingests_or_from_a_folder_without_a_backup(
    settings: Settings, spark: Any, tmp_path: Path
) -> None:
    world = make_world(settings, ORDERS, TABLES)
    world.ingest(spark)
    with pytest.raises(LakehouseError, match="contains no backup"):
        restore_backup(world.settings, tmp_path, Warehouse.KEPT)
    make_backup(world.settings, tmp_path, catalog_only=True)
    for said in (Warehouse.LOST, None):
        with pytest.raises(LakehouseError, match=r"made with --catalog-only.*: add --warehouse-kept if"):
            restore_backup(world.settings, tmp_path, said)
    with store.connect_catalog(world.settings) as states:
        lease = leases.acquire(states, world.source.name, 30, "follow")
        assert lease is not None
        with pytest.raises(LakehouseError, match="is at work: stop it"):
            restore_backup(world.settings, tmp_path, Warehouse.KEPT)
        leases.release(states, lease)

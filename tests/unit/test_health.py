"""A table's health, measured on real Iceberg tables in a directory: no server, no Spark."""

from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from lakehouse.catalog.objects import list_objects
from lakehouse.declarations.policies import MaintenancePolicy
from lakehouse.settings import Settings
from maintenance.inventory import removed
from maintenance.inventory.lake import Lake, Relation, _group, directory
from maintenance.inventory.outcome import TableName
from maintenance.inventory.removed import RemovedFile
from maintenance.inventory.session import Session
from maintenance.planning.health import Health, measure_health

SCHEMA = pa.schema([("id", pa.int64())])
NAME = TableName("vault", "hub")
POLICY = MaintenancePolicy.model_validate(
    {
        "schedule_group": "nightly",
        "compact": {"target_file_size_mb": 128, "min_input_files": 5},
        "expire_snapshots": {"older_than_hours": 0, "retain_last": 2, "keep_metadata_files": 20},
        "remove_orphan_files": {"older_than_hours": 0},
        "keep_removed_hours": 72,
        "statistics": {"analyze": True, "stale_share": 0.1},
        "clean_dbt_temporary": {"older_than_hours": 0},
    }
)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    catalog.create_namespace("vault")
    return catalog.create_table(NAME, SCHEMA)


def append(table: Table, times: int) -> None:
    for number in range(times):
        table.append(pa.Table.from_pylist([{"id": number}], SCHEMA))


def health(table: Table, policy: MaintenancePolicy = POLICY, removed: Collection[RemovedFile] = ()) -> Health:
    """As a run that begins now would see the table, with these files removed before."""
    session = Session(Settings(_env_file=None))
    session._shared["now"] = datetime.now(UTC)
    location = directory(table.location())
    objects = list_objects(table.io, location)
    relation = Relation(NAME, "table", table.metadata_location)
    scheme = "file://"
    paths = tuple(type(o)(f"{scheme}{o.path.removeprefix(scheme)}", o.size, o.modified) for o in objects)
    session._shared["lake"] = Lake(paths, (), (relation,), {NAME: table}, _group(paths, {location}))
    session._shared["lake.removed"] = {NAME: {file.path: file for file in removed}}
    measured = measure_health(session, NAME, policy)
    assert measured is not None
    return measured


def test_small_files_snapshots_and_metadata_are_counted(table: Table) -> None:
    append(table, 6)
    found = health(table)
    assert (found.files, found.small_files, found.rewritable_files, found.small_share) == (6, 6, 6, 1.0)
    assert (found.snapshots, found.expirable_snapshots) == (6, 4)
    assert (found.manifests, found.needed_manifests) == (6, 1)
    assert found.metadata_bytes == len(table.io.new_input(table.metadata_location))
    assert (found.metadata_files, found.properties_to_set) == (len(table.metadata.metadata_log), 0)
    assert (found.rows, found.unanalyzed_share, found.statistics_age_hours) == (6, 1.0, None)


def test_what_an_expiry_would_set_is_seen_by_the_same_condition(table: Table) -> None:
    append(table, 2)
    with table.transaction() as transaction:
        transaction.set_properties({"write.metadata.previous-versions-max": "19"})
    assert health(table).properties_to_set == 1


def test_a_healthy_table_has_nothing_to_do(table: Table) -> None:
    append(table, 2)
    found = health(table)
    assert (found.rewritable_files, found.expirable_snapshots, found.orphans, found.temporary) == (0, 0, 0, 0)
    assert found.manifests == found.needed_manifests == 2


def test_what_nothing_refers_to_is_an_orphan(table: Table) -> None:
    append(table, 2)
    with table.io.new_output(f"{table.location()}/data/orphan.parquet").create() as stream:
        stream.write(b"planted")
    found = health(table)
    assert (found.orphans, found.orphan_bytes) == (1, 7)
    assert found.object_bytes > found.bytes


def test_what_was_removed_is_kept_aside_until_its_time_is_over(table: Table) -> None:
    append(table, 2)
    paths = [f"{table.location()}/data/{name}.parquet" for name in ("young", "old")]
    for path in paths:
        with table.io.new_output(path).create() as stream:
            stream.write(b"removed")
    ages = (timedelta(hours=1), timedelta(hours=73))
    files = [
        RemovedFile(path, 7, datetime.now(UTC) - age, "expire_snapshots", table.metadata_location)
        for path, age in zip(paths, ages, strict=True)
    ]
    found = health(table, removed=files)
    assert (found.kept_aside, found.kept_aside_bytes, found.orphans) == (1, 7, 1)


def test_what_the_policy_leaves_out_is_not_looked_at(table: Table) -> None:
    append(table, 6)
    compact_only = MaintenancePolicy.model_validate({"schedule_group": "nightly", "compact": POLICY.compact})
    found = health(table, compact_only)
    assert (found.rewritable_files, found.expirable_snapshots, found.unanalyzed_share) == (6, 0, 0.0)


def test_removed_files_are_read_for_all_tables_at_once(catalog_settings: Settings) -> None:
    """A connection of its own for each of 3,000 tables, and for each raw table a reading of `meta.cuts`."""
    orders, lines = ("raw_shop", "orders"), ("raw_shop", "lines")
    with removed.catalog_database(catalog_settings) as connection:
        removed.record(connection, orders, [("s3://w/a", 1), ("s3://w/b", None)], "compact", "s3://w/m")
        removed.record(connection, lines, [("s3://w/c", 3)], "expire_snapshots", "s3://w/n")
        found = removed.recorded_by_table(connection)
        assert found == {name: removed.recorded(connection, name) for name in (orders, lines)}
        assert found.get(TableName(*lines)) is found[lines] and found.get(("raw_shop", "none")) is None


def test_tables_at_one_location_are_known_after_one_has_moved() -> None:
    def at(location: str) -> Any:
        return SimpleNamespace(location=lambda: location)

    first, second, third = (TableName("raw_shop", name) for name in ("first", "second", "third"))
    lake = Lake((), (), (), {first: at("s3://w/a"), second: at("s3://w/a"), third: at("s3://w/b")}, {})
    assert lake.sharing_location(first) == [second] and lake.sharing_location(third) == []
    lake.refresh(second, at("s3://w/b"))
    assert lake.sharing_location(first) == [] and lake.sharing_location(third) == [second]

"""What the worker tells Dagster beside its loads: days in which nothing came, and mirrors that a follower refreshes."""

from collections.abc import Iterator
from datetime import UTC, date, datetime

import dagster as dg
import pyarrow as pa
import pytest
from pyiceberg.table import Table

from ingestion.mirrors.state import POSITION
from lakehouse.catalog.lake_catalog import LakeCatalog
from lakehouse.catalog.open import SnapshotFact
from orchestration.runs.partitions import daily_partitions
from orchestration.runs.state.loaded import last_worker_load
from orchestration.worker.mirrors import Mirrors
from orchestration.worker.reports import report_days, report_tables

TABLE, OTHER = ("parsed", "orders"), ("parsed", "current_orders")
KEY, OTHER_KEY = dg.AssetKey(TABLE), dg.AssetKey(OTHER)
DAYS = daily_partitions(date(2026, 11, 24)).get_partition_keys()


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as made:
        yield made


def test_a_load_is_todays_partition_of_what_has_days_and_the_record_of_the_load(instance: dg.DagsterInstance) -> None:
    fact = SnapshotFact(7, datetime.now(UTC), 9, 2)
    report_tables(instance, "load_shop", {TABLE: fact, ("raw_shop", "orders"): fact}, {}, {"a.b": 7}, {TABLE})
    assert instance.get_materialized_partitions(KEY) == {datetime.now(UTC).date().isoformat()}
    assert instance.get_materialized_partitions(dg.AssetKey(["raw_shop", "orders"])) == set()
    load = last_worker_load(instance, "load_shop", [KEY])
    assert load is not None and load.snapshots == {"a.b": 7}


def test_days_without_an_event_are_told_once(instance: dg.DagsterInstance) -> None:
    """An idle table showed a missing partition for each day."""
    instance.report_runless_asset_event(
        dg.AssetMaterialization(KEY, partition="2026-11-25", metadata={"rows_added": 5})
    )
    report_days(instance, "load_shop", [TABLE, OTHER], DAYS, {"a.b": 7})
    first, today = date(2026, 11, 24).toordinal(), datetime.now(UTC).date().toordinal()
    wanted = {date.fromordinal(n).isoformat() for n in range(first, today + 1)}
    for key in (KEY, OTHER_KEY):
        assert instance.get_materialized_partitions(key) == wanted
    load = last_worker_load(instance, "load_shop", [KEY, OTHER_KEY])
    assert load is not None and load.snapshots == {"a.b": 7}

    def events() -> int:
        return sum(len(instance.fetch_materializations(key, limit=99).records) for key in (KEY, OTHER_KEY))

    before = events()
    report_days(instance, "load_shop", [TABLE, OTHER], DAYS, {"a.b": 7})
    assert events() == before == 2 * len(wanted)


def test_a_mirror_is_told_of_once_for_each_state(instance: dg.DagsterInstance, postgres_catalog: LakeCatalog) -> None:
    """Where a follower refreshes them they looked never materialized."""
    postgres_catalog.create_namespace_if_not_exists("mirror_shop")
    rows = pa.table({"id": pa.array([1, 2], pa.int32())})
    tables = [("mirror_shop", "orders"), ("mirror_shop", "lines"), ("mirror_shop", "unmade")]
    orders, _ = (postgres_catalog.create_table(name, rows.schema) for name in tables[:2])

    def told() -> list[tuple[int, str]]:
        found = instance.fetch_materializations(dg.AssetKey(tables[0]), limit=9).records
        made = [record.asset_materialization for record in reversed(found)]
        return [(m.metadata["dagster/row_count"].value, m.metadata["position"].value) for m in made if m]

    def refreshed(mirror: Table, position: str) -> None:
        with mirror.transaction() as same:
            same.append(rows)
            same.set_properties({POSITION: position})

    refreshed(orders, "1:0/10")
    mirrors = Mirrors(instance, postgres_catalog, tables)
    mirrors.report()
    Mirrors(instance, postgres_catalog, tables).report()
    assert told() == [(2, "1:0/10")]
    refreshed(orders, "1:0/20")
    mirrors.report()
    assert told() == [(2, "1:0/10")], "before the pace is over"
    Mirrors(instance, postgres_catalog, tables).report()
    assert told() == [(2, "1:0/10"), (4, "1:0/20")]
    assert instance.fetch_materializations(dg.AssetKey(tables[1]), limit=1).records == []

"""What the worker tells Dagster beside its loads: days in which nothing came, and mirrors that a follower refreshes."""

import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import dagster as dg
import pyarrow as pa
import pytest
from dagster._core.storage.partition_status_cache import get_and_update_asset_status_cache_value
from dagster._core.utils import make_new_run_id
from pyiceberg.table import Table

from lakehouse.catalog.lake_catalog import LakeCatalog
from lakehouse.catalog.open import MIRROR_POSITION, SnapshotFact
from lakehouse.errors import LakehouseError
from lakehouse.settings import load_settings
from orchestration.runs.partitions import FIRST, LAST, daily_partitions
from orchestration.runs.state.behind import left_behind
from orchestration.runs.state.loaded import last_worker_load
from orchestration.runs.tags import BEGUN, INCREMENTAL, MODE, pack_begun
from orchestration.worker.mirrors import Mirrors
from orchestration.worker.plan import Task
from orchestration.worker.reports.events import days_left_failed, report_days, report_tables, told_snapshots
from orchestration.worker.reports.telling import Telling, Told

TABLE, OTHER = ("parsed", "orders"), ("parsed", "current_orders")
KEY, OTHER_KEY = dg.AssetKey(TABLE), dg.AssetKey(OTHER)
FACT = SnapshotFact(7, datetime(2026, 11, 24, tzinfo=UTC), 9, 2)
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
    report_days(instance, "load_shop", {TABLE: FACT, OTHER: None}, DAYS, {"a.b": 7})
    first, today = date(2026, 11, 24).toordinal(), date.fromisoformat(DAYS[-1]).toordinal()  # as of the import
    wanted = {date.fromordinal(n).isoformat() for n in range(first, today + 1)}
    for key in (KEY, OTHER_KEY):
        assert instance.get_materialized_partitions(key) == wanted
    load = last_worker_load(instance, "load_shop", [KEY, OTHER_KEY])
    assert load is not None and load.snapshots == {"a.b": 7}

    def events() -> int:
        return sum(len(instance.fetch_materializations(key, limit=99).records) for key in (KEY, OTHER_KEY))

    [last] = instance.fetch_materializations(KEY, limit=1).records
    assert last.asset_materialization and last.asset_materialization.metadata["dagster/row_count"].value == 9
    assert told_snapshots(instance, [TABLE, OTHER]) == {TABLE: "7"}
    before = events()
    report_days(instance, "load_shop", {TABLE: FACT, OTHER: None}, DAYS, {"a.b": 7})
    assert events() == before == 2 * len(wanted)


def test_a_day_that_a_run_has_left_failed_is_told_of_after_midnight(instance: dg.DagsterInstance) -> None:
    """Yesterday's partition stayed red for ever: the next load is today's."""
    days, works = daily_partitions(date(2026, 11, 24)), [True]

    @dg.asset(key=KEY, partitions_def=days, backfill_policy=dg.BackfillPolicy.single_run())
    def orders() -> None:
        assert works[0]

    def run(first: str, last: str, **more: str) -> None:
        tags = {FIRST: first, LAST: last, **more}
        job = dg.Definitions([orders], jobs=[dg.define_asset_job("load_shop", [orders])]).resolve_job_def("load_shop")
        job.execute_in_process(instance=instance, tags=tags, raise_on_error=False)

    def red() -> set[str]:
        found = get_and_update_asset_status_cache_value(instance, KEY, days)
        assert found is not None
        return set(found.deserialize_failed_partition_subsets(days).get_partition_keys())

    run("2026-11-24", "2026-11-25")
    works[0] = False
    run("2026-11-24", "2026-11-24")
    assert red() == {"2026-11-24"} and days_left_failed(instance, [TABLE]) == {TABLE: []}, "a backfill is not done"
    run("2026-11-24", "2026-11-25", **{MODE: INCREMENTAL})
    assert red() == {"2026-11-24", "2026-11-25"} == set(days_left_failed(instance, [TABLE])[TABLE])
    report_tables(instance, "load_shop", {TABLE: FACT}, {}, {}, [TABLE])
    assert red(), "as it was"
    run("2026-11-24", "2026-11-25", **{MODE: INCREMENTAL})
    report_tables(instance, "load_shop", {TABLE: FACT}, {}, {}, [TABLE], days_left_failed(instance, [TABLE]))
    assert not red() and days_left_failed(instance, [TABLE, ("raw_shop", "orders")]) == {TABLE: []}


def test_many_days_are_told_some_at_a_time(instance: dg.DagsterInstance) -> None:
    """A project that is a year old, and a model that is new in it: the worker loaded nothing until it had told all."""
    days = daily_partitions(date(2026, 1, 1)).get_partition_keys()
    rounds = 0
    while report_days(instance, "load_shop", {TABLE: FACT}, days, {}, time.monotonic() + 0.05):
        rounds += 1
    assert rounds > 1 and instance.get_materialized_partitions(KEY) == set(days)


def test_days_of_many_tables_are_told_however_slow_dagster_is(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each turn began with the first table, so beyond some hundreds the worker told for ever, a quarter of a core."""
    tables = {("parsed", f"t{number}"): FACT for number in range(5)}
    asked = Counter[str]()
    partitions = instance.get_materialized_partitions

    def counted(key: dg.AssetKey) -> set[str]:
        asked[key.path[-1]] += 1
        return partitions(key)

    monkeypatch.setattr(instance, "get_materialized_partitions", counted)
    left, turns = list(tables), 0
    while left:
        left = report_days(instance, "load_shop", dict.fromkeys(left, FACT), DAYS[-1:], {}, 0.0)
        turns += 1
    assert all(partitions(dg.AssetKey(table)) == {DAYS[-1]} for table in tables)
    assert turns == len(tables) and set(asked.values()) == {1}


@pytest.fixture
def telling(instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch) -> Telling:
    """Of a worker that has loaded all there is: a table with rows, and a view of it."""
    names = sorted((TABLE[1], OTHER[1]))
    graph: Any = SimpleNamespace(
        nodes={name: {"schema": "parsed", "alias": name, "resource_type": "model"} for name in names},
        models_of=lambda task, changed, with_views=False: names[not with_views :],
    )
    newest = {".".join(TABLE): FACT}
    monkeypatch.setattr("lakehouse.catalog.open.newest_data_snapshots", lambda catalog, tables: newest)
    monkeypatch.setattr("orchestration.worker.reports.telling.in_cuts", lambda connection, tables: list(tables))
    settings, nothing = load_settings(dagster={"first_day": "2026-11-20"}), cast(Any, None)
    return Telling(settings, instance, nothing, nothing, graph, [])


TASK, LOADED = Task("load_shop", (("raw_shop", "orders"),), source="shop"), {"raw_shop.orders": 2}


def test_what_a_worker_that_was_killed_has_loaded_and_not_told_is_told_by_the_next(
    instance: dg.DagsterInstance, telling: Telling, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows were there, and Dagster showed the table as it had been before, until it changed again."""
    old = SnapshotFact(6, datetime(2026, 11, 23, tzinfo=UTC), 7, 7)
    report_tables(instance, "load_shop", {TABLE: old}, {}, {"raw_shop.orders": 1})
    monkeypatch.setattr("ingestion.source_status", lambda settings, source: SimpleNamespace(lag_seconds=1e6))
    telling.tell(TASK, LOADED, ())
    assert told_snapshots(instance, [TABLE]) == {TABLE: "7"}
    load = last_worker_load(instance, "load_shop", [KEY])
    assert load is not None and load.snapshots == LOADED

    telling.told.clear()
    telling.tell(TASK, {}, ())
    assert len(instance.fetch_materializations(KEY, limit=9).records) == 2


def test_a_table_that_a_run_has_left_behind_is_not_told_as_loaded(
    instance: dg.DagsterInstance, telling: Telling, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At midnight, and by a new worker, each table was told to be there: marts were built of one half of a load."""
    run_id = make_new_run_id()
    run = instance.add_run(dg.DagsterRun("load_shop", run_id, tags={BEGUN: pack_begun(run_id, datetime.now(UTC))}))
    instance.report_run_failed(run)
    monkeypatch.setattr("ingestion.source_status", lambda settings, source: SimpleNamespace(lag_seconds=0.0))
    telling.tell(TASK, LOADED, ())
    assert left_behind(instance, "load_shop", [KEY]).keys() == {KEY}
    report_tables(instance, "load_shop", {TABLE: FACT}, {}, LOADED)
    telling.told.clear()
    telling.tell(TASK, LOADED, ())
    assert instance.get_materialized_partitions(KEY)


@pytest.mark.parametrize("days_behind", [0, 1, 3])
def test_days_until_which_a_source_is_not_read_are_not_told(
    instance: dg.DagsterInstance, telling: Telling, monkeypatch: pytest.MonkeyPatch, days_behind: int
) -> None:
    """With a follower that was dead they were green, and none of their rows was there."""
    status = SimpleNamespace(lag_seconds=days_behind * 86_400.0)
    monkeypatch.setattr("ingestion.source_status", lambda settings, source: status)
    today, told = datetime.now(UTC).date(), Told(caught_up=True)
    telling.told[TASK.job] = told
    _tell_all(telling, told)
    for key in (KEY, OTHER_KEY):
        assert max(instance.get_materialized_partitions(key)) == (today - timedelta(days_behind)).isoformat()
    told.due, status.lag_seconds = 0.0, 0.0
    _tell_all(telling, told)
    assert max(instance.get_materialized_partitions(KEY)) == today.isoformat() and not told.is_left


def test_no_day_is_told_of_what_is_made_of_a_parked_table(
    instance: dg.DagsterInstance, telling: Telling, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its days were green, and none of the source's rows of these days was in raw. They are told once it is back."""
    covered: list[tuple[str, str]] = []
    monkeypatch.setattr("ingestion.source_status", lambda settings, source: SimpleNamespace(lag_seconds=0.0))
    monkeypatch.setattr("orchestration.worker.reports.telling.in_cuts", lambda connection, tables: covered)
    graph: Any = telling._graph
    graph.models_of = lambda task, changed, with_views=False: sorted((TABLE[1], OTHER[1])) if covered else [TABLE[1]]
    monkeypatch.setattr(
        telling, "told", {TASK.job: Told(caught_up=True, left=[TABLE, OTHER], left_until=datetime.now(UTC).date())}
    )
    _tell_all(telling, telling.told[TASK.job])
    assert not instance.get_materialized_partitions(KEY) and instance.get_materialized_partitions(OTHER_KEY)
    covered += TASK.tables
    telling.told[TASK.job] = Told(caught_up=True)  # of the next day, or of another worker
    _tell_all(telling, telling.told[TASK.job])
    assert instance.get_materialized_partitions(KEY) == instance.get_materialized_partitions(OTHER_KEY)


def _tell_all(telling: Telling, told: Told) -> None:
    """However long this machine takes: in one call the worker tells days for two seconds."""
    telling.tell(TASK, LOADED, ())
    while told.is_left:
        telling.tell(TASK, LOADED, ())


def test_of_a_source_that_does_not_answer_no_day_is_told(
    instance: dg.DagsterInstance, telling: Telling, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise LakehouseError("shop is away")

    monkeypatch.setattr("ingestion.source_status", away)
    telling.told[TASK.job] = told = Told(caught_up=True)
    telling.tell(TASK, LOADED, ())
    assert instance.get_materialized_partitions(KEY) == set() and told.until is None
    assert told.due > time.monotonic() + 60


def test_a_source_that_goes_away_before_all_days_are_told_keeps_the_worker_asleep(
    instance: dg.DagsterInstance, telling: Telling, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looked ten times a second whether it is there, for as long as it was away."""

    def away(*_: object) -> None:
        raise LakehouseError("shop is away")

    monkeypatch.setattr("ingestion.source_status", away)
    telling.told[TASK.job] = told = Told(caught_up=True, is_left=True)
    telling.tell(TASK, LOADED, ())
    assert not told.is_left and told.due > time.monotonic() + 60


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
            same.set_properties({MIRROR_POSITION: position})

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

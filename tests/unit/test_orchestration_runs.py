"""Real runs and sensor ticks on an ephemeral instance with a fake lake."""

import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any

import dagster as dg
import pytest

from ingestion.run.reports import Aside, SourceReport, SourceStatus, TableReport
from lakehouse.catalog.open import SnapshotFact
from lakehouse.declarations import Column, RawTable, Source
from lakehouse.declarations.policies import LoadPolicy, RawPolicy
from lakehouse.servers.worker_sessions import Worker
from orchestration.factory import source_definitions
from orchestration.resources import Lake, LakeSpark
from orchestration.runs import tags
from orchestration.runs.partitions import daily_partitions
from orchestration.runs.processes import workers
from orchestration.runs.progress import set_aside
from orchestration.runs.state import load_state
from orchestration.runs.state.history import read_history
from orchestration.runs.state.loaded import last_worker_load, with_worker
from orchestration.sensors.new_data import CannotInspectError
from orchestration.worker.reports.events import report_tables

FIRST_DAY = datetime.now(UTC).date() - timedelta(days=2)
NOW = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
ID = Column(name="id", data_type="bigint", description="")


@dataclass
class World:
    """The contents and the behaviour of the fake lake."""

    snapshots: dict[str, int] = field(default_factory=dict)
    follower_alive: bool = True
    down: str | None = None
    parsed_fails: bool = False
    columns: tuple[tuple[str, str], ...] = (("id", "long"), ("_op", "string"))
    tables: tuple[str, ...] = ("things", "sales")
    brought_up: int = 0
    code: str = "first"
    since: dict[tuple[str, str], int | None] = field(default_factory=dict)
    served: bool = False
    aside: tuple[Aside, ...] = ()
    worker: Worker = "none"


WORLD = World()


class InventedLake(Lake):
    """The fake resource; everything else is production code."""

    def bring_up(self, source: str) -> SourceReport:
        WORLD.brought_up += 1
        tables = tuple(TableReport(name, WORLD.snapshots.get(name), {}, 10, 0, WORLD.columns) for name in WORLD.tables)
        return SourceReport(source, 1, "0/1F5", 500, NOW, tables, WORLD.aside)

    def rows_since(self, tables: Mapping[tuple[str, str], int | None]) -> dict[tuple[str, str], dict[str, int]]:
        WORLD.since = dict(tables)
        return {table: {"c": 2, "d": 1} for table in tables if table[1] != "sales"}

    def code_version(self) -> str:
        return WORLD.code

    def source_status(self, source: str) -> SourceStatus:
        return SourceStatus(source, WORLD.follower_alive, "host:1", 0, True, "0/1F4", 500, NOW, "0/1F5", 500, NOW, 0)

    def worker(self) -> Worker:
        return WORLD.worker

    def is_served(self, job: str) -> bool:
        return WORLD.served

    def is_restless(self) -> bool:
        return False

    def newest_snapshots(self, tables: Iterable[tuple[str, str]]) -> dict[str, SnapshotFact]:
        if WORLD.down:
            raise ConnectionError(WORLD.down)
        known = {".".join(table): WORLD.snapshots.get(table[1]) for table in tables}
        return {name: SnapshotFact(number, NOW, 10, 2) for name, number in known.items() if number is not None}


def table(name: str) -> RawTable:
    return RawTable(
        source="shop", name=name, description=f"All {name}.", columns=(ID,),
        raw=RawPolicy(relation=f"public.{name}", key=("id",)), load=LoadPolicy(), maintenance=None, owners=(),
    )  # fmt: skip


SHOP = Source(name="shop", description="A shop.", load=LoadPolicy(), tables=(table("things"), table("sales")))


@dg.asset(
    key=["parsed", "parsed_shop__things"],
    deps=[["raw_shop", "things"], ["raw_shop", "sales"]],
    group_name="parsed",
    partitions_def=daily_partitions(FIRST_DAY),
    backfill_policy=dg.BackfillPolicy.single_run(),
)
def parsed() -> None:
    if WORLD.parsed_fails:
        raise RuntimeError("dbt says no")


@pytest.fixture(autouse=True)
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    fresh = World()
    monkeypatch.setattr(f"{__name__}.WORLD", fresh)
    monkeypatch.setattr(load_state, "FIRST_WAIT", timedelta(0))
    return fresh


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as ephemeral:
        yield ephemeral


@pytest.fixture(scope="module")
def defs() -> dg.Definitions:
    return dg.Definitions.merge(
        source_definitions(SHOP, FIRST_DAY),
        dg.Definitions(
            assets=[parsed],
            resources={"lake": InventedLake(), "spark": LakeSpark()},
            executor=dg.in_process_executor,
        ),
    )


def tick(defs: dg.Definitions, instance: dg.DagsterInstance, name: str = "new_data_shop") -> dg.RunRequest | str:
    """One evaluation of a sensor: its run request or its skip reason."""
    context = dg.build_sensor_context(
        instance=instance, repository_def=defs.get_repository_def(), resources={"lake": InventedLake()}
    )
    found = defs.get_repository_def().get_sensor_def(name).evaluate_tick(context)
    if not found.run_requests:
        return found.skip_message or ""
    [request] = found.run_requests
    return request


def launch(
    defs: dg.Definitions, instance: dg.DagsterInstance, run_tags: dict[str, str] | None = None, **options: Any
) -> dg.ExecuteInProcessResult:
    job = defs.resolve_job_def("load_shop")
    return job.execute_in_process(instance=instance, tags=run_tags, raise_on_error=False, **options)


def request(defs: dg.Definitions, instance: dg.DagsterInstance) -> dg.RunRequest:
    found = tick(defs, instance)
    assert isinstance(found, dg.RunRequest), found
    return found


def test_a_raw_table_reports_snapshot_rows_lag_and_schema(defs: dg.Definitions, instance: dg.DagsterInstance) -> None:
    WORLD.snapshots = {"things": 2**62 + 1, "sales": 8}
    result = launch(defs, instance)
    events = {event.asset_key: event for event in result.get_asset_materialization_events()}
    metadata = events[dg.AssetKey(["raw_shop", "things"])].materialization.metadata
    assert metadata["snapshot_id"].value == str(2**62 + 1)
    assert metadata["dagster/row_count"].value == 10
    assert (metadata["rows_inserted"].value, metadata["rows_deleted"].value) == (2, 1)
    assert WORLD.since == {("raw_shop", "things"): None, ("raw_shop", "sales"): None}
    sales = events[dg.AssetKey(["raw_shop", "sales"])].materialization.metadata
    assert "rows_inserted" not in sales, "nobody can tell"
    launch(defs, instance)
    assert WORLD.since == {("raw_shop", "things"): 2**62 + 1, ("raw_shop", "sales"): 8}
    assert metadata["lag_bytes"].value == 0
    assert isinstance(metadata["dagster/column_schema"].value, dg.TableSchema)


def test_all_tables_of_a_source_are_brought_up_once(defs: dg.Definitions, instance: dg.DagsterInstance) -> None:
    assert launch(defs, instance).success
    assert WORLD.brought_up == 1


def test_one_raw_table_can_be_materialized_alone(defs: dg.Definitions, instance: dg.DagsterInstance) -> None:
    key = dg.AssetKey(["raw_shop", "sales"])
    job = defs.get_repository_def().get_job("__ASSET_JOB").get_subset(asset_selection={key})
    result = job.execute_in_process(instance=instance)
    assert [event.asset_key for event in result.get_asset_materialization_events()] == [key]


def test_a_column_that_nobody_declared_is_a_warning(defs: dg.Definitions, instance: dg.DagsterInstance) -> None:
    WORLD.columns = (("id", "long"), ("colour", "string"), ("_op", "string"))
    result = launch(defs, instance)
    checks = [c for c in result.get_asset_check_evaluations() if c.check_name == "columns_as_declared"]
    assert result.success and {check.passed for check in checks} == {False}
    assert checks[0].severity is dg.AssetCheckSeverity.WARN
    assert checks[0].metadata["not_declared"].value == "colour"


def test_a_table_that_is_set_aside_fails_its_check_and_the_others_are_loaded(
    defs: dg.Definitions, instance: dg.DagsterInstance
) -> None:
    WORLD.tables = ("things",)
    result = launch(defs, instance)
    assert result.success
    [failed] = [check for check in result.get_asset_check_evaluations() if not check.passed]
    assert (failed.asset_key.path[-1], failed.check_name) == ("sales", "in_the_cut")
    assert failed.severity is dg.AssetCheckSeverity.ERROR and "'sales' is in no cut yet" in str(failed.description)
    assert dg.AssetKey(["parsed", "parsed_shop__things"]) in {
        e.asset_key for e in result.get_asset_materialization_events()
    }


def test_a_table_that_is_set_aside_is_told_at_the_end_with_what_to_do(
    defs: dg.Definitions, instance: dg.DagsterInstance
) -> None:
    """`lakehouse run` said that it had succeeded, with three tables parked."""
    WORLD.tables = ("things",)
    wide = "source 'shop', table 'sales': column v was integer and is text"
    for state, reason, line in (
        ("parked", wide, "shop.sales is parked: column v was integer and is text; then `lakehouse ingest --resume sh"),
        (
            "parked",
            f"{wide}: `lakehouse ingest --resume shop.sales`",
            "is text: `lakehouse ingest --resume shop.sales`",
        ),
        ("new", wide, "shop.sales is new: column v was integer and is text; the next load tries it again"),
        ("paused", "paused by the user", None),
    ):
        WORLD.aside = (Aside("sales", state, reason),)
        found = [each for event in launch(defs, instance).all_events for each in set_aside(event)]
        assert [each.table for each in found] == ["shop.sales"] * (line is not None)
        assert all(line in each.line for each in found if line), found


def test_a_run_in_which_no_table_arrives_fails_and_names_them(
    defs: dg.Definitions, instance: dg.DagsterInstance
) -> None:
    WORLD.tables = ()
    result = launch(defs, instance)
    assert not result.success
    [failure] = [event for event in result.all_events if event.is_step_failure]
    assert "sales, things of shop did not arrive" in str(failure.step_failure_data.user_failure_data)


def test_a_load_is_launched_once_for_new_data(defs: dg.Definitions, instance: dg.DagsterInstance) -> None:
    WORLD.snapshots = {"things": 1}
    assert launch(defs, instance, dict(request(defs, instance).tags)).success
    assert "has loaded the newest data snapshots" in str(tick(defs, instance))
    WORLD.snapshots = {"things": 2}
    assert "raw_shop.things (snapshot 2" in request(defs, instance).tags[tags.WHY]


def test_a_compaction_launches_nothing(defs: dg.Definitions, instance: dg.DagsterInstance) -> None:
    """`newest_snapshots` passes over `replace`, so after a compaction it still names the snapshot that was loaded."""
    WORLD.snapshots = {"things": 1}
    launch(defs, instance, dict(request(defs, instance).tags))
    assert isinstance(tick(defs, instance), str)


def loaded_by_the_worker(instance: dg.DagsterInstance, things: int) -> None:
    """What the worker reports after a load."""
    facts = {("raw_shop", "things"): SnapshotFact(things, NOW, 10, 2)}
    report_tables(instance, "load_shop", facts, {}, {"raw_shop.things": things})


def test_while_a_worker_serves_a_job_its_sensor_leaves_new_data_to_it(
    defs: dg.Definitions, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    WORLD.snapshots, WORLD.served = {"things": 1}, True
    assert launch(defs, instance, dict(request(defs, instance).tags)).success, "a first load is a run"
    WORLD.snapshots = {"things": 2}
    said = str(tick(defs, instance))
    assert "new data in" in said and "a worker is alive and loads new data" in said and "has loaded" not in said
    WORLD.served, WORLD.worker = False, "killed"
    assert "the worker was killed" in str(tick(defs, instance)), "a supervised one is back in seconds"
    monkeypatch.setattr("orchestration.sensors.new_data.RESTART_SECONDS", 0.0)
    assert "snapshot 2" in request(defs, instance).tags[tags.WHY], "the worker died before it loaded this"


def test_what_a_worker_has_loaded_is_not_loaded_by_a_run_again(
    defs: dg.Definitions, instance: dg.DagsterInstance
) -> None:
    WORLD.snapshots = {"things": 1}
    launch(defs, instance, dict(request(defs, instance).tags))
    WORLD.snapshots = {"things": 2}
    loaded_by_the_worker(instance, 2)
    assert "run worker-" in str(tick(defs, instance))
    WORLD.snapshots = {"things": 3}
    assert "snapshot 3" in request(defs, instance).tags[tags.WHY]


def test_tables_that_are_held_back_stay_so_when_the_worker_loads_others(
    defs: dg.Definitions, instance: dg.DagsterInstance
) -> None:
    WORLD.snapshots, WORLD.parsed_fails = {"things": 1}, True
    launch(defs, instance, dict(request(defs, instance).tags))
    loaded_by_the_worker(instance, 1)
    whole = defs.get_repository_def().get_job("load_shop")
    history = read_history(instance, "load_shop", whole)
    merged = with_worker(
        instance, history, last_worker_load(instance, "load_shop", whole.asset_layer.executable_asset_keys)
    )
    assert merged.state.tables == history.state.tables


def test_a_run_that_failed_after_the_worker_had_loaded_is_not_made_up_for(
    defs: dg.Definitions, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that had waited in the queue meanwhile was taken for one before, and so was any by a clock that was ahead."""
    WORLD.snapshots = {"things": 1}
    job, now = defs.resolve_job_def("load_shop"), time.time
    queued = instance.create_run_for_job(job)
    with monkeypatch.context() as ahead:
        ahead.setattr("time.time", lambda: now() + 3600)
        loaded_by_the_worker(instance, 1)
    instance.report_run_failed(queued, "killed")
    load = last_worker_load(instance, "load_shop", job.asset_layer.executable_asset_keys)
    history = with_worker(instance, read_history(instance, "load_shop", job), load)
    assert [run.run_id for run in history.failures] == [queued.run_id]
    loaded_by_the_worker(instance, 1)
    load = last_worker_load(instance, "load_shop", job.asset_layer.executable_asset_keys)
    assert not with_worker(instance, read_history(instance, "load_shop", job), load).failures


def test_a_failed_parsed_step_is_tried_again_although_raw_was_materialized(
    defs: dg.Definitions, instance: dg.DagsterInstance
) -> None:
    """The ancestor's sensors advanced their cursor with the request, so a failed load was never repeated."""
    WORLD.snapshots, WORLD.parsed_fails = {"things": 1}, True
    keys = []
    for _ in range(5):
        asked = request(defs, instance)
        keys.append(asked.run_key)
        assert not launch(defs, instance, dict(asked.tags)).success
    assert len(set(keys)) == 5
    WORLD.parsed_fails = False
    assert launch(defs, instance, dict(request(defs, instance).tags)).success
    assert "has loaded" in str(tick(defs, instance))


def test_what_failed_with_other_code_is_tried_at_once(
    defs: dg.Definitions, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broken model was mended, and nothing ran."""
    WORLD.snapshots, WORLD.parsed_fails = {"things": 1}, True
    monkeypatch.setattr(load_state, "FIRST_WAIT", timedelta(minutes=10))
    launch(defs, instance, dict(request(defs, instance).tags))
    assert "has failed, next attempt in 9 min" in str(tick(defs, instance))
    WORLD.code = "mended"
    assert request(defs, instance).tags[tags.CODE] == "mended"


def test_a_run_that_was_killed_before_a_step_failed_is_known_as_such(
    defs: dg.Definitions, instance: dg.DagsterInstance
) -> None:
    WORLD.snapshots, WORLD.parsed_fails = {"things": 1}, True
    job = defs.get_repository_def().get_job("load_shop")
    launch(defs, instance, dict(request(defs, instance).tags))
    run = instance.create_run_for_job(job, status=dg.DagsterRunStatus.STARTING)
    instance.report_run_failed(run, "the code server did not answer")
    assert [past.failed_in_step for past in read_history(instance, job.name, job).failures] == [False, True]


def test_a_run_by_hand_clears_the_failures(defs: dg.Definitions, instance: dg.DagsterInstance) -> None:
    WORLD.snapshots, WORLD.parsed_fails = {"things": 1}, True
    for _ in range(3):
        launch(defs, instance, dict(request(defs, instance).tags))
    WORLD.parsed_fails = False
    assert launch(defs, instance).success
    assert "has loaded" in str(tick(defs, instance))


def test_a_run_of_part_of_the_job_does_not_count(defs: dg.Definitions, instance: dg.DagsterInstance) -> None:
    WORLD.snapshots = {"things": 1}
    raw = [dg.AssetKey(["raw_shop", "things"]), dg.AssetKey(["raw_shop", "sales"])]
    assert launch(defs, instance, asset_selection=raw).success
    assert isinstance(tick(defs, instance), dg.RunRequest)


def test_what_arrives_during_a_run_is_loaded_by_the_next(defs: dg.Definitions, instance: dg.DagsterInstance) -> None:
    WORLD.snapshots = {"things": 1}
    asked = request(defs, instance)
    WORLD.snapshots = {"things": 2}
    run = launch(defs, instance, dict(asked.tags))
    recorded = instance.get_run_by_id(run.run_id)
    assert recorded is not None and tags.unpack_snapshots(recorded.tags[tags.SNAPSHOTS]) == {"raw_shop.things": 2}


def test_nothing_is_launched_beside_a_run_that_is_about_to_start(
    defs: dg.Definitions, instance: dg.DagsterInstance
) -> None:
    WORLD.snapshots = {"things": 1}
    instance.create_run_for_job(defs.resolve_job_def("load_shop"), status=dg.DagsterRunStatus.NOT_STARTED)
    assert "is NOT_STARTED" in str(tick(defs, instance))


def test_a_run_whose_process_is_gone_is_failed_rather_than_waited_for(
    defs: dg.Definitions, instance: dg.DagsterInstance
) -> None:
    WORLD.snapshots = {"things": 1}
    gone = f"{socket.gethostname()}:1:12345"
    run = instance.create_run_for_job(
        defs.resolve_job_def("load_shop"), status=dg.DagsterRunStatus.STARTED, tags={workers.TAG: gone}
    )
    assert isinstance(tick(defs, instance), dg.RunRequest)
    recorded = instance.get_run_by_id(run.run_id)
    assert recorded is not None and recorded.status is dg.DagsterRunStatus.FAILURE


def test_a_dead_run_of_another_job_is_failed_too(defs: dg.Definitions, instance: dg.DagsterInstance) -> None:
    """It would hold the pool that this job waits for."""
    gone = {workers.TAG: f"{socket.gethostname()}:1:12345"}
    dead = dg.DagsterRun(job_name="reconcile_shop", status=dg.DagsterRunStatus.STARTED, tags=gone)
    instance.add_run(dead)
    tick(defs, instance)
    recorded = instance.get_run_by_id(dead.run_id)
    assert recorded is not None and recorded.status is dg.DagsterRunStatus.FAILURE


@pytest.mark.parametrize(
    ("steps", "resumed", "counts"),
    [
        (["raw_shop"], False, False),
        (["raw_shop", "parsed__parsed_shop__things"], False, True),
        (["parsed__parsed_shop__things"], True, True),
    ],
)
def test_a_run_of_chosen_steps_is_no_load_and_one_from_the_failed_step_on_is(
    defs: dg.Definitions, instance: dg.DagsterInstance, steps: list[str], resumed: bool, counts: bool
) -> None:
    job = defs.get_repository_def().get_job("load_shop")
    WORLD.snapshots = {"things": 1}
    run = dg.DagsterRun(
        job_name=job.name, status=dg.DagsterRunStatus.SUCCESS, step_keys_to_execute=steps,
        tags={tags.SNAPSHOTS: tags.pack_snapshots(InventedLake().newest_snapshots([("raw_shop", "things")]))}
        | ({"dagster/is_resume_retry": "true"} if resumed else {}),
    )  # fmt: skip
    instance.add_run(run)
    assert (read_history(instance, job.name, job).last_load is not None) == counts


@pytest.mark.parametrize(
    "mark", [None, "another-host:1:12345", workers.worker()], ids=["none", "of another host", "mine"]
)
def test_a_run_that_may_still_live_is_left_alone(
    defs: dg.Definitions, instance: dg.DagsterInstance, mark: str | None
) -> None:
    WORLD.snapshots = {"things": 1}
    run_tags = {workers.TAG: mark} if mark else {}
    instance.create_run_for_job(defs.resolve_job_def("load_shop"), status=dg.DagsterRunStatus.STARTED, tags=run_tags)
    assert "is STARTED" in str(tick(defs, instance))


def test_a_lake_that_does_not_answer_fails_the_tick_in_one_line(
    defs: dg.Definitions, instance: dg.DagsterInstance
) -> None:
    WORLD.down = "connection refused\n  and many more lines"
    with pytest.raises(CannotInspectError) as failed:
        tick(defs, instance)
    assert str(failed.value) == "cannot inspect source shop: ConnectionError: connection refused"


def test_a_load_marks_the_days_since_the_last_one_and_a_backfill_the_day_asked_for(
    defs: dg.Definitions, instance: dg.DagsterInstance
) -> None:
    WORLD.snapshots = {"things": 1}
    today = datetime.now(UTC).date()
    first = launch(defs, instance, dict(request(defs, instance).tags))
    assert _days(first) == [today], "there was nothing on the days before"
    WORLD.snapshots = {"things": 2}
    assert _days(launch(defs, instance, dict(request(defs, instance).tags))) == [today]
    assert _days(launch(defs, instance, partition_key=FIRST_DAY.isoformat())) == [FIRST_DAY]


def _days(result: dg.ExecuteInProcessResult) -> list[date]:
    found = [event.partition for event in result.get_asset_materialization_events() if event.partition]
    return sorted(date.fromisoformat(day) for day in found)

"""Dagster as the watch sees it: written by Dagster into its database, read from outside."""

import json
import shutil
import time
from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from socket import gethostname
from typing import Any

import dagster as dg
import psycopg
import pytest
from dagster._core.definitions.run_request import InstigatorType
from dagster._core.events import EngineEventData
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteInstigatorOrigin, RemoteRepositoryOrigin
from dagster._core.scheduler.instigation import (
    InstigatorState,
    InstigatorStatus,
    ScheduleInstigatorData,
    TickData,
    TickStatus,
)
from dagster._core.storage.tags import BACKFILL_ID_TAG, GRPC_INFO_TAG
from dagster._daemon.types import DaemonHeartbeat
from dagster_shared.error import SerializableErrorInfo

from lakehouse.catalog.open import SnapshotFact
from lakehouse.declarations import Declarations, declarations_from
from lakehouse.declarations.dbt.manifest import load_manifest
from lakehouse.declarations.policies import LoadPolicy
from lakehouse.metrics import REGISTRY
from lakehouse.settings import Settings, load_settings
from lakehouse_stack.home.instance import with_driver
from lakehouse_watch.alerts import Occasion, State, advance
from lakehouse_watch.probes import dagster_state
from lakehouse_watch.probes.dagster_state import (
    CHECKED_SECONDS,
    _checks_failed,
    _evaluation,
    judge_heartbeat,
    read_checks,
    read_runs,
)
from lakehouse_watch.probes.limits import declared_still
from lakehouse_watch.probes.still_there import Declared, declared_in
from orchestration.assets.dbt_assets import CHECKS_ALONE
from orchestration.runs import tags
from orchestration.runs.partitions import FIRST, LAST, PARTITION
from orchestration.runs.processes import workers
from orchestration.runs.processes.cancel import cancel_runs_of
from orchestration.runs.state.evaluations import newest_evaluations
from orchestration.runs.state.load_state import HeldTable, LoadState, pack_state
from orchestration.runs.subset import failing_checks
from orchestration.worker.reports.events import report_tables
from tests.unit.throwaway_postgres import throwaway_postgres

BROKEN = {"orders": True, "check": True}


@dg.asset(key=["raw_shop", "orders"])
def orders() -> None:
    if BROKEN.get("interrupted"):
        raise dg.DagsterExecutionInterruptedError
    if BROKEN["orders"]:
        try:
            raise ValueError("slot is lost\nand more")
        except ValueError as error:
            raise RuntimeError("wrapped") from error


@dg.asset(key=["vault", "hub_store"])
def hub() -> None:
    return


@dg.asset_check(asset=hub, name="unique_key")
def unique() -> dg.AssetCheckResult:
    return dg.AssetCheckResult(passed=not BROKEN["check"], description="3 rows: a, b, c")


@dg.asset_check(asset=hub, name="lag_within_limits")
def lag() -> dg.AssetCheckResult:
    return dg.AssetCheckResult(passed=False)


DEFS = dg.Definitions(
    assets=[orders, hub],
    asset_checks=[unique, lag],
    jobs=[dg.define_asset_job("load_shop", [orders]), dg.define_asset_job("load_vault", dg.AssetSelection.assets(hub))],
    executor=dg.in_process_executor,
)


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    with throwaway_postgres() as url:
        yield load_settings(home=tmp_path_factory.mktemp("home"), dagster={"storage_url": url})


@pytest.fixture
def instance(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dg.DagsterInstance]:
    assert settings.dagster.storage_url is not None
    url = settings.dagster.storage_url.get_secret_value()
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute("DROP SCHEMA public CASCADE")
        admin.execute("CREATE SCHEMA public")
    storage = f"storage: {{postgres: {{postgres_url: '{with_driver(url)}'}}}}\ntelemetry: {{enabled: false}}\n"
    (tmp_path / "dagster.yaml").write_text(storage)
    monkeypatch.setattr(dagster_state, "_seen_runs", set())
    monkeypatch.setattr(dagster_state, "_failing", {})
    with dg.DagsterInstance.from_config(str(tmp_path)) as made:
        yield made


def run(instance: dg.DagsterInstance, job: str, **broken: bool) -> str:
    BROKEN.update({"orders": False, "check": False, "interrupted": False} | broken)
    return DEFS.resolve_job_def(job).execute_in_process(instance=instance, raise_on_error=False).run_id


def by_key(occasions: tuple[Occasion, ...]) -> dict[str, Occasion]:
    return {occasion.key: occasion for occasion in occasions}


def test_a_database_that_dagster_never_used_has_nothing_to_tell(settings: Settings) -> None:
    assert read_runs(settings).occasions == read_checks(settings).occasions == ()


def test_a_failed_job_is_told_with_its_cause_until_it_succeeds(
    instance: dg.DagsterInstance, settings: Settings
) -> None:
    run(instance, "load_shop")
    assert not read_runs(settings).occasions
    run(instance, "load_shop", orders=True)
    run(instance, "load_shop", orders=True)
    run(instance, "load_vault")
    reading = read_runs(settings)
    [failed] = reading.occasions
    assert failed.key == "run/load_shop" and failed.summary.endswith(
        "of load_shop has failed: ValueError: slot is lost and more"
    )
    failures = {s.labels: s.value for s in reading.samples if s.name == "lakehouse_job_failures"}
    assert failures == {(("job", "load_shop"),): 2, (("job", "load_vault"),): 0}
    run(instance, "load_shop")
    reading = read_runs(settings)
    assert not reading.occasions
    ended = [s.value for s in reading.samples if s.name == "lakehouse_job_last_success_timestamp_seconds"]
    assert len(ended) == 2 and all(time.time() - 60 < value <= time.time() for value in ended)


def test_a_failed_load_is_over_when_the_worker_has_loaded_the_table(
    instance: dg.DagsterInstance, settings: Settings
) -> None:
    """It does so without a run, and while it lives no run clears the alert."""
    hub = {("vault", "hub_store"): SnapshotFact(5, datetime.now(UTC), 10, 2)}
    report_tables(instance, "load_shop", hub, {}, {"raw_shop.orders": 6})
    run(instance, "load_shop", orders=True)
    report_tables(instance, "load_other", hub, {}, {"raw_shop.orders": 7})
    report_tables(instance, "load_shop", hub, {}, {})  # some of it: the load has failed
    assert [occasion.key for occasion in read_runs(settings).occasions] == ["run/load_shop"]
    report_tables(instance, "load_shop", hub, {}, {"raw_shop.orders": 7})
    assert not read_runs(settings).occasions


def test_a_failed_load_is_not_over_while_runs_of_the_other_tables_succeed(
    instance: dg.DagsterInstance, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next run leaves out what has failed, by design, and succeeds: the alert ended and began with each retry."""
    monkeypatch.setattr(dagster_state, "RECENT_RUNS", 3)

    def ended(succeeds: bool, left: Mapping[str, int]) -> None:
        made = run(instance, "load_shop", orders=not succeeds)
        held = {table: HeldTable(tries, datetime.now(UTC), None) for table, tries in left.items()}
        instance.add_run_tags(made, {tags.HELD: pack_state(LoadState(made, None, held))})

    def told() -> list[str]:
        return [f"{found.summary}; {found.to_do}" for found in read_runs(settings).occasions]

    def failures() -> list[float]:
        return [s.value for s in read_runs(settings).samples if s.name == "lakehouse_job_failures"]

    ended(True, {"vault.hub_other": 0})
    assert not told() and failures() == [0], "what waits for others has not failed"
    ended(False, {"vault.hub_store": 1, "vault.hub_other": 0})
    [first] = told()
    assert first.endswith("left behind until then: vault.hub_store")
    ended(True, {"vault.hub_store": 1})
    assert told() == [first] and failures() == [1]
    ended(False, {"vault.hub_store": 2})
    assert len(told()) == 1 and failures() == [2]
    for _ in range(dagster_state.RECENT_RUNS):
        ended(True, {"vault.hub_store": 2})
    assert len(told()) == 1 and failures() == [1], "the failure itself is long ago"
    ended(True, {})
    assert not told() and failures() == [0]


def test_a_load_of_the_worker_is_no_end_of_what_it_has_not_loaded(
    instance: dg.DagsterInstance, settings: Settings
) -> None:
    """A table that had failed in a run counted as loaded once anything else was."""
    failed, fact = run(instance, "load_shop", orders=True), SnapshotFact(5, datetime.now(UTC), 10, 2)
    held = {"vault.hub_store": HeldTable(1, datetime.now(UTC), None)}
    instance.add_run_tags(failed, {tags.HELD: pack_state(LoadState(failed, None, held))})
    report_tables(instance, "load_shop", {("raw_shop", "orders"): fact}, {}, {"raw_shop.orders": 7})
    assert [occasion.key for occasion in read_runs(settings).occasions] == ["run/load_shop"]
    report_tables(instance, "load_shop", {("vault", "hub_store"): fact}, {}, {"raw_shop.orders": 7})
    assert not read_runs(settings).occasions


def test_a_run_from_the_asset_graph_is_told_where_it_has_left_tables_half_loaded(
    instance: dg.DagsterInstance, settings: Settings
) -> None:
    """Marts of them wait, and no sensor retries it."""

    @dg.multi_asset(specs=[dg.AssetSpec(["parsed", "good"]), dg.AssetSpec(["vault", "bad"])])
    def tables(context: dg.AssetExecutionContext) -> Iterator[dg.MaterializeResult[None]]:
        if begins:
            begun = tags.pack_begun(context.run.run_id, datetime.now(UTC))
            context.instance.add_run_tags(context.run.run_id, {tags.BEGUN: begun})
        yield dg.MaterializeResult(["parsed", "good"])
        raise RuntimeError("killed")

    job, begins = dg.Definitions([tables]).get_repository_def().get_job(dagster_state.BY_HAND), False
    job.execute_in_process(instance=instance, raise_on_error=False)
    assert not read_runs(settings).occasions, "whoever did it looks at it"
    begins = True
    job.execute_in_process(instance=instance, raise_on_error=False)
    [left] = read_runs(settings).occasions
    assert left.key == "run/asset_graph" and "of the asset graph has failed: RuntimeError: killed" in left.summary
    assert left.to_do.endswith("left behind until then: vault.bad")
    report_tables(instance, "load_shop", {("vault", "bad"): None}, {}, {})
    assert not read_runs(settings).occasions


def test_a_failed_backfill_is_told_until_its_days_are_derived(
    instance: dg.DagsterInstance, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was over with the next load, a minute later, which derives none of them."""
    load = DEFS.resolve_job_def("load_shop")

    def ended(status: dg.DagsterRunStatus, **run_tags: str) -> str:
        return instance.create_run_for_job(load, status=status, tags=run_tags).run_id

    def told() -> dict[str, str]:
        return {occasion.key: occasion.summary for occasion in read_runs(settings).occasions}

    failed, success = dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.SUCCESS
    backfill, first, last = {BACKFILL_ID_TAG: "abc"}, {FIRST: "2026-05-01"}, {LAST: "2026-05-20"}
    ended(failed, **{PARTITION: "2026-04-30"}, **backfill)
    newest = ended(failed, **first, **last, **backfill)
    for days in ({PARTITION: "2026-05-02"}, {FIRST: "2026-01-01", LAST: "2026-12-31", tags.MODE: tags.INCREMENTAL}):
        ended(success, **days)
        assert told() == {
            "run/load_shop/backfill": "the backfill of 2026-04-30, 2026-05-01 to 2026-05-20: "
            f"run {newest[:8]} of load_shop has failed: without a message"
        }
    ended(success, **first, **{LAST: "2026-05-31"})
    assert told()["run/load_shop/backfill"].startswith("the backfill of 2026-04-30: run")
    ended(success, **{PARTITION: "2026-04-30"}, **backfill)
    assert told() == {}
    ended(failed, **first, **last, **backfill)
    nothing = frozenset[str]()
    monkeypatch.setattr(dagster_state, "declared_still", lambda _: Declared(nothing, nothing, frozenset()))
    assert told() == {}, "the project has the job no more"


def test_a_run_that_could_not_start_is_told(instance: dg.DagsterInstance, settings: Settings) -> None:
    started = instance.create_run_for_job(DEFS.resolve_job_def("load_shop"), status=dg.DagsterRunStatus.STARTING)
    instance.report_run_failed(started, "the code server did not answer")
    [failed] = read_runs(settings).occasions
    assert "of load_shop has failed: the code server did not answer" in failed.summary


def test_a_run_whose_code_does_not_load_is_told_with_the_reason(
    instance: dg.DagsterInstance, settings: Settings
) -> None:
    """No step of it has failed, and it was told without a message."""
    started = instance.create_run_for_job(DEFS.resolve_job_def("load_shop"), status=dg.DagsterRunStatus.STARTING)
    reason = SerializableErrorInfo("lakehouse.errors.LakehouseError: shop.yml:7: no such model\n", [], "LakehouseError")
    loading = SerializableErrorInfo("DagsterImportError: could not load\n", [], "DagsterImportError", cause=reason)
    instance.report_engine_event("Started process for run (pid: 7).", started, EngineEventData.in_process(7))
    instance.report_engine_event("Could not load job definition.", started, EngineEventData.engine_error(loading))
    instance.report_run_failed(started)
    [failed] = read_runs(settings).occasions
    assert failed.summary.endswith("of load_shop has failed: shop.yml:7: no such model")


@pytest.mark.parametrize(
    ("message", "cause", "says"),
    [
        (
            "User code server request timed out due to taking longer than 60 seconds to complete.",
            "DEADLINE_EXCEEDED",
            "did not answer within 60 s",
        ),
        ("Could not reach user code server. gRPC Error code: UNAVAILABLE", "UNAVAILABLE", "cannot be reached"),
    ],
)
def test_a_launch_that_nobody_answers_is_told_in_plain_words(
    instance: dg.DagsterInstance, settings: Settings, message: str, cause: str, says: str
) -> None:
    """What gRPC says of itself was the text of the alert."""
    rpc = f"grpc._channel._InactiveRpcError: <_InactiveRpcError of RPC that terminated with:\n\tstatus = {cause}\n>"
    error = SerializableErrorInfo(
        f"dagster._core.errors.DagsterUserCodeUnreachableError: {message}\n", [], "DagsterUserCodeUnreachableError",
        cause=SerializableErrorInfo(rpc, [], "_InactiveRpcError"),
    )  # fmt: skip
    started = instance.create_run_for_job(DEFS.resolve_job_def("load_shop"), status=dg.DagsterRunStatus.STARTING)
    failed = "Caught an unrecoverable error while dequeuing the run. Marking the run as failed"
    instance.report_engine_event(failed, started, EngineEventData.engine_error(error))
    instance.report_run_failed(started)
    [told] = read_runs(settings).occasions
    assert told.summary == (
        f"run {started.run_id[:8]} of load_shop was not started, and a load is tried again within minutes: "
        f"Dagster's code server {says}"
    )


def test_an_interrupted_run_is_told_without_the_name_of_a_class(
    instance: dg.DagsterInstance, settings: Settings
) -> None:
    run(instance, "load_shop", interrupted=True)
    [failed] = read_runs(settings).occasions
    assert failed.summary.endswith("of load_shop has failed: it was interrupted: its process was asked to end")


def test_the_runs_of_a_lakehouse_dev_that_ends_are_canceled_and_no_failures(
    instance: dg.DagsterInstance, settings: Settings, tmp_path: Path
) -> None:
    """Whoever pressed Ctrl-C during a load was told at the next start that it had failed."""
    folder, theirs = tmp_path / "dev", tmp_path / "other"

    def under_way(socket: Path | None, status: dg.DagsterRunStatus = dg.DagsterRunStatus.STARTED) -> str:
        info = {GRPC_INFO_TAG: json.dumps({"host": "localhost", "socket": str(socket)})} if socket else {}
        gone = {workers.TAG: f"{gethostname()}:{2**22 + 1}:1"}
        made = instance.create_run_for_job(DEFS.resolve_job_def("load_shop"), status=status, tags={**info, **gone})
        return made.run_id

    mine, starting = under_way(folder / "code0.sock"), under_way(folder / "code0.sock", dg.DagsterRunStatus.STARTING)
    others = [under_way(theirs / "code0.sock"), under_way(None)]
    ended = under_way(folder / "code0.sock", dg.DagsterRunStatus.SUCCESS)

    told = cancel_runs_of(tmp_path, folder)

    def status(run_id: str) -> str:
        found = instance.get_run_by_id(run_id)
        assert found is not None
        return found.status.value

    assert sorted(told) == sorted(f"run {run_id[:8]} of load_shop" for run_id in (mine, starting))
    assert [status(run_id) for run_id in (mine, starting)] == ["CANCELING"] * 2, "its code server is gone already"
    assert [status(run_id) for run_id in (*others, ended)] == ["STARTED", "STARTED", "SUCCESS"]
    workers.fail_orphaned_runs(instance)
    assert [status(run_id) for run_id in (mine, starting)] == ["CANCELED"] * 2
    assert [status(run_id) for run_id in others] == ["FAILURE"] * 2, "nobody has ended these in order"
    for run_id in others:
        instance.delete_run(run_id)
    assert not read_runs(settings).occasions


def test_durations_are_counted_from_the_second_look_on(instance: dg.DagsterInstance, settings: Settings) -> None:
    def counted() -> int:
        lines = REGISTRY.render().splitlines()
        return sum(
            int(line.split()[-1]) for line in lines if line.startswith('lakehouse_load_seconds_count{job="load_vault"')
        )

    run(instance, "load_vault")
    before = counted()
    read_runs(settings)
    assert counted() == before
    run(instance, "load_vault")
    read_runs(settings)
    read_runs(settings)
    assert counted() == before + 1


def test_failed_checks_are_told_by_table_until_they_pass(instance: dg.DagsterInstance, settings: Settings) -> None:
    """One message for a table, however many of its checks fail; lag is judged by the watch itself."""
    run(instance, "load_vault", check=True)
    reading = read_checks(settings)
    [failed] = reading.occasions
    assert failed.key == "check/vault.hub_store" and failed.severity == "error"
    assert failed.summary == "checks of vault.hub_store have failed: unique_key (3 rows)"
    assert "marts that are made of it keep their last sound state" in failed.to_do
    run(instance, "load_vault")
    assert not read_checks(settings).occasions


@dg.asset(key=["marts", "orders"], check_specs=[dg.AssetCheckSpec("unique_id", asset=["marts", "orders"])])
def mart() -> Iterator[dg.AssetCheckResult]:
    """Refused by its test, as a run of dbt says it; or by something else as well."""
    yield dg.AssetCheckResult(passed=not BROKEN["check"], description="2 values")
    refused = {CHECKS_ALONE: ["marts.orders/unique_id"]} if not BROKEN["orders"] else {}
    raise dg.Failure("test unique of marts.orders.id found 2 failing values", metadata=refused)


MARTS = dg.Definitions(
    assets=[mart], jobs=[dg.define_asset_job("build_marts", [mart])], executor=dg.in_process_executor
)


def test_a_mart_that_its_tests_refuse_is_one_message(
    instance: dg.DagsterInstance, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was told as a failed run and as a failed check. What else makes a run fail is told beside its checks."""

    def build(**broken: bool) -> None:
        BROKEN.update({"orders": False, "check": False} | broken)
        MARTS.resolve_job_def("build_marts").execute_in_process(instance=instance, raise_on_error=False)

    def told() -> list[tuple[str, float]]:
        found = [occasion for reading in (read_runs, read_checks) for occasion in reading(settings).occasions]
        return [(occasion.key, occasion.patience) for occasion in found]

    build(check=True)
    assert told() == [("check/marts.orders", 0)]
    with monkeypatch.context() as changed:
        there = Declared(frozenset(), frozenset(["build_marts"]), frozenset())
        changed.setattr(dagster_state, "declared_still", lambda _: there)
        assert told() == [("run/build_marts", CHECKED_SECONDS)], "nobody tells of a check that the project has no more"
    passed = dg.AssetCheckEvaluation(asset_key=mart.key, check_name="unique_id", passed=True)
    instance.report_runless_asset_event(passed)
    assert told() == [("run/build_marts", CHECKED_SECONDS)], "where no run comes to its end, it is told after a while"
    build(check=True, orders=True)
    assert told() == [("run/build_marts", 0), ("check/marts.orders", 0)]


def test_what_the_project_has_no_more_is_told_no_more(
    instance: dg.DagsterInstance, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing evaluates a test that was mended under another name, nor runs the job of a source that is removed."""
    run(instance, "load_vault", check=True)
    run(instance, "load_shop", orders=True)

    def told(jobs: Collection[str], checks: Collection[tuple[str, str]]) -> list[str]:
        there = Declared(frozenset(), frozenset(jobs), frozenset(checks))
        monkeypatch.setattr(dagster_state, "declared_still", lambda settings: there)
        return [occasion.key for reading in (read_runs, read_checks) for occasion in reading(settings).occasions]

    assert told(["load_shop"], [("vault.hub_store", "unique_key")]) == ["run/load_shop", "check/vault.hub_store"]
    assert told(["load_shop_orders", "build_marts"], [("vault.hub_store", "unique_hk_store")]) == []


def test_each_check_and_job_of_the_project_is_known(home: Path, defs: dg.Definitions) -> None:
    """One that is not would never be told."""
    there = declared_still(load_settings(home=home))
    assert there is not None
    checks = {(".".join(key.asset_key.path), key.name) for key in defs.resolve_asset_graph().asset_check_keys}
    assert {name for _, name in checks} >= {
        "in_the_cut",
        "erasures_hold",
        "at_the_newest_cut",
        "reconciles_with_source",
    }
    assert {check for check in checks if check[1] != "lag_within_limits"} <= there.checks
    assert ("raw_retail.stores", "read_by_a_model") not in there.checks, "its models were written since"
    jobs = {job.name for job in defs.resolve_all_job_defs()}
    assert {job for job in jobs if not there.has_job(job)} == set() and there.jobs <= jobs


def test_a_job_of_pins_or_marts_that_the_project_has_no_more_is_known_to_be_gone(home: Path, tmp_path: Path) -> None:
    """Its last run had failed, and no other one came: the alert stayed for ever."""
    manifest = load_manifest(load_settings(home=home))
    shutil.copy(load_settings().dbt_project_dir / "dbt_project.yml", tmp_path)
    declared, project = Declarations(sources=()), tmp_path / "dbt_project.yml"
    there = declared_in(manifest, declared, tmp_path)
    assert there.has_job("build_marts") and there.has_job("maintain") and not there.has_job("pin_month_end")
    month_end = "pins: {month_end: {cron: '0 0 1 * *', keep_days: 400}}"
    project.write_text(project.read_text().replace("vars:\n", f"vars:\n  {month_end}\n"))
    marts = [key for key, node in manifest["nodes"].items() if "marts" in node["tags"]]
    left = {key: node for key, node in manifest["nodes"].items() if key not in marts}
    there = declared_in({**manifest, "nodes": left}, declared, tmp_path)
    assert there.has_job("pin_month_end") and not there.has_job("pin_quarter") and not there.has_job("build_marts")
    assert not there.has_job("load_shop") and not there.has_job("reconcile_shop")


def test_a_sensor_that_dagster_has_never_seen_is_told_while_its_daemon_lives(
    instance: dg.DagsterInstance, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first marts of a project were in no job until somebody had the code location reloaded, and nobody said so."""
    there = Declared(frozenset(), frozenset(), frozenset(), frozenset({"new_data_shop", "new_data_marts"}))
    monkeypatch.setattr(dagster_state, "declared_still", lambda settings: there)

    def seen(name: str) -> None:
        repository = RemoteRepositoryOrigin(RegisteredCodeLocationOrigin("lakehouse"), "__repository__")
        origin = RemoteInstigatorOrigin(repository, f"new_data_{name}")
        instance.add_instigator_state(InstigatorState(origin, InstigatorType.SENSOR, InstigatorStatus.DECLARED_IN_CODE))

    seen("shop")
    assert not read_runs(settings).occasions, "nobody runs Dagster"
    instance.add_daemon_heartbeat(DaemonHeartbeat(time.time(), "SENSOR", "id", None))
    [unknown] = read_runs(settings).occasions
    assert unknown.key == "code/project" and unknown.summary.startswith("Dagster does not know new_data_marts: ")
    seen("marts")
    assert not read_runs(settings).occasions


def test_a_schedule_that_dagster_does_not_know_is_told_and_the_failure_of_one_that_is_gone_is_not(
    instance: dg.DagsterInstance, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pin that was declared since Dagster had loaded the project was never made, and nobody said so."""
    nothing = frozenset[Any]()
    there = Declared(nothing, nothing, nothing, schedules=frozenset({"pin_month"}))
    monkeypatch.setattr(dagster_state, "declared_still", lambda settings: there)
    repository = RemoteRepositoryOrigin(RegisteredCodeLocationOrigin("lakehouse"), "__repository__")
    instance.add_daemon_heartbeat(DaemonHeartbeat(time.time(), "SCHEDULER", "id", None))
    error = SerializableErrorInfo("RuntimeError: no", [], "RuntimeError")
    for name in ("pin_gone", "of_my_own"):
        instance.create_tick(
            TickData(
                name, name, InstigatorType.SCHEDULE, TickStatus.FAILURE, time.time(), error=error, selector_id=name
            )
        )
    found = by_key(read_runs(settings).occasions)
    assert list(found) == ["sensor/of_my_own", "code/project"]
    assert found["code/project"].summary.startswith("Dagster does not know pin_month: ")
    origin, known = RemoteInstigatorOrigin(repository, "pin_month"), InstigatorStatus.DECLARED_IN_CODE
    sensor = InstigatorState(origin, InstigatorType.SENSOR, known)
    instance.add_instigator_state(sensor)
    assert "code/project" in by_key(read_runs(settings).occasions), "a sensor is no schedule"
    instance.delete_instigator_state(sensor.instigator_origin_id, sensor.selector_id)
    data = ScheduleInstigatorData("0 0 1 * *", time.time())
    instance.add_instigator_state(InstigatorState(origin, InstigatorType.SCHEDULE, known, data))
    assert list(by_key(read_runs(settings).occasions)) == ["sensor/of_my_own"]


def test_each_schedule_that_runs_unless_it_is_turned_off_is_known(
    home: Path, defs: dg.Definitions, tmp_path: Path
) -> None:
    there = declared_still(load_settings(home=home))
    assert there is not None
    schedules = defs.get_repository_def().schedule_defs
    assert there.schedules == {s.name for s in schedules if s.default_status == dg.DefaultScheduleStatus.RUNNING}
    assert all(there.has_schedule(schedule.name) for schedule in schedules)
    manifest = load_manifest(load_settings(home=home))
    shutil.copy(load_settings().dbt_project_dir / "dbt_project.yml", tmp_path)
    project = tmp_path / "dbt_project.yml"
    project.write_text(
        project.read_text().replace("vars:\n", "vars:\n  pins: {month: {cron: '0 0 1 * *', keep_days: 9}}\n")
    )
    source = declarations_from(manifest, load_settings().dbt_project_dir).sources[0]
    by_cron = LoadPolicy.model_validate({"trigger": {"cron": "0 3 * * *"}})
    tables = tuple(table.model_copy(update={"load": by_cron}) for table in source.tables)
    found = declared_in(manifest, Declarations(sources=(source.model_copy(update={"tables": tables}),)), tmp_path)
    assert {f"load_{source.name}_schedule", "pin_month"} <= found.schedules and found.sensors == {"new_data_marts"}
    assert not found.has_schedule("pin_week") and not found.has_schedule("maintain_gone")


def test_each_sensor_that_starts_a_load_is_known_by_the_name_that_it_has(home: Path, defs: dg.Definitions) -> None:
    there = declared_still(load_settings(home=home))
    assert there is not None
    names = {sensor.name for sensor in defs.get_repository_def().sensor_defs}
    assert there.sensors == {name for name in names if name.startswith("new_data_")}


def test_what_runs_once_a_night_has_failed_until_it_succeeds_however_much_runs_meanwhile(
    instance: dg.DagsterInstance, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was told to be over in the morning, when enough loads and tests had run."""
    for name, few in {"RECENT_RUNS": 2, "LATE_EVENTS": 2, "RECENT_TICKS": 2}.items():
        monkeypatch.setattr(dagster_state, name, few)

    def told() -> set[str]:
        return {occasion.key for reading in (read_runs, read_checks) for occasion in reading(settings).occasions}

    def tick(status: TickStatus, kind: InstigatorType, name: str) -> None:
        error = SerializableErrorInfo("RuntimeError: no", [], "RuntimeError") if status == TickStatus.FAILURE else None
        ticked = TickData(f"origin-{name}", name, kind, status, time.time(), error=error, selector_id=name)
        instance.create_tick(ticked)

    run(instance, "load_vault", check=True)
    run(instance, "load_shop", orders=True)
    tick(TickStatus.FAILURE, InstigatorType.SCHEDULE, "maintain_nightly")
    failed = {"run/load_shop", "check/vault.hub_store", "sensor/maintain_nightly"}
    assert told() == failed
    for _ in range(5):
        other = dg.AssetCheckEvaluation(asset_key=hub.key, check_name="another", passed=True)
        instance.report_runless_asset_event(other)
        instance.create_run_for_job(DEFS.resolve_job_def("load_vault"), status=dg.DagsterRunStatus.SUCCESS)
        tick(TickStatus.SKIPPED, InstigatorType.SENSOR, "new_data_vault")
    assert told() == failed
    monkeypatch.setattr(dagster_state, "_failing", {})
    assert told() == failed, "by another watch, too"
    run(instance, "load_vault")
    run(instance, "load_shop")
    tick(TickStatus.SKIPPED, InstigatorType.SCHEDULE, "maintain_nightly")
    assert told() == set()


def test_the_newest_evaluation_counts_and_not_the_check_that_was_planned_last(
    instance: dg.DagsterInstance, settings: Settings
) -> None:
    """A run had failed it after the worker had passed it, in a row that was made before."""
    planned = instance.create_run_for_job(DEFS.resolve_job_def("load_vault"))
    key = {"asset_key": hub.key, "check_name": "unique_key"}
    instance.report_runless_asset_event(dg.AssetCheckEvaluation(**key, passed=True))
    failed = dg.AssetCheckEvaluation(**key, passed=False)
    event = dg.DagsterEvent("ASSET_CHECK_EVALUATION", planned.job_name, event_specific_data=failed)
    instance.report_dagster_event(event, planned.run_id)
    assert [occasion.key for occasion in read_checks(settings).occasions] == ["check/vault.hub_store"]


@pytest.mark.parametrize("most", [3, 1000])
def test_a_check_is_told_however_many_others_were_evaluated_since_it_was_planned(
    instance: dg.DagsterInstance, settings: Settings, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Its row is made when the run is queued. One behind maintenance failed at night, and no watch looked at it."""
    monkeypatch.setattr(dagster_state, "LATE_EVENTS", 2)
    monkeypatch.setattr(dagster_state, "MOST_EVENTS", most)
    job = DEFS.resolve_job_def("load_vault")
    planned = [instance.create_run_for_job(job) for _ in range(2)]

    def told() -> list[str]:
        return [occasion.key for occasion in read_checks(settings).occasions]

    def others() -> None:
        for _ in range(5):
            other = dg.AssetCheckEvaluation(asset_key=hub.key, check_name="another", passed=True)
            instance.report_runless_asset_event(other)

    assert told() == []
    for run, passed in zip(planned, (False, True), strict=True):
        others()
        told()
        evaluation = dg.AssetCheckEvaluation(asset_key=hub.key, check_name="unique_key", passed=passed)
        event = dg.DagsterEvent("ASSET_CHECK_EVALUATION", job.name, event_specific_data=evaluation)
        instance.report_dagster_event(event, run.run_id)
        others()  # as while the watch is suspended
        for _ in range(2):
            assert told() == ([] if passed else ["check/vault.hub_store"])


def test_an_evaluation_that_commits_after_a_later_one_is_told(instance: dg.DagsterInstance, settings: Settings) -> None:
    assert settings.dagster.storage_url is not None
    for passed in (False, True):
        key = {"asset_key": hub.key, "check_name": "unique_key"}
        instance.report_runless_asset_event(dg.AssetCheckEvaluation(**key, passed=passed))
    with psycopg.connect(settings.dagster.storage_url.get_secret_value()) as late:
        late.execute(
            'INSERT INTO event_logs (run_id, event, dagster_event_type, "timestamp")'
            ' SELECT run_id, event, dagster_event_type, "timestamp" FROM event_logs'
            " WHERE dagster_event_type = 'ASSET_CHECK_EVALUATION' ORDER BY id LIMIT 1"
        )
        other = dg.AssetCheckEvaluation(asset_key=hub.key, check_name="another", passed=True)
        instance.report_runless_asset_event(other)
        assert not read_checks(settings).occasions
    assert [occasion.key for occasion in read_checks(settings).occasions] == ["check/vault.hub_store"]


def test_a_database_of_dagster_that_was_made_anew_is_read_anew(
    instance: dg.DagsterInstance, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert settings.dagster.storage_url is not None
    monkeypatch.setattr(dagster_state, "LATE_EVENTS", 0)
    key = {"asset_key": hub.key, "check_name": "unique_key"}
    for passed in (True, True, False):
        instance.report_runless_asset_event(dg.AssetCheckEvaluation(**key, passed=passed))
    assert read_checks(settings).occasions
    with psycopg.connect(settings.dagster.storage_url.get_secret_value(), autocommit=True) as admin:
        admin.execute("TRUNCATE event_logs, asset_check_executions RESTART IDENTITY CASCADE")
    assert not read_checks(settings).occasions
    instance.report_runless_asset_event(dg.AssetCheckEvaluation(**key, passed=False))
    assert read_checks(settings).occasions


@pytest.mark.parametrize("passed", [True, False])
def test_a_clock_that_was_ahead_does_not_have_the_last_word(
    instance: dg.DagsterInstance, settings: Settings, passed: bool
) -> None:
    """What it had said of a check stayed so until its time had come: marts waited, or were built, for as long."""
    key = dg.AssetCheckKey(hub.key, "unique_key")

    def tell(passed: bool) -> None:
        told = dg.AssetCheckEvaluation(asset_key=key.asset_key, check_name=key.name, passed=passed)
        instance.report_runless_asset_event(told)

    assert settings.dagster.storage_url is not None
    tell(not passed)
    with psycopg.connect(settings.dagster.storage_url.get_secret_value(), autocommit=True) as clock:
        clock.execute(
            "UPDATE asset_check_executions"
            " SET evaluation_event_timestamp = evaluation_event_timestamp + interval '1 hour'"
        )
    assert failing_checks(instance, [key]) == ([key] if passed else [])
    tell(passed)
    assert failing_checks(instance, [key]) == ([] if passed else [key])
    assert len(read_checks(settings).occasions) == (0 if passed else 1)
    assert newest_evaluations(instance, [key])[key].at <= datetime.now(UTC)


def test_another_check_of_a_table_is_told_while_the_first_is_open() -> None:
    """A table whose `not_null` was red since yesterday hid that its hub was no longer sound."""
    now, first = datetime.now(UTC), ("not_null", "error", "1 row")
    state = State()
    for checks in ([first], [first], [first, ("hub_is_sound", "error", "")], [first, ("hub_is_sound", "error", "")]):
        state = advance(state, {"dagster checks": [_checks_failed("vault.hub_store", checks)]}, ["mail"], now)
    assert [message.body["summary"].partition("failed: ")[2] for message in state.outbox] == [
        "not_null (1 row)", "not_null (1 row), hub_is_sound",
    ]  # fmt: skip


def test_a_job_that_fails_as_a_whole_is_told_though_a_table_was_left_behind_before(
    instance: dg.DagsterInstance, settings: Settings
) -> None:
    """One table had failed for days, with an alert for it: when all failed nobody heard of it."""
    state, now = State(), datetime.now(UTC)

    def look() -> list[str]:
        nonlocal state
        state = advance(state, {"dagster": read_runs(settings).occasions}, ["mail"], now)
        return [message.body["state"] for message in state.outbox]

    left = {"raw_shop.orders": HeldTable(1, now, None)}
    run_id = run(instance, "load_shop", orders=True)
    instance.add_run_tags(run_id, {tags.HELD: pack_state(LoadState(run_id, None, left))})
    assert look() == ["began"]
    run_id = run(instance, "load_shop", orders=True)
    instance.add_run_tags(run_id, {tags.HELD: pack_state(LoadState(run_id, None, left))})
    assert look() == ["began"], "the same table, another run"
    run(instance, "load_shop", orders=True)
    assert look() == ["began", "began"]
    run(instance, "load_shop", orders=True)
    assert look() == ["began", "began"]


def test_a_failed_check_says_how_many_rows_and_a_mart_where_to_look_first() -> None:
    """Nobody who is told at night knows what dbt is configured to; and the cause is in the vault mostly."""
    event = {"dagster_event": {"event_specific_data": {"description": "Got 1011 results, configured to fail if != 0"}}}
    assert _evaluation(json.dumps(event)) == ("error", "1,011 rows")
    told = _checks_failed("marts.fct_sales", [("unique_key", "error", "1 row")])
    assert told.to_do.startswith("first see the failed checks of tables it is made of")


def test_a_sensor_whose_ticks_fail_is_told_until_one_does_not(instance: dg.DagsterInstance, settings: Settings) -> None:
    def tick(status: TickStatus, name: str = "new_data_shop", ago: float = 0.0) -> None:
        error = SerializableErrorInfo("CannotInspectError: connection refused", [], "CannotInspectError")
        instance.create_tick(
            TickData(
                f"origin-{name}",
                name,
                InstigatorType.SENSOR,
                status,
                time.time() - ago,
                error=error if status == TickStatus.FAILURE else None,
                selector_id=f"selector-{name}",
            )
        )

    tick(TickStatus.FAILURE, "gone", ago=700)
    tick(TickStatus.FAILURE)
    tick(TickStatus.SKIPPED)
    tick(TickStatus.FAILURE, "other")
    assert not read_runs(settings).occasions, "the next one may be minutes away, and succeed"
    tick(TickStatus.FAILURE, "other")
    [failing] = read_runs(settings).occasions
    assert failing.key == "sensor/other" and failing.patience > 60
    tick(TickStatus.FAILURE)
    tick(TickStatus.FAILURE)
    tick(TickStatus.STARTED)
    tick(TickStatus.SKIPPED, "other")
    reading = read_runs(settings)
    [failing] = reading.occasions
    assert failing.summary == "new_data_shop fails at each tick: CannotInspectError: connection refused"
    assert [s.value for s in reading.samples if s.name == "lakehouse_sensor_failures"] == [2]


def test_a_schedule_that_ticks_once_a_month_has_failed_until_it_ticks_again_or_is_turned_off(
    instance: dg.DagsterInstance, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was told to be over eight days later, and nobody had mended it."""
    monkeypatch.setattr(dagster_state, "RECENT_TICKS", 2)
    place, day = RemoteRepositoryOrigin(RegisteredCodeLocationOrigin("lakehouse"), "lake"), 86_400.0
    origin = RemoteInstigatorOrigin(place, "pin_month")

    def tick(status: TickStatus, ago: float, kind: InstigatorType, of: RemoteInstigatorOrigin) -> None:
        error = SerializableErrorInfo("RuntimeError: no", [], "RuntimeError") if status == TickStatus.FAILURE else None
        at, selector = time.time() - ago, of.get_selector().get_id()
        instance.create_tick(
            TickData(of.get_id(), of.instigator_name, kind, status, at, error=error, selector_id=selector)
        )

    def told() -> list[str]:
        return [occasion.key for occasion in read_runs(settings).occasions]

    tick(TickStatus.SKIPPED, 50 * day, InstigatorType.SCHEDULE, origin)
    tick(TickStatus.FAILURE, 20 * day, InstigatorType.SCHEDULE, origin)
    tick(TickStatus.STARTED, 0, InstigatorType.SCHEDULE, origin)
    for _ in range(5):
        tick(TickStatus.SKIPPED, 0, InstigatorType.SENSOR, RemoteInstigatorOrigin(place, "new_data_shop"))
    assert told() == ["sensor/pin_month"]
    state = InstigatorState(
        origin, InstigatorType.SCHEDULE, InstigatorStatus.STOPPED, ScheduleInstigatorData("0 0 1 * *", time.time())
    )
    instance.add_instigator_state(state)
    assert told() == [], "it was turned off"
    instance.update_instigator_state(state.with_status(InstigatorStatus.RUNNING))
    assert told() == ["sensor/pin_month"]
    tick(TickStatus.SKIPPED, 0, InstigatorType.SCHEDULE, origin)
    assert told() == []


def test_a_watch_that_has_just_begun_gives_the_daemon_as_long_as_a_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    """It told of a heartbeat before a pause, while the daemon was starting beside it. One that never starts is told."""

    def told(age: float, uptime: float, state: State) -> State:
        monkeypatch.setattr(dagster_state, "LOADED_AT", time.monotonic() - uptime)
        found = {"dagster": judge_heartbeat(age)[0]}
        return advance(state, found, ["mail"], datetime.fromtimestamp(age, UTC))

    state = State()
    for seconds in range(0, 120, 15):
        state = told(125 + seconds, seconds, state)
        assert not state.outbox and state.alerts
    state = told(125 + 120, 120, state)
    assert [message.body["summary"] for message in state.outbox] == [
        "Dagster's daemon has given no sign of life for 245 s: nothing is loaded or maintained"
    ]
    assert told(9000, 0, state).alerts["daemon/dagster"].told, "another watch has told it"
    assert told(130, 9000, State()).outbox, "one that runs for long waits no longer"


def test_a_daemon_without_a_heartbeat_is_told(instance: dg.DagsterInstance, settings: Settings) -> None:
    def beat(kind: str, ago: float) -> None:
        instance.add_daemon_heartbeat(DaemonHeartbeat(time.time() - ago, kind, "id", None))

    beat("SENSOR", 10)
    beat("ASSET", 10_000)
    assert not read_runs(settings).occasions, "one that is not needed counts for nothing"
    beat("SCHEDULER", 10_000)
    assert list(by_key(read_runs(settings).occasions)) == ["daemon/dagster"]
    beat("SCHEDULER", 0)
    assert not read_runs(settings).occasions


def test_sensors_that_tick_no_more_beside_a_living_daemon_are_told(
    instance: dg.DagsterInstance, settings: Settings
) -> None:
    """Without its code server the daemon runs nothing, and nothing of it fails."""

    place = RegisteredCodeLocationOrigin("lakehouse")

    def tick(name: str, ago: float) -> RemoteInstigatorOrigin:
        origin, at = RemoteInstigatorOrigin(RemoteRepositoryOrigin(place, "lake"), name), time.time() - ago
        ticked = TickData(
            origin.get_id(), name, InstigatorType.SENSOR, TickStatus.SKIPPED, at,
            selector_id=origin.get_selector().get_id(),
        )  # fmt: skip
        instance.create_tick(ticked)
        return origin

    for kind in ("SENSOR", "SCHEDULER"):
        instance.add_daemon_heartbeat(DaemonHeartbeat(time.time(), kind, "id", None))
    assert not read_runs(settings).occasions, "no sensor ever ran"
    tick("lag_shop", 190)
    assert not read_runs(settings).occasions, "it ticks every three minutes, and may be the only one that is on"
    with dagster_state.connect(settings) as connection:
        connection.execute("DELETE FROM job_ticks")
    shop = tick("shop", 250)
    [silent] = read_runs(settings).occasions
    assert silent.key == "code/dagster" and silent.patience > 60
    instance.add_instigator_state(InstigatorState(shop, InstigatorType.SENSOR, InstigatorStatus.STOPPED))
    assert not read_runs(settings).occasions, "it was turned off"
    tick("payroll", 220)
    assert list(by_key(read_runs(settings).occasions)) == ["code/dagster"]
    tick("bank", 30)
    assert not read_runs(settings).occasions
    instance.add_daemon_heartbeat(DaemonHeartbeat(time.time() - 1000, "SENSOR", "id", None))
    assert list(by_key(read_runs(settings).occasions)) == ["daemon/dagster"], "then it is the daemon"

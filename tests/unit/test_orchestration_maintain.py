"""The job `maintain`, its schedules and the table health asset: real runs on a fake lake."""

import socket
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from lakehouse.declarations.policies import MaintenancePolicy
from lakehouse.settings import PROJECT_DIR, load_settings
from maintenance.inventory.declared import MaintainedTable
from maintenance.inventory.outcome import Figures, Outcome, TableName
from maintenance.inventory.session import Session
from maintenance.planning.plan import Passed, Plan, Step
from maintenance.runner.maintain import Prepared, Run
from maintenance.runner.result import sorted_result
from orchestration.assets.table_health import KEY, health_definitions
from orchestration.jobs.config import scoped
from orchestration.jobs.maintain_job import PLAN, PlanConfig, maintain_definitions, maintain_job
from orchestration.jobs.maintainer import Maintainer
from orchestration.resources import Lake, LakeSpark
from orchestration.runs import tags
from orchestration.runs.processes import workers

POLICY = MaintenancePolicy(schedule_group="nightly")
HUB, SAT, LINK, GONE = (TableName("vault", name) for name in ("hub", "sat", "link", "gone"))
PAGES = frozenset(dg.AssetKey(table) for table in (HUB, SAT, LINK))


def step(table: TableName, action: str) -> Step:
    return Step(MaintainedTable(table, POLICY), action, "small files", 10, 1.0, 1.0, "stated rate", 1.0, 0)


def outcome(table: TableName, action: str = "compact", error: str | None = None) -> Outcome:
    status = "failed" if error else "done"
    return Outcome(action, table, status, error=error, before=Figures(files=9), after=Figures(files=1), seconds=2.0)


class InventedMaintainer(Maintainer):
    """A fake that plans the given steps and returns the given outcomes."""

    planned: list[str]
    broken: list[str] = []  # noqa: RUF012  (a pydantic field)
    unmeasured: list[str] = []  # noqa: RUF012

    def prepare(self, *arguments: Any) -> Prepared:
        steps = tuple(step(TableName("vault", name.split()[1]), name.split()[0]) for name in self.planned)
        lost = tuple(outcome(TableName("vault", name), "measure", "unreadable") for name in self.unmeasured)
        plan = Plan(steps, (Passed(LINK, "put off: no time", "compact"),), ())
        self._prepared = Prepared(plan, {}, lost, 0.4, 0.0)
        return self._prepared

    def act(self, table: str, report: Callable[[Outcome], None]) -> list[Outcome]:
        done = []
        for planned in self._plan().plan.steps:
            if str(planned.table.name) == table:
                error = "no such file" if planned.table.name.name in self.broken else None
                done.append(outcome(planned.table.name, planned.action, error))
                report(done[-1])
        return done

    def finish(self, outcomes: Iterable[Outcome], report: Callable[[Outcome], None]) -> Run:
        lost = self._plan().unmeasured
        for each in lost:
            report(each)
        return Run(self._plan().plan, sorted_result([*lost, *outcomes]), 0.4)


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as ephemeral:
        yield ephemeral


def launch(instance: dg.DagsterInstance, **invented: Any) -> dg.ExecuteInProcessResult:
    defs = dg.Definitions(
        jobs=[maintain_job(PAGES, scoped(PlanConfig, [], []))],
        resources={
            "lake": Lake(), "spark": LakeSpark(), "maintainer": InventedMaintainer(**invented),
            "memory": dg.mem_io_manager,
        },
        executor=dg.in_process_executor,
    )  # fmt: skip
    return defs.resolve_job_def("maintain").execute_in_process(instance=instance, raise_on_error=False)


def failure(result: dg.ExecuteInProcessResult) -> Any:
    [event] = [event for event in result.all_events if event.is_step_failure]
    return event.step_failure_data.user_failure_data


def test_each_table_is_a_step_and_the_most_worthwhile_comes_first(instance: dg.DagsterInstance) -> None:
    result = launch(instance, planned=["compact sat", "compact hub", "expire_snapshots sat"])
    assert result.success
    steps = [event.step_key for event in result.all_events if event.is_step_start]
    assert steps == ["plan_maintenance", "maintain_table[1_vault_sat]", "maintain_table[2_vault_hub]", "conclude"]


def test_what_was_done_stands_on_each_tables_page(instance: dg.DagsterInstance) -> None:
    result = launch(instance, planned=["compact sat", "compact gone"])
    observed = [event.asset_observation_data.asset_observation for event in result.get_asset_observation_events()]
    assert [observation.asset_key for observation in observed] == [dg.AssetKey(SAT)]
    numbers = {name: value.value for name, value in observed[0].metadata.items()}
    assert (numbers["files_before"], numbers["files_after"], numbers["action"]) == (9, 1, "compact")
    assert "bytes_before" not in numbers


def test_a_table_that_fails_does_not_stop_the_others_and_too_many_fail_the_run(instance: dg.DagsterInstance) -> None:
    result = launch(instance, planned=["compact sat", "compact hub"], broken=["sat"])
    assert not result.success
    assert "maintain_table[2_vault_hub]" in {event.step_key for event in result.all_events if event.is_step_success}
    told = failure(result)
    assert told.description == "1 of 2 tables failed, first compact of vault.sat: failed, no such file"
    assert {name: value.value for name, value in told.metadata.items()} == {"vault.sat": "compact: no such file"}


def test_fewer_failures_than_declared_are_told_and_do_not_fail_the_run(instance: dg.DagsterInstance) -> None:
    planned = ["compact sat", "compact hub", "compact link"]
    assert launch(instance, planned=planned, broken=["sat"]).success


def test_a_table_that_could_not_be_measured_counts_as_failed(instance: dg.DagsterInstance) -> None:
    result = launch(instance, planned=["compact hub"], unmeasured=["sat"])
    assert failure(result).description.startswith("1 of 2 tables failed, first measure of vault.sat")


def test_an_interrupted_run_is_written_down_as_far_as_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Outcome] = []
    monkeypatch.setattr("maintenance.runner.maintain.record", lambda session, outcomes, steps: written.extend(outcomes))
    plan = Plan((step(SAT, "compact"), step(HUB, "compact")), (), ())
    maintainer = Maintainer()
    maintainer._session, maintainer._outcomes = Session(load_settings()), [outcome(SAT)]
    maintainer._prepared = Prepared(plan, {}, (), 0.4, 0.0)
    maintainer.teardown_after_execution(dg.build_init_resource_context())
    assert [each.table for each in written] == [SAT]


def test_a_healthy_lake_is_a_success_without_steps(instance: dg.DagsterInstance) -> None:
    result = launch(instance, planned=[])
    assert result.success
    assert [event.step_key for event in result.all_events if event.is_step_start] == ["plan_maintenance", "conclude"]


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    """The context of a schedule needs an instance on disk."""
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        yield instance


def schedule_tick(instance: dg.DagsterInstance) -> tuple[dg.Definitions, Any]:
    manifest = {"sources": {}, "nodes": {"model.l.hub": node({"schedule_group": "nightly"})}}
    defs = dg.Definitions.merge(
        maintain_definitions(manifest, PROJECT_DIR / "dbt_project", PAGES),
        dg.Definitions(resources={"lake": Lake(), "spark": LakeSpark()}, executor=dg.in_process_executor),
    )
    schedule = defs.get_repository_def().get_schedule_def("maintain_nightly")
    return defs, schedule.evaluate_tick(dg.build_schedule_context(instance=instance))


def node(policy: dict[str, Any]) -> dict[str, Any]:
    config = {"materialized": "append_only", "meta": {"maintenance": policy}}
    place = {"schema": "vault", "name": "hub", "original_file_path": "models/hub.sql", "patch_path": None}
    return {**place, "resource_type": "model", "config": config, "columns": {}}


def test_a_schedule_launches_its_group(kept: dg.DagsterInstance) -> None:
    _, tick = schedule_tick(kept)
    [request] = tick.run_requests
    assert request.run_config == {"ops": {PLAN: {"config": {"group": "nightly"}}}}
    assert request.tags[tags.MAINTENANCE_GROUP] == "nightly"


def test_a_schedule_waits_for_the_last_run_of_its_group_unless_its_process_is_gone(
    kept: dg.DagsterInstance,
) -> None:
    defs, _ = schedule_tick(kept)
    job, group = defs.resolve_job_def("maintain"), {tags.MAINTENANCE_GROUP: "nightly"}
    gone = {workers.TAG: f"{socket.gethostname()}:1:12345"}
    dead = kept.create_run_for_job(job, status=dg.DagsterRunStatus.STARTED, tags=group | gone)
    assert schedule_tick(kept)[1].run_requests
    buried = kept.get_run_by_id(dead.run_id)
    assert buried is not None and buried.status is dg.DagsterRunStatus.FAILURE
    kept.create_run_for_job(job, status=dg.DagsterRunStatus.STARTED, tags={tags.MAINTENANCE_GROUP: "hourly"})
    assert schedule_tick(kept)[1].run_requests
    kept.create_run_for_job(job, status=dg.DagsterRunStatus.STARTED, tags=group)
    assert "of the group nightly is still STARTED" in str(schedule_tick(kept)[1].skip_message)


class SickLake(Lake):
    """Three tables, one of which is not in the lake."""

    def table_health(self) -> list[dict[str, Any]]:
        numbers = dict.fromkeys(
            ("rows", "bytes", "delete_files", "snapshots", "manifests", "metadata_bytes", "objects", "object_bytes",
             "orphans", "orphan_bytes", "temporary", "temporary_bytes"), 3,
        )  # fmt: skip
        health = {**numbers, "files": 8, "small_files": 6, "small_share": 0.75, "statistics_age_hours": None}
        last = {"action": "compact", "status": "done", "started_at": "2026-05-04T12:00:00+00:00"}
        due = [{"action": "compact", "reason": "6 of 8 files below 128 MB"}]
        gain = {"gain_seconds": 0.03, "gain_bytes": 0}
        return [
            {"table": "vault.hub", "health": health, "last": last, "due": due, **gain, "reason": ""},
            {"table": "vault.nh_link", "health": health, "last": None, "due": [], "gain_seconds": 0, "gain_bytes": 0,
             "reason": "healthy: 8 files, 75% small"},
            {"table": "vault.sat", "health": None, "last": None, "due": [], "gain_seconds": 0, "gain_bytes": 0,
             "reason": "not in the lake yet"},
        ]  # fmt: skip


def test_health_is_plotted_for_the_lake_and_for_each_table(instance: dg.DagsterInstance) -> None:
    defs = dg.Definitions.merge(health_definitions(PAGES), dg.Definitions(resources={"lake": SickLake()}))
    result = defs.resolve_job_def("measure_table_health").execute_in_process(instance=instance)
    [event] = result.get_asset_materialization_events()
    assert event.asset_key == KEY
    lake = {name: value.value for name, value in event.materialization.metadata.items()}
    assert (lake["tables"], lake["tables_due"], lake["files"], lake["small_share"]) == (2, 1, 16, 0.75)
    listed = lake["by_table"].replace("\N{NO-BREAK SPACE}", " ")
    assert "| vault.hub | compact: 6 of 8 files below 128 MB | 8 | 75% | 3 | 3 | 3 | 3 B | 3 B | 3 B |" in listed
    assert "| vault.nh_link | healthy | 8 | 75% |" in listed, "its figures are not told twice"
    assert "| vault.sat | not in the lake yet |  |" in listed
    [observed] = [found.asset_observation_data.asset_observation for found in result.get_asset_observation_events()]
    assert observed.asset_key == dg.AssetKey(HUB)
    assert observed.metadata["orphan_bytes"].value == 3 and observed.metadata["due"].value == "compact"
    assert "statistics_age_hours" not in observed.metadata


def test_tables_are_measured_as_soon_as_there_are_any_and_then_hourly(kept: dg.DagsterInstance) -> None:
    """The page was empty for the first hour, and in it of no use."""
    sick = SickLake()
    defs = dg.Definitions.merge(health_definitions(PAGES), dg.Definitions(resources={"lake": sick}))
    schedule = defs.get_repository_def().get_schedule_def("measure_table_health_schedule")

    def launched(minute: int) -> bool:
        at = datetime(2026, 5, 4, 12, minute, tzinfo=UTC)
        with dg.build_schedule_context(instance=kept, scheduled_execution_time=at) as context:
            return bool(schedule.evaluate_tick(context).run_requests)

    assert launched(5)
    kept.report_runless_asset_event(dg.AssetMaterialization(KEY, metadata={"tables": 0}))
    assert launched(10), "nothing was there to be measured"
    defs.resolve_job_def("measure_table_health").execute_in_process(instance=kept)
    assert not launched(15) and launched(57)

"""The job `maintain`: measures the tables, plans what is worth it, and does that within the group's budget.

Each table that needs something is a step of its own, the most worthwhile first; all steps share the process and its
Spark session. A table that fails does not stop the others: the last step fails the run when too many did.
"""

import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import dagster as dg
from pydantic import Field

from lakehouse.declarations.policies import ScheduleGroup
from lakehouse.declarations.project import project_maintenance
from maintenance.inventory.declared import maintained_tables, schedule_groups
from orchestration.jobs.config import ScopedConfig, scoped
from orchestration.jobs.maintainer import Maintainer
from orchestration.jobs.maintenance_jobs import POOL
from orchestration.jobs.observations import judge, reporter
from orchestration.resources import IN_MEMORY, Lake, LakeSpark
from orchestration.runs import tags
from orchestration.runs.history import UNFINISHED
from orchestration.runs.workers import fail_orphaned_runs

JOB, PLAN, MEMORY = "maintain", "plan_maintenance", "memory"


class PlanConfig(ScopedConfig):
    """Which tables, and for how long."""

    budget_minutes: float | None = Field(
        None, ge=0, description="time for the run, instead of the groups' declared budgets and windows"
    )


def maintain_definitions(manifest: dict[str, Any], project_dir: Path, keys: Collection[dg.AssetKey]) -> dg.Definitions:
    """The job, and a schedule for each group that is in use; `keys` are the tables that have a page."""
    groups, tables = project_maintenance(project_dir).groups, maintained_tables(manifest, project_dir)
    job = maintain_job(keys, scoped(PlanConfig, groups, [str(table.name) for table in tables]))
    return dg.Definitions(
        jobs=[job],
        schedules=[_schedule(job, group, groups[group]) for group in schedule_groups(tables)],
        resources={"maintainer": Maintainer(), MEMORY: IN_MEMORY},
    )


def maintain_job(keys: Collection[dg.AssetKey], config_type: type[PlanConfig]) -> dg.JobDefinition:
    """Plan, a step for each table, the verdict. What goes from step to step stays in the process's memory."""

    @dg.op(
        name=PLAN,
        config_schema=config_type.to_fields_dict(),
        out=dg.DynamicOut(str, io_manager_key=MEMORY),
        description="Measures the tables and ranks what they need; what is put off or left alone is in its log.",
    )
    def plan(
        context: dg.OpExecutionContext, lake: Lake, spark: LakeSpark, maintainer: Maintainer
    ) -> Iterator[dg.DynamicOutput[str]]:
        config = config_type(**context.op_config)
        prepared = maintainer.prepare(lake.settings(), spark, config.tables, config.group, config.budget_minutes)
        for step in prepared.plan.steps:
            context.log.info(
                f"{step.action} of {step.table.name}: {step.reason}; {step.expected_seconds:.1f} s expected"
            )
        for passed in (*prepared.plan.put_off, *prepared.plan.skipped):
            context.log.info(f"{f'{passed.action} of ' if passed.action else ''}{passed.table}: {passed.reason}")
        for rank, table in enumerate(maintainer.tables, start=1):
            yield dg.DynamicOutput(table, mapping_key=f"{rank}_{re.sub(r'[^A-Za-z0-9_]', '_', table)}")

    @dg.op(
        name="maintain_table",
        pool=POOL,
        config_schema={},
        out=dg.Out(list, io_manager_key=MEMORY),
        description="Takes the planned steps of one table; a failure is told and counted, and the other tables go on.",
    )
    def maintain_table(context: dg.OpExecutionContext, table: str, maintainer: Maintainer) -> list[Any]:
        return maintainer.act(table, reporter(context, keys))

    @dg.op(
        name="conclude",
        config_schema={},
        out=dg.Out(dg.Nothing),
        description="Writes meta.maintenance; fails the run when too large a share of the tables failed.",
    )
    def conclude(context: dg.OpExecutionContext, outcomes: list[list[Any]], maintainer: Maintainer) -> None:
        run = maintainer.finish([outcome for of_table in outcomes for outcome in of_table], reporter(context, keys))
        counts = ", ".join(f"{count} {status}" for status, count in run.result.as_dict()["counts"].items())
        context.log.info(f"{counts}; {len(run.plan.put_off)} steps put off, {len(run.plan.skipped)} tables left alone")
        judge(run.result, run.max_failed_share)

    @dg.job(
        name=JOB,
        description="Measures the tables, plans what is worth it, and does it within the declared time.",
    )
    def job() -> None:
        conclude(plan().map(maintain_table).collect())

    return job


def _schedule(job: dg.JobDefinition, group: str, declared: ScheduleGroup) -> dg.ScheduleDefinition:
    @dg.schedule(
        name=f"{JOB}_{group}",
        job=job,
        cron_schedule=declared.cron,
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description=f"Maintains the tables of the group {group}, for {declared.budget_minutes:g} minutes at most.",
    )
    def scheduled(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        if (run := _under_way(context.instance, group)) is not None:
            return dg.SkipReason(f"run {run.run_id[:8]} of the group {group} is still {run.status.value}")
        return dg.RunRequest(
            run_config={"ops": {PLAN: {"config": {"group": group}}}}, tags={tags.MAINTENANCE_GROUP: group}
        )

    return scheduled


def _under_way(instance: dg.DagsterInstance, group: str) -> dg.DagsterRun | None:
    """A run of the group that has not ended; runs whose process is gone are marked failed on the way."""
    fail_orphaned_runs(instance)
    wanted = dg.RunsFilter(job_name=JOB, tags={tags.MAINTENANCE_GROUP: group}, statuses=list(UNFINISHED))
    return next(iter(instance.get_runs(wanted, limit=1)), None)

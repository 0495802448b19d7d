"""The job `maintain`: measures the tables, plans the worthwhile actions, and runs them within the group's budget.

Each table with planned actions is a step; steps run in order of expected gain and share one process and Spark session.
A failed table does not stop the others: the last step fails the run if too many tables failed.
"""

import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import dagster as dg
from pydantic import Field

from lakehouse.declarations.dbt.project import project_maintenance
from lakehouse.declarations.policies import ScheduleGroup
from maintenance.inventory.declared import maintained_tables, schedule_groups
from orchestration.jobs.config import ScopedConfig, scoped
from orchestration.jobs.maintainer import Maintainer
from orchestration.jobs.maintenance_jobs import POOL
from orchestration.jobs.observations import check_failed_share, reporter
from orchestration.resources import IN_MEMORY, Lake, LakeSpark
from orchestration.runs import tags
from orchestration.runs.processes.workers import fail_orphaned_runs
from orchestration.runs.state.history import UNFINISHED

JOB, PLAN, MEMORY = "maintain", "plan_maintenance", "memory"


class PlanConfig(ScopedConfig):
    """The tables to maintain, and the time to spend."""

    budget_minutes: float | None = Field(
        None, ge=0, description="time for the run, instead of the groups' declared budgets and windows"
    )


def maintain_definitions(manifest: dict[str, Any], project_dir: Path, keys: Collection[dg.AssetKey]) -> dg.Definitions:
    """The job, and a schedule for each group in use; `keys` are the tables that have a page."""
    groups, tables = project_maintenance(project_dir).groups, maintained_tables(manifest, project_dir)
    job = maintain_job(keys, scoped(PlanConfig, groups, [str(table.name) for table in tables]))
    return dg.Definitions(
        jobs=[job],
        schedules=[_schedule(job, group, groups[group]) for group in schedule_groups(tables)],
        resources={"maintainer": Maintainer(), MEMORY: IN_MEMORY},
    )


def maintain_job(keys: Collection[dg.AssetKey], config_type: type[PlanConfig]) -> dg.JobDefinition:
    """The job: plan, maintain each table, conclude. Steps pass their outputs in memory."""
    plan, maintain_table, conclude = _plan_op(config_type), _maintain_table_op(keys), _conclude_op(keys)

    @dg.job(
        name=JOB,
        tags=tags.BACKGROUND,
        description="Measures the tables and runs the worthwhile actions within the declared time.",
    )
    def job() -> None:
        conclude(plan().map(maintain_table).collect())

    return job


def _plan_op(config_type: type[PlanConfig]) -> dg.OpDefinition:
    @dg.op(
        name=PLAN,
        config_schema=config_type.to_fields_dict(),
        out=dg.DynamicOut(str, io_manager_key=MEMORY),
        description="Measures the tables and ranks their actions; logs what is put off or skipped.",
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
        for skipped in (*prepared.plan.put_off, *prepared.plan.skipped):
            context.log.info(f"{f'{skipped.action} of ' if skipped.action else ''}{skipped.table}: {skipped.reason}")
        for rank, table in enumerate(maintainer.tables, start=1):
            yield dg.DynamicOutput(table, mapping_key=f"{rank}_{re.sub(r'[^A-Za-z0-9_]', '_', table)}")

    return plan


def _maintain_table_op(keys: Collection[dg.AssetKey]) -> dg.OpDefinition:
    @dg.op(
        name="maintain_table",
        pool=POOL,
        config_schema={},
        out=dg.Out(list, io_manager_key=MEMORY),
        description="Runs the planned actions of one table; a failure is reported and does not stop the other tables.",
    )
    def maintain_table(context: dg.OpExecutionContext, table: str, maintainer: Maintainer) -> list[Any]:
        return maintainer.act(table, reporter(context, keys))

    return maintain_table


def _conclude_op(keys: Collection[dg.AssetKey]) -> dg.OpDefinition:
    @dg.op(
        name="conclude",
        config_schema={},
        out=dg.Out(dg.Nothing),
        description="Writes meta.maintenance; fails the run if too large a share of the tables failed.",
    )
    def conclude(context: dg.OpExecutionContext, outcomes: list[list[Any]], maintainer: Maintainer) -> None:
        run = maintainer.finish([outcome for of_table in outcomes for outcome in of_table], reporter(context, keys))
        counts = ", ".join(f"{count} {status}" for status, count in run.result.as_dict()["counts"].items())
        context.log.info(f"{counts}; {len(run.plan.put_off)} steps put off, {len(run.plan.skipped)} tables skipped")
        check_failed_share(run.result, run.max_failed_share)

    return conclude


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
    """An unfinished run of the group. Orphaned runs are failed first."""
    fail_orphaned_runs(instance)
    wanted = dg.RunsFilter(job_name=JOB, tags={tags.MAINTENANCE_GROUP: group}, statuses=list(UNFINISHED))
    return next(iter(instance.get_runs(wanted, limit=1)), None)

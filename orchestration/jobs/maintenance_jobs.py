"""One job per maintenance action, to run that action alone, with one Spark session per run.

The job `maintain` plans the same actions and runs the worthwhile ones, so the schedules here are stopped by default.
"""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import dagster as dg
from pydantic import Field

from lakehouse.declarations.dbt.project import project_maintenance
from maintenance.actions.registry import ACTIONS, Action
from maintenance.inventory.declared import maintained_tables, schedule_groups
from orchestration.jobs.config import ScopedConfig, scoped
from orchestration.jobs.observations import check_failed_share, reporter
from orchestration.resources import Lake, LakeSpark
from orchestration.runs import tags

POOL = "maintenance"


class ActionConfig(ScopedConfig):
    """The tables to maintain, and the share of failed tables that fails the run."""

    max_failed_share: float | None = Field(
        None, ge=0, le=1, description="the run fails above this share of failed tables; declared in vars.maintenance"
    )


def action_definitions(manifest: dict[str, Any], project_dir: Path, keys: Collection[dg.AssetKey]) -> dg.Definitions:
    """The jobs, with a schedule per group in use; `keys` are the tables that have a page."""
    tables, groups = maintained_tables(manifest, project_dir), project_maintenance(project_dir).groups
    config = scoped(ActionConfig, groups, [str(table.name) for table in tables])
    jobs = {action.name: _job(action, keys, config) for action in ACTIONS}
    schedules = [
        _schedule(jobs[action.name], action, group, groups[group].cron)
        for action in ACTIONS
        for group in schedule_groups(table for table in tables if action.is_asked_for(table.policy))
    ]
    return dg.Definitions(jobs=list(jobs.values()), schedules=schedules)


def _schedule(job: dg.JobDefinition, action: Action, group: str, cron: str) -> dg.ScheduleDefinition:
    return dg.ScheduleDefinition(
        name=f"{action.name}_{group}",
        job=job,
        cron_schedule=action.cron(cron),
        execution_timezone="UTC",
        run_config={"ops": {_op_name(action): {"config": {"group": group}}}},
        default_status=dg.DefaultScheduleStatus.STOPPED,
        description=f"Runs {action.name} on all tables of the group {group}, whatever the plan of `maintain` says.",
    )


def _job(action: Action, keys: Collection[dg.AssetKey], config_type: type[ActionConfig]) -> dg.JobDefinition:
    @dg.op(name=_op_name(action), pool=POOL, out=dg.Out(dg.Nothing), config_schema=config_type.to_fields_dict())
    def maintain(context: dg.OpExecutionContext, lake: Lake, spark: LakeSpark) -> None:
        config = config_type(**context.op_config)
        result = lake.maintain(action.name, config.tables, config.group, spark, reporter(context, keys))
        declared = lake.max_failed_share()
        check_failed_share(result, declared if config.max_failed_share is None else config.max_failed_share)

    @dg.job(name=action.name, tags=tags.BACKGROUND, description=f"For the tables that declare it: {action.does}.")
    def maintenance_job() -> None:
        maintain()

    return maintenance_job


def _op_name(action: Action) -> str:
    return f"run_{action.name}"

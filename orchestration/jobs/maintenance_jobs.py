"""Maintenance actions as jobs, one per action with one Spark session per run: for a person who wants just that one.

The job `maintain` plans and takes the same actions where they are worth it, so these jobs' own schedules are stopped
until somebody turns them on.
"""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import dagster as dg
from pydantic import Field

from lakehouse.declarations.project import project_maintenance
from maintenance.actions.registry import ACTIONS, Action
from maintenance.inventory.declared import maintained_tables, schedule_groups
from orchestration.jobs.observing import judge, reporter
from orchestration.jobs.scope import ScopedConfig, scoped
from orchestration.resources import Lake, LakeSpark

POOL = "maintenance"


class ActionConfig(ScopedConfig):
    """Which tables, and when too many of them have failed."""

    max_failed_share: float | None = Field(
        None, ge=0, le=1, description="the run fails above this share of failed tables; declared in vars.maintenance"
    )


def action_definitions(manifest: dict[str, Any], project_dir: Path, keys: Collection[dg.AssetKey]) -> dg.Definitions:
    """A job per action, and schedules for the groups that are in use; `keys` are the tables that have a page."""
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
        judge(result, declared if config.max_failed_share is None else config.max_failed_share)

    @dg.job(name=action.name, description=f"For the tables that declare it: {action.does}.")
    def maintenance_job() -> None:
        maintain()

    return maintenance_job


def _op_name(action: Action) -> str:
    return f"run_{action.name}"

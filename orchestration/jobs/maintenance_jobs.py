"""Maintenance actions as jobs, one per action with one Spark session per run: for a person who wants just that one.

The job `maintain` plans and takes the same actions where they are worth it, so these jobs' own schedules are stopped
until somebody turns them on.
"""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import dagster as dg
from pydantic import Field

from lakehouse.declarations.policies import MaintenancePolicy
from lakehouse.declarations.project import project_maintenance
from maintenance.inventory.declared import maintained_tables, schedule_groups
from orchestration.jobs.config import ScopedConfig, scoped
from orchestration.jobs.observations import judge, reporter
from orchestration.resources import Lake, LakeSpark

POOL = "maintenance"
PARTS = {
    "compact": "compact",
    "expire_snapshots": "expire_snapshots",
    "remove_orphan_files": "remove_orphan_files",
    "drop_extended_stats": "statistics",
    "clean_dbt_temporary": "clean_dbt_temporary",
}
"""Action → the part of the policy that asks for it. In this order they start, minutes apart."""

MINUTES_APART = 2


class ActionConfig(ScopedConfig):
    """Which tables, and when too many of them have failed."""

    max_failed_share: float | None = Field(
        None, ge=0, le=1, description="the run fails above this share of failed tables; declared in vars.maintenance"
    )


def action_definitions(manifest: dict[str, Any], project_dir: Path, keys: Collection[dg.AssetKey]) -> dg.Definitions:
    """Five jobs, and their schedules for the groups that are in use; `keys` are the tables that have a page."""
    tables, groups = maintained_tables(manifest, project_dir), project_maintenance(project_dir).groups
    config = scoped(ActionConfig, groups, [str(table.name) for table in tables])
    jobs = {action: _job(action, keys, config) for action in PARTS}
    schedules = [
        _schedule(jobs[action], action, group, groups[group].cron)
        for action in PARTS
        for group in schedule_groups(table for table in tables if asks_for(table.policy, action))
    ]
    return dg.Definitions(jobs=list(jobs.values()), schedules=schedules)


def asks_for(policy: MaintenancePolicy, action: str) -> bool:
    """Whether the policy has the action's part."""
    return getattr(policy, PARTS[action]) is not None


def cron_of(action: str, cron: str) -> str:
    """The group's cron, some minutes later by the action's place in their order; minutes in lists or steps stay."""
    minute, rest = cron.split(maxsplit=1)
    later = MINUTES_APART * (1 + list(PARTS).index(action))
    return f"{(int(minute) + later) % 60} {rest}" if minute.isdigit() else cron


def _schedule(job: dg.JobDefinition, action: str, group: str, cron: str) -> dg.ScheduleDefinition:
    return dg.ScheduleDefinition(
        name=f"{action}_{group}",
        job=job,
        cron_schedule=cron_of(action, cron),
        execution_timezone="UTC",
        run_config={"ops": {_op_name(action): {"config": {"group": group}}}},
        default_status=dg.DefaultScheduleStatus.STOPPED,
        description=f"Runs {action} on all tables of the group {group}, whatever the plan of `maintain` says.",
    )


def _job(action: str, keys: Collection[dg.AssetKey], config_type: type[ActionConfig]) -> dg.JobDefinition:
    @dg.op(name=_op_name(action), pool=POOL, out=dg.Out(dg.Nothing), config_schema=config_type.to_fields_dict())
    def maintain(context: dg.OpExecutionContext, lake: Lake, spark: LakeSpark) -> None:
        config = config_type(**context.op_config)
        result = lake.maintain(action, config.tables, config.group, spark, reporter(context, keys))
        declared = lake.max_failed_share()
        judge(result, declared if config.max_failed_share is None else config.max_failed_share)

    @dg.job(name=action, description=f"Runs the maintenance action {action} on the tables that declare it.")
    def maintenance_job() -> None:
        maintain()

    return maintenance_job


def _op_name(action: str) -> str:
    return f"run_{action}"

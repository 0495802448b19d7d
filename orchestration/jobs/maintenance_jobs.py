"""One job per maintenance action, to run that action alone, with one Spark session per run.

The job `maintain` plans the same actions and runs the worthwhile ones, so the schedules here are stopped by default.
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
from orchestration.jobs.observations import check_failed_share, reporter
from orchestration.resources import Lake, LakeSpark

POOL = "maintenance"
PARTS = {
    "compact": "compact",
    "expire_snapshots": "expire_snapshots",
    "remove_orphan_files": "remove_orphan_files",
    "drop_extended_stats": "statistics",
    "clean_dbt_temporary": "clean_dbt_temporary",
}
"""Action → the part of the policy that enables it. The schedules start in this order, minutes apart."""

MINUTES_APART = 2


class ActionConfig(ScopedConfig):
    """The tables to maintain, and the share of failed tables that fails the run."""

    max_failed_share: float | None = Field(
        None, ge=0, le=1, description="the run fails above this share of failed tables; declared in vars.maintenance"
    )


def action_definitions(manifest: dict[str, Any], project_dir: Path, keys: Collection[dg.AssetKey]) -> dg.Definitions:
    """The jobs, with a schedule per group in use; `keys` are the tables that have a page."""
    tables, groups = maintained_tables(manifest, project_dir), project_maintenance(project_dir).groups
    config = scoped(ActionConfig, groups, [str(table.name) for table in tables])
    jobs = {action: _job(action, keys, config) for action in PARTS}
    schedules = [
        _schedule(jobs[action], action, group, groups[group].cron)
        for action in PARTS
        for group in schedule_groups(table for table in tables if enables(table.policy, action))
    ]
    return dg.Definitions(jobs=list(jobs.values()), schedules=schedules)


def enables(policy: MaintenancePolicy, action: str) -> bool:
    """Whether the policy has the part that enables the action."""
    return getattr(policy, PARTS[action]) is not None


def cron_of(action: str, cron: str) -> str:
    """The group's cron, delayed by the action's position; a list or step in the minute field stays as it is."""
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
        check_failed_share(result, declared if config.max_failed_share is None else config.max_failed_share)

    @dg.job(name=action, description=f"Runs the maintenance action {action} on the tables that declare it.")
    def maintenance_job() -> None:
        maintain()

    return maintenance_job


def _op_name(action: str) -> str:
    return f"run_{action}"

"""Maintenance as jobs: one per action, one Spark session per run, and a schedule per declared group.

Results stand on each table's own page, as observations: files and bytes before and after.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field

from lakehouse.errors import LakehouseError
from lakehouse.policies import MaintenancePolicy
from maintenance.declared import maintained_tables, schedule_groups
from orchestration.resources import Lake, LakeSpark
from orchestration.translator import node_key

if TYPE_CHECKING:
    from maintenance.outcome import Outcome
    from maintenance.run import Result

POOL = "maintenance"
PARTS = {
    "compact": "compact",
    "expire_snapshots": "expire_snapshots",
    "remove_orphan_files": "remove_orphan_files",
    "drop_extended_stats": "statistics",
    "clean_dbt_temporary": "clean_dbt_temporary",
}
"""Action → the part of the policy that asks for it. In this order they start, twelve minutes apart."""

GROUPS = {"hourly": "* * * *", "nightly": "1 * * *", "weekly": "3 * * 0"}
"""Schedule group → hours and days of its cron, in UTC."""

FIRST_MINUTE, MINUTES_APART, GROUP_SHIFT = 4, 11, 3


class MaintenanceConfig(dg.Config):
    """Which tables; without both, all that declare the action."""

    group: str | None = Field(None, description="schedule group whose tables are maintained")
    tables: list[str] = Field([], description="names (namespace.table) of the tables to maintain")
    tolerated_share: float = Field(0.1, ge=0, le=1, description="the run fails when a larger share of tables failed")


def maintenance_definitions(manifest: dict[str, Any], project_dir: Path) -> dg.Definitions:
    """Five jobs, and their schedules for the groups that are in use."""
    tables = maintained_tables(manifest, project_dir)
    keys = frozenset(node_key(node) for node in _asset_nodes(manifest))
    jobs = {action: _job(action, keys) for action in PARTS}
    schedules = [
        _schedule(jobs[action], action, group)
        for action in PARTS
        for group in schedule_groups(table for table in tables if asks_for(table.policy, action))
    ]
    return dg.Definitions(jobs=list(jobs.values()), schedules=schedules)


def asks_for(policy: MaintenancePolicy, action: str) -> bool:
    """Whether the policy has the action's part."""
    return getattr(policy, PARTS[action]) is not None


def cron_of(action: str, group: str) -> str:
    """The group's hours, at a minute no other schedule has; raises LakehouseError for an unknown group."""
    if group not in GROUPS:
        raise LakehouseError(f"meta.maintenance.schedule_group {group!r}: choose from {', '.join(GROUPS)}")
    minute = FIRST_MINUTE + MINUTES_APART * list(PARTS).index(action) + GROUP_SHIFT * list(GROUPS).index(group)
    return f"{minute} {GROUPS[group]}"


def _schedule(job: dg.JobDefinition, action: str, group: str) -> dg.ScheduleDefinition:
    return dg.ScheduleDefinition(
        name=f"{action}_{group}",
        job=job,
        cron_schedule=cron_of(action, group),
        execution_timezone="UTC",
        run_config={"ops": {_op_name(action): {"config": {"group": group}}}},
        default_status=dg.DefaultScheduleStatus.RUNNING,
    )


def _job(action: str, keys: frozenset[dg.AssetKey]) -> dg.JobDefinition:
    @dg.op(name=_op_name(action), pool=POOL, out=dg.Out(dg.Nothing))
    def maintain(context: dg.OpExecutionContext, config: MaintenanceConfig, lake: Lake, spark: LakeSpark) -> None:
        def report(outcome: "Outcome") -> None:
            context.log.info(_what(outcome))
            if (key := dg.AssetKey(tuple(outcome.table))) in keys:
                context.log_event(dg.AssetObservation(key, metadata=observed(outcome), description=_what(outcome)))

        judge(lake.maintain(action, config.tables, config.group, spark, report), config.tolerated_share)

    @dg.job(name=action, description=f"Runs the maintenance action {action} on the tables that declare it.")
    def maintenance_job() -> None:
        maintain()

    return maintenance_job


def observed(outcome: "Outcome") -> dict[str, Any]:
    """Numbers that the table's page plots; what an action does not look at is left out."""
    before, after = outcome.before, outcome.after
    numbers = {
        "files_before": before.files,
        "files_after": after.files,
        "bytes_before": before.bytes,
        "bytes_after": after.bytes,
        "snapshots_before": before.snapshots,
        "snapshots_after": after.snapshots,
        "removed_files": outcome.removed_files,
        "removed_bytes": outcome.removed_bytes,
    }
    return {
        "action": outcome.action,
        "status": outcome.status,
        "seconds": round(outcome.seconds, 3),
        **({"error": outcome.error} if outcome.error else {}),
        **{name: number for name, number in numbers.items() if number is not None},
    }


def judge(result: "Result", tolerated_share: float) -> None:
    """Fails the run when too large a share of the tables failed, the worst first in its metadata."""
    if result.failed_share > tolerated_share:
        worst = result.failed[0]
        raise dg.Failure(
            f"{len(result.failed)} of {len(result.outcomes)} tables failed, first {_what(worst)}",
            metadata={str(outcome.table): outcome.error or "" for outcome in result.failed[:10]},
            allow_retries=False,
        )


def _what(outcome: "Outcome") -> str:
    return f"{outcome.action} of {outcome.table}: {outcome.status}, {outcome.error or outcome.reason}"


def _op_name(action: str) -> str:
    return f"run_{action}"


def _asset_nodes(manifest: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from manifest["sources"].values()
    yield from (node for node in manifest["nodes"].values() if node["resource_type"] in ("model", "seed", "snapshot"))

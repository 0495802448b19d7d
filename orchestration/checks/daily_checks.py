"""Checks that scan whole tables run in their own daily job, not in runs that materialize the tables."""

from collections.abc import Sequence

import dagster as dg

from lakehouse.declarations import Source
from orchestration.runs import tags


def daily_checks(
    source: Source, checks: dg.AssetChecksDefinition, keys: Sequence[dg.AssetCheckKey], job: str, about: str, cron: str
) -> dg.Definitions:
    """The checks, a job that runs them all, and its schedule (cron, UTC), which is running by default."""
    check_job = dg.define_asset_job(
        job,
        selection=dg.AssetSelection.checks(*keys),
        description=about,
        tags={"source": source.name, **tags.BACKGROUND},
    )
    daily = dg.ScheduleDefinition(
        job=check_job,
        cron_schedule=cron,
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description=about,
    )
    return dg.Definitions(asset_checks=[checks], jobs=[check_job], schedules=[daily])


def skip_while_materializing(context: dg.AssetCheckExecutionContext, why: str) -> bool:
    """Whether to skip the check: Dagster adds a table's checks to each run that selects the table by hand."""
    if not context.job_def.asset_layer.executable_asset_keys:
        return False
    context.log.info(f"skipped, because this run materializes: {why}")
    return True

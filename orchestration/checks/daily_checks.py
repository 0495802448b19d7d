"""Checks that read whole tables: a job of their own with a daily schedule, and no part in runs that materialize."""

from collections.abc import Sequence

import dagster as dg

from lakehouse.declarations import Source


def daily_checks(
    source: Source, checks: dg.AssetChecksDefinition, keys: Sequence[dg.AssetCheckKey], job: str, about: str, cron: str
) -> dg.Definitions:
    """The checks, the job that runs them all, and its schedule (cron, in UTC), which is on from the start."""
    made = dg.define_asset_job(
        job, selection=dg.AssetSelection.checks(*keys), description=about, tags={"source": source.name}
    )
    daily = dg.ScheduleDefinition(
        job=made,
        cron_schedule=cron,
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description=about,
    )
    return dg.Definitions(asset_checks=[checks], jobs=[made], schedules=[daily])


def steps_aside(context: dg.AssetCheckExecutionContext, why: str) -> bool:
    """Whether this run materializes: Dagster adds a table's checks to every run that selects the table by hand."""
    if not context.job_def.asset_layer.executable_asset_keys:
        return False
    context.log.info(f"left out: this run materializes; {why}")
    return True

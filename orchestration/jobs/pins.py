"""Cuts that are pinned by themselves, such as month-ends: a job and a schedule for each kind in `vars.pins`.

A schedule ticks at the moment. The run first brings every source up to what is committed by then, so that no cut of an
earlier moment is still to come. It waits for no other: raw tables of a follower reach back for minutes alone.
"""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import dagster as dg

from lakehouse.declarations.policies import PinPolicy
from lakehouse.declarations.project import project_pins
from orchestration.resources import Lake
from orchestration.runs import tags


def pin_definitions(project_dir: Path) -> dg.Definitions:
    """The jobs and schedules; empty if the project declares no pins."""
    declared = project_pins(project_dir)
    jobs = {kind: _job(kind, policy) for kind, policy in declared.items()}
    return dg.Definitions(
        jobs=list(jobs.values()), schedules=[_schedule(jobs[kind], kind, policy) for kind, policy in declared.items()]
    )


def pin_name(kind: str, moment: datetime, policy: PinPolicy) -> str:
    """`month_end_20261130` for the midnight after that day; where a day has several, `shift_20261130_1400`, in UTC.

    In UTC because in autumn an hour comes twice elsewhere.
    """
    if policy.is_at_most_daily:
        return f"{kind}_{(moment - timedelta(microseconds=1)).astimezone(ZoneInfo(policy.timezone)):%Y%m%d}"
    return f"{kind}_{moment.astimezone(UTC):%Y%m%d_%H%M}"


def _job(kind: str, policy: PinPolicy) -> dg.JobDefinition:
    @dg.op(name=f"pin_{kind}_cut", out=dg.Out(dg.Nothing), config_schema={})
    def pin(context: dg.OpExecutionContext, lake: Lake) -> None:
        stated = context.run.tags.get(tags.MOMENT)  # none if somebody launches it by hand
        moment = datetime.fromisoformat(stated) if stated else datetime.now(UTC)
        context.instance.add_run_tags(context.run_id, {tags.MOMENT: moment.isoformat()})  # for whoever runs it again
        for source in lake.declarations().sources:
            lake.bring_up(source.name)
        name = pin_name(kind, moment, policy)
        made, missing = lake.pin_cut(name, moment, moment + timedelta(days=policy.keep_days))
        for text in missing:
            context.log.warning(f"{name}: {text}")
        context.log.info(f"{name}: {made[0].cut}, {len(made)} tables" if made else f"{name} is there already")

    @dg.job(
        name=f"pin_{kind}",
        tags=tags.PROMPT,
        description=f"Keeps a cut, with mirrors and marts, for {policy.keep_days:g} days.",
    )
    def job() -> None:
        pin()

    return job


def _schedule(job: dg.JobDefinition, kind: str, policy: PinPolicy) -> dg.ScheduleDefinition:
    @dg.schedule(
        name=f"pin_{kind}",
        job=job,
        cron_schedule=policy.cron,
        execution_timezone=policy.timezone,
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description=f"Keeps the newest cut until each of these moments, for {policy.keep_days:g} days.",
    )
    def scheduled(context: dg.ScheduleEvaluationContext) -> dg.RunRequest:
        moment = context.scheduled_execution_time.astimezone(UTC).isoformat()
        return dg.RunRequest(run_key=moment, tags={tags.MOMENT: moment})

    return scheduled

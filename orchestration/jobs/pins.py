"""Cuts that are pinned by themselves, such as month-ends: a job and a schedule for each kind in `vars.pins`.

A schedule ticks at the moment. The run first brings every source up to what is committed by then, so that no cut of an
earlier moment is still to come. It waits for no other: raw tables of a follower reach back for minutes alone. Nor does
it wait long for a source that is away: the pin is made with what is there, and the run fails and names the source. So
it does where mirrors or marts are not in the pin.
Mirrors are not refreshed for it: they would be at a cut of after the moment, with what was committed since.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import dagster as dg

from lakehouse.declarations.dbt.project import project_pins
from lakehouse.declarations.policies import PinPolicy
from orchestration.resources import Lake
from orchestration.runs import tags

PATIENCE_SECONDS, LEAST_SECONDS = 60.0, 10.0  # for followers that hang: of all sources together, and of each
MOST_MISSED = 50  # moments that one tick catches up with
LAUNCHED_BY = "dagster/schedule_name"  # a tag of the runs of a schedule
SPELLED = "%Y-%m-%dT%H:%M:%S%z"


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
        away = _bring_up(lake, [source.name for source in lake.declarations().sources])
        name = pin_name(kind, moment, policy)
        pinned = lake.pin_cut(name, moment, moment + timedelta(days=policy.keep_days))
        for source, reach in pinned.reach.items():
            context.log.info(f"{name}: {source} {reach}")
        for text in pinned.missing:
            context.log.warning(f"{name}: {text}")
        made = pinned.made
        context.log.info(f"{name}: {made[0].cut}, {len(made)} tables" if made else f"{name} is there already")
        told = {
            "reaches": dg.MetadataValue.json(dict(pinned.reach)),
            "not_in_it": dg.MetadataValue.json(list(pinned.missing)),
        }
        wrong = [_said_of(name, away, moment)] if away else []
        if lacks := lake.lacking(name, moment):
            wrong.append(_said_of_lacking(name, lacks))
        if wrong:
            raise dg.Failure("; ".join(wrong), metadata=told)
        context.add_output_metadata(told)

    @dg.job(
        name=f"pin_{kind}",
        tags=tags.PROMPT,
        description=f"Keeps a cut, with mirrors and marts, for {policy.keep_days:g} days.",
    )
    def job() -> None:
        pin()

    return job


def _bring_up(lake: Lake, sources: Iterable[str]) -> dict[str, str]:
    """The sources that could not be brought up, and why."""
    away, patience = dict[str, str](), PATIENCE_SECONDS
    for source in sources:
        begun = time.monotonic()
        try:
            lake.bring_up_within(source, max(patience, LEAST_SECONDS))
        except Exception as error:  # whatever it is, it must not cost the pin of the others
            away[source] = " ".join((str(error) or type(error).__name__).split())
            patience -= time.monotonic() - begun
    return away


def _said_of(name: str, away: Mapping[str, str], moment: datetime) -> str:
    return (
        f"{name} is pinned, but {', '.join(away)} could not be brought up to it: run this again once it answers, to "
        f"see whether something is missing, which `lakehouse sql --as-of {moment.isoformat()}` has then, and the pin "
        f"has not ({'; '.join(away.values())})"
    )


def _schedule(job: dg.JobDefinition, kind: str, policy: PinPolicy) -> dg.ScheduleDefinition:
    @dg.schedule(
        name=f"pin_{kind}",
        job=job,
        cron_schedule=policy.cron,
        execution_timezone=policy.timezone,
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description=f"Keeps the newest cut until each of these moments, for {policy.keep_days:g} days.",
    )
    def scheduled(context: dg.ScheduleEvaluationContext) -> list[dg.RunRequest]:
        now = context.scheduled_execution_time.astimezone(UTC)
        moments = [*missed_moments(context.instance, job.name, policy, now), now]
        every = {tags.EVERY: f"{policy.cron} {policy.timezone}"}
        return [dg.RunRequest(run_key=m.isoformat(), tags={tags.MOMENT: m.isoformat(), **every}) for m in moments]

    return scheduled


def missed_moments(instance: dg.DagsterInstance, name: str, policy: PinPolicy, now: datetime) -> list[datetime]:
    """The moments since the newest one that the schedule, as it is declared now, has launched a run for, oldest first;
    none if there is none.

    Of several that have passed while no daemon ran, or the schedule was off, Dagster ticks for the last one alone.
    """
    of_now = {LAUNCHED_BY: name, tags.EVERY: f"{policy.cron} {policy.timezone}"}
    launched = instance.get_runs(dg.RunsFilter(job_name=name, tags=of_now), limit=MOST_MISSED)
    known = [datetime.fromisoformat(run.tags[tags.MOMENT]) for run in launched if tags.MOMENT in run.tags]
    if not known:
        return []
    since = max(max(known), datetime.now(UTC) - timedelta(days=policy.keep_days))  # others would be over already
    every = dg.TimeWindowPartitionsDefinition(since, SPELLED, timezone=policy.timezone, cron_schedule=policy.cron)
    between = every.get_partition_keys_in_time_window(dg.TimeWindow(since + timedelta(seconds=1), now))
    return [datetime.strptime(text, SPELLED).astimezone(UTC) for text in between][-MOST_MISSED:]


def _said_of_lacking(name: str, lacks: Sequence[str]) -> str:
    named = ", ".join(lacks[:5]) + (f" and {len(lacks) - 5} more" if len(lacks) > 5 else "")
    return (
        f"{name} is pinned without {named}: `not_in_it` of this run says why. They cannot come into it any more: see "
        "that mirrors are refreshed, and marts built, before the next one. The alert of this run ends with the next "
        "run that succeeds, or once this one is deleted in Dagster"
    )

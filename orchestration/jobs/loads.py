"""Jobs that load raw tables into parsed and vault, each with a sensor or a schedule.

The tables of a source share the job `load_<source>`, except those that declare a job of their own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

import dagster as dg

from lakehouse.declarations import RawTable, Source
from lakehouse.declarations.policies import Cron
from orchestration.assets.translator import MARTS, MIRRORS
from orchestration.checks import erasures, reconciliation
from orchestration.resources import TableKey
from orchestration.runs import tags
from orchestration.runs.partitions import incremental_tags
from orchestration.runs.state.history import read_history, whole_job
from orchestration.runs.state.load_state import loaded_since
from orchestration.runs.subset import load_state_tag
from orchestration.sensors.new_data import Watch, new_data_sensor


@dataclass(frozen=True)
class Load:
    """One load job: its raw tables, those of their checks that have a job of their own, and its trigger."""

    source: str
    name: str
    tables: tuple[TableKey, ...]
    apart: tuple[dg.AssetCheckKey, ...]
    trigger: str | Cron
    confirm_after: timedelta | None

    @property
    def job(self) -> str:
        """`load_<source>` or `load_<source>_<table>`."""
        return f"load_{self.name}"


def loads_of(source: Source) -> tuple[Load, ...]:
    """The source's load jobs, the shared one first."""
    shared = [table for table in source.tables if table.load.job == "shared"]
    own = [table for table in source.tables if table.load.job == "own"]
    return (
        *([_load(source.name, source.name, shared)] if shared else []),
        *(_load(source.name, f"{source.name}_{table.name}", [table]) for table in own),
    )


def _load(source: str, name: str, tables: Sequence[RawTable]) -> Load:
    freshness = [table.raw.freshness_minutes for table in tables if table.raw.freshness_minutes]
    return Load(
        source=source,
        name=name,
        tables=tuple(table.identifier for table in tables),
        apart=(
            *reconciliation.check_keys([table.identifier for table in tables if table.is_compared]),
            *erasures.check_keys([table.identifier for table in tables if table.has_personal]),
        ),
        trigger=tables[0].load.trigger,
        confirm_after=timedelta(minutes=min(freshness)) / 2 if freshness else None,
    )


def load_definitions(load: Load, first_day: date, stages: Sequence[dg.AssetKey] = ()) -> dg.Definitions:
    """The job and its sensor or schedule; `stages` are those of all sources."""
    job = dg.define_asset_job(
        load.job,
        selection=load_selection(load, stages),
        description=f"Raw → parsed → vault of {', '.join(table for _, table in load.tables)} ({load.source}).",
        tags={"source": load.source, tags.LOADS: load.source},
    )
    if isinstance(load.trigger, Cron):
        return dg.Definitions(jobs=[job], schedules=[_schedule(load, job, load.trigger.cron, first_day)])
    watch = Watch(
        name=f"new_data_{load.name}",
        tables=load.tables,
        source=load.source,
        confirm_after=load.confirm_after,
        first_day=first_day,
    )
    return dg.Definitions(jobs=[job], sensors=[new_data_sensor(watch, job)])


def load_selection(load: Load, stages: Sequence[dg.AssetKey] = ()) -> dg.AssetSelection:
    """The raw assets and everything downstream except the marts, which read several sources, and the mirrors, which a
    follower refreshes. Of other sources the stages, whose views what they share with this one is loaded from, without
    their checks: a hub is not made of the view from before a change of the project.

    Checks that scan whole tables are left to their own jobs.
    """
    reached = dg.AssetSelection.assets(*map(dg.AssetKey, load.tables)).downstream()
    loaded = reached - dg.AssetSelection.groups(MARTS, MIRRORS)
    of_others = loaded.upstream(depth=1) & dg.AssetSelection.assets(*stages)
    return (loaded | of_others.without_checks()) - dg.AssetSelection.checks(*load.apart)


def _schedule(load: Load, job: dg.job, cron: str, first_day: date) -> dg.ScheduleDefinition:  # type: ignore[valid-type]
    @dg.schedule(
        name=f"{load.job}_schedule",
        job=job,
        cron_schedule=cron,
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description=f"Launches {load.job} by the declared cron unless a run of it is unfinished.",
    )
    def scheduled(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        history = read_history(context.instance, load.job, whole_job(context.repository_def, load.job))
        if history.unfinished:
            run = history.unfinished[0]
            return dg.SkipReason(f"run {run.short_id} of {load.job} is still {run.status}")
        now = datetime.now(UTC)
        run_tags = incremental_tags(first_day, loaded_since(history.state, ()), now)
        return dg.RunRequest(tags={**run_tags, **load_state_tag(history.state, (), now)})

    return scheduled

"""The one kind of sensor: it looks at Iceberg metadata and at run history, and launches a job when there is news."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

import dagster as dg

from orchestration.resources import Lake, TableKey
from orchestration.runs import tags
from orchestration.runs.dependencies import named
from orchestration.runs.history import JobHistory, read_history
from orchestration.runs.load_state import loaded_since
from orchestration.runs.partitions import incremental_tags
from orchestration.runs.subset import held_tag, made_from, part_without, waiting_for_others, waiting_for_tables
from orchestration.sensors.decide import Launch, Seen, decide

INTERVAL_SECONDS = 30


@dataclass(frozen=True)
class Watch:
    """What a sensor watches: tables of the lake and, for a job that ingests, the source behind them.

    `first_day` is given for partitioned jobs only.
    """

    name: str
    tables: tuple[TableKey, ...]
    source: str | None = None
    confirm_after: timedelta | None = None
    first_day: date | None = None


def new_data_sensor(watch: Watch, job: Any) -> dg.SensorDefinition:
    """A sensor that is on by default and keeps no cursor: a restart of the daemon, or of everything, loses nothing."""

    @dg.sensor(
        name=watch.name,
        job=job,
        minimum_interval_seconds=INTERVAL_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Launches {job.name} when {_describe(watch)} hold data that its last successful run had not.",
    )
    def new_data(context: dg.SensorEvaluationContext, lake: Lake) -> dg.RunRequest | dg.SkipReason:
        try:
            seen = look(lake, watch)
            absent = [] if watch.source else lake.absent(t for t in watch.tables if ".".join(t) not in seen.newest)
        except Exception as error:  # a server that is down is a fact to report, not a stack trace every 30 seconds
            return dg.SkipReason(f"cannot look at {_describe(watch)}: {_one_line(error)}")
        repository = context.repository_def
        assert repository is not None
        whole = repository.get_job(job.name)
        history = read_history(context.instance, job.name, whole)
        seen = with_tables(seen, absent, context.instance, repository, whole, history)
        decision = decide(job.name, seen, history, datetime.now(UTC), watch.confirm_after)
        if isinstance(decision, Launch):
            return request(watch, decision, seen, history, whole)
        return dg.SkipReason(decision.why)

    return new_data


def look(lake: Lake, watch: Watch) -> Seen:
    """Metadata only: table pointers, snapshot summaries, the slot's lag."""
    newest = lake.newest_snapshots(watch.tables)
    return Seen(newest=newest, source=lake.source_status(watch.source) if watch.source else None)


def with_tables(
    seen: Seen,
    absent: Sequence[TableKey],
    instance: dg.DagsterInstance,
    repository: dg.RepositoryDefinition,
    job: dg.JobDefinition,
    history: JobHistory,
) -> Seen:
    """The look, with what the job makes of each table, and what has to wait."""
    graph = repository.asset_graph
    keys = named(graph.get_all_asset_keys(), {*seen.newest, *history.state.tables})
    waiting = waiting_for_tables(graph, job, map(dg.AssetKey, absent)) | waiting_for_others(instance, repository, job)
    return replace(seen, made_from=made_from(graph, job, keys), waiting=waiting)


def request(watch: Watch, launch: Launch, seen: Seen, history: JobHistory, whole: dg.JobDefinition) -> dg.RunRequest:
    """The run; Dagster refuses a run_key it has seen, so a crash between two ticks does not launch it twice."""
    now = datetime.now(UTC)
    run_tags = {
        tags.TRIGGER: launch.trigger,
        tags.WHY: launch.why,
        tags.SNAPSHOTS: tags.pack_snapshots(seen.newest),
        **held_tag(history.state, seen.waiting, now),
    }
    if watch.first_day is not None:
        run_tags |= incremental_tags(watch.first_day, loaded_since(history.state, launch.without), now)
    part = part_without(whole, launch.without)
    return dg.RunRequest(
        run_key=f"{launch.trigger}-{launch.attempt}",
        tags=run_tags,
        asset_selection=part.assets,
        asset_check_keys=part.checks,
    )


def _describe(watch: Watch) -> str:
    return f"source {watch.source}" if watch.source else f"{len(watch.tables)} tables"


def _one_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300] if lines else 'no message'}"

"""The one kind of sensor: it looks at Iceberg metadata and at run history, and launches a job when there is news."""

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

import dagster as dg

from orchestration import tags
from orchestration.days import incremental_tags
from orchestration.decide import Launch, Seen, decide
from orchestration.history import JobHistory, read_history, whole_job
from orchestration.resources import Lake, TableKey

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
        except Exception as error:  # a server that is down is a fact to report, not a stack trace every 30 seconds
            return dg.SkipReason(f"cannot look at {_describe(watch)}: {_one_line(error)}")
        history = read_history(context.instance, job.name, whole_job(context.repository_def, job.name))
        decision = decide(job.name, seen, history, datetime.now(UTC), watch.confirm_after)
        if isinstance(decision, Launch):
            return request(watch, decision, seen, history)
        return dg.SkipReason(decision.why)

    return new_data


def look(lake: Lake, watch: Watch) -> Seen:
    """Metadata only: table pointers, snapshot summaries, the slot's lag."""
    newest = lake.newest_snapshots(watch.tables)
    return Seen(newest=newest, source=lake.source_status(watch.source) if watch.source else None)


def request(watch: Watch, launch: Launch, seen: Seen, history: JobHistory) -> dg.RunRequest:
    """The run; Dagster refuses a run_key it has seen, so a crash between two ticks does not launch it twice."""
    run_tags = {
        tags.TRIGGER: launch.trigger,
        tags.WHY: launch.why,
        tags.SNAPSHOTS: tags.pack_snapshots(seen.newest),
    }
    if watch.first_day is not None:
        last = history.last_success.created_at if history.last_success else None
        run_tags |= incremental_tags(watch.first_day, last, datetime.now(UTC))
    return dg.RunRequest(run_key=f"{launch.trigger}-{launch.attempt}", tags=run_tags)


def _describe(watch: Watch) -> str:
    return f"source {watch.source}" if watch.source else f"{len(watch.tables)} tables"


def _one_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300] if lines else 'no message'}"

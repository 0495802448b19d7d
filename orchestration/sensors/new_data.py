"""The new-data sensor: compares Iceberg metadata with the run history and launches a job for new data."""

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

import dagster as dg

from lakehouse.errors import LakehouseError
from lakehouse.servers.worker_sessions import RESTART_SECONDS
from lakehouse.text.shown import shortened
from orchestration.assets.blocking_checks import blocking_checks
from orchestration.resources import Lake, TableKey
from orchestration.runs import tags
from orchestration.runs.arrivals import Read
from orchestration.runs.dependencies import named
from orchestration.runs.partitions import incremental_tags
from orchestration.runs.state.history import JobHistory, read_history
from orchestration.runs.state.load_state import loaded_since
from orchestration.runs.state.loaded import last_worker_load, with_worker
from orchestration.runs.subset import (
    derived_tables,
    load_state_tag,
    subset_without,
    waiting_for_checks,
    waiting_for_others,
    waiting_for_tables,
)
from orchestration.sensors.decide import Launch, Observed, decide

INTERVAL_SECONDS = 60  # a worker is woken by the cut, and needs no sensor
STARTS_WITHIN = 60.0  # of a follower, which is started together with the code server
LOADED_AT = time.monotonic()


@dataclass
class Absence:
    """Since when sensors miss a worker that was killed: nothing is stored of the moment when its session ended."""

    since: float | None = None

    def may_end(self, is_killed: bool, now: float) -> bool:
        """Whether the worker was killed and may be back in a moment; `now` is of a clock that only goes forward."""
        self.since = None if not is_killed else now if self.since is None else self.since
        return self.since is not None and now - self.since < RESTART_SECONDS


ABSENCE = Absence()
"""As all sensors of this code server have seen it."""


@dataclass(frozen=True)
class Watch:
    """What a sensor watches: tables of the lake and, for a job that ingests, their source.

    `first_day` is set for partitioned jobs only; `reads` are the raw tables that marts are made of in the end,
    `mirrors` those of current views among what they read, `tests` the checks of tests that hold marts back, and `built`
    the marts that are built whole: one that somebody has replaced in place is news.
    """

    name: str
    tables: tuple[TableKey, ...]
    source: str | None = None
    confirm_after: timedelta | None = None
    first_day: date | None = None
    reads: Sequence[Read] = ()
    mirrors: tuple[TableKey, ...] = ()
    tests: Collection[dg.AssetCheckKey] = ()
    built: tuple[TableKey, ...] = ()


class CannotInspectError(LakehouseError):
    """A server that the sensor asks does not answer; the tick fails, the next one asks again."""


def new_data_sensor(watch: Watch, job: Any) -> dg.SensorDefinition:
    """A sensor that runs by default. It keeps no cursor, so a restart of the daemon loses nothing."""

    @dg.sensor(
        name=watch.name,
        job=job,
        minimum_interval_seconds=INTERVAL_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Launches {job.name} when {_describe(watch)} have data that its last successful run did not read.",
    )
    def new_data(context: dg.SensorEvaluationContext, lake: Lake) -> dg.RunRequest | dg.SkipReason:
        try:
            seen = observe(lake, watch, job.name)
            unseen = [table for table in watch.tables if ".".join(table) not in seen.newest]
            missing = [] if watch.source else lake.never_loaded(unseen, watch.reads)
        except Exception as error:  # the tick fails, in one line: a skipped one would look like an idle sensor
            raise CannotInspectError(f"cannot inspect {_describe(watch)}: {_one_line(error)}") from None
        repository = context.repository_def
        assert repository is not None
        whole = repository.get_job(job.name)
        own = whole.asset_layer.executable_asset_keys
        load = last_worker_load(context.instance, job.name, own)
        history = with_worker(context.instance, read_history(context.instance, job.name, whole), load)
        if history.failures or history.state.tables:  # else nothing depends on it, and it takes 30 ms
            seen = replace(seen, code=lake.code_version())
        blocking = blocking_checks(watch.tests, missing)
        seen = with_dependencies(seen, missing, blocking, context.instance, repository, whole, history)
        decision = decide(job.name, seen, history, datetime.now(UTC), watch.confirm_after)
        if isinstance(decision, Launch):
            return request(watch, decision, seen, history, whole, lake.code_version())
        return dg.SkipReason(decision.why)

    return new_data


def observe(lake: Lake, watch: Watch, job: str) -> Observed:
    """Reads metadata only: table pointers, snapshot summaries, the slot's lag, and whether a worker serves the job.

    A worker that begins serves its jobs before it is alive, so what became of it is asked first.
    """
    newest = lake.newest_snapshots([*watch.tables, *watch.mirrors])
    newest |= lake.unpublished_snapshots(watch.built) if watch.built else {}
    source = lake.source_status(watch.source) if watch.source else None
    starting = time.monotonic() - LOADED_AT < STARTS_WITHIN
    returning = ABSENCE.may_end(lake.worker() == "killed", time.monotonic())
    served = lake.is_served(job)
    if (served or returning) and lake.is_restless():  # who writes takes turns: see lakehouse/servers/presence.py
        served = returning = False
    return Observed(newest=newest, source=source, served=served, returning=returning, starting=starting)


def with_dependencies(
    seen: Observed,
    missing: Sequence[TableKey],
    blocking: Collection[dg.AssetCheckKey],
    instance: dg.DagsterInstance,
    repository: dg.RepositoryDefinition,
    job: dg.JobDefinition,
    history: JobHistory,
) -> Observed:
    """Adds the job's tables downstream of each observed table, and those that have to wait."""
    graph = repository.asset_graph
    keys = named(graph.get_all_asset_keys(), {*seen.newest, *history.state.tables})
    waiting = (
        waiting_for_tables(graph, job, map(dg.AssetKey, missing))
        | waiting_for_checks(instance, repository, job, blocking)
        | waiting_for_others(instance, repository, job)
    )
    return replace(seen, derived=derived_tables(graph, job, keys), waiting=waiting)


def request(
    watch: Watch, launch: Launch, seen: Observed, history: JobHistory, whole: dg.JobDefinition, code: str
) -> dg.RunRequest:
    """The run request."""
    now = datetime.now(UTC)
    run_tags = {
        tags.TRIGGER: launch.trigger,
        tags.WHY: launch.why,
        tags.CODE: code,
        tags.SNAPSHOTS: tags.pack_snapshots(seen.newest),
        **load_state_tag(history.state, seen.waiting, now),
    }
    if watch.first_day is not None:
        run_tags |= incremental_tags(watch.first_day, loaded_since(history.state, launch.without), now)
    subset = subset_without(whole, launch.without)
    return dg.RunRequest(
        run_key=launch.run_key,
        tags=run_tags,
        asset_selection=subset.assets,
        asset_check_keys=subset.checks,
    )


def _describe(watch: Watch) -> str:
    return f"source {watch.source}" if watch.source else f"{len(watch.tables)} tables"


def _one_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {shortened(lines[0], 300) if lines else 'no message'}"

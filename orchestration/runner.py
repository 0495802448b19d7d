"""Runs jobs in sequence in this process, on the instance that the UI and the daemon use.

The daemon starts a process with its own JVM for each run. Here all runs share the loaded definitions and the Spark
session, which makes `lakehouse run` and the demo faster.
"""

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from time import monotonic
from typing import Any
from uuid import uuid4

import dagster as dg
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.execution.api import execute_run_iterator
from dagster._core.remote_origin import RemoteJobOrigin, RemoteRepositoryOrigin
from dagster._core.workspace.load import location_origins_from_yaml_paths

from lakehouse.declarations.dbt.manifest import load_manifest
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings
from orchestration.assets.blocking_checks import blocking_checks, blocking_tests
from orchestration.jobs import marts
from orchestration.resources import Lake, TableKey
from orchestration.runs import arrivals
from orchestration.runs.arrivals import Aside
from orchestration.runs.dependencies import reason_to_skip
from orchestration.runs.failures import failure_message
from orchestration.runs.partitions import DayRange, incremental_tags
from orchestration.runs.pools import WAITING
from orchestration.runs.processes.interrupts import Stop, do_nothing
from orchestration.runs.processes.workers import fail_orphaned_runs, free_pools, signature
from orchestration.runs.progress import Say, describe, held_back, only_progress, set_aside
from orchestration.runs.state.history import end_state_of, read_history
from orchestration.runs.state.load_state import LoadState, loaded_since
from orchestration.runs.subset import (
    JobSubset,
    load_state_tag,
    subset_without,
    waiting_for_checks,
    waiting_for_others,
    waiting_for_tables,
)


@dataclass(frozen=True)
class Outcome:
    """The result of one run; a skipped job has no run. `aside` are the tables that it did not bring, though it went on
    with the others."""

    job: str
    run_id: str | None
    success: bool
    seconds: float
    error: str | None
    aside: tuple[Aside, ...] = ()


def run_jobs(
    settings: Settings, names: Sequence[str], days: DayRange | None, stop: Stop, to_stderr: bool = False
) -> list[Outcome]:
    """Runs the jobs in order and prints progress; skips jobs that read tables of a failed job.

    A load is incremental without `days`, and a backfill of these days with them. Raises LakehouseError for an unknown
    job or day before anything runs.
    """
    from orchestration.definitions import defs

    repository = defs.get_repository_def()
    jobs = [_job(repository, name) for name in names if not _has_no_marts(repository, name)]
    for job in jobs:
        _check_days(job, days)
    outcomes: list[Outcome] = []
    failed: list[dg.JobDefinition] = []
    with _instance(settings) as instance, only_progress(settings.home / "logs" / "run.log", to_stderr) as say:
        fail_orphaned_runs(instance)
        for name in set(names) - {job.name for job in jobs}:
            say(f"{name}  nothing to build: the project has no marts")
        for job in jobs:
            if stop.is_set():
                break
            if (reason := reason_to_skip(repository.asset_graph, job, failed)) is not None:
                say(f"{job.name}  skipped: {reason}")
                outcome = Outcome(job.name, None, False, 0.0, f"skipped: {reason}")
            else:
                outcome = _run_unblocked(settings, repository, instance, job, days, say, stop)
            if not outcome.success and not _knows_failed_tables(instance, outcome):
                failed.append(job)
            outcomes.append(outcome)
    return outcomes


def _has_no_marts(repository: dg.RepositoryDefinition, name: str) -> bool:
    return name == marts.JOB and not repository.has_job(name)


def _knows_failed_tables(instance: dg.DagsterInstance, outcome: Outcome) -> bool:
    """Whether the run recorded which tables failed; jobs that read only its other tables can then run."""
    run = instance.get_run_by_id(outcome.run_id) if outcome.run_id else None
    return run is not None and end_state_of(run) is not None


def _run_unblocked(
    settings: Settings,
    repository: dg.RepositoryDefinition,
    instance: dg.DagsterInstance,
    job: dg.JobDefinition,
    days: DayRange | None,
    say: Say,
    stop: Stop,
) -> Outcome:
    """Runs the job without the tables that wait for others; unsuccessful if failed tables were left out."""
    manifest = load_manifest(settings)
    missing = _never_loaded(manifest, job)
    blocking = blocking_checks(blocking_tests(manifest).values(), missing)
    failed = waiting_for_checks(instance, repository, job, blocking) | waiting_for_others(instance, repository, job)
    waiting = waiting_for_tables(repository.asset_graph, job, map(dg.AssetKey, missing)) | failed
    for reason in sorted(set(waiting.values())):
        tables = sorted(name for name, why in waiting.items() if why == reason)
        say(f"{job.name}  left out: {tables[0]}{f' and {len(tables) - 1} more' if tables[1:] else ''}: {reason}")
    subset, outcome = subset_without(job, waiting), Outcome(job.name, None, True, 0.0, None)
    if subset.assets != ():
        run_tags = _tags(settings, read_history(instance, job.name, job).state, job, days, waiting)
        outcome = _run(settings, job, subset, instance, run_tags, say, stop)
    if outcome.success and failed:
        return replace(outcome, success=False, error=_left_out(failed))
    return outcome


def _left_out(tables: Mapping[str, str]) -> str:
    first = min(tables)
    return f"{len(tables)} tables were left out: {first}: {tables[first]}"


def _never_loaded(manifest: dict[str, Any], job: dg.JobDefinition) -> list[TableKey]:
    if job.name != marts.JOB:
        return []
    lake = Lake()
    return lake.never_loaded(marts.tables_read(manifest), arrivals.raw_read(lake.declarations(), manifest))


def _job(repository: dg.RepositoryDefinition, name: str) -> dg.JobDefinition:
    if not repository.has_job(name):
        known = sorted(job for job in repository.job_names if not job.startswith("__"))
        raise LakehouseError(f"no job {name!r}; there are {', '.join(known)}")
    return repository.get_job(name)


def _check_days(job: dg.JobDefinition, days: DayRange | None) -> None:
    if days is None:
        return
    if job.partitions_def is None:
        raise LakehouseError(f"job {job.name!r} has no days to derive again; only load jobs have")
    known = job.partitions_def.get_partition_keys()
    for day in (days.first.isoformat(), days.last.isoformat()):
        if day not in known:
            raise LakehouseError(f"{day} cannot be derived again: days are from {known[0]} to {known[-1]}")


def _tags(
    settings: Settings, state: LoadState, job: dg.JobDefinition, days: DayRange | None, waiting: Collection[str]
) -> dict[str, str]:
    now = datetime.now(UTC)
    held = load_state_tag(state, waiting, now, reset_tries=True)
    if days is not None:
        return {**days.run_tags(), **held}
    if job.partitions_def is None:
        return held
    return {**incremental_tags(settings.dagster.first_day, loaded_since(state, waiting), now), **held}


def _run(
    settings: Settings,
    whole: dg.JobDefinition,
    part: JobSubset,
    instance: dg.DagsterInstance,
    tags: dict[str, str],
    say: Say,
    stop: Stop,
) -> Outcome:
    assets, checks = frozenset(part.assets or ()) or None, None if part.checks is None else frozenset(part.checks)
    job = whole.get_subset(asset_selection=assets, asset_check_selection=checks)
    started, run_id = monotonic(), str(uuid4())
    stop.before_exit = partial(cancel, instance, run_id)
    signed = {**job.tags, **tags, **signature(run_id)}
    run = instance.create_run_for_job(
        job, run_id=run_id, tags=signed, remote_job_origin=_origin(settings, job.name), asset_selection=assets
    )
    stop.on_signal = partial(_ask_to_cancel, instance, run_id)
    instance.add_event_listener(run_id, partial(_say_waiting, say))
    say(f"{job.name}  run {run_id[:8]}")
    error, aside, held = None, dict[Aside, None](), dict[str, str]()
    for event in _reported(execute_run_iterator(InMemoryJob(job), run, instance), say):
        error = error or failure_message(event)
        aside |= dict.fromkeys(set_aside(event))
        held |= dict(held_back(event))
        if event.is_failure and stop.is_set():
            _ask_to_cancel(instance, run_id)
    finished = instance.get_run_by_id(run_id)
    success = finished is not None and finished.is_success
    seconds = monotonic() - started
    without = f", without {', '.join(each.table for each in aside)}" if success and aside else ""
    say(f"{job.name}  {'succeeded' if success else 'FAILED'} in {seconds:.1f} s{without}")
    if not stop.is_set():
        stop.on_signal, stop.before_exit = do_nothing, str
    if success and held:  # the load that it waited for has left them red or behind
        success, error = False, _left_out(held)
    return Outcome(job.name, run_id, success, round(seconds, 1), error, tuple(aside))


def _reported(events: Iterator[dg.DagsterEvent], say: Say) -> Iterator[dg.DagsterEvent]:
    """The events of a run; prints each line once, as a table has one event per partition."""
    said: set[str] = set()
    for event in events:
        for line in describe(event):
            if line not in said:
                say(line)
            said.add(line)
        yield event


def cancel(instance: dg.DagsterInstance, run_id: str) -> str:
    """Marks an unfinished run as canceled and frees its pool slots; returns the run's final status in words."""
    run = instance.get_run_by_id(run_id)
    if run is None:
        return ""
    if not run.is_finished:
        instance.report_run_canceled(run, "Interrupted: its process has ended.")
    free_pools(instance, run_id)
    ended = instance.get_run_by_id(run_id)
    return f"run {run_id[:8]} of {run.job_name} is {ended.status.value if ended else 'gone'}"


def _ask_to_cancel(instance: dg.DagsterInstance, run_id: str) -> None:
    """Marks the run as canceling; otherwise Dagster would record the interrupt as a failure."""
    run = instance.get_run_by_id(run_id)
    if run is not None and run.status is dg.DagsterRunStatus.STARTED:
        instance.report_run_canceling(run, "Interrupted by a signal.")


def _say_waiting(say: Say, entry: dg.EventLogEntry) -> None:
    if entry.dagster_event is not None and (entry.dagster_event.message or "").startswith(WAITING):
        say(f"  {entry.dagster_event.message}")


def _origin(settings: Settings, job: str) -> RemoteJobOrigin:
    """The job's origin in the workspace, without which the UI cannot re-execute the run."""
    [location] = location_origins_from_yaml_paths([str(settings.project_dir / "workspace.yaml")])
    return RemoteJobOrigin(RemoteRepositoryOrigin(location, "__repository__"), job)


@contextmanager
def _instance(settings: Settings) -> Iterator[dg.DagsterInstance]:
    os.environ["DAGSTER_HOME"] = str(settings.dagster_home)
    with dg.DagsterInstance.get() as instance:
        yield instance

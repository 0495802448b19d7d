"""Runs jobs one after another in this process, on the same instance that the UI and the daemon use.

A run that the daemon launches starts a process, which imports everything and starts its own JVM. Here the
definitions are loaded once and the Spark session is shared, which is what `lakehouse run` and the demo want.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic

import dagster as dg
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.execution.api import execute_run_iterator
from dagster._core.remote_origin import RemoteJobOrigin, RemoteRepositoryOrigin
from dagster._core.workspace.load import location_origins_from_yaml_paths
from dagster_shared.error import SerializableErrorInfo

from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings
from orchestration.days import DayRange, incremental_tags
from orchestration.history import read_history
from orchestration.progress import Say, describe, only_progress

WORKSPACE = Path(__file__).resolve().parent.parent / "workspace.yaml"


@dataclass(frozen=True)
class Outcome:
    """How one run ended."""

    job: str
    run_id: str
    success: bool
    seconds: float
    error: str | None


def run_jobs(settings: Settings, names: Sequence[str], days: DayRange | None, to_stderr: bool = False) -> list[Outcome]:
    """Runs the jobs in order, printing progress, and stops at the first failure.

    Without `days` a load is an ordinary one; with them it derives those days again. Raises LakehouseError for a
    job or a day that does not exist, before anything runs.
    """
    from orchestration.definitions import defs

    jobs = [_job(defs, name) for name in names]
    for job in jobs:
        _check_days(job, days)
    outcomes: list[Outcome] = []
    with _instance(settings) as instance, only_progress(settings.home / "logs" / "run.log", to_stderr) as say:
        for job in jobs:
            outcomes.append(_run(job, instance, _tags(settings, instance, job, days), say))
            if not outcomes[-1].success:
                break
    return outcomes


def _job(defs: dg.Definitions, name: str) -> dg.JobDefinition:
    repository = defs.get_repository_def()
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
    settings: Settings, instance: dg.DagsterInstance, job: dg.JobDefinition, days: DayRange | None
) -> dict[str, str]:
    if days is not None:
        return days.run_tags()
    if job.partitions_def is None:
        return {}
    last = read_history(instance, job.name, job).last_success
    return incremental_tags(settings.dagster.first_day, last.created_at if last else None, datetime.now(UTC))


def _run(job: dg.JobDefinition, instance: dg.DagsterInstance, tags: Mapping[str, str], say: Say) -> Outcome:
    started = monotonic()
    run = instance.create_run_for_job(job, tags={**job.tags, **tags}, remote_job_origin=_origin(job.name))
    say(f"{job.name}  run {run.run_id[:8]}")
    error = None
    said: set[str] = set()  # a table that is loaded for several days has an event for each of them
    for event in execute_run_iterator(InMemoryJob(job), run, instance):
        for line in describe(event):
            if line not in said:
                say(line)
            said.add(line)
        if event.is_failure and event.event_specific_data is not None:
            failure = getattr(event.event_specific_data, "error", None)
            error = error or (_innermost(failure) if failure else None)
    finished = instance.get_run_by_id(run.run_id)
    success = finished is not None and finished.is_success
    seconds = monotonic() - started
    say(f"{job.name}  {'succeeded' if success else 'FAILED'} in {seconds:.1f} s")
    return Outcome(job.name, run.run_id, success, round(seconds, 1), error)


def _innermost(error: SerializableErrorInfo) -> str:
    while error.cause is not None:
        error = error.cause
    return one_line(error.message)


def one_line(message: str) -> str:
    """What went wrong; of dbt's pages, the first error it names."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    named = next((i for i, line in enumerate(lines) if re.match(r"\w+ Error in |Failure in test ", line)), None)
    found = lines[:1] if named is None else lines[named : named + 2]
    return ": ".join(found)[:500] or "no message"


def _origin(job: str) -> RemoteJobOrigin:
    """Where the UI finds the job again: without it a run could not be re-executed there."""
    [location] = location_origins_from_yaml_paths([str(WORKSPACE)])
    return RemoteJobOrigin(RemoteRepositoryOrigin(location, "__repository__"), job)


@contextmanager
def _instance(settings: Settings) -> Iterator[dg.DagsterInstance]:
    os.environ["DAGSTER_HOME"] = str(settings.dagster_home)
    with dg.DagsterInstance.get() as instance:
        yield instance

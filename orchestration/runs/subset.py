"""The subset of a job that a run executes: all tables except those held back or waiting for other jobs."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import dagster as dg

from orchestration.runs import tags
from orchestration.runs.dependencies import TableGraph, downstream, ingests, name_of, upstream
from orchestration.runs.state.behind import left_behind
from orchestration.runs.state.evaluations import newest_evaluations
from orchestration.runs.state.load_state import HeldTable, LoadState, pack_state


@dataclass(frozen=True)
class JobSubset:
    """The tables and checks of a run; None stands for all of the job."""

    assets: tuple[dg.AssetKey, ...] | None = None
    checks: tuple[dg.AssetCheckKey, ...] | None = None


def subset_without(job: dg.JobDefinition, without: Collection[str]) -> JobSubset:
    """The job without these tables. Checks are listed too, or Dagster would add those of other jobs."""
    graph = job.asset_layer.asset_graph
    left = tuple(sorted(key for key in job.asset_layer.executable_asset_keys if name_of(key) not in without))
    if len(left) == len(set(job.asset_layer.executable_asset_keys)):
        return JobSubset()
    return JobSubset(left, tuple(sorted((key for key in graph.asset_check_keys if key.asset_key in left), key=str)))


def derived_tables(graph: TableGraph, job: dg.JobDefinition, keys: Iterable[dg.AssetKey]) -> dict[str, frozenset[str]]:
    """For each table, the job's tables downstream of it, including itself if the job builds it."""
    own = set(job.asset_layer.executable_asset_keys)
    return {name_of(key): frozenset(map(name_of, downstream(graph, [key]) & own)) for key in keys}


def waiting_for_others(
    instance: dg.DagsterInstance, repository: dg.RepositoryDefinition, job: dg.JobDefinition
) -> dict[str, str]:
    """The job's tables downstream of tables that another job has left behind, each with the reason.

    A job that ingests never waits: it builds the tables it shares with other loads itself.
    """
    graph = repository.asset_graph
    own = set(job.asset_layer.executable_asset_keys)
    reads = upstream(graph, own) - own
    found: dict[str, str] = {}
    for other in [] if ingests(job) else _others(repository, job, reads):
        behind = left_behind(instance, other.name, set(other.asset_layer.executable_asset_keys))
        for key in sorted(reads & behind.keys()):
            found |= dict.fromkeys(map(name_of, downstream(graph, [key]) & own), behind[key])
    return found


def waiting_for_checks(
    instance: dg.DagsterInstance,
    repository: dg.RepositoryDefinition,
    job: dg.JobDefinition,
    blocking: Collection[dg.AssetCheckKey],
) -> dict[str, str]:
    """The job's tables downstream of tables of which one of the `blocking` checks fails, each with the reason.

    A job that ingests never waits: it checks the tables itself.
    """
    if ingests(job):
        return {}
    graph = repository.asset_graph
    own = set(job.asset_layer.executable_asset_keys)
    reads = upstream(graph, own) - own
    found: dict[str, str] = {}
    for check in failing_checks(instance, [key for key in blocking if key.asset_key in reads]):
        why = f"check {check.name} of {name_of(check.asset_key)} fails"
        found |= dict.fromkeys(map(name_of, downstream(graph, [check.asset_key]) & own), why)
    return found


def failing_checks(instance: dg.DagsterInstance, checks: Sequence[dg.AssetCheckKey]) -> list[dg.AssetCheckKey]:
    """Those whose last evaluation failed and was no warning."""
    found = newest_evaluations(instance, checks)
    return sorted((key for key, evaluation in found.items() if evaluation.has_failed), key=str)


def waiting_for_tables(graph: TableGraph, job: dg.JobDefinition, missing: Iterable[dg.AssetKey]) -> dict[str, str]:
    """The job's tables downstream of tables that do not exist yet, each with the reason."""
    return {
        name: f"{table} was never loaded"
        for table, names in derived_tables(graph, job, missing).items()
        for name in names
    }


def load_state_tag(
    state: LoadState, waiting: Collection[str], now: datetime, reset_tries: bool = False
) -> dict[str, str]:
    """The HELD tag for a new run. `reset_tries` drops earlier failures, for launches by hand."""
    new = {name: HeldTable(0, now, state.loaded_at) for name in waiting if name not in state.tables}
    tables = {name: replace(table, tries=0) if reset_tries else table for name, table in state.tables.items()}
    return {tags.HELD: pack_state(replace(state, tables={**tables, **new}))}


def _others(
    repository: dg.RepositoryDefinition, job: dg.JobDefinition, reads: set[dg.AssetKey]
) -> list[dg.JobDefinition]:
    jobs = [found for found in repository.get_all_jobs() if found.name != job.name and not found.name.startswith("__")]
    return [other for other in jobs if ingests(other) and reads.intersection(other.asset_layer.executable_asset_keys)]

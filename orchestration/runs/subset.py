"""The part of a job that a run is of: all its tables but those that are held back, or wait for other jobs."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

import dagster as dg
from dagster._core.definitions.assets.graph.asset_graph import AssetGraph

from orchestration.runs import tags
from orchestration.runs.dependencies import downstream, ingests, name_of, named, upstream
from orchestration.runs.history import read_state
from orchestration.runs.load_state import Held, State, pack


@dataclass(frozen=True)
class Part:
    """The tables and checks of a run; None for all of the job's."""

    assets: tuple[dg.AssetKey, ...] | None = None
    checks: tuple[dg.AssetCheckKey, ...] | None = None


def part_without(job: dg.JobDefinition, without: Collection[str]) -> Part:
    """The job's tables but those of these names; the checks are named, or Dagster would add those of other jobs."""
    graph = job.asset_layer.asset_graph
    left = tuple(sorted(key for key in job.asset_layer.executable_asset_keys if name_of(key) not in without))
    if len(left) == len(set(job.asset_layer.executable_asset_keys)):
        return Part()
    return Part(left, tuple(sorted((key for key in graph.asset_check_keys if key.asset_key in left), key=str)))


def made_from(graph: AssetGraph, job: dg.JobDefinition, names: Iterable[dg.AssetKey]) -> dict[str, frozenset[str]]:
    """For each table the tables of the job that are made from it, itself included where the job makes it."""
    own = set(job.asset_layer.executable_asset_keys)
    return {name_of(key): frozenset(map(name_of, downstream(graph, [key]) & own)) for key in names}


def waiting_for_others(
    instance: dg.DagsterInstance, repository: dg.RepositoryDefinition, job: dg.JobDefinition
) -> dict[str, str]:
    """Tables of the job that are made from what another job holds back, each with the reason.

    A job that ingests waits for none: what it shares with other loads it fills by itself.
    """
    graph = repository.asset_graph
    own = set(job.asset_layer.executable_asset_keys)
    reads = upstream(graph, own) - own
    found: dict[str, str] = {}
    for other in [] if ingests(job) else _others(repository, job, reads):
        held = {name: table for name, table in read_state(instance, other).tables.items() if table.tries}
        for key in sorted(named(reads, held)):
            why = f"{name_of(key)} has failed {held[name_of(key)].tries} times in {other.name}"
            found |= dict.fromkeys(map(name_of, downstream(graph, [key]) & own), why)
    return found


def waiting_for_tables(graph: AssetGraph, job: dg.JobDefinition, missing: Iterable[dg.AssetKey]) -> dict[str, str]:
    """Tables of the job that are made from one that is not there yet, each with the reason."""
    return {
        name: f"{table} was never loaded" for table, names in made_from(graph, job, missing).items() for name in names
    }


def held_tag(state: State, waiting: Collection[str], now: datetime, forgiven: bool = False) -> dict[str, str]:
    """The tag with which a run is launched; by hand, earlier failures are forgiven."""
    new: Mapping[str, Held] = {name: Held(0, now, state.loaded_at) for name in waiting if name not in state.tables}
    tables = {name: replace(table, tries=0) if forgiven else table for name, table in state.tables.items()}
    return {tags.HELD: pack(replace(state, tables={**tables, **new}))}


def _others(
    repository: dg.RepositoryDefinition, job: dg.JobDefinition, reads: set[dg.AssetKey]
) -> list[dg.JobDefinition]:
    jobs = [found for found in repository.get_all_jobs() if found.name != job.name and not found.name.startswith("__")]
    return [other for other in jobs if ingests(other) and reads.intersection(other.asset_layer.executable_asset_keys)]

"""Dependencies between tables and jobs: what can still run after a failure."""

from collections.abc import Callable, Collection, Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Protocol

import dagster as dg


class TableNode(Protocol):
    """A table of Dagster's asset graph."""

    @property
    def parent_keys(self) -> AbstractSet[dg.AssetKey]:
        """The tables that it is made of."""

    @property
    def child_keys(self) -> AbstractSet[dg.AssetKey]:
        """The tables that are made of it."""


class TableGraph(Protocol):
    """As much of Dagster's asset graph as is used here; its class is private."""

    def has(self, key: Any, /) -> bool:
        """Whether the table is in it."""

    def get(self, key: Any, /) -> Any:
        """The table's node."""


def reason_to_skip(graph: TableGraph, job: dg.JobDefinition, failed: Sequence[dg.JobDefinition]) -> str | None:
    """Why to skip the job after these jobs failed or were skipped; None if it reads none of their tables.

    A load is never skipped: it starts from its own source and builds the tables it shares with other loads itself.
    """
    own = set(job.asset_layer.executable_asset_keys)
    if ingests(job):
        return None
    reads = upstream(graph, own) - own
    for other in failed:
        if common := sorted(reads.intersection(other.asset_layer.executable_asset_keys)):
            more = f" and {len(common) - 1} more" if len(common) > 1 else ""
            return f"it reads {name_of(common[0])}{more} of {other.name}, which has not succeeded"
    return None


def ingests(job: dg.JobDefinition) -> bool:
    """Whether the job materializes raw tables."""
    return any(key.path[0].startswith("raw_") for key in job.asset_layer.executable_asset_keys)


def upstream(graph: TableGraph, keys: Iterable[dg.AssetKey]) -> set[dg.AssetKey]:
    """The tables and everything upstream."""
    return _reach(graph, keys, lambda node: node.parent_keys)


def downstream(graph: TableGraph, keys: Iterable[dg.AssetKey]) -> set[dg.AssetKey]:
    """The tables and everything downstream."""
    return _reach(graph, keys, lambda node: node.child_keys)


def name_of(key: dg.AssetKey) -> str:
    """`schema.table`."""
    return ".".join(key.path)


def named(keys: Iterable[dg.AssetKey], names: Collection[str]) -> set[dg.AssetKey]:
    """The keys with one of these names."""
    return {key for key in keys if name_of(key) in names}


def _reach(
    graph: TableGraph,
    keys: Iterable[dg.AssetKey],
    next_to: Callable[[TableNode], AbstractSet[dg.AssetKey]],
) -> set[dg.AssetKey]:
    seen: set[dg.AssetKey] = set()
    waiting = list(keys)
    while waiting:
        key = waiting.pop()
        if key not in seen and graph.has(key):
            seen.add(key)
            waiting += next_to(graph.get(key))
    return seen

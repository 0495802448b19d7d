"""What is made from what: which jobs, and which tables of a job, go on after something has failed."""

from collections.abc import Callable, Collection, Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import dagster as dg
from dagster._core.definitions.assets.graph.asset_graph import AssetGraph
from dagster._core.definitions.assets.graph.base_asset_graph import BaseAssetGraph, BaseAssetNode


def why_skipped(graph: AssetGraph, job: dg.JobDefinition, failed: Sequence[dg.JobDefinition]) -> str | None:
    """Why the job is not to run after those have failed or were skipped; None where it reads nothing of theirs.

    A load goes on: it begins at its own source, and what it shares with other loads it fills by itself.
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
    """Whether the job begins at a source."""
    return any(key.path[0].startswith("raw_") for key in job.asset_layer.executable_asset_keys)


def upstream(graph: BaseAssetGraph[Any], keys: Iterable[dg.AssetKey]) -> set[dg.AssetKey]:
    """The tables and all they are made from."""
    return _reach(graph, keys, lambda node: node.parent_keys)


def downstream(graph: BaseAssetGraph[Any], keys: Iterable[dg.AssetKey]) -> set[dg.AssetKey]:
    """The tables and all that is made from them."""
    return _reach(graph, keys, lambda node: node.child_keys)


def name_of(key: dg.AssetKey) -> str:
    """`schema.table`."""
    return ".".join(key.path)


def named(keys: Iterable[dg.AssetKey], names: Collection[str]) -> set[dg.AssetKey]:
    """Those of the keys that bear one of the names."""
    return {key for key in keys if name_of(key) in names}


def _reach(
    graph: BaseAssetGraph[Any],
    keys: Iterable[dg.AssetKey],
    next_to: Callable[[BaseAssetNode], AbstractSet[dg.AssetKey]],
) -> set[dg.AssetKey]:
    seen: set[dg.AssetKey] = set()
    waiting = list(keys)
    while waiting:
        key = waiting.pop()
        if key not in seen and graph.has(key):
            seen.add(key)
            waiting += next_to(graph.get(key))
    return seen

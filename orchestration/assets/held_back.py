"""Which marts wait for their vault, asked by a run that keeps every load of it out.

Before a run is launched the same is asked (`runs.subset`). But a run waits for the load that is under way, and that one
may end red.
"""

from collections.abc import Collection, Mapping
from typing import Any

import dagster as dg

from orchestration.assets.blocking_checks import blocking_tests
from orchestration.assets.groups import load_groups
from orchestration.assets.next_tables import tests_reading
from orchestration.assets.translator import node_key
from orchestration.resources import TableKey
from orchestration.runs.dependencies import name_of
from orchestration.runs.progress import HELD_BACK
from orchestration.runs.state.behind import left_behind
from orchestration.runs.subset import failing_checks

Manifest = Mapping[str, Any]
Loads = Mapping[str, Collection[TableKey]]
"""By name of each load job, the raw tables that it loads."""


def held_back(instance: dg.DagsterInstance, manifest: Manifest, loads: Loads, marts: Collection[str]) -> dict[str, str]:
    """By unique id those of the marts that are made of a table whose blocking test fails, or that a load has left
    behind, each with the reason. Whoever asks keeps the loads of their sources out.
    """
    loaded = load_groups(manifest).keys()
    above = _above(manifest, [*marts, *loaded])
    keys = {id: node_key(node) for id, node in _nodes(manifest).items() if id in above}
    read = {mart: {keys[id] for id in above[mart]} for mart in marts}
    whys = _failing(instance, manifest, frozenset().union(*read.values()))
    for job, tables in loads.items():
        raw = {dg.AssetKey(table) for table in tables}
        own = {keys[id] for id in loaded if not raw.isdisjoint(keys[up] for up in above[id])}
        whys |= left_behind(instance, job, own, alone=True)
    held = {mart: sorted(read[mart] & whys.keys()) for mart in marts}
    return {mart: whys[tables[0]] for mart, tables in held.items() if tables}


def tests_beside(
    manifest: Manifest, marts: Collection[str], held: Collection[str], left_out: Collection[str]
) -> list[str]:
    """The tests that read one of the marts and one that is held back: dbt leaves them out with the latter."""
    read = tests_reading(manifest, marts)
    return sorted(test for test, nodes in read.items() if test not in left_out and not set(held).isdisjoint(nodes))


def tell_held(context: dg.AssetExecutionContext, manifest: Manifest, held: Mapping[str, str]) -> None:
    """Tells of each of these in the run, and on its own page."""
    for mart, why in sorted(held.items()):
        key = node_key(manifest["nodes"][mart])
        told = f"{name_of(key)} waits: {why}"
        context.log.warning(told)
        context.log_event(dg.AssetObservation(key, description=told, metadata={"status": HELD_BACK, "reason": why}))


def _failing(
    instance: dg.DagsterInstance, manifest: Manifest, tables: Collection[dg.AssetKey]
) -> dict[dg.AssetKey, str]:
    checks = [check for check in blocking_tests(manifest).values() if check.asset_key in tables]
    return {
        check.asset_key: f"check {check.name} of {name_of(check.asset_key)} fails"
        for check in failing_checks(instance, checks)
    }


def _nodes(manifest: Manifest) -> dict[str, Any]:
    return {**manifest["sources"], **manifest["nodes"]}


def _above(manifest: Manifest, models: Collection[str]) -> dict[str, frozenset[str]]:
    """By unique id of each model and of all that it is made of, itself and all that it is made of."""
    nodes, found = _nodes(manifest), dict[str, frozenset[str]]()

    def above(node: str) -> frozenset[str]:
        if node not in found:
            parents = [id for id in nodes[node].get("depends_on", {}).get("nodes", ()) if id in nodes]
            found[node] = frozenset([node]).union(*map(above, parents))
        return found[node]

    for model in models:
        above(model)
    return found

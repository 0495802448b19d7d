"""The part of a parsed project that a run of dbt needs: dbt looks at all that it is given, several times in each run.

Of a thousand models it describes and links each, and compares it with each name: that cost more than what it was about.
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dbt.contracts.graph.manifest import Manifest

HOOKS = "operation"  # before and after each run, whatever it is about
KINDS = (
    "nodes", "sources", "exposures", "functions", "metrics", "semantic_models", "saved_queries", "unit_tests",
)  # fmt: skip
LOOKUPS = ("ref_lookup", "source_lookup", "function_lookup", "metric_lookup")  # made when first asked: by the whole


class _Part(UserDict[str, Any]):
    """Has only these when it is gone through, and finds each of the whole: SQL may name what it is not made of."""

    def __init__(self, whole: Mapping[str, Any], keys: Collection[str]) -> None:
        super().__init__({key: whole[key] for key in keys})
        self._whole = whole

    def __missing__(self, key: str) -> Any:
        return self._whole[key]

    def __contains__(self, key: object) -> bool:
        return key in self._whole


def _forget_compiled(node: Any) -> None:
    """dbt puts what is ephemeral into SQL once: the next run's had none of it, or what another run had rendered."""
    if getattr(node, "compiled", False):
        vars(node).update(compiled=False, extra_ctes_injected=False, extra_ctes=[], _pre_injected_sql=None)


def part_of(project: Manifest, names: Collection[str]) -> Manifest:
    """What has one of these names, with all that it is made of. Macros see the `graph` of the whole project."""
    wanted = set(names)
    waiting = [id for id, node in project.nodes.items() if node.name in wanted or node.resource_type == HOOKS]
    kinds: dict[str, Mapping[str, Any]] = {kind: getattr(project, kind) for kind in KINDS}
    reached: dict[str, set[str]] = {kind: set() for kind in KINDS}
    while waiting:
        id = waiting.pop()
        for kind, there in kinds.items():
            if id in there and id not in reached[kind]:
                reached[kind].add(id)
                waiting += there[id].depends_on_nodes
    for id in reached["nodes"]:
        _forget_compiled(project.nodes[id])
    for lookup in LOOKUPS:
        getattr(project, lookup)
    project.get_macros_by_name()
    project.get_macros_by_package()
    found: dict[str, Any] = {
        kind: _Part(there, [id for id in there if id in reached[kind]]) for kind, there in kinds.items()
    }
    return replace(project, **found)

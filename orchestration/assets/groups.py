"""Which tables are loaded together: those of sources that share a model of parsed or the vault, and no others.

Loads of two groups write no table in common, so neither waits for the other. Pure: reads only dbt's manifest.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from lakehouse.servers.presence import ALONE
from orchestration.assets.translator import MARTS, is_raw, layer

Manifest = Mapping[str, Any]
STORED = ("model", "seed", "snapshot")
_PLAIN = re.compile(r"\w+")


def load_groups(manifest: Manifest) -> dict[str, str]:
    """By unique id of each raw table, and of each model that is not built with the marts, the name of its group.

    A group is named after the first of its sources.
    """
    found: dict[str, str] = {}
    members = _members(manifest)
    near = _neighbours(members)
    for start in members:
        if start not in found:
            group = _reached(start, near)
            sources = sorted(members[node]["source_name"] for node in group if node in manifest["sources"])
            found |= dict.fromkeys(group, sources[0] if sources else ALONE)
    return found


def sources_of(manifest: Manifest, groups: Mapping[str, str]) -> dict[str, list[str]]:
    """By name of each of these groups its sources in order; that of a group without any stands for itself."""
    found: dict[str, set[str]] = {group: {group} for group in groups.values()}
    for unique_id, node in manifest["sources"].items():
        if unique_id in groups:
            found[groups[unique_id]].add(node["source_name"])
    return {group: sorted(sources) for group, sources in found.items()}


def selection(manifest: Manifest, members: Collection[str]) -> str:
    """dbt's selection of these models and raw tables, by unique id; with these are their tests.

    Models are selected by folder where there is no other in it, else by name. dbt compares each part of a selection
    with each node: with 600 tables by name, that was most of the definitions.
    """
    raw = manifest["sources"].keys() & frozenset(members)
    models = frozenset(members) - raw
    others = {
        beginning
        for unique_id, node in manifest["nodes"].items()
        if unique_id not in models and not _is_test_of(node, models)
        for fqn in (node["fqn"], node["fqn"][1:])
        for beginning in _beginnings(fqn)
    }
    found = set()
    for unique_id in models:
        node = manifest["nodes"][unique_id]
        folders = (fqn for fqn in _beginnings(node["fqn"][:-1]) if len(fqn) > 1 and fqn not in others)
        found.add(next((".".join(fqn) for fqn in folders if all(map(_PLAIN.fullmatch, fqn))), node["name"]))
    return " ".join(sorted(found | _raw_parts(manifest["sources"], raw)))


def _raw_parts(sources: Mapping[str, Mapping[str, Any]], tables: AbstractSet[str]) -> set[str]:
    """The parts that select these raw tables; a source whose tables are all among them is one part.

    dagster-dbt plans the tests of the raw tables that a selection reads, and runs them only if they are selected too.
    """
    others = {node["source_name"] for unique_id, node in sources.items() if unique_id not in tables}
    names = {(sources[table]["source_name"], sources[table]["name"]) for table in tables}
    return {f"source:{source}" + (f".{table}" if source in others else "") for source, table in names}


def _is_test_of(node: Mapping[str, Any], models: Collection[str]) -> bool:
    return node["resource_type"] not in STORED and not {*node["depends_on"].get("nodes", ())}.isdisjoint(models)


def _beginnings(fqn: Sequence[str]) -> Iterator[tuple[str, ...]]:
    return (tuple(fqn[:length]) for length in range(1, len(fqn) + 1))


def groups_read(manifest: Manifest, models: Collection[str], groups: Mapping[str, str]) -> dict[str, frozenset[str]]:
    """By each of these models, the groups whose tables it is made of, directly or through others."""
    found: dict[str, frozenset[str]] = {}

    def read(node: str) -> frozenset[str]:
        if node not in found:
            above = manifest["nodes"].get(node, {}).get("depends_on", {}).get("nodes", ())
            found[node] = frozenset([groups[node]]) if node in groups else frozenset().union(*map(read, above))
        return found[node]

    return {model: read(model) for model in models}


def _members(manifest: Manifest) -> dict[str, Mapping[str, Any]]:
    models = {k: n for k, n in manifest["nodes"].items() if n["resource_type"] in STORED and layer(n) != MARTS}
    return models | {unique_id: node for unique_id, node in manifest["sources"].items() if is_raw(node)}


def _neighbours(members: Mapping[str, Mapping[str, Any]]) -> dict[str, set[str]]:
    near: dict[str, set[str]] = {unique_id: set() for unique_id in members}
    for unique_id, node in members.items():
        for above in node.get("depends_on", {}).get("nodes", ()):
            if above in members:
                near[unique_id].add(above)
                near[above].add(unique_id)
    return near


def _reached(start: str, near: Mapping[str, set[str]]) -> set[str]:
    seen, waiting = {start}, [start]
    while waiting:
        new = near[waiting.pop()] - seen
        seen |= new
        waiting += new
    return seen

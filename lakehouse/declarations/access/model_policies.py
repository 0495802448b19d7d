"""What the project's own relations say of who reads them: `access`, and `personal` columns. Pure but for reading YAML
to name a line.

A key or a column that is misspelt would open what it was to close, without a word: it is refused before there are
rules of it.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from lakehouse.declarations.dbt.lineage import MAKING, meta_of
from lakehouse.declarations.lines import PROJECT_FILE, line_in_model, mistakes_in, refuse
from lakehouse.declarations.policies import AccessPolicy
from lakehouse.text.spelling import MISSPELLED, close

OF_OTHERS = frozenset({"persona", "personas", "accessed"})
"""Words as close as a misspelling. Other tools have them: only a list of the model's own columns is meant for ours."""
Node = Mapping[str, Any]
Policies = Mapping[str, AccessPolicy]
"""By unique id of a model, snapshot or seed."""


def making(manifest: Mapping[str, Any]) -> dict[str, Node]:
    """The models, snapshots and seeds, by unique id."""
    return {key: node for key, node in manifest["nodes"].items() if node["resource_type"] in MAKING}


def described(node: Node) -> frozenset[str]:
    """The columns that a node's YAML describes, as Trino calls them."""
    return frozenset(column["name"].lower() for column in node.get("columns", {}).values())


def policies_of(manifest: Mapping[str, Any], project_dir: Path) -> Policies:
    """What each says of itself. Raises LakehouseError for what is wrong in it."""
    nodes, found = making(manifest), dict[str, AccessPolicy]()
    problems = [*_misplaced(nodes, project_dir)]
    for key, node in nodes.items():
        meta = meta_of(node)
        mistakes = [*_misspelt(meta, described(node))]
        try:
            found[key] = AccessPolicy.model_validate({k: v for k, v in meta.items() if k in AccessPolicy.model_fields})
        except ValidationError as error:
            mistakes += mistakes_in(error, AccessPolicy)
        problems += [
            f"{line_in_model(project_dir, dict(node), path)}: {node['name']}: {text}" for path, text in mistakes
        ]
    refuse([*problems, *_undescribed(nodes, found, project_dir)])
    return found


def _misplaced(nodes: Mapping[str, Node], project_dir: Path) -> Iterator[str]:
    for node in (node for node in nodes.values() if "personal" in node["config"]):
        file = (node.get("patch_path") or "").partition("://")[2] or node["original_file_path"]
        yield (
            f"{project_dir.name}/{file}: {node['name']}: `personal` is in `config` itself, where nothing reads it: put "
            "it into `config.meta`"
        )


def _misspelt(meta: Mapping[str, Any], columns: frozenset[str]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Keys that resemble one of ours; others belong to the project or to another tool."""
    known = AccessPolicy.model_fields
    for key, value in meta.items():
        if key.lower() in OF_OTHERS and not _name_any(value, columns):
            continue
        if key not in known and (meant := close(key.lower(), known, MISSPELLED)):
            yield (key,), f"meta: unknown key `{key}`: did you mean `{meant}`?"


def _name_any(value: object, columns: frozenset[str]) -> bool:
    names = value if isinstance(value, list) else [value]
    return any(str(name).lower() in columns for name in names)


def _undescribed(nodes: Mapping[str, Node], policies: Policies, project_dir: Path) -> Iterator[str]:
    """Personal columns that nothing says are there. What a folder declares need not be in each of its models."""
    named = {key: {name.lower(): name for name in policy.personal} for key, policy in policies.items()}
    known = {name for key, names in named.items() for name in names.keys() & described(nodes[key])}
    for key, names in named.items():
        node = nodes[key]
        for name in (names[lower] for lower in names if lower not in described(node)):
            where = line_in_model(project_dir, dict(node), ("personal",))
            if name.lower() in known and where.startswith(f"{project_dir.name}/{PROJECT_FILE}:"):
                continue
            meant = close(name.lower(), described(node), 0.6)
            yield (
                f"{where}: {node['name']}: meta.personal: {name!r} is none of the columns that its YAML describes"
                + (f": did you mean {meant!r}?" if meant else ": correct it, or describe the column under `columns`")
            )

"""Sources of dbt that mean raw tables, and stand where not everybody looks for these.

Ingestion takes what dbt's manifest has. `scaffold`, `add`, `remove` and `uninstall` read the files of models/sources/
alone, and dbt reads the relation that a source's entry names, in whatever catalog.
"""

import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from lakehouse.declarations.dbt.lineage import meta_of
from lakehouse.declarations.lines import line_in_source

FOLDER = "models/sources/"
Node = dict[str, Any]


def is_raw(node: Node) -> bool:
    """Whether a table of a source is meant to be a raw table: by the mapping `meta.raw`, or its schema, which may be
    misspelled in the lake's own catalog. `raw: true` is somebody else's mark."""
    alike = re.match(r"raw[\W_]", node["schema"].lower()) is not None and not node.get("unrendered_database")
    return isinstance(meta_of(node).get("raw"), dict) or node["schema"].startswith("raw_") or alike


def declared_elsewhere(
    manifest: dict[str, Any], project_dir: Path, catalog: str, connected: Collection[str]
) -> list[str]:
    """One line for each such table: of another file or catalog than raw tables are, or without any schema."""
    own = manifest["metadata"]["project_name"]
    nodes = [node for _, node in sorted(manifest["sources"].items()) if node["package_name"] == own]
    return [
        f"{line_in_source(project_dir, node, ())}: {text}"
        for node in nodes
        for text in (_elsewhere(node, catalog) if is_raw(node) else _without_schema(node, nodes, connected))
    ]


def _elsewhere(node: Node, catalog: str) -> Iterator[str]:
    if not node["original_file_path"].startswith(FOLDER):
        yield (
            f"source {node['source_name']!r} is declared outside of {FOLDER}, where `scaffold`, `add` and `remove` "
            "look for it: move the file there"
        )
    database = node.get("unrendered_database") and node["database"]  # as it is said, and not by default
    if database and database.lower() != catalog.lower():
        yield (
            f"source {node['source_name']!r} has its raw tables in the catalog {catalog!r}, and dbt would read them in "
            f"{database!r}: leave out `database`"
        )


def _without_schema(node: Node, nodes: Collection[Node], connected: Collection[str]) -> Iterator[str]:
    """A source with a connection, whose schema was left out: dbt gives it one of its own name. One that names a
    database is a namesake."""
    name = node["source_name"]
    is_of_another = bool(node.get("unrendered_database"))
    is_known = any(is_raw(other) for other in nodes if other["source_name"] == name)
    if name in connected and node["schema"] == name and not is_known and not is_of_another:
        yield f"schema of source {name!r} must be raw_{name}"

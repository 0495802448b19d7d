"""What dbt's nodes say of themselves, and what they are made of.

A source of dbt may name what the project itself makes: the relation of a model, or a mirror, which dbt knows by no
other name. Whatever follows data through the graph has to see through such a source.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

MAKING = frozenset({"model", "snapshot", "seed"})
OF_RAW = re.compile(r"(mirror_|live_raw_)(?=.)")


def place(node: Mapping[str, Any]) -> tuple[str, str]:
    """Schema and name of the relation that a node makes or a source names, as Trino has them: in lower case.

    A mirror or a live table has the rows of a raw table, and is taken for it.
    """
    name = node.get("alias") or node.get("identifier") or node["name"]
    return OF_RAW.sub("raw_", node["schema"].lower(), count=1), name.lower()


def meta_of(node: Mapping[str, Any]) -> dict[str, Any]:
    """What a node says of itself in `meta`, beside `config` and in it, which counts more."""
    return {**node.get("meta", {}), **node.get("config", {}).get("meta", {})}


def parents(manifest: Mapping[str, Any]) -> dict[str, frozenset[str]]:
    """Unique id of each node → those of what it is made of, without itself: in place of a source of something that the
    project makes or declares, that."""
    nodes, sources = manifest.get("nodes", {}), manifest.get("sources", {})
    known = {place(node): key for key, node in nodes.items() if node["resource_type"] in MAKING}
    known |= {place(node): key for key, node in sources.items() if node["schema"].startswith("raw_")}
    meant = {key: known.get(place(node), key) for key, node in sources.items()}
    return {
        key: frozenset(meant.get(parent, parent) for parent in node["depends_on"].get("nodes", ())) - {key}
        for key, node in nodes.items()
    }

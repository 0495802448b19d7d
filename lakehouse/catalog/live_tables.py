"""Tables as they are read before they are published: what the catalog service lists as `live_<namespace>`.

A live state is the next metadata of a raw table, with what was read since its last publish; the table does not point
to it. It holds while nothing but rewrites of the same rows was committed since: after a publish the table itself has
its rows, and after anything else they may be others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LIVE = "live_"
POSITION, SNAPSHOT = "lakehouse.live.position", "lakehouse.live.snapshot"
"""Properties of a live state: up to where the source is in it, exclusive, and the snapshot that every engine shows."""


def live_namespace(namespace: str) -> str:
    """The namespace under which the live states of one are listed."""
    return LIVE + namespace


def committed_namespace(namespace: str) -> str | None:
    """The namespace whose live states are listed under this one; None if it is none of that kind."""
    return namespace.removeprefix(LIVE) if namespace.startswith(LIVE) else None


def only_rewritten(metadata: Mapping[str, Any], base_snapshot: int | None) -> bool:
    """Whether a table, by the JSON of its metadata, still has that snapshot, and nothing but rewrites since then."""
    known = {found["snapshot-id"]: found for found in metadata.get("snapshots", ())}
    at = metadata.get("current-snapshot-id")
    at = None if at == -1 else at
    while at != base_snapshot:
        found = known.get(at)
        if found is None or found.get("summary", {}).get("operation") != "replace":
            return False
        at = found.get("parent-snapshot-id")
    return base_snapshot is None or base_snapshot in known

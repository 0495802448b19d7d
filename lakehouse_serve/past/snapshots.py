"""A table's metadata as of one of its snapshots, as if nothing had been committed since.

Some clients read the metadata file instead of what the catalog answers, so the state has a location too: that of the
file it was made from, with the snapshot. The store (`objects`) answers for it; there is no such file.
"""

from __future__ import annotations

import copy
import re
from typing import Any, NamedTuple

_LOCATION = re.compile(r"(?P<file>.+\.metadata\.json)\.at-(?P<snapshot>[0-9]{1,19})\.metadata\.json")


class NoSnapshot(Exception):
    """The table has no such snapshot any more."""


class AsOf(NamedTuple):
    """The file that a state is made from, and its snapshot."""

    file: str
    snapshot: int

    @property
    def location(self) -> str:
        """Where clients find the state."""
        return f"{self.file}.at-{self.snapshot}.metadata.json"


def as_of(location: str) -> AsOf | None:
    """What a location of that form means; None for every other one."""
    found = _LOCATION.fullmatch(location)
    return AsOf(found["file"], int(found["snapshot"])) if found else None


def at_snapshot(metadata: dict[str, Any], snapshot_id: int) -> dict[str, Any]:
    """Table metadata of format version 1 or 2, ending with that snapshot. Raises NoSnapshot."""
    snapshots = metadata.get("snapshots", [])
    chosen = next((found for found in snapshots if found["snapshot-id"] == snapshot_id), None)
    if chosen is None:
        raise NoSnapshot
    by_id = {found["snapshot-id"]: found for found in snapshots}
    kept, step = set(), snapshot_id
    while step in by_id:
        kept.add(step)
        step = by_id[step].get("parent-snapshot-id")
    made = copy.copy(metadata)
    made["current-snapshot-id"] = snapshot_id
    made["snapshots"] = [found for found in snapshots if found["snapshot-id"] in kept]
    made["refs"] = {"main": {"type": "branch", "snapshot-id": snapshot_id}}
    before = [found for found in metadata.get("snapshot-log", []) if found["snapshot-id"] in kept - {snapshot_id}]
    made["snapshot-log"] = [*before, {"snapshot-id": snapshot_id, "timestamp-ms": chosen["timestamp-ms"]}]
    made["metadata-log"] = []
    made["last-updated-ms"] = chosen["timestamp-ms"]
    made["current-schema-id"] = chosen.get("schema-id", metadata["current-schema-id"])
    for name in ("statistics", "partition-statistics"):
        if name in metadata:
            made[name] = [found for found in metadata[name] if found["snapshot-id"] in kept]
    return made

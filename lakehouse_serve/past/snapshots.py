"""A table's metadata as of one of its snapshots, as if nothing had been committed since.

Some clients read the metadata file instead of what the catalog answers, so the state has a location too: that of the
file it was made from, with the snapshot and its cut. The store (`objects`) answers for it; there is no such file.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from lakehouse.catalog.pins import CUT as PINNED
from lakehouse_serve.past.moments import Position

_LOCATION = re.compile(
    r"(?P<file>.+\.metadata\.json)\.at-(?P<snapshot>[0-9]{1,19})"
    r"(?:-(?P<source>[a-z][a-z0-9_]*)-(?P<epoch>[0-9]{1,9})-(?P<lsn>[0-9a-f]{1,16}))?\.metadata\.json"
)
OURS = "lakehouse."  # what properties begin with that say something of the table as it is now
CUT = "lakehouse.cut"  # property of a state: the cut of which its rows are, such as retail=1:0/3C87757


class NoSnapshot(Exception):
    """The table has no such snapshot any more."""


class Chosen(NamedTuple):
    """A snapshot of a table, and the cut of its source that the rows are of; None where that is not known."""

    snapshot: int
    cut: Position | None = None


class AsOf(NamedTuple):
    """The file that a state is made from, and what of it was chosen."""

    file: str
    chosen: Chosen

    @property
    def location(self) -> str:
        """Where clients find the state."""
        cut = self.chosen.cut
        of = f"-{cut.source}-{cut.epoch}-{cut.lsn:x}" if cut else ""
        return f"{self.file}.at-{self.chosen.snapshot}{of}.metadata.json"


def as_of(location: str) -> AsOf | None:
    """What a location of that form means; None for every other one."""
    found = _LOCATION.fullmatch(location)
    if found is None:
        return None
    cut = Position(int(found["lsn"], 16), found["source"], int(found["epoch"])) if found["source"] else None
    return AsOf(found["file"], Chosen(int(found["snapshot"]), cut))


def has_snapshot(metadata: Mapping[str, Any], snapshot_id: int) -> bool:
    """Whether a table still has that snapshot."""
    return any(found["snapshot-id"] == snapshot_id for found in metadata.get("snapshots", ()))


def kept_since(metadata: Mapping[str, Any]) -> datetime | None:
    """The whole second from which on a table has every state that it had; None of a table without a state.

    What a tag keeps of before is not counted: the states after it are gone.
    """
    known = {found["snapshot-id"]: found for found in metadata.get("snapshots", ())}
    oldest, step = None, metadata.get("current-snapshot-id")
    while (found := known.get(step)) is not None:
        oldest, step = found, found.get("parent-snapshot-id")
    seconds = None if oldest is None else -(-oldest["timestamp-ms"] // 1000)
    return None if seconds is None else datetime.fromtimestamp(0, UTC) + timedelta(seconds=seconds)


def without_pins(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Without the properties of pins, which name all sources and their positions."""
    told = {name: value for name, value in metadata.get("properties", {}).items() if not name.startswith(PINNED)}
    return {**metadata, "properties": told}


def at_snapshot(metadata: dict[str, Any], chosen: Chosen) -> dict[str, Any]:
    """Table metadata of format version 1 or 2, ending with that snapshot. Raises NoSnapshot.

    Of the lake's own properties none is in it but the cut: they say where the table stands now, or what was noted of
    other snapshots, and whoever takes them for what the rows are of misses changes, or has them twice.
    """
    snapshot_id, cut = chosen
    snapshots = metadata.get("snapshots", [])
    by_id = {found["snapshot-id"]: found for found in snapshots}
    newest = by_id.get(snapshot_id)
    if newest is None:
        raise NoSnapshot
    kept, step = set(), snapshot_id
    while step in by_id:
        kept.add(step)
        step = by_id[step].get("parent-snapshot-id")
    made = copy.copy(metadata)
    made["current-snapshot-id"] = snapshot_id
    made["snapshots"] = [found for found in snapshots if found["snapshot-id"] in kept]
    made["refs"] = {"main": {"type": "branch", "snapshot-id": snapshot_id}}
    before = [found for found in metadata.get("snapshot-log", []) if found["snapshot-id"] in kept - {snapshot_id}]
    made["snapshot-log"] = [*before, {"snapshot-id": snapshot_id, "timestamp-ms": newest["timestamp-ms"]}]
    made["metadata-log"] = []
    made["last-updated-ms"] = newest["timestamp-ms"]
    made["current-schema-id"] = newest.get("schema-id", metadata["current-schema-id"])
    others = {name: value for name, value in metadata.get("properties", {}).items() if not name.startswith(OURS)}
    made["properties"] = others | ({CUT: str(cut)} if cut else {})
    for name in ("statistics", "partition-statistics"):
        if name in metadata:
            made[name] = [found for found in metadata[name] if found["snapshot-id"] in kept]
    return made

"""Adds versions to a view: its metadata is a JSON file, to which a row of the catalog points."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lakehouse.catalog.relations import list_views, read_metadata
from lakehouse.catalog.views.current_views import MARK, past_of

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.io import FileIO

Metadata = dict[str, Any]
Name = tuple[str, str]
KEPT_VERSIONS = 3


@dataclass(frozen=True)
class NextView:
    """A view's next metadata file, and the one that it replaces."""

    view: Name
    base: str
    location: str


def taken_back(catalog: SqlCatalog, io: FileIO, view: Name) -> NextView | None:
    """A current view as dbt made it, which reads parsed alone; it is written, and no reader sees it yet.

    For a change of what its fresh text reads, to be published together with it. It is a version more even where the
    view reads parsed already, so that a refresh under way, which knows nothing of the change, does not replace it.
    """
    base = list_views(catalog, [view]).get(view)
    metadata = read_metadata(io, base) if base else None
    if not base or not metadata or MARK not in metadata.get("properties", {}).get("comment", ""):
        return None
    texts = {r["dialect"].lower(): r["sql"] for r in current_version(metadata)["representations"]}
    if "trino" not in texts:
        return None
    back = with_version(metadata, {"trino": past_of(texts["trino"])}, {})
    return NextView(view, base, write_view(io, back))


def current_version(metadata: Metadata) -> Metadata:
    """The version that readers see."""
    found: Metadata = next(v for v in metadata["versions"] if v["version-id"] == metadata["current-version-id"])
    return found


def with_version(metadata: Metadata, texts: Mapping[str, str], summary: Mapping[str, str]) -> Metadata:
    """The metadata with a version more, of these texts by dialect, and the last ones before it."""
    now, number = time.time_ns() // 1_000_000, max(v["version-id"] for v in metadata["versions"]) + 1
    made = {
        **current_version(metadata),
        "version-id": number,
        "timestamp-ms": now,
        "summary": {"engine-name": "lakehouse", **summary},
        "representations": [{"type": "sql", "sql": sql, "dialect": dialect} for dialect, sql in texts.items()],
    }
    versions = [*metadata["versions"][-KEPT_VERSIONS + 1 :], made]
    kept = {v["version-id"] for v in versions}
    before = [entry for entry in metadata.get("version-log", []) if entry["version-id"] in kept]
    return {
        **metadata,
        "current-version-id": number,
        "versions": versions,
        "version-log": [*before, {"timestamp-ms": now, "version-id": number}],
        # else Iceberg refuses dbt's replacement, which has a text for Trino alone
        "properties": {**metadata.get("properties", {}), "replace.drop-dialect.allowed": "true"},
    }


def write_view(io: FileIO, metadata: Metadata) -> str:
    """Writes the metadata of a view's newest version; where it is."""
    number, place = metadata["current-version-id"], metadata["location"].rstrip("/")
    location = f"{place}/metadata/{number:05d}-{uuid.uuid4()}.metadata.json"
    with io.new_output(location).create() as stream:
        stream.write(json.dumps(metadata).encode())
    return location

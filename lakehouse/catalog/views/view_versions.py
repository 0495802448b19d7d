"""Adds versions to a view: its metadata is a JSON file, to which a row of the catalog points."""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import md5
from threading import Lock
from typing import TYPE_CHECKING, Any

from cachetools import LRUCache

from lakehouse.catalog.relations import list_views, read_metadata
from lakehouse.catalog.views.current_views import MARK, is_plain, is_short, past_of

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.io import FileIO

    from lakehouse.catalog.lake_catalog import LakeCatalog

Metadata = dict[str, Any]
Name = tuple[str, str]
KEPT_VERSIONS = 5  # the three of a refresh, and two that publishes make of them before the next one
DEFINITION = re.compile(r"\[(?:current )?definition [0-9a-f]+\]")  # in the comment: see view.sql
LONG = "lakehouse.long"  # in the summary of a version with a short or plain text: the version with the long one

# By location: such a file never changes. Each publish of rows asks of all their views whether they have a plain text.
_read: LRUCache[str, Metadata] = LRUCache(1024)
_plain: LRUCache[str, bool] = LRUCache(1 << 14)
_lock = Lock()


@dataclass(frozen=True)
class NextView:
    """A view's next metadata file, and the one that it replaces.

    `table` is that of a view whose text follows raw from a position on, by a short text if it `is_short`. It gets the
    `plain` text instead if nothing has come to the table.
    """

    view: Name
    base: str
    location: str
    table: str | None = None
    is_short: bool = False
    plain: Plain | None = None


@dataclass(frozen=True)
class Plain:
    """A view's metadata file with the plain text, which is right while `raw` points to `raw_location`."""

    location: str
    raw: Name
    raw_location: str


@dataclass(frozen=True)
class Since:
    """The tables to which publishes have brought irregular rows since a refresh looked, and late ones among these: in
    no cut that is after the refresh's.

    None: it is not known which.
    """

    irregular: frozenset[str] | None
    late: frozenset[str] | None

    def holds(self, view: NextView) -> bool:
        """Whether a view stays as it is: its next text may not show what readers have seen."""
        tables = self.irregular if view.is_short else self.late
        return view.table is not None and (tables is None or view.table in tables)


@dataclass(frozen=True)
class Followed:
    """Views whose texts follow what a publish brings: where each was when it was read, and the next of those that
    change.

    A view that did not exist was at None.
    """

    seen: Mapping[Name, str | None]
    views: tuple[NextView, ...]


def followed(
    catalog: SqlCatalog, io: FileIO, brought: Mapping[Name, bool], pool: ThreadPoolExecutor
) -> Callable[[], Followed]:
    """Begins to write the texts that can follow what a publish brings, and returns what waits for them.

    `brought` are the views of the tables that get rows, and whether these are regular: such rows need a text that reads
    raw, and others a long one. No reader sees it yet. Whoever publishes it makes sure that each view still is where it
    was seen.
    """
    there = list_views(catalog, brought)
    follows = {True: with_tail, False: with_long_text}
    written = {view: pool.submit(follows[brought[view]], io, base) for view, base in there.items()}

    def wait() -> Followed:
        found = [NextView(view, there[view], location.result()) for view, location in sorted(written.items())]
        changed = tuple(item for item in found if item.location != item.base)
        return Followed({view: there.get(view) for view in brought}, changed)

    return wait


def _has(version: Metadata, is_such: Callable[[str], bool]) -> bool:
    """Whether it has such a text. The text tells: an engine that comments on a column makes a version of its own."""
    return any(is_such(representation["sql"]) for representation in version["representations"])


def _is_short(version: Metadata) -> bool:
    return _has(version, is_short)


def _is_plain(version: Metadata) -> bool:
    return _has(version, is_plain)


def _is_long(version: Metadata) -> bool:
    return not _is_short(version) and not _is_plain(version)


def _back(metadata: Metadata, is_wanted: Callable[[Metadata], bool]) -> Metadata:
    """The newest such version before the current one, once more; dbt's text if somebody dropped it."""
    current = current_version(metadata)
    before = (v for v in metadata["versions"] if v["version-id"] < current["version-id"] and is_wanted(v))
    found = max(before, key=lambda version: version["version-id"], default=None)
    if found is None:
        return as_made(metadata)
    return with_version(metadata, {r["dialect"]: r["sql"] for r in found["representations"]}, found["summary"])


def with_long_text(io: FileIO, location: str) -> str:
    """Where a view has its long text, or dbt's: this location, or that of a version that is written for it."""
    metadata = known_metadata(io, location)
    if metadata is None or _is_long(current_version(metadata)):
        return location
    return write_view(io, _back(metadata, _is_long))


def with_tail(io: FileIO, location: str) -> str:
    """Where a view has a text that reads raw, or dbt's: this location, or that of a version that is written for it."""
    metadata = known_metadata(io, location) if _plain_at(io, location) else None
    return write_view(io, _back(metadata, lambda version: not _is_plain(version))) if metadata else location


def _plain_at(io: FileIO, location: str) -> bool:
    """Whether readers of a view with this metadata file get the plain text; it is remembered."""
    with _lock:
        known = _plain.get(location)
    if known is None:
        metadata = read_metadata(io, location)
        known = metadata is not None and _is_plain(current_version(metadata))
        with _lock:
            _plain[location] = known
    return known


def known_metadata(io: FileIO, location: str) -> Metadata | None:
    """A view's metadata file, remembered; None if it does not exist."""
    with _lock:
        known = _read.get(location)
    if known is None and (known := read_metadata(io, location)) is not None:
        with _lock:
            _read[location] = known
    return known


def definitions(catalog: LakeCatalog, views: Collection[Name]) -> dict[Name, str]:
    """What tells one view from another by that name, as the macro `views_as_made` asks it; omits what is no view."""
    found = {view: known_metadata(catalog.file_io, location) for view, location in list_views(catalog, views).items()}
    return {view: _definition(metadata) for view, metadata in found.items() if metadata}


def _definition(metadata: Metadata) -> str:
    """The checksum that dbt has left in the comment, or that of the SQL."""
    if stated := DEFINITION.search(metadata.get("properties", {}).get("comment", "")):
        return stated[0]
    texts = {r["dialect"].lower(): r["sql"] for r in current_version(metadata)["representations"]}
    return md5(texts["trino"].encode(), usedforsecurity=False).hexdigest() if "trino" in texts else ""


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
    return NextView(view, base, write_view(io, as_made(metadata)))


def as_made(metadata: Metadata) -> Metadata:
    """A version more, of dbt's text alone."""
    texts = {r["dialect"].lower(): r["sql"] for r in current_version(metadata)["representations"]}
    return with_version(metadata, {"trino": past_of(texts["trino"])}, {})


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
    with _lock:
        _plain[location] = _is_plain(current_version(metadata))
    return location

"""The row of `meta.cuts` that a publish adds.

A file for each would be 86,400 a day, and a query that looks for the newest one opens all those since it last looked.
So a publish replaces the newest file of its source by one with its rows and the new one, until that is full or old. It
remembers what it has published, and reads nothing back: a file is known by its manifest, which never changes, and is
replaced only while the table has that manifest and nothing that deletes rows. Whatever else has happened to the
table, as by a compaction or a restore, begins a new file.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from threading import Lock
from typing import TYPE_CHECKING

import pyarrow as pa
from cachetools import LRUCache
from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Operation
from pyiceberg.types import IntegerType, LongType, MapType, NestedField, StringType, TimestamptzType

from lakehouse.catalog.private_pyiceberg import Staging, data_files
from lakehouse.catalog.writing.growing import GROWS
from lakehouse.catalog.writing.manifests import FULL_ROWS, GrowingAppend

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

CUTS = ("meta", "cuts")
CUTS_SCHEMA = Schema(
    NestedField(1, "source", StringType(), required=False),
    NestedField(2, "epoch", IntegerType(), required=False),
    NestedField(3, "cut_lsn", LongType(), required=False),
    NestedField(4, "cut_at", TimestamptzType(), required=False),
    NestedField(5, "published_at", TimestamptzType(), required=False),
    NestedField(6, "snapshots", MapType(7, StringType(), 8, StringType(), value_required=False), required=False),
    NestedField(9, "position", StringType(), required=False),
)
FULL_BYTES = 64 * 1024  # a cut of a thousand tables is large, and each publish writes the file again


@dataclass(frozen=True)
class NewestFile:
    """The file with a source's newest cuts: its manifest, which names no other, and its rows."""

    schema_id: int
    manifest: str
    file: DataFile
    rows: pa.Table
    since: datetime


_newest: LRUCache[tuple[str, str], NewestFile] = LRUCache(256)  # by table and source
_lock = Lock()


@dataclass(frozen=True)
class Grown:
    """The file with a new cut; `replaced` is the one whose rows it has too."""

    table: Table
    source: str
    rows: pa.Table
    files: tuple[DataFile, ...]
    since: datetime
    replaced: tuple[ManifestFile, DataFile] | None


def grow(table: Table, source: str, row: pa.Table, now: datetime) -> Grown:
    """Writes a cut that is published now, with the rows of the source's newest file where that may be replaced."""
    with _lock:
        newest = _newest.get(_key(table, source))
    manifest = _manifest(table, newest) if newest and not _is_done(newest, now) else None
    if newest is None or manifest is None:
        return Grown(table, source, row, _written(table, row), now, None)
    rows = pa.concat_tables([newest.rows, row])
    return Grown(table, source, rows, _written(table, rows), newest.since, (manifest, newest.file))


def append_of(grown: Grown, transaction: Staging, summary: dict[str, str]) -> GrowingAppend:
    """The append of a file that takes the place of the one that it replaces."""
    update = GrowingAppend(Operation.APPEND, transaction, grown.table.io, snapshot_properties=summary)
    if grown.replaced is not None:
        update.replace(*grown.replaced)
    return update


def remember(grown: Grown, update: GrowingAppend) -> None:
    """Has the next publish replace the file; called when it is published."""
    manifest, files, table = update.written, grown.files, grown.table
    if manifest is not None and len(files) == 1:
        newest = NewestFile(table.metadata.current_schema_id, manifest.manifest_path, files[0], grown.rows, grown.since)
        with _lock:
            _newest[_key(table, grown.source)] = newest


def _key(table: Table, source: str) -> tuple[str, str]:
    return str(table.metadata.table_uuid), source


def _written(table: Table, rows: pa.Table) -> tuple[DataFile, ...]:
    return tuple(data_files(table.metadata, rows, table.io))


def _is_done(newest: NewestFile, now: datetime) -> bool:
    is_full = newest.rows.num_rows >= FULL_ROWS or newest.file.file_size_in_bytes >= FULL_BYTES
    return is_full or now - newest.since >= GROWS


def _manifest(table: Table, newest: NewestFile) -> ManifestFile | None:
    """The file's manifest, if the table as it is has it."""
    snapshot = table.current_snapshot()
    if snapshot is None or table.metadata.current_schema_id != newest.schema_id or table.spec().fields:
        return None
    manifests = snapshot.manifests(table.io)
    if any(manifest.content == ManifestContent.DELETES for manifest in manifests):
        return None
    return next((m for m in manifests if m.manifest_path == newest.manifest), None)

"""Creates a table with a long commit history quickly: thousands of small commits, back-dated by days.

PyIceberg writes all data files, manifests and manifest lists as a merge append would, merging every hundred manifests.
Only metadata.json is written once at the end instead of per commit. A commit therefore takes milliseconds, independent
of the history, and its timestamp can be chosen.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING

import pyarrow as pa
from pyiceberg.manifest import (
    AvroCompressionCodec,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    write_manifest,
    write_manifest_list,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.serializers import ToOutputFile
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.refs import SnapshotRef
from pyiceberg.table.snapshots import Operation, Snapshot, SnapshotLogEntry, Summary
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

if TYPE_CHECKING:
    from lakehouse.catalog.private_pyiceberg import data_files
from lakehouse.catalog.lake_catalog import LakeCatalog

MERGED_AT = 100  # commit.manifest.min-count-to-merge by default
CODEC: AvroCompressionCodec = "deflate"


class CommitHistory:
    """Commits to a table that `register` adds to the catalog."""

    def __init__(self, catalog: LakeCatalog, location: str, schema: Schema, spec: PartitionSpec) -> None:
        """Sets up the table's metadata; writes nothing."""
        self.io = catalog.file_io
        self.catalog = catalog
        self.metadata = new_table_metadata(schema, spec, UNSORTED_SORT_ORDER, location, {"format-version": "2"})
        self.snapshots: list[Snapshot] = []
        self._entries: list[ManifestEntry] = []
        self._manifests: list[ManifestFile] = []
        self._totals = {"records": 0, "data-files": 0, "files-size": 0}

    def commit(self, rows: pa.Table, at: datetime) -> None:
        """Appends rows of one partition in a snapshot with this timestamp."""
        number = len(self.snapshots) + 1
        [file] = data_files(self.metadata, rows, self.io)
        added = ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, snapshot_id=number, data_file=file)
        self._manifests.append(self._manifest(number, [added]))
        self._entries.append(
            ManifestEntry.from_args(
                status=ManifestEntryStatus.EXISTING, snapshot_id=number, sequence_number=number,
                file_sequence_number=number, data_file=file,
            )
        )  # fmt: skip
        if len(self._manifests) == MERGED_AT:
            self._manifests = [self._manifest(number, [*self._entries[:-1], added])]
        summary = self._summary({"records": rows.num_rows, "data-files": 1, "files-size": file.file_size_in_bytes})
        self.snapshots.append(
            Snapshot(
                snapshot_id=number, parent_snapshot_id=number - 1 or None, sequence_number=number,
                timestamp_ms=int(at.timestamp() * 1000), manifest_list=self._list(number), summary=summary, schema_id=0,
            )
        )  # fmt: skip

    def register(self, identifier: tuple[str, str]) -> None:
        """Writes metadata.json and registers the table in the catalog."""
        last = self.snapshots[-1]
        log = [SnapshotLogEntry(snapshot_id=s.snapshot_id, timestamp_ms=s.timestamp_ms) for s in self.snapshots]
        metadata = self.metadata.model_copy(
            update={
                "snapshots": self.snapshots, "snapshot_log": log, "current_snapshot_id": last.snapshot_id,
                "refs": {"main": SnapshotRef.model_validate({"snapshot-id": last.snapshot_id, "type": "branch"})},
                "last_sequence_number": last.sequence_number, "last_updated_ms": last.timestamp_ms,
            }
        )  # fmt: skip
        path = self._path(f"00001-{uuid.uuid4()}.metadata.json")
        ToOutputFile.table_metadata(metadata, self.io.new_output(path))
        self.catalog.create_namespace_if_not_exists(identifier[0])
        self.catalog.register_table(identifier, path)

    def _manifest(self, snapshot: int, entries: Iterable[ManifestEntry]) -> ManifestFile:
        output = self.io.new_output(self._path(f"{uuid.uuid4()}-m0.avro"))
        with write_manifest(2, self.metadata.spec(), self.metadata.schema(), output, snapshot, CODEC) as writer:
            for entry in entries:
                writer.add_entry(entry)
        manifest = writer.to_manifest_file()
        manifest.sequence_number = snapshot
        manifest.min_sequence_number = 1 if manifest.existing_files_count else snapshot
        return manifest

    def _list(self, snapshot: int) -> str:
        path = self._path(f"snap-{snapshot}-0-{uuid.uuid4()}.avro")
        with write_manifest_list(
            2, self.io.new_output(path), snapshot, snapshot - 1 or None, snapshot, CODEC
        ) as writer:
            writer.add_manifests(self._manifests[::-1])
        return path

    def _summary(self, added: dict[str, int]) -> Summary:
        for name, number in added.items():
            self._totals[name] += number
        parts = {f"added-{name}": str(number) for name, number in added.items()}
        parts |= {f"total-{name}": str(number) for name, number in self._totals.items()}
        return Summary(Operation.APPEND, **parts, **{"total-delete-files": "0"})

    def _path(self, name: str) -> str:
        return f"{self.metadata.location}/metadata/{name}"

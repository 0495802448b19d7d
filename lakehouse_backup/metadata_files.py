"""Metadata files in a table's location that may be newer than the one in the catalog.

Some were never published: a writer that loses a commit race, or dies before its commit, leaves one behind. This is no
problem for raw tables, whose state is chosen by the snapshot in a cut. A chosen state must have all files it refers to.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lakehouse.catalog.locations import one_spelling
from lakehouse.catalog.objects import list_objects
from lakehouse.catalog.open import changes_data, history, load_table
from lakehouse.catalog.relations import directory, read_metadata
from maintenance.inventory.lake import BROKEN, Relation
from maintenance.inventory.outcome import TableName
from maintenance.inventory.reachable import files_of
from maintenance.inventory.session import Session
from maintenance.restore.moments import read_table

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.io.pyarrow import PyArrowFileIO
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

MAX_FILES = 2_000  # read per table


@dataclass
class MetadataFiles:
    """A table's metadata files, newest first, and all objects below its location, in one spelling, with their sizes."""

    io: PyArrowFileIO
    table: Table
    locations: list[str]
    objects: dict[str, int]

    def states(self) -> Iterator[Table]:
        """The table at each of its metadata files, newest first."""
        for location in self.locations[:MAX_FILES]:
            if (found := read_table(self.io, self.table, location)) is not None:
                yield found

    def with_rows_of(self, snapshot_id: int) -> Table | None:
        """The newest complete state with the rows of a snapshot: only compactions may follow it."""
        return next((t for t in self.states() if _has_rows_of(t, snapshot_id) and self.is_complete(t)), None)

    def until(self, milliseconds: int, cycles: frozenset[str] = frozenset()) -> Table | None:
        """The newest complete state whose last commit is not later than this, or belongs to one of these cycles."""
        return next((t for t in self.states() if _is_within(t, milliseconds, cycles) and self.is_complete(t)), None)

    def is_complete(self, table: Table) -> bool:
        """Whether all files of its current snapshot exist, none cut short by a copy or a power loss."""
        snapshot = table.current_snapshot()
        if snapshot is None:
            return True
        try:
            needed = files_of(table, [snapshot])
        except BROKEN:
            return False
        below = directory(self.table.location())
        return all(
            path in self.objects and size in (None, self.objects[path])
            for path, size in needed.items()
            if path.startswith(below)
        )


def metadata_files(io: PyArrowFileIO, table: Table) -> MetadataFiles:
    """Lists the objects below the table's location."""
    objects = list_objects(io, table.location())
    metadata = [stored for stored in objects if stored.path.endswith(".metadata.json")]
    ordered = sorted(metadata, key=lambda stored: (version(stored.path), stored.modified), reverse=True)
    sizes = {one_spelling(stored.path): stored.size for stored in objects}
    return MetadataFiles(io, table, [stored.path for stored in ordered], sizes)


def load(session: Session, name: TableName) -> Table | None:
    """The table from the catalog; None if there is none or its metadata file is missing or broken."""
    try:
        return load_table(session.catalog, *name)
    except BROKEN:
        return None


def newest_by_storage(session: Session, relation: Relation) -> Table | None:
    """The table as of the newest metadata file at its location that can be read; None without any."""
    files = newest_files(session.io, relation)
    return next((table for file in files if (table := load_at(session, relation.name, file)) is not None), None)


def load_at(session: Session, name: TableName, location: str) -> Table | None:
    """The table as of a metadata file; None if that is missing, or PyIceberg cannot read it."""
    from pyiceberg.serializers import FromInputFile
    from pyiceberg.table import Table

    try:
        metadata = FromInputFile.table_metadata(session.io.new_input(location))
    except BROKEN:
        return None
    return Table(name, metadata, location, session.io, session.catalog)


def newest_whole(io: PyArrowFileIO, relation: Relation) -> str | None:
    """The metadata file in the catalog, or the newest one at its location if that is missing or was cut short.

    A whole one is JSON to its end, also of a type or a format version that PyIceberg does not know.
    """
    if _is_whole(io, relation.metadata_location):
        return relation.metadata_location
    return next((file for file in newest_files(io, relation) if _is_whole(io, file)), None)


def _is_whole(io: FileIO, location: str) -> bool:
    try:
        return read_metadata(io, location) is not None
    except BROKEN:
        return False


def newest_files(io: PyArrowFileIO, relation: Relation) -> list[str]:
    """The metadata files at a relation's location, newest first."""
    files = [s for s in list_objects(io, f"{relation.location}metadata") if s.path.endswith(".metadata.json")]
    files.sort(key=lambda stored: (stored.modified, stored.path), reverse=True)  # a re-created table counts from 0
    return [stored.path for stored in files]


def default_relation(session: Session, name: TableName) -> Relation:
    """The default location of a table in ingestion's catalog."""
    return Relation(name, "table", f"{session.settings.warehouse.rstrip('/')}/{name.namespace}/{name.name}/metadata/")


def version(location: str) -> int:
    """The version number at the start of a metadata file's name; -1 if there is none."""
    number = location.rpartition("/")[2].partition("-")[0]
    return int(number) if number.isdecimal() else -1


def _has_rows_of(table: Table, snapshot_id: int) -> bool:
    for snapshot in history(table.metadata):
        if snapshot.snapshot_id == snapshot_id:
            return True
        if changes_data(snapshot):
            return False
    return False


def cycle_of(snapshot: Snapshot) -> str:
    """The ingestion cycle that wrote a snapshot; empty for other writers."""
    return snapshot.summary.additional_properties.get("lakehouse.cycle", "") if snapshot.summary else ""


def _is_within(table: Table, milliseconds: int, cycles: frozenset[str]) -> bool:
    snapshot = table.current_snapshot()
    return snapshot is None or snapshot.timestamp_ms <= milliseconds or cycle_of(snapshot) in cycles

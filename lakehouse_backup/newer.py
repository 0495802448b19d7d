"""Metadata files of a table that are newer than the one its catalog entry names.

Not each of them was ever published: a writer that lost a race, or died before its commit, leaves one behind. For a raw
table that does not matter, as it is chosen by the snapshot that a cut names. Of any file that is chosen, all files that
it needs have to be there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lakehouse.catalog.open import DATA_OPERATIONS, load_table
from maintenance.inventory.lake import Relation, list_objects
from maintenance.inventory.outcome import TableName
from maintenance.inventory.reachable import files_of
from maintenance.inventory.session import Session
from maintenance.restore.moments import read_table

if TYPE_CHECKING:
    from pyiceberg.io.pyarrow import PyArrowFileIO
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

MAX_FILES = 2_000  # that are read of a table


@dataclass
class Newer:
    """What lies below a table's location: its metadata files, the newest first, and all objects."""

    io: PyArrowFileIO
    table: Table
    locations: list[str]
    objects: frozenset[str]

    def states(self) -> Iterator[Table]:
        """The table by each of its metadata files, the newest first."""
        for location in self.locations[:MAX_FILES]:
            if (found := read_table(self.io, self.table, location)) is not None:
                yield found

    def at_snapshot(self, snapshot_id: int) -> Table | None:
        """The newest state with the rows of a snapshot: nothing but compactions has come behind it."""
        return next((t for t in self.states() if _has_rows_of(t, snapshot_id) and self.is_whole(t)), None)

    def until(self, milliseconds: int, cycles: frozenset[str] = frozenset()) -> Table | None:
        """The newest state whose last commit is not behind a moment, or is of one of these cycles."""
        return next((t for t in self.states() if _is_within(t, milliseconds, cycles) and self.is_whole(t)), None)

    def is_whole(self, table: Table) -> bool:
        """Whether everything that its newest snapshot needs is there."""
        snapshot = table.current_snapshot()
        if snapshot is None:
            return True
        try:
            needed = files_of(table, [snapshot])
        except (FileNotFoundError, ValueError):
            return False
        below = self.table.location().rstrip("/") + "/"
        return all(path in self.objects for path in needed if path.startswith(below))


def newer_than(io: PyArrowFileIO, table: Table) -> Newer:
    """Looks at what lies below the table's location."""
    objects = list_objects(io, table.location())
    metadata = [stored for stored in objects if stored.path.endswith(".metadata.json")]
    ordered = sorted(metadata, key=lambda stored: (version(stored.path), stored.modified), reverse=True)
    return Newer(io, table, [stored.path for stored in ordered], frozenset(stored.path for stored in objects))


def load(session: Session, name: TableName) -> Table | None:
    """The table; None when there is none, or its metadata file is gone."""
    try:
        return load_table(session.catalog, *name)
    except FileNotFoundError:
        return None


def any_table(session: Session, relation: Relation) -> Table | None:
    """A table whose metadata file is gone, by the newest one that lies beside it; None when there is none."""
    from pyiceberg.serializers import FromInputFile
    from pyiceberg.table import Table

    listed = list_objects(session.io, f"{relation.location}metadata")
    files = [stored for stored in listed if stored.path.endswith(".metadata.json")]
    for stored in sorted(files, key=lambda stored: stored.modified, reverse=True):  # a table made anew counts from 0
        with suppress(FileNotFoundError, ValueError):
            metadata = FromInputFile.table_metadata(session.io.new_input(stored.path))
            return Table(relation.name, metadata, stored.path, session.io, session.catalog)
    return None


def by_habit(session: Session, name: TableName) -> Relation:
    """Where ingestion's catalog puts a table that says nothing else."""
    return Relation(name, "table", f"{session.settings.warehouse.rstrip('/')}/{name.namespace}/{name.name}/metadata/")


def version(location: str) -> int:
    """The number that a metadata file's name begins with, as every writer counts on; -1 for another name."""
    number = location.rpartition("/")[2].partition("-")[0]
    return int(number) if number.isdecimal() else -1


def _has_rows_of(table: Table, snapshot_id: int) -> bool:
    snapshot: Snapshot | None = table.current_snapshot()
    while snapshot is not None and snapshot.snapshot_id != snapshot_id:
        if snapshot.summary is None or snapshot.summary.operation.value in DATA_OPERATIONS:
            return False
        parent = snapshot.parent_snapshot_id
        snapshot = table.snapshot_by_id(parent) if parent is not None else None
    return snapshot is not None


def cycle_of(snapshot: Snapshot) -> str:
    """The cycle of ingestion that made a snapshot; empty for another writer's."""
    return snapshot.summary.additional_properties.get("lakehouse.cycle", "") if snapshot.summary else ""


def _is_within(table: Table, milliseconds: int, cycles: frozenset[str]) -> bool:
    snapshot = table.current_snapshot()
    return snapshot is None or snapshot.timestamp_ms <= milliseconds or cycle_of(snapshot) in cycles

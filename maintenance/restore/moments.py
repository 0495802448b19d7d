"""Which snapshot a table was at, at some moment in the past: from its metadata, or an earlier metadata file of it.

A metadata file knows only what it has not expired, and a snapshot that went from the middle leaves no gap in the log.
So the log is believed only where the entry that follows is known to have followed. Where the table's own metadata does
not reach, the metadata files that were written after the moment are asked. Not each of them was ever the table's: a
writer that lost a race leaves one behind. Its last entry is then untrue, while those before it had been published; so
a file that is not known to have been the table's has to show two entries behind the one that is looked for, and any
other one, to tell until when that was the newest.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from lakehouse.errors import LakehouseError
from maintenance.inventory.lake import list_objects

if TYPE_CHECKING:
    from pyiceberg.io.pyarrow import PyArrowFileIO
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

MAX_FILES = 500  # that are read, from the moment on
SKEW = timedelta(minutes=2)  # between the clocks of writers and of the object store


@dataclass(frozen=True)
class Moment:
    """The table as metadata of that time shows it, its snapshot of then, and since when that was the newest."""

    table: Table
    snapshot: Snapshot
    committed_at: datetime


def find(io: PyArrowFileIO, table: Table, as_of: datetime, known: Iterable[str] = ()) -> Moment:
    """The state at a moment. `known` are metadata files that have been the table's. Raises LakehouseError."""
    name, at = ".".join(table.name()), int(as_of.timestamp() * 1000)
    if (moment := _at(table, at, followers=0)) is not None:
        return moment
    proven = {*known, *(entry.metadata_file for entry in table.metadata.metadata_log)}
    oldest = min((entry.timestamp_ms for entry in table.metadata.snapshot_log), default=None)
    listed = list_objects(io, f"{table.location().rstrip('/')}/metadata")
    files = [o for o in listed if o.path.endswith(".metadata.json") and o.modified >= as_of - SKEW]
    for stored in sorted(files, key=lambda stored: stored.modified)[:MAX_FILES]:
        earlier = read_table(io, table, stored.path)
        if earlier is not None and (moment := _at(earlier, at, 1 if stored.path in proven else 2)) is not None:
            return moment
        if earlier is not None:
            oldest = min([t for t in (oldest, *_times(earlier.metadata)) if t is not None], default=None)
    since = f"; the oldest that is left is of {_time(oldest):%Y-%m-%d %H:%M:%S} UTC" if oldest else ""
    raise LakehouseError(f"{name}: no state of {as_of.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC is left{since}")


def _at(table: Table, at: int, followers: int) -> Moment | None:
    """The state at a moment in milliseconds, where this metadata knows it for certain."""
    log = table.metadata.snapshot_log
    place = max((place for place, entry in enumerate(log) if entry.timestamp_ms <= at), default=None)
    if place is None or len(log) - place - 1 < followers:
        return None
    entry = log[place]
    snapshot = table.snapshot_by_id(entry.snapshot_id)
    if snapshot is None or (place + 1 < len(log) and not _followed(table, place)):
        return None
    return Moment(table, snapshot, _time(entry.timestamp_ms))


def _followed(table: Table, place: int) -> bool:
    """Whether nothing has been taken out of the log behind an entry: the next is its child, or an older state again."""
    entry, follower = table.metadata.snapshot_log[place : place + 2]
    snapshot = table.snapshot_by_id(follower.snapshot_id)
    if snapshot is None:
        return False
    return snapshot.parent_snapshot_id == entry.snapshot_id or snapshot.timestamp_ms < entry.timestamp_ms


def read_table(io: PyArrowFileIO, table: Table, location: str) -> Table | None:
    """The table by one metadata file; None where that is gone, broken, or another table's."""
    from pyiceberg.serializers import FromInputFile

    try:
        metadata = FromInputFile.table_metadata(io.new_input(location))
    except (FileNotFoundError, ValueError):  # purged meanwhile, or half a file
        return None
    if metadata.table_uuid != table.metadata.table_uuid:
        return None
    return type(table)(table.name(), metadata, location, io, table.catalog)


def _times(metadata: TableMetadata) -> list[int]:
    return [entry.timestamp_ms for entry in metadata.snapshot_log]


def _time(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, tz=UTC)

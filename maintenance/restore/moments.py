"""The snapshot of a table at a time, from its metadata or an earlier metadata file.

The current metadata tells where no snapshot around that time is missing (`lakehouse.catalog.past`). Otherwise a
snapshot of the log counts if the next one is known to have followed it: the log has no gap where one has expired.
If the current metadata does not reach back, the metadata files written after that time are read. Some of them were
never the table's current metadata: a writer that loses a race leaves one behind. Its last entry is false, but those
before it were published. So a file that is not known to have been current must contain two entries after the one that
is searched, any other file one, to show until when that state lasted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from lakehouse.catalog.locations import one_spelling
from lakehouse.catalog.objects import list_objects
from lakehouse.catalog.past import milliseconds, newest_until, seen_at
from lakehouse.errors import LakehouseError
from maintenance.inventory.lake import BROKEN

if TYPE_CHECKING:
    from pyiceberg.io.pyarrow import PyArrowFileIO
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

MAX_FILES = 500  # metadata files to read, the oldest first
SKEW = timedelta(minutes=2)  # between the clocks of writers and of the object store


@dataclass(frozen=True)
class Moment:
    """The table by metadata of that time, its snapshot, and the commit time of that snapshot."""

    table: Table
    snapshot: Snapshot
    committed_at: datetime


def find(io: PyArrowFileIO, table: Table, as_of: datetime, known: Iterable[str] = ()) -> Moment:
    """The state at a time. `known` are metadata files that were current once. Raises LakehouseError."""
    name, at = ".".join(table.name()), milliseconds(as_of)
    found, is_certain = newest_until(table.metadata, as_of)
    if is_certain and found is not None and (snapshot := table.snapshot_by_id(found)) is not None:
        return Moment(table, snapshot, _time(snapshot.timestamp_ms))
    if (moment := _at(table, at, followers=0)) is not None:
        return moment
    proven = set(map(one_spelling, (*known, *(entry.metadata_file for entry in table.metadata.metadata_log))))
    oldest = min((entry.timestamp_ms for entry in table.metadata.snapshot_log), default=None)
    listed = list_objects(io, f"{table.location().rstrip('/')}/metadata")
    files = [o for o in listed if o.path.endswith(".metadata.json") and o.modified >= as_of - SKEW]
    for stored in sorted(files, key=lambda stored: stored.modified)[:MAX_FILES]:
        earlier, followers = read_table(io, table, stored.path), 1 if one_spelling(stored.path) in proven else 2
        if earlier is not None and (moment := _at(earlier, at, followers)) is not None:
            return moment
        if earlier is not None:
            oldest = min([t for t in (oldest, *_times(earlier.metadata)) if t is not None], default=None)
    since = f"; the oldest that is left is of {_time(oldest):%Y-%m-%d %H:%M:%S} UTC" if oldest else ""
    raise LakehouseError(f"{name}: no state of {as_of.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC is left{since}")


def _at(table: Table, at: int, followers: int) -> Moment | None:
    """The state at a time in milliseconds, if this metadata proves it."""
    log = table.metadata.snapshot_log
    seen = [seen_at(table.metadata, entry.timestamp_ms, entry.snapshot_id) for entry in log]
    index = max((index for index, since in enumerate(seen) if since <= at), default=None)
    if index is None or len(log) - index - 1 < followers:
        return None
    entry = log[index]
    snapshot = table.snapshot_by_id(entry.snapshot_id)
    if snapshot is None or (index + 1 < len(log) and not _followed(table, index)):
        return None
    return Moment(table, snapshot, _time(entry.timestamp_ms))


def _followed(table: Table, index: int) -> bool:
    """Whether no entry is missing after this one: the next snapshot is its child, or an older snapshot again."""
    entry, follower = table.metadata.snapshot_log[index : index + 2]
    snapshot = table.snapshot_by_id(follower.snapshot_id)
    if snapshot is None:
        return False
    return snapshot.parent_snapshot_id == entry.snapshot_id or snapshot.timestamp_ms < entry.timestamp_ms


def read_table(io: PyArrowFileIO, table: Table, location: str) -> Table | None:
    """The table by one metadata file; None if the file is missing, broken, or of another table."""
    from pyiceberg.serializers import FromInputFile

    try:
        metadata = FromInputFile.table_metadata(io.new_input(location))
    except BROKEN:  # purged meanwhile, or incomplete
        return None
    if metadata.table_uuid != table.metadata.table_uuid:
        return None
    return type(table)(table.name(), metadata, location, io, table.catalog)


def _times(metadata: TableMetadata) -> list[int]:
    return [entry.timestamp_ms for entry in metadata.snapshot_log]


def _time(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, tz=UTC)

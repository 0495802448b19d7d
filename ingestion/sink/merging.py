"""Merges the small files that a follower has published, so that a query of the newest rows opens a tenth of them.

A publish each second adds a file each second, and a reader pays for a file more than for its rows. As in a
log-structured merge tree, eight files of one level become one of the next. That is a snapshot of its own behind the
publish's, in the same transaction: it says "replace", as a compaction does, so that no load takes the rows for new.

A follower remembers what it has published, and searches for nothing. Where a compaction, a restore or an erasure has
taken one of the files, it begins anew. While a compaction is under way it merges nothing: that would be a conflict.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING

from cachetools import LRUCache
from pyiceberg.exceptions import ValidationException
from pyiceberg.typedef import Record

from ingestion.sink.writer import TableWriter, fitted, writable_metadata
from lakehouse.catalog.private_pyiceberg import Rewrite, Staging

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata

FAN, LEVELS = 8, 2
SMALL_BYTES = 256 * 1024  # a larger file is worth its opening
AT_ONCE = 2  # tables that are merged in one publish: all of a source fill their levels at the same time
KEPT = FAN * FAN  # of more tables than merges come round to, the oldest files are left to maintenance


@dataclass(frozen=True)
class SmallFile:
    """A published file, how often its rows were merged, and a sequence number after which it came."""

    file: DataFile
    level: int
    after: int


@dataclass(frozen=True)
class Recent:
    """The small files that this process has published to a table, oldest first, in the columns that it has now."""

    schema_id: int
    spec_id: int
    files: tuple[SmallFile, ...] = ()


@dataclass(frozen=True)
class Merged:
    """Files that take the place of others; `snapshot_id` is the snapshot in which they do."""

    gone: tuple[SmallFile, ...]
    files: tuple[SmallFile, ...]
    snapshot_id: int


_recent: LRUCache[str, Recent] = LRUCache(1024)  # by the table's UUID
_lock = Lock()


def due(tables: Iterable[Table]) -> dict[tuple[str, ...], tuple[SmallFile, ...]]:
    """What is merged in this publish: a full level of the tables that have one, and of these the ones with the most
    files."""
    known = {table.name(): recent_of(table.metadata) for table in tables}
    full = {name: level for name, recent in known.items() if (level := _full_level(recent))}
    return {name: full[name] for name in sorted(full, key=lambda name: -len(known[name].files))[:AT_ONCE]}


def merge(table: Table, transaction: Staging, cycle_id: str, gone: tuple[SmallFile, ...]) -> Merged | None:
    """Puts one file in the place of others, behind the transaction's append; None where one of them is gone."""
    after = min(small.after for small in gone)
    update = Rewrite(transaction, table.io, after, {"lakehouse.cycle": cycle_id})
    try:
        files = _as_one(table, cycle_id, [small.file for small in gone])
        for small in gone:
            update.delete_data_file(small.file)
        for file in files:
            update.append_data_file(file)
        update.commit()
    except (ValidationException, OSError):  # what it has written is below the cycle's prefix, where orphans are removed
        forget(table.metadata)
        return None
    return Merged(gone, tuple(SmallFile(file, gone[0].level + 1, after) for file in files), update.snapshot_id)


def recent_of(metadata: TableMetadata) -> Recent:
    """What is remembered of a table."""
    with _lock:
        found = _recent.get(str(metadata.table_uuid))
    now = Recent(metadata.current_schema_id, metadata.default_spec_id)
    return found if found and (found.schema_id, found.spec_id) == (now.schema_id, now.spec_id) else now


def remember(metadata: TableMetadata, files: Iterable[DataFile], merged: Merged | None) -> None:
    """What a publish has added to a table, and merged; `metadata` is that of before. Called when it is published."""
    recent, newest = recent_of(metadata), metadata.current_snapshot()
    after = (newest and newest.sequence_number) or 0
    kept = [small for small in recent.files if merged is None or small not in merged.gone]
    kept += merged.files if merged else ()
    kept += [SmallFile(file, 0, after) for file in files]
    for one in kept:
        one.file.spec_id = recent.spec_id  # PyIceberg sets it where it reads a file, not where it writes one
    small = tuple(one for one in kept if one.level < LEVELS and _is_small(one.file))
    with _lock:
        _recent[str(metadata.table_uuid)] = Recent(recent.schema_id, recent.spec_id, small[-KEPT:])


def forget(metadata: TableMetadata) -> None:
    """Begins anew with a table whose files others have taken."""
    with _lock:
        _recent.pop(str(metadata.table_uuid), None)


def _is_small(file: DataFile) -> bool:
    """Whether its rows are merged. They are held in memory: of one row group, those are `ROW_GROUP_BYTES`."""
    return file.file_size_in_bytes < SMALL_BYTES and len(file.split_offsets or ()) <= 1


def _full_level(recent: Recent) -> tuple[SmallFile, ...]:
    """The oldest files of the lowest level of a partition that is full; none where there is none."""
    levels: dict[tuple[int, Record], list[SmallFile]] = defaultdict(list)
    for small in recent.files:
        levels[small.level, small.file.partition].append(small)
    full = [key for key, files in levels.items() if len(files) >= FAN]
    return tuple(levels[min(full, key=lambda key: key[0])][:FAN]) if full else ()


def _as_one(table: Table, cycle_id: str, files: Iterable[DataFile]) -> tuple[DataFile, ...]:
    """The rows of these files, all of one partition, in a new one."""
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.io.pyarrow import ArrowScan
    from pyiceberg.table import FileScanTask

    scan = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue())
    rows = scan.to_table([FileScanTask(file) for file in files])
    writer = TableWriter(writable_metadata(table, cycle_id), table.io, file_bytes=rows.nbytes + 1)
    writer.add(fitted(rows, writer.schema))
    return writer.close()

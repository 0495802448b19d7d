"""The rows that were added to a table since a snapshot, read from the files that its later snapshots added.

What a load of a few rows asks before it writes costs Trino more than the load itself. These files answer it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from lakehouse.catalog.open import history, total

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

Row = dict[str, Any]
MOST_ROWS = 10_000
REPLACED = "replace"  # the operation of a compaction: the same rows in other files
TAKES_AWAY = ("deleted-records", "added-delete-files", "added-position-deletes", "added-equality-deletes")


def added_rows(table: Table, since: int, columns: Sequence[str], most: int = MOST_ROWS) -> list[Row] | None:
    """Columns of these rows; None where there are too many, or where other things happened to the table meanwhile."""
    snapshots = snapshots_since(table, since)
    if snapshots is None or not all(_adds(snapshot) for snapshot in snapshots):
        return None
    adding = [snapshot for snapshot in snapshots if _operation(snapshot) != REPLACED]
    wanted = sum(total(snapshot, "added-records") for snapshot in adding)
    if wanted > most:
        return None
    files = _files_of(table, {snapshot.snapshot_id for snapshot in adding}) if wanted else []
    if _rows(files) != wanted:  # rewritten since: each snapshot still lists its own
        files = [file for snapshot in adding for file in _listed(table, snapshot, {snapshot.snapshot_id})]
    return _read(table, files, columns) if _rows(files) == wanted else None


def snapshots_since(table: Table, since: int) -> list[Snapshot] | None:
    """The snapshots after one that the table descends from, newest first; None if it does not."""
    found: list[Snapshot] = []
    for snapshot in history(table.metadata):
        if snapshot.snapshot_id == since:
            return found
        found.append(snapshot)
    return None


def _adds(snapshot: Snapshot) -> bool:
    """Whether it took no row away; a replacement holds the same rows in other files."""
    kind = _operation(snapshot)
    return kind == REPLACED or (kind != "" and not any(total(snapshot, key) for key in TAKES_AWAY))


def _operation(snapshot: Snapshot) -> str:
    return snapshot.summary.operation.value if snapshot.summary else ""


def _files_of(table: Table, snapshots: set[int]) -> list[DataFile]:
    current = table.current_snapshot()
    assert current is not None
    return _listed(table, current, snapshots)


def _listed(table: Table, at: Snapshot, added_by: set[int]) -> list[DataFile]:
    """The files that a snapshot lists and some snapshots added."""
    manifests = [m for m in at.manifests(table.io) if m.added_snapshot_id in added_by]
    entries = (entry for manifest in manifests for entry in manifest.fetch_manifest_entry(table.io))
    return [entry.data_file for entry in entries if entry.snapshot_id in added_by]


def _rows(files: Iterable[DataFile]) -> int:
    return sum(file.record_count for file in files)


def _read(table: Table, files: Iterable[DataFile], columns: Sequence[str]) -> list[Row]:
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.io.pyarrow import ArrowScan
    from pyiceberg.table import FileScanTask

    scan = ArrowScan(table.metadata, table.io, table.schema().select(*columns), AlwaysTrue())
    rows: list[Row] = scan.to_table([FileScanTask(file) for file in files]).to_pylist()
    return rows

"""Deletes files that have been out of use for `keep_removed_hours`; part of expiry and of orphan removal.

It first checks the table's current references and those of other tables. Files that are in use again (a restore, an
expiry that was killed before its commit) are kept and no longer recorded.

The store deletes a thousand files per request (`bulk_delete`); Spark is not needed. A batch leaves the record in a
transaction of the session that holds the table's lock, which ends behind the deletion. So a purge that slept until the
lock was lost deletes nothing that a restore has put in use since; after a kill a batch is deleted again, which is no
error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from lakehouse.catalog.writing.bulk_delete import BATCH, delete_objects
from maintenance.inventory import removed
from maintenance.inventory.in_use import Unknown, elsewhere
from maintenance.inventory.lake import staged_prefixes
from maintenance.inventory.outcome import TableName
from maintenance.inventory.reachable import reachable_files
from maintenance.inventory.removed import RemovedFile
from maintenance.inventory.session import Session


@dataclass(frozen=True)
class Purged:
    """Counts of deleted files; `bytes` is of files whose size is known."""

    files: int = 0
    bytes: int = 0

    def __str__(self) -> str:
        return f"deleted {self.files} files removed earlier" if self.files else ""


def purge(session: Session, table: TableName, keep_hours: float | None) -> Purged:
    """Deletes the table's removed files that are older than `keep_hours`; None deletes nothing."""
    if keep_hours is None or session.dry_run:
        return Purged()
    files = size = 0
    with removed.catalog_database(session.settings) as connection:
        old = removed.due(connection, table, keep_hours)
        if not old:
            return Purged()
        try:
            used = _used(session, table)
        except Unknown:  # the files wait; orphan removal says why
            return Purged()
        staged = staged_prefixes(session.catalog)
        spared = [file.path for file in old if file.path in used or file.path.startswith(staged)]
        removed.forget(connection, spared)
        kept = set(spared)
        locked = session.locks.get(table, connection)
        for batch in _batches([file for file in old if file.path not in kept]):
            with locked.transaction():
                recorded = removed.forget(locked, [file.path for file in batch])
                delete_objects(session.io, recorded)
            files += len(recorded)
            size += sum(file.size or 0 for file in batch if file.path in recorded)
    return Purged(files, size)


def _used(session: Session, table: TableName) -> set[str]:
    loaded = session.load(table)
    return elsewhere(session, table) | (reachable_files(loaded) if loaded is not None else set())


def _batches(files: Sequence[RemovedFile]) -> Iterator[list[RemovedFile]]:
    rest = iter(files)
    while batch := list(islice(rest, BATCH)):
        yield batch

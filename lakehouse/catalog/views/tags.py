"""Tags that the texts of fresh views name: each shows the same rows for ever, whatever compactions rewrite.

A text is read first and the tables that it names later, so it names tags that nobody uses for anything else. The newest
of a family moves along; those before it stay for queries that have read a text a moment ago.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from lakehouse.catalog.open import is_unchanged

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.update import TableUpdate

REGULAR = "lakehouse_regular_"  # of a raw table, see `regular`; before the snapshot that the tag began with
VIEW = "lakehouse_view_"  # of a mirror, see `mirrored`; before the snapshot of the refresh
LEFT_MS = 3_600_000


def tags_of(metadata: TableMetadata, family: str) -> list[tuple[str, int]]:
    """The tags of a family with their snapshots, oldest first: each begins with a snapshot of its own."""
    numbers = {snapshot.snapshot_id: snapshot.sequence_number or 0 for snapshot in metadata.snapshots}
    tags = [(name, ref.snapshot_id) for name, ref in metadata.refs.items() if name.startswith(family)]
    return sorted(tags, key=lambda tag: numbers[tag[1]])


def is_tag(ref: str) -> bool:
    """Whether a tag or branch is one of these."""
    return ref.startswith((REGULAR, VIEW))


def shows_all(metadata: TableMetadata, snapshot_id: int) -> bool:
    """Whether a snapshot shows all rows of the table, in the columns that it has now."""
    is_newest = snapshot_id == metadata.current_snapshot_id
    return (is_newest or is_unchanged(metadata, snapshot_id)) and _has_schema(metadata, snapshot_id)


def _has_schema(metadata: TableMetadata, snapshot_id: int) -> bool:
    """Whether a snapshot shows the columns that the table has now: engines read a tag with those of its snapshot."""
    found = metadata.snapshot_by_id(snapshot_id)
    return found is not None and found.schema_id == metadata.current_schema_id


def after_rewrites(metadata: TableMetadata) -> tuple[TableUpdate, ...]:
    """Moves the newest tag of each family to the current snapshot if nothing but rewrites of files came since.

    Else the files before them would stay, and be read, for as long as nothing is published to the table.
    """
    current = metadata.current_snapshot_id
    newest = [tags[-1] for family in (REGULAR, VIEW) if (tags := tags_of(metadata, family))]
    behind = [tag for tag, snapshot in newest if snapshot != current and shows_all(metadata, snapshot)]
    return tuple(moved(tag, current) for tag in behind) if current is not None else ()


def begun(metadata: TableMetadata, family: str, snapshot_id: int, kept: int) -> tuple[TableUpdate, ...]:
    """Begins a family's next tag at this snapshot; so many are kept, and older ones go."""
    tags = tags_of(metadata, family)
    old = [name for name, _ in tags[: max(0, len(tags) + 1 - kept)]]
    before = [_left(metadata, *tag) for tag in tags[-1:]]
    return (moved(f"{family}{snapshot_id}", snapshot_id), *before, *map(removal, old))


def _left(metadata: TableMetadata, tag: str, snapshot_id: int) -> TableUpdate:
    """Lets the first expiry after an hour take off a tag that moves no more: no view names it from now on, and the
    files that compactions have replaced since would stay with it. Iceberg counts from the age of the snapshot."""
    snapshot = metadata.snapshot_by_id(snapshot_id)
    assert snapshot is not None
    age = max(0, time.time_ns() // 1_000_000 - snapshot.timestamp_ms)
    return moved(tag, snapshot_id, age + LEFT_MS)


def moved(tag: str, snapshot_id: int, max_age_ms: int | None = None) -> TableUpdate:
    """The update that makes or moves a tag."""
    from pyiceberg.table.update import SetSnapshotRefUpdate

    return SetSnapshotRefUpdate(
        ref_name=tag, type="tag", snapshot_id=snapshot_id,
        max_ref_age_ms=max_age_ms, max_snapshot_age_ms=None, min_snapshots_to_keep=None,
    )  # fmt: skip


def removal(tag: str) -> TableUpdate:
    """The update that takes a tag off."""
    from pyiceberg.table.update import RemoveSnapshotRefUpdate

    return RemoveSnapshotRefUpdate(ref_name=tag)

"""Tags of a raw table up to which it is regular, so that the short text of a fresh view is right at any age.

An engine reads the text of a view first, and the metadata of raw later. By then raw may have what the text cannot
follow, so the text reads raw at a tag that is named once and never used again. Each publish of regular rows moves the
newest tag along, in the metadata file that has the rows. The publish of others begins the next one, and the one before
stays where it is. So what a tag shows after the position of a text that names it is regular, and has the columns of the
text: it takes a position that is not before what the tag began with.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from lakehouse.catalog.open import is_unchanged

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.update import TableUpdate

PREFIX = "lakehouse_regular_"  # before the snapshot that the tag began with
KEPT, LEFT_MS = 10, 3_600_000  # for queries that have read a text a moment ago


def newest_tag(metadata: TableMetadata) -> tuple[str, int] | None:
    """The tag that moves along, and its snapshot; None of a table that no publish of this release has reached."""
    tags = _tags(metadata)
    return tags[-1] if tags else None


def shows_all(metadata: TableMetadata, snapshot_id: int) -> bool:
    """Whether a snapshot shows all rows of the table, in the columns that it has now."""
    is_newest = snapshot_id == metadata.current_snapshot_id
    return (is_newest or is_unchanged(metadata, snapshot_id)) and _has_schema(metadata, snapshot_id)


def _has_schema(metadata: TableMetadata, snapshot_id: int) -> bool:
    """Whether a snapshot shows the columns that the table has now: engines read a tag with those of its snapshot."""
    found = metadata.snapshot_by_id(snapshot_id)
    return found is not None and found.schema_id == metadata.current_schema_id


def next_tag(metadata: TableMetadata, snapshot_id: int, is_regular: bool) -> tuple[TableUpdate, ...]:
    """What a publish of this snapshot does to the tags; tags that are old go."""
    tags = _tags(metadata)
    if is_regular and tags:
        return (moved(tags[-1][0], snapshot_id),)
    old = [name for name, _ in tags[: max(0, len(tags) + 1 - KEPT)]]
    left = [_left(metadata, *tag) for tag in tags[-1:]]
    return (moved(f"{PREFIX}{snapshot_id}", snapshot_id), *left, *map(_removal, old))


def after_rewrites(metadata: TableMetadata) -> tuple[TableUpdate, ...]:
    """Moves the newest tag to the current snapshot if nothing but rewrites of files came since: else the files before
    them would stay for as long as nothing is published to the table."""
    tag, current = newest_tag(metadata), metadata.current_snapshot_id
    if tag is None or current is None or tag[1] == current or not shows_all(metadata, tag[1]):
        return ()
    return (moved(tag[0], current),)


def only_current(metadata: TableMetadata) -> tuple[TableUpdate, ...]:
    """Takes the tags off, but for one of the current snapshot: of a table whose history goes."""
    return tuple(_removal(name) for name, snapshot in _tags(metadata) if snapshot != metadata.current_snapshot_id)


def is_tag(ref: str) -> bool:
    """Whether a tag or branch is one of these."""
    return ref.startswith(PREFIX)


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


def _removal(tag: str) -> TableUpdate:
    from pyiceberg.table.update import RemoveSnapshotRefUpdate

    return RemoveSnapshotRefUpdate(ref_name=tag)


def _tags(metadata: TableMetadata) -> list[tuple[str, int]]:
    """Oldest first: each begins with a snapshot of its own."""
    numbers = {snapshot.snapshot_id: snapshot.sequence_number or 0 for snapshot in metadata.snapshots}
    tags = [(name, ref.snapshot_id) for name, ref in metadata.refs.items() if is_tag(name)]
    return sorted(tags, key=lambda tag: numbers[tag[1]])

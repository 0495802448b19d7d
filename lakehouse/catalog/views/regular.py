"""Tags of a raw table up to which it is regular, so that the short text of a fresh view is right at any age.

An engine reads the text of a view first, and the metadata of raw later. By then raw may have what the text cannot
follow, so the text reads raw at a tag that is named once and never used again. Each publish of regular rows moves the
newest tag along, in the metadata file that has the rows. The publish of others begins the next one, and the one before
stays where it is. So what a tag shows after the position of a text that names it is regular, and has the columns of the
text: it takes a position that is not before what the tag began with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakehouse.catalog.views.tags import REGULAR, begun, moved, removal, tags_of

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.update import TableUpdate

KEPT = 10  # for queries that have read a text a moment ago


def newest_tag(metadata: TableMetadata) -> tuple[str, int] | None:
    """The tag that moves along, and its snapshot; None of a table that no publish of this release has reached."""
    tags = tags_of(metadata, REGULAR)
    return tags[-1] if tags else None


def next_tag(metadata: TableMetadata, snapshot_id: int, is_regular: bool) -> tuple[TableUpdate, ...]:
    """What a publish of this snapshot does to the tags; tags that are old go."""
    if is_regular and (tag := newest_tag(metadata)):
        return (moved(tag[0], snapshot_id),)
    return begun(metadata, REGULAR, snapshot_id, KEPT)


def only_current(metadata: TableMetadata) -> tuple[TableUpdate, ...]:
    """Takes the tags off, but for one of the current snapshot: of a table whose history goes."""
    return tuple(
        removal(name) for name, snapshot in tags_of(metadata, REGULAR) if snapshot != metadata.current_snapshot_id
    )

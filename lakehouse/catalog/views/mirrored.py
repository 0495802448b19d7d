"""The tag of a mirror at which the plain text of a fresh view reads it.

It is named after the snapshot that a refresh has written, in the metadata file of that refresh, and shows the rows of
that for ever: a compaction moves it along, to files that are quicker to read. An engine that knows the mirror from
before, as within a transaction, does not find it and fails: without a name it would show those rows in the place of
newer ones, and in silence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakehouse.catalog.views.tags import VIEW, begun

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.update import TableUpdate

KEPT = 3  # for queries that have read a text a moment ago


def tag_of(snapshot_id: int) -> str:
    """The tag of a refresh that wrote this snapshot."""
    return f"{VIEW}{snapshot_id}"


def next_tag(metadata: TableMetadata, snapshot_id: int) -> tuple[TableUpdate, ...]:
    """What a refresh that has written this snapshot does to the tags; tags that are old go."""
    return () if tag_of(snapshot_id) in metadata.refs else begun(metadata, VIEW, snapshot_id, KEPT)

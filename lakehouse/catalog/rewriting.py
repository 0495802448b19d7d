"""A rewrite that is under way needs every snapshot since it began, and says so in a property of its table.

When it commits, Iceberg asks that line of snapshots whether others have deleted what was rewritten. Ingestion, which
bounds the snapshots of its tables, would cut it off within minutes. A tag would not do: it keeps one snapshot and not
those behind it, and holds up an erasure. The property ends by itself, so that one of a killed rewrite does no harm.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata

REWRITING = "lakehouse.rewriting"  # <sequence number>@<until, in milliseconds>


def rewriting(metadata: TableMetadata, until_ms: int) -> dict[str, str]:
    """The property of a rewrite that begins at the newest snapshot and has ended at that time."""
    newest = metadata.current_snapshot()
    return {REWRITING: f"{(newest and newest.sequence_number) or 0}@{until_ms}"}


def needed_since(metadata: TableMetadata, now_ms: int) -> int | None:
    """The sequence number of the oldest snapshot that a rewrite needs now; None where none is under way."""
    since, _, until = metadata.properties.get(REWRITING, "").partition("@")
    return int(since) if until and now_ms < int(until) else None

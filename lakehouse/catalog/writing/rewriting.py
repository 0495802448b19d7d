"""A running rewrite needs every snapshot since it started, and records this in a property of its table.

When it commits, Iceberg checks in these snapshots whether other writers deleted the rewritten files. Ingestion, which
limits the snapshots of its tables, would expire them within minutes. A tag would keep only one snapshot, not the later
ones, and block an erasure. The property contains its end, so that one of a killed rewrite does no harm.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata

REWRITING = "lakehouse.rewriting"  # <sequence number>@<until, in milliseconds>


def rewriting(metadata: TableMetadata, until_ms: int) -> dict[str, str]:
    """The property of a rewrite that starts at the newest snapshot and ends by that time."""
    newest = metadata.current_snapshot()
    return {REWRITING: f"{(newest and newest.sequence_number) or 0}@{until_ms}"}


def needed_since(metadata: TableMetadata, now_ms: int) -> int | None:
    """The sequence number of the oldest snapshot that a running rewrite needs; None if there is none."""
    since, _, until = metadata.properties.get(REWRITING, "").partition("@")
    return int(since) if until and now_ms < int(until) else None

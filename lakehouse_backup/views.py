"""Has the current views of a backup fit the tables that were rolled forward under them.

A short text may not be able to follow what raw has got since, so each view gets its long one. The snapshot of the
mirror that it names may have been erased or expired since: such a view reads parsed until the next refresh.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingestion.mirrors.view_parts import named_snapshots
from ingestion.state import store
from lakehouse.catalog.relations import read_metadata
from lakehouse.catalog.views.current_views import is_fresh, view_of
from lakehouse.catalog.views.view_versions import as_made, current_version, known_metadata, with_long_text, write_view
from lakehouse.catalog.writing.commit import pointers

if TYPE_CHECKING:
    from pyiceberg.io import FileIO

    from lakehouse.servers.database import CatalogConnection


def fitting_views(
    states: CatalogConnection, catalog: str, io: FileIO, sources: list[str]
) -> dict[tuple[str, str], tuple[str, str]]:
    """The pointers of the current views that change, old and new, by what the open transaction has of the tables."""
    moves = {}
    tables = [(source, table) for source in sources for table in store.read_positions(states, source)]
    views = pointers(states, catalog, [view_of(*table) for table in tables], are_views=True)
    mirrors = pointers(states, catalog, [(f"mirror_{source}", table) for source, table in tables])
    for source, table in tables:
        base = views.get(view_of(source, table))
        if base is None:
            continue
        location = with_long_text(io, base)
        metadata = known_metadata(io, location)
        texts = [r["sql"] for r in current_version(metadata)["representations"]] if metadata else []
        named = {snapshot for text in texts if is_fresh(text) for snapshot in named_snapshots(text)}
        if metadata and not named <= _snapshots(io, mirrors.get((f"mirror_{source}", table))):
            location = write_view(io, as_made(metadata))
        if location != base:
            moves[view_of(source, table)] = (base, location)
    return moves


def _snapshots(io: FileIO, mirror: str | None) -> set[int]:
    metadata = read_metadata(io, mirror) if mirror else None
    return {snapshot["snapshot-id"] for snapshot in metadata.get("snapshots", ())} if metadata else set()

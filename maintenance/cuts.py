"""Snapshots that a reader at a consistent cut may travel to: expiry leaves them alone."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pyiceberg.expressions import And, BooleanExpression, EqualTo, GreaterThanOrEqual

from lakehouse.catalog import load_table
from maintenance.outcome import TableName

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.table import Table

CUTS = ("meta", "cuts")
FIELDS = ("epoch", "cut_lsn", "published_at", "snapshots")


def snapshots_of_cuts(catalog: SqlCatalog, source: str, since: datetime) -> dict[TableName, frozenset[int]]:
    """Table → snapshots named by the cuts of a source published since then, and always by its newest cut."""
    cuts = load_table(catalog, *CUTS)
    if cuts is None:
        return {}
    of_source = EqualTo(term="source", value=source)
    rows = _read(cuts, And(of_source, GreaterThanOrEqual(term="published_at", value=since.isoformat())))
    if not rows:
        rows = _newest(_read(cuts, of_source))
    named: dict[TableName, set[int]] = defaultdict(set)
    for row in rows:
        for table, snapshot_id in row["snapshots"]:
            named[TableName(f"raw_{source}", table)].add(int(snapshot_id))
    return {table: frozenset(ids) for table, ids in named.items()}


def newest_cut(catalog: SqlCatalog, source: str) -> dict[TableName, int]:
    """Table → its snapshot in the newest cut of a source; empty before the first cut."""
    cuts = load_table(catalog, *CUTS)
    newest = _newest(_read(cuts, EqualTo(term="source", value=source))) if cuts is not None else []
    return {TableName(f"raw_{source}", table): int(snapshot) for row in newest for table, snapshot in row["snapshots"]}


def _newest(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [max(rows, key=lambda row: (row["epoch"], row["cut_lsn"], row["published_at"]))] if rows else []


def _read(cuts: Table, condition: BooleanExpression) -> list[dict[str, Any]]:
    return cuts.scan(row_filter=condition, selected_fields=FIELDS).to_arrow().to_pylist()

"""The snapshots that cuts name, of raw tables and of mirrors, which expiry keeps for readers at a cut."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyiceberg.expressions import (
    AlwaysTrue,
    And,
    BooleanExpression,
    EqualTo,
    GreaterThanOrEqual,
    LessThan,
    LessThanOrEqual,
    Or,
)

from lakehouse.catalog.open import load_table
from lakehouse.catalog.relations import LISTED, Layer
from maintenance.inventory.outcome import TableName

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.table import Table

ORDER = ("epoch", "cut_lsn", "published_at")
ROWS_AT_ONCE = 1_000
LOOKS_BACK = (timedelta(hours=1), timedelta(days=1), timedelta(days=30), None)  # there may be 100,000 cuts a day


def snapshots_of_cuts(
    catalog: SqlCatalog, source: str, since: datetime, layer: Layer = "raw"
) -> dict[TableName, frozenset[int]]:
    """Table → snapshots named by the cuts of a source published since then, and by the newest one before: it was in
    force then, and a reader of a moment before the next cut reads it."""
    cuts = load_table(catalog, *LISTED[layer])
    if cuts is None:
        return {}
    wanted, in_force = _since(source, since), _newest(cuts, source, before=since)
    named = _named(cuts, Or(wanted, in_force) if in_force is not None else wanted)
    return {TableName(f"{layer}_{source}", name): frozenset(ids) for name, ids in named.items()}


def newest_cut(catalog: SqlCatalog, source: str) -> dict[TableName, int]:
    """Table → its snapshot in the newest cut of a source; empty before the first cut."""
    cuts = load_table(catalog, *LISTED["raw"])
    named = _named_by_newest(cuts, source) if cuts is not None else {}
    return {TableName(f"raw_{source}", name): next(iter(ids)) for name, ids in named.items()}


def newest_row(cuts: Table, source: str) -> dict[str, Any] | None:
    """The newest cut of a source in a state of `meta.cuts`: `epoch`, `cut_lsn`, `cut_at`, `snapshots`, and
    `position` if the table has it: release 0.1 wrote none."""
    condition = _newest(cuts, source)
    rows = _read(cuts, condition, _columns(cuts)).to_pylist() if condition is not None else []
    return rows[0] if rows else None


def rows_of(cuts: Table, source: str) -> Iterator[dict[str, Any]]:
    """All cuts of a source in a state of `meta.cuts`, as `newest_row` has them, newest first."""
    rows = _read(cuts, EqualTo(term="source", value=source), _columns(cuts))
    rows = rows.sort_by([(name, "descending") for name in ORDER])
    for first in range(0, rows.num_rows, ROWS_AT_ONCE):
        yield from rows.slice(first, ROWS_AT_ONCE).to_pylist()


def sources_of(cuts: Table) -> set[str]:
    """The sources that have cuts in a state of `meta.cuts`."""
    return set(_read(cuts, AlwaysTrue(), ("source",)).column("source").unique().to_pylist())


def _columns(cuts: Table) -> tuple[str, ...]:
    return (*ORDER, "cut_at", "snapshots", *({"position"} & {*cuts.schema().column_names}))


def _named_by_newest(cuts: Table, source: str) -> dict[str, set[int]]:
    """The table's snapshots in the newest cut."""
    condition = _newest(cuts, source)
    return _named(cuts, condition) if condition is not None else {}


def _newest(cuts: Table, source: str, before: datetime | None = None) -> BooleanExpression | None:
    """A condition that selects the newest cut, or the newest that was published before a moment, found without reading
    the snapshots of all cuts."""
    end = before or datetime.now(UTC)
    until = LessThan(term="published_at", value=before.isoformat()) if before else AlwaysTrue()
    for back in LOOKS_BACK:
        condition = And(until, _since(source, end - back) if back else EqualTo(term="source", value=source))
        positions = _read(cuts, condition, ORDER).sort_by([(name, "descending") for name in ORDER])
        if positions.num_rows:
            newest = positions.slice(0, 1).to_pylist()[0]
            at = newest["published_at"].isoformat()
            exactly = (EqualTo(term=name, value=newest[name]) for name in ("epoch", "cut_lsn"))
            return And(_since(source, at), LessThanOrEqual(term="published_at", value=at), *exactly)
    return None


def _named(cuts: Table, condition: BooleanExpression) -> dict[str, set[int]]:
    """Name of a table → distinct snapshots of the cuts that meet a condition."""
    maps = _read(cuts, condition, ("snapshots",)).column("snapshots")
    named: dict[str, set[int]] = defaultdict(set)
    for chunk in maps.chunks:
        first, last = chunk.offsets[0].as_py(), chunk.offsets[-1].as_py()  # of a slice, keys are those of the whole
        pairs = pa.table({"table": chunk.keys[first:last], "snapshot": chunk.items[first:last]})
        for pair in pairs.group_by(["table", "snapshot"]).aggregate([]).to_pylist():
            named[pair["table"]].add(int(pair["snapshot"]))
    return named


def _since(source: str, moment: datetime | str) -> BooleanExpression:
    at = moment if isinstance(moment, str) else moment.isoformat()
    return And(EqualTo(term="source", value=source), GreaterThanOrEqual(term="published_at", value=at))


def _read(cuts: Table, condition: BooleanExpression, columns: tuple[str, ...]) -> pa.Table:
    return cuts.scan(row_filter=condition, selected_fields=columns).to_arrow()

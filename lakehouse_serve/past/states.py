"""The lake at a cut as one state: raw tables, the mirrors that stand there, and marts as they were built then."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from lakehouse.catalog.open import open_catalog
from lakehouse.catalog.pins import pinned
from lakehouse.catalog.relations import TableName, list_relations
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings
from lakehouse_serve.past.cuts import Cut, Cuts, NoCut
from lakehouse_serve.past.moments import Moment, parse_warehouse

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from lakehouse.catalog.lake_catalog import LakeCatalog

MARTS = "marts"


@dataclass(frozen=True)
class State:
    """One cut of each source, and the snapshots of tables that belong to them."""

    cuts: tuple[Cut, ...]
    snapshots: Mapping[TableName, int]

    @property
    def name(self) -> str:
        """What names these cuts, and no others."""
        return positions_of(self.cuts)


def positions_of(cuts: tuple[Cut, ...]) -> str:
    """The positions of cuts, as a warehouse has them."""
    return ",".join(str(cut.position) for cut in cuts)


def newest_cuts(settings: Settings, moment: Moment) -> tuple[Cut, ...]:
    """The newest cut of each source until the moment. Raises LakehouseError if there is none."""
    if moment.pin is not None:
        raise LakehouseError(f"pin:{moment.pin} is no time and no position: use --as-of-cut")
    try:
        return Cuts(settings).at(moment, datetime.now(UTC))
    except NoCut as error:
        raise LakehouseError(str(error)) from None


def together(settings: Settings, moment: Moment, sources: Collection[str]) -> State:
    """What of these sources belongs together until a moment: the newest cut at which the mirrors stand, and raw there.

    A source without mirrors has its newest cut. A mart says nothing of commits: it is as it was built last until the
    moment, or until the mirrors of these cuts were published. Raises LakehouseError if there is no cut.
    """
    newest = tuple(cut for cut in newest_cuts(settings, moment) if cut.source in sources)
    if not newest:
        raise LakehouseError("no cut of a declared source was published until then")
    mirrors = tuple(cut for cut in Cuts(settings, "mirror").newest(moment) if cut.source in sources)
    standing = {cut.source: cut.position for cut in mirrors}
    positions = tuple(standing.get(cut.source, cut.position) for cut in newest)
    cuts = newest_cuts(settings, Moment(positions=positions))
    until = moment.at or max(cut.published_at for cut in (*mirrors, *cuts) if cut.published_at)
    with closing(open_catalog(settings)) as catalog:
        marts = _built_until(catalog, until)
    return State(cuts, {name: found for cut in (*cuts, *mirrors) for name, found in cut.tables.items()} | marts)


def state_at(settings: Settings, moment: Moment) -> State:
    """What a pin keeps, or the cuts at these positions with the mirrors that stand there.

    Raises LakehouseError for a time, a position that is no cut, and a pin of single tables.
    """
    if moment.pin is not None:
        return _pinned(settings, moment.pin)
    cuts = newest_cuts(settings, moment)
    if moment.at is not None or not all(_is_exactly(moment, cut) for cut in cuts):
        raise LakehouseError(
            f"no cut is exactly there: the newest until then is {positions_of(cuts)}; "
            "--as-of and --as-of-lsn take any moment"
        )
    exact = {cut.position for cut in cuts}
    mirrors = (cut for cut in Cuts(settings, "mirror").newest(moment) if cut.position in exact)
    return State(cuts, {name: found for cut in mirrors for name, found in cut.tables.items()})


def _pinned(settings: Settings, pin: str) -> State:
    with closing(open_catalog(settings)) as catalog:
        kept = pinned(catalog, pin)
    if not kept.cut:
        raise LakehouseError(f"the pin {pin!r} keeps no cut: make one with `lakehouse pin`")
    moment = parse_warehouse(f"@{kept.cut}", "")
    assert moment is not None
    return State(newest_cuts(settings, moment), kept.snapshots)


def _is_exactly(moment: Moment, cut: Cut) -> bool:
    """Of a source that is not named any cut is."""
    asked = [position for position in moment.positions if position.source in {None, cut.source}]
    return all(position.lsn == cut.lsn and position.epoch in {None, cut.epoch} for position in asked)


def _built_until(catalog: LakeCatalog, moment: datetime) -> dict[TableName, int]:
    names = [relation.name for relation in list_relations(catalog) if relation.name.namespace == MARTS]
    built = {TableName(*name): _newest_until(table, moment) for name, table in catalog.load_tables(names).items()}
    return {name: snapshot for name, snapshot in built.items() if snapshot is not None}


def _newest_until(table: Table, moment: datetime) -> int | None:
    """Of all snapshots: one that replaces a table has no parent, and begins the log of snapshots anew."""
    until, newest = int(moment.timestamp() * 1000), table.current_snapshot()
    if newest is not None and newest.timestamp_ms > until:
        earlier = (snapshot for snapshot in table.snapshots() if snapshot.timestamp_ms <= until)
        newest = max(earlier, key=lambda snapshot: snapshot.timestamp_ms, default=None)
    return newest.snapshot_id if newest else None

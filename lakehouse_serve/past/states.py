"""The lake at a cut as one state: raw tables, the mirrors that stand there, and marts as they were built then."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf
from typing import TYPE_CHECKING

from lakehouse.catalog.open import changes_data, history_since, open_catalog
from lakehouse.catalog.pins import pinned
from lakehouse.catalog.relations import TableName, list_relations
from lakehouse.declarations.declared import Source
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings
from lakehouse_serve.past.cuts import Cut, Cuts, NoCut
from lakehouse_serve.past.moments import Moment, parse_warehouse

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from lakehouse.catalog.lake_catalog import LakeCatalog

MARTS = "marts"
LATE_REFRESHES = 3


@dataclass(frozen=True)
class State:
    """One cut of each source, and the snapshots of tables that belong to them; `missing` says what does not."""

    cuts: tuple[Cut, ...]
    snapshots: Mapping[TableName, int]
    missing: tuple[str, ...] = ()

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


def together(settings: Settings, moment: Moment, sources: Collection[Source]) -> State:
    """What of these sources belongs together until a moment: the newest cut at which the mirrors stand, and raw there.

    A source without mirrors has its newest cut, and so has one whose mirrors had not been refreshed for long: they are
    not in the state, which says so. A mart says nothing of commits: it is as it was built last until the moment, or
    until the mirrors of these cuts were published. Raises LakehouseError if there is no cut.
    """
    declared = {source.name: source for source in sources}
    newest = {cut.source: cut for cut in newest_cuts(settings, moment) if cut.source in declared}
    if not newest:
        raise LakehouseError("no cut of a declared source was published until then")
    mirrors = {cut.source: cut for cut in Cuts(settings, "mirror").newest(moment) if cut.source in newest}
    mirrors = {name: cut for name, cut in mirrors.items() if declared[name].mirrored}
    with closing(open_catalog(settings)) as catalog:
        cuts = {**newest, **_raw_at(settings, mirrors.values())}
        late = {
            name: mirror
            for name, mirror in mirrors.items()
            if _seconds_between(cuts[name], newest[name]) > LATE_REFRESHES * declared[name].refresh_seconds
            and _has_changed(catalog, mirror, cuts[name], newest[name])
        }
        cuts |= {name: newest[name] for name in late}
        kept = [mirror for name, mirror in mirrors.items() if name not in late]
        until = moment.at or max(cut.published_at for cut in (*kept, *cuts.values()) if cut.published_at)
        marts = _built_until(catalog, until)
    snapshots = {name: found for cut in (*cuts.values(), *kept) for name, found in cut.tables.items()}
    missing = tuple(
        f"mirrors of {name} are not in it: "
        + (f"they were not refreshed since {late[name].position}" if name in late else "there were none until then")
        for name in sorted(cuts)
        if name in late or (declared[name].mirrored and name not in mirrors)
    )
    return State(tuple(cuts[name] for name in sorted(cuts)), snapshots | marts, missing)


def _raw_at(settings: Settings, mirrors: Collection[Cut]) -> dict[str, Cut]:
    """The newest cut of raw tables until each of these."""
    if not mirrors:
        return {}
    found = newest_cuts(settings, Moment(positions=tuple(cut.position for cut in mirrors)))
    return {cut.source: cut for cut in found if cut.source in {mirror.source for mirror in mirrors}}


def _seconds_between(earlier: Cut, later: Cut) -> float:
    begun, ended = earlier.at or earlier.published_at, later.at or later.published_at
    return (ended - begun).total_seconds() if begun and ended else inf


def _has_changed(catalog: LakeCatalog, mirror: Cut, earlier: Cut, later: Cut) -> bool:
    """Whether a table that has a mirror changed from one cut of raw tables to another; also if that is not known."""
    names = {name: TableName(f"raw_{mirror.source}", name) for name in mirror.snapshots}
    moved = [name for name in names if later.snapshots.get(name) != earlier.snapshots.get(name)]
    tables = catalog.load_tables([names[name] for name in moved])
    return any(
        _changed(tables.get(names[name]), earlier.snapshots.get(name), later.snapshots.get(name)) for name in moved
    )


def _changed(table: Table | None, earlier: int | None, later: int | None) -> bool:
    if table is None or earlier is None or later is None:
        return True
    between = history_since(table.metadata, earlier, later)
    return between is None or any(changes_data(snapshot) for snapshot in between)


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

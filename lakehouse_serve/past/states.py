"""The lake at a cut as one state: raw tables, the mirrors that stand there, and marts as they were built then."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import inf
from typing import TYPE_CHECKING

from lakehouse.catalog.open import changes_rows, history_since, open_catalog
from lakehouse.catalog.past import newest_until
from lakehouse.catalog.pins import Pinned, pinned
from lakehouse.catalog.relations import TableName, list_relations
from lakehouse.declarations.declared import Source
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings
from lakehouse_serve.past.cuts import Cut, Cuts, NoCut, is_exactly
from lakehouse_serve.past.moments import Moment, parse_warehouse
from lakehouse_serve.past.reads import read_sources, refuse_unread

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.table import Table

    from lakehouse.catalog.lake_catalog import LakeCatalog

MARTS = "marts"
LATE_REFRESHES = 3
ONE_DAY = timedelta(days=1)


@dataclass(frozen=True)
class State:
    """One cut of each source, and the snapshots of tables that belong to them; `missing` says what does not.

    `is_of_all`: a source that has no cut in it was not in the lake yet. `others` names the cuts that sources had which
    are not declared; None if that is not known.
    """

    cuts: tuple[Cut, ...]
    snapshots: Mapping[TableName, int]
    missing: tuple[str, ...] = ()
    is_of_all: bool = False
    others: str | None = None

    @property
    def name(self) -> str:
        """What names these cuts, and no others."""
        return positions_of(self.cuts)

    @property
    def to_pin(self) -> Pinned:
        """What a pin of it keeps."""
        return Pinned(self.snapshots, self.name, self.others)


def positions_of(cuts: tuple[Cut, ...]) -> str:
    """The positions of cuts, as a warehouse has them."""
    return ",".join(str(cut.position) for cut in cuts)


def newest_cuts(settings: Settings, moment: Moment) -> tuple[Cut, ...]:
    """The newest cut of each source until the moment. Raises LakehouseError if there is none."""
    if moment.pin is not None:
        raise LakehouseError(f"pin:{moment.pin} is a pin, no time and no position")
    try:
        return Cuts(settings).at(moment, datetime.now(UTC))
    except NoCut as error:
        raise LakehouseError(str(error)) from None


def cuts_read(settings: Settings, moment: Moment) -> tuple[Cut, ...]:
    """The same. Raises LakehouseError, too, where the moment has a position that the lake has not read."""
    reads = read_sources(settings) if moment.positions else {}  # first: what is read meanwhile is in a later cut
    cuts = newest_cuts(settings, moment)
    try:
        refuse_unread(moment, cuts, reads)
    except NoCut as error:
        raise LakehouseError(str(error)) from None
    return cuts


def together(settings: Settings, moment: Moment, sources: Collection[Source], cut: str | None = None) -> State:
    """What of these sources belongs together until a moment: the newest cut at which the mirrors stand, and raw there.

    A source without mirrors has its newest cut, and so has one whose mirrors had not been refreshed for long, or not
    since a recovery. The former are not in the state where a table has changed since, the latter never, as they may
    have rows that were rolled back; the state says so. A mart says nothing of commits: it is as it was built last until
    the moment, or until the mirrors of these cuts were published. What else was not there, or came later, is said, too,
    and so are tables whose snapshot of then is gone. `cut` names the cuts in place of the newest ones. Raises
    LakehouseError if there is no cut, or nothing of it is left.
    """
    declared, asked = {source.name: source for source in sources}, moment if cut is None else _positions(cut)
    listed = cuts_read(settings, asked) if cut is None else newest_cuts(settings, asked)
    newest = {cut.source: cut for cut in listed if cut.source in declared}
    if not newest:
        raise LakehouseError("no cut of a declared source was published until then")
    mirrors = {cut.source: cut for cut in Cuts(settings, "mirror").newest(asked) if cut.source in newest}
    mirrors = {name: cut for name, cut in mirrors.items() if declared[name].mirrored}
    of_before = {name: mirrors.pop(name) for name in sorted(mirrors) if mirrors[name].epoch != newest[name].epoch}
    with closing(open_catalog(settings)) as catalog:
        cuts = {**newest, **_raw_at(settings, mirrors.values())}
        old = {
            name: mirror
            for name, mirror in mirrors.items()
            if _seconds_between(cuts[name], newest[name]) > LATE_REFRESHES * declared[name].refresh_seconds
        }
        late = {name: found for name, found in old.items() if _has_changed(catalog, found, cuts[name], newest[name])}
        cuts |= {name: newest[name] for name in old}
        kept = [mirror for name, mirror in mirrors.items() if name not in late]
        until = moment.at or max(cut.published_at for cut in (*kept, *cuts.values()) if cut.published_at)
        snapshots = {name: found for cut in (*cuts.values(), *kept) for name, found in cut.tables.items()}
        tables = catalog.load_tables(list(snapshots))
        gone = {name: why for name, found in snapshots.items() if (why := _why_gone(tables.get(name), found))}
        marts, forgotten = _built_until(catalog, until)
        came_later = [_came_later(catalog, cut, moment) for _, cut in sorted(cuts.items())]
    missing = [f"{name} is not in it: {why}" for name, why in sorted(gone.items())]
    missing += [
        f"{name} is not in it: nobody knows what it had then, because it was made since, or snapshots have expired"
        for name in forgotten
    ]
    for name, source in sorted(declared.items()):
        if name in of_before:
            at, now = of_before[name].position, newest[name].position
            missing.append(
                f"mirrors of {name} are not in it: they stand at {at}, of before a recovery, and the cut is {now}; pin "
                "again once they are refreshed"
            )
        elif name in late:
            missing.append(f"mirrors of {name} are not in it: they were not refreshed since {late[name].position}")
        elif name in cuts and source.mirrored and name not in mirrors:
            missing.append(f"mirrors of {name} are not in it: there were none until then")
        missing += _left_out(source, cuts.get(name), kept)
    of = tuple(cuts[name] for name in sorted(cuts))
    there = {name: found for name, found in snapshots.items() if name not in gone} | marts
    if gone and not there:
        raise LakehouseError(f"{positions_of(of)}: nothing of it can be kept: {missing[0]}")
    return State(of, there, (*missing, *filter(None, came_later)), others=_undeclared(settings, moment, set(declared)))


def _undeclared(settings: Settings, moment: Moment, declared: set[str]) -> str | None:
    """The cuts that the other sources had at a time."""
    if moment.at is None:
        return None
    return positions_of(tuple(cut for cut in Cuts(settings).newest(moment) if cut.source not in declared))


def _why_gone(table: Table | None, snapshot_id: int) -> str | None:
    """Why nothing can keep a table's snapshot any more; None if it is there."""
    if table is None:
        return "it was dropped since"
    if table.snapshot_by_id(snapshot_id) is None:  # one that was made again has others
        return "its snapshot of then has left the metadata, or it was made again since"
    return None


def _left_out(source: Source, cut: Cut | None, mirrors: Collection[Cut]) -> Iterator[str]:
    """Tables that are declared and not in the cut, and mirrors that were left behind while others were refreshed."""
    if cut is None:
        if source.tables:
            yield f"{source.name} is not in it: no cut of it was published until then"
        return
    if absent := sorted(f"{source.name}.{table.name}" for table in source.tables if table.name not in cut.snapshots):
        yield f"not in it: {', '.join(absent)}: parked, paused, or being loaded then, so that the cut does not cover it"
    for mirror in (mirror for mirror in mirrors if mirror.source == source.name):
        there = (table.name for table in source.mirrored if table.name in cut.snapshots)
        if behind := sorted(name for name in there if name not in mirror.snapshots):
            yield f"mirrors of {', '.join(behind)} of {source.name} are not in it: they did not stand at that cut"


def came_later(catalog: LakeCatalog, cut: Cut, moment: Moment) -> list[str]:
    """The raw tables of a cut with changes that were committed until the moment, and are in a later cut alone.

    As where nothing was ingested around it, or the moment is between two cuts.
    """
    tables = catalog.load_tables(list(cut.tables)).items()
    moved = [(name, table) for (_, name), table in tables if table.metadata.current_snapshot_id != cut.snapshots[name]]
    return sorted(name for name, table in moved if _has_later(table, cut, moment))


def _came_later(catalog: LakeCatalog, cut: Cut, moment: Moment) -> str | None:
    changed = came_later(catalog, cut, moment)
    return f"{said_of_later(cut, changed)}, and this one is of {cut.said_at}" if changed else None


def reach(state: State, moment: Moment) -> dict[str, str]:
    """By source how far a state reaches that was asked for at a moment, for people."""
    return {cut.source: _reach(cut, moment.at) for cut in state.cuts}


def _reach(cut: Cut, until: datetime | None) -> str:
    as_of = f"is as of {cut.said_at}"
    if until is None or cut.at is None:
        return as_of
    return f"{as_of}, {(until - cut.at).total_seconds():,.0f} s before {until.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def said_of_later(cut: Cut, changed: Collection[str]) -> str:
    """What a person is told of them."""
    return f"{', '.join(changed)} of {cut.source} had changes until then that are not in it: they came with a later cut"


def _has_later(raw: Table, cut: Cut, moment: Moment) -> bool:
    from pyiceberg.expressions import And, EqualTo, GreaterThan, Or

    after = Or(
        GreaterThan(term="_epoch", value=cut.epoch),
        And(EqualTo(term="_epoch", value=cut.epoch), GreaterThan(term="_commit_lsn", value=cut.lsn)),
    )
    is_of_topics = "_offset" in raw.schema().column_names
    later = And(after, *_until(cut, moment, is_of_topics))
    return raw.scan(later, selected_fields=("_seq",), limit=1).to_arrow().num_rows > 0


def _until(cut: Cut, moment: Moment, is_of_topics: bool) -> Iterator[BooleanExpression]:
    """What was committed until the moment, and not long before the cut, which spares files by their day.

    Topics may tell of a commit days later. There files are spared by their numbers alone, of which all are looked at.
    """
    from pyiceberg.expressions import GreaterThanOrEqual, LessThan, LessThanOrEqual, Or

    if cut.at is not None and not is_of_topics:
        yield GreaterThanOrEqual(term="_committed_at", value=(cut.at - ONE_DAY).isoformat())
    if moment.at is not None:
        yield LessThanOrEqual(term="_committed_at", value=moment.at.isoformat())
    for position in (position for position in moment.positions if position.source in {None, cut.source}):
        within = LessThanOrEqual(term="_commit_lsn", value=position.lsn)
        if position.epoch is None:
            yield within
        else:
            yield LessThanOrEqual(term="_epoch", value=position.epoch)
            yield Or(LessThan(term="_epoch", value=position.epoch), within)


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
    return between is None or any(map(changes_rows, between))


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
    return State(cuts, {name: found for cut in mirrors_at(settings, cuts) for name, found in cut.tables.items()})


def mirrors_at(settings: Settings, cuts: Collection[Cut]) -> list[Cut]:
    """The cuts of mirrors that are exactly at these of raw tables, which may be none."""
    exact = {cut.position for cut in cuts}
    found = Cuts(settings, "mirror").newest(Moment(positions=tuple(exact)))
    return [cut for cut in found if cut.position in exact]


def _pinned(settings: Settings, pin: str) -> State:
    with closing(open_catalog(settings)) as catalog:
        kept = pinned(catalog, pin)
    if not kept.cut:
        raise LakehouseError(
            f"the pin {pin!r} keeps {len(kept.snapshots)} tables by themselves, without mirrors and marts of one cut: "
            f"read each of them FOR VERSION AS OF 'pin_{pin}', or keep a whole cut with `lakehouse pin`"
        )
    cuts = newest_cuts(settings, asked := _positions(kept.cut))
    if not is_exactly(asked, cuts):
        raise LakehouseError(f"the pin {pin!r} is of {kept.cut}, which meta.cuts does not list any more")
    # None in a pin of an earlier release, or of a position.
    others = _others(settings, cuts) if kept.others is None else _listed(settings, kept.others)
    return State((*cuts, *(others or ())), kept.snapshots, is_of_all=others is not None)


def _listed(settings: Settings, positions: str) -> tuple[Cut, ...] | None:
    """The cuts at these positions; None where one of them is not listed any more."""
    if not positions:
        return ()
    found = Cuts(settings).newest(asked := _positions(positions))
    return found if is_exactly(asked, found) else None


def _others(settings: Settings, cuts: tuple[Cut, ...]) -> tuple[Cut, ...] | None:
    """The newest cuts that other sources had when these were made, as one that is not declared any more; None where
    that is not known.

    A cut is published only where something has changed: these may be long before the moment that they stand for, and of
    a later cut of another source nobody knows on which side of that moment it is.
    """
    known, own = Cuts(settings), {cut.source for cut in cuts}
    at, published = [cut.at for cut in cuts if cut.at], [cut.published_at for cut in cuts if cut.published_at]
    if len(at) < len(cuts) or len(published) < len(cuts) or known.has_others_after(own, max(at), max(published)):
        return None
    return tuple(cut for cut in known.newest(Moment(at=max(at))) if cut.source not in own)


def _positions(cut: str) -> Moment:
    """Those of a cut, as `positions_of` names it."""
    moment = parse_warehouse(f"@{cut}", "")
    assert moment is not None
    return moment


def _is_exactly(moment: Moment, cut: Cut) -> bool:
    """Of a source that is not named any cut is."""
    asked = [position for position in moment.positions if position.source in {None, cut.source}]
    return all(position.lsn == cut.lsn and position.epoch in {None, cut.epoch} for position in asked)


def _built_until(catalog: LakeCatalog, moment: datetime) -> tuple[dict[TableName, int], list[TableName]]:
    """The marts at the snapshots that they had then, and those whose snapshot of then is not kept any more."""
    names = [relation.name for relation in list_relations(catalog) if relation.name.namespace == MARTS]
    built, gone = dict[TableName, int](), list[TableName]()
    for (namespace, name), table in catalog.load_tables(names).items():
        newest, is_certain = newest_until(table.metadata, moment)
        if not is_certain:
            gone.append(TableName(namespace, name))
        elif newest is not None:
            built[TableName(namespace, name)] = newest
    return built, sorted(gone)

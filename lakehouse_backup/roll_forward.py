"""Rolls a restored catalog forward to the newest cut in the warehouse.

The catalog's current positions are lost, but each cut is also a row of `meta.cuts`, published in one transaction with
the rows it covers, and names the snapshot of each table. For each source, `cuts` finds the newest cut, `pointers` moves
the catalog pointers of its tables to the metadata files with those snapshots, and `positions` sets its position.

A source that was added since the backup has its raw tables entered as of its newest cut, and is recovered; one that has
cuts and no files any more was removed. So was one of which the backup has no tables any more: its cuts stay, and a
backup's folder keeps its files.

A source continues from its slot if only rows were ingested since the backup and all its tables were found at the cut.
If a table was altered, added, parked or resumed since, or lacks files, its state is unknown. Its rows are still rolled
forward, but ingestion refuses the source until `lakehouse ingest --recover` has compared it with the tables. From
topics it only reads on, so where files are lacking their position goes back to what the tables have.

All other tables move to their newest complete state. The next loads bring dbt's tables up to date, and build anew what
dbt builds whole. Current views are those of the backup, and `views` has them fit these tables.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ingestion.state import store
from lakehouse.catalog.writing.commit import enter, move_pointer, remove, until_committed
from lakehouse.catalog.writing.next_tables import BUILT_FROM
from lakehouse.errors import LakehouseError
from lakehouse.servers.database import CatalogConnection
from lakehouse.settings import Settings
from lakehouse_backup.cuts import Cut, SlotOf, cuts_of, newest_cuts
from lakehouse_backup.pointers import find_pointers
from lakehouse_backup.positions import ADDED, begin_stream, known_cut, restore_position
from lakehouse_backup.views import fitting_views
from maintenance.inventory.lake import list_relations
from maintenance.inventory.outcome import TableName
from maintenance.inventory.session import Session

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog


@dataclass
class RollForward:
    """Tables that were moved, sources that continue, sources to recover with the reason, lost tables, those whose
    metadata only other engines read, sources that had been removed before the backup, and tables that stayed as they
    were, at the location of another one."""

    tables: list[str] = field(default_factory=list)
    going_on: list[str] = field(default_factory=list)
    to_recover: dict[str, str] = field(default_factory=dict)
    gone: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    stayed: list[str] = field(default_factory=list)


def roll_forward(
    settings: Settings, slot_of: SlotOf, warehouse_is_complete: bool, say: Callable[[str], None] = lambda step: None
) -> RollForward:
    """Rolls all tables and positions forward. `warehouse_is_complete`: no object was lost."""
    with closing(Session(settings)) as session, store.connect_catalog(settings) as states:
        say("finding the newest cuts")
        known = _sources(states)
        newest = newest_cuts(session, known, slot_of)
        tip, removed = newest.tip, _removed(states, session, known, newest.cuts)
        cuts = {source: cut for source, cut in newest.cuts.items() if source not in removed}
        found = find_pointers(session, cuts, tip, say)
        tables = [str(name) for name in (*found.moved, *found.made)]
        gone, unread, stayed = ([str(name) for name in names] for names in (found.gone, found.unread, found.stayed))
        forward = RollForward(tables=tables, gone=gone, unread=unread, removed=removed, stayed=stayed)
        with states.transaction():
            for name, location in found.made.items():
                enter(states, settings.catalog_name, name, location)
            for name, (old, new) in (found.moved | found.views).items():
                _move(states, settings.catalog_name, name, old, new)
            for name in found.gone:
                remove(states, settings.catalog_name, name)
            added = _added(cuts.keys() - {*known}, found.made)
            for source in added:
                try:
                    begin_stream(states, settings, source)
                except LakehouseError as error:
                    forward.to_recover[source] = f"{ADDED}: {error}, then restore again"
            for source in _sources(states):
                if (cut := cuts.get(source)) is None:
                    continue
                behind = found.behind.get(source, {})
                former = cuts_of(tip, source) if tip is not None else ()
                reason = restore_position(
                    states, session, source, cut, newest.slots[source], warehouse_is_complete, behind, former
                )
                if reason is None:
                    forward.going_on.append(source)
                else:
                    forward.to_recover[source] = ADDED if source in added else reason
            for view, (old, new) in fitting_views(states, settings.catalog_name, session.io, _sources(states)).items():
                _move(states, settings.catalog_name, view, old, new)
        forget_builds(session.catalog, found.moved.keys() - {*found.unread})
    return forward


def forget_builds(catalog: SqlCatalog, tables: Collection[TableName]) -> None:
    """Has dbt build those of the tables anew that it builds whole: the newest state may be one that was never
    published, because a test of it had failed."""
    from pyiceberg.table.update import RemovePropertiesUpdate

    for name in tables:
        until_committed(
            catalog,
            name,
            lambda table: (RemovePropertiesUpdate(removals=[BUILT_FROM]),) if BUILT_FROM in table.properties else (),
        )


def _removed(states: CatalogConnection, session: Session, known: Iterable[str], cuts: Mapping[str, Cut]) -> list[str]:
    """Those of the backup's sources that had been removed with their tables, and have no cut of a later time."""
    with_tables = {relation.name.namespace for relation in list_relations(session.catalog)}

    def is_removed(source: str) -> bool:
        stream, cut = store.read_stream(states, source), cuts.get(source)
        if stream is None or cut is None or f"raw_{source}" in with_tables or store.read_positions(states, source):
            return False
        return (cut.epoch, cut.lsn) <= known_cut(stream)

    return [source for source in known if is_removed(source)]


def _added(unknown: Iterable[str], made: Collection[TableName]) -> list[str]:
    """Those of the sources that have raw tables; the cuts of sources that were removed stay."""
    return sorted(source for source in unknown if any(name.namespace == f"raw_{source}" for name in made))


def _sources(states: CatalogConnection) -> list[str]:
    if states.execute("SELECT to_regclass('lakehouse.streams')").fetchone() == (None,):
        return []
    return [row[0] for row in states.execute("SELECT source FROM lakehouse.streams ORDER BY source").fetchall()]


def _move(states: CatalogConnection, catalog: str, name: tuple[str, str], old: str, new: str) -> None:
    if not move_pointer(states, catalog, name, old, new):
        raise LakehouseError(
            f"{'.'.join(name)} was changed during the restore: stop all writers to the lake, then restore again"
        )

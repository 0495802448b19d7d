"""Rolls a restored catalog forward to the newest cut that the warehouse holds.

The authority on positions died with the catalog, but not what it said: a cut is a row of `meta.cuts`, published in one
transaction with the rows it covers, and names the snapshot of each table. So per source the newest cut is looked for
(`cuts`), its tables are pointed at the metadata files that hold those snapshots (`pointers`), and the position becomes
the cut's (`settle`).

A source goes on from its slot when nothing but rows came since the backup and all its tables were found at the cut.
Where a table was altered, added, parked or resumed meanwhile, or lacks files, its state is unknown; its rows are rolled
forward all the same, and ingestion refuses the source until `lakehouse ingest --recover` has compared it with the
tables.

All other tables are pointed at their newest state that is whole; what dbt derives is derived again where it is behind.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field

from ingestion.state import store
from lakehouse.catalog.commit import enter, move_pointer, remove
from lakehouse.errors import LakehouseError
from lakehouse.servers.database import CatalogConnection
from lakehouse.settings import Settings
from lakehouse_backup.cuts import newest_cuts
from lakehouse_backup.pointers import find_pointers
from lakehouse_backup.settle import settle
from maintenance.inventory.session import Session

SlotOf = Callable[[str], int | None]  # source → LSN up to which its slot was consumed; None when it cannot be asked


@dataclass
class Forward:
    """Tables that were moved, sources that go on by themselves, those to recover and why, tables that are gone."""

    tables: list[str] = field(default_factory=list)
    going_on: list[str] = field(default_factory=list)
    to_recover: dict[str, str] = field(default_factory=dict)
    gone: list[str] = field(default_factory=list)


def roll_forward(
    settings: Settings, slot_of: SlotOf, warehouse_is_whole: bool, say: Callable[[str], None] = lambda step: None
) -> Forward:
    """Rolls all tables and positions forward. `warehouse_is_whole`: no object is missing that was there at the end."""
    with closing(Session(settings)) as session, store.connect_catalog(settings) as states:
        say("looking for the newest cuts")
        slots = {source: slot_of(source) for source in _sources(states)}
        tip, cuts = newest_cuts(session, slots)
        found = find_pointers(session, cuts, tip, say)
        tables = [str(name) for name in (*found.moved, *found.made)]
        forward = Forward(tables=tables, gone=[str(name) for name in found.gone])
        with states.transaction():
            for name, location in found.made.items():
                enter(states, settings.catalog_name, name, location)
            for name, (old, new) in found.moved.items():
                _point(states, settings.catalog_name, name, old, new)
            for name in found.gone:
                remove(states, settings.catalog_name, name)
            for source, cut in cuts.items():
                behind = found.behind.get(source, [])
                reason = settle(states, session, source, cut, slots[source], warehouse_is_whole, behind)
                if reason is None:
                    forward.going_on.append(source)
                else:
                    forward.to_recover[source] = reason
    return forward


def _sources(states: CatalogConnection) -> list[str]:
    if states.execute("SELECT to_regclass('lakehouse.streams')").fetchone() == (None,):
        return []
    return [row[0] for row in states.execute("SELECT source FROM lakehouse.streams ORDER BY source").fetchall()]


def _point(states: CatalogConnection, catalog: str, name: tuple[str, str], old: str, new: str) -> None:
    if not move_pointer(states, catalog, name, old, new):
        raise LakehouseError(f"{'.'.join(name)} was changed meanwhile: stop what writes to the lake, and run it again")

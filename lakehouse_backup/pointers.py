"""Where the pointer of each table goes when a restored catalog is rolled forward.

A table that a cut names goes to the metadata file which holds the cut's snapshot; ingestion's own tables to their state
at the cuts; every other one to its newest state that is whole.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ingestion.sink.meta_tables import SCHEMAS
from ingestion.sink.publish import CUTS
from lakehouse_backup.cuts import Cut
from lakehouse_backup.newer import Newer, any_table, by_habit, cycle_of, load, newer_than
from maintenance.inventory.lake import list_relations
from maintenance.inventory.outcome import TableName
from maintenance.inventory.session import Session

if TYPE_CHECKING:
    from pyiceberg.table import Table


@dataclass(frozen=True)
class Pointers:
    """From where to where the pointers of tables go, and those of tables that ingestion made since the backup; tables
    without any whole state; by source the tables that are not at the snapshot which its cut names."""

    moved: dict[TableName, tuple[str, str]]
    made: dict[TableName, str]
    gone: list[TableName]
    behind: dict[str, list[str]]


def find_pointers(session: Session, cuts: Mapping[str, Cut], tip: Table | None, say: Callable[[str], None]) -> Pointers:
    """Looks at every table of the catalog and of the cuts. `tip` is the state of meta.cuts that counts."""
    at_cuts: set[TableName] = set()
    moved, gone = _moves(session, cuts, tip, at_cuts, say)
    made = _made_since(session, cuts, tip, at_cuts)
    return Pointers(moved, made, gone, behind(cuts, at_cuts))


def behind(cuts: Mapping[str, Cut], at_cuts: Collection[TableName]) -> dict[str, list[str]]:
    """By source, the tables that its cut names and that are not among those found at their cuts' snapshots; pure."""
    lacking = {
        s: sorted(n for n in cut.snapshots if TableName(f"raw_{s}", n) not in at_cuts) for s, cut in cuts.items()
    }
    return {source: names for source, names in lacking.items() if names}


def _moves(
    session: Session, cuts: Mapping[str, Cut], tip: Table | None, at_cuts: set[TableName], say: Callable[[str], None]
) -> tuple[dict[TableName, tuple[str, str]], list[TableName]]:
    moved: dict[TableName, tuple[str, str]] = {}
    gone: list[TableName] = []
    until = _end_of(tip)
    for relation in list_relations(session.catalog):
        if relation.kind != "table":
            continue
        say(f"looking at {relation.name}")
        table = load(session, relation.name) or any_table(session, relation)
        found = tip
        if relation.name != CUTS:
            found = _state_of(newer_than(session.io, table), relation.name, cuts, until, at_cuts) if table else None
        if table is None or found is None:
            gone.append(relation.name)
        elif found.metadata_location != relation.metadata_location:
            moved[relation.name] = (relation.metadata_location, found.metadata_location)
    return moved, gone


def _made_since(
    session: Session, cuts: Mapping[str, Cut], tip: Table | None, at_cuts: set[TableName]
) -> dict[TableName, str]:
    known, until = {relation.name for relation in list_relations(session.catalog)}, _end_of(tip)
    wanted = {TableName("meta", name) for name in SCHEMAS}
    wanted |= {TableName(f"raw_{source}", name) for source, cut in cuts.items() for name in cut.snapshots}
    made = {}
    for name in sorted(wanted - known):
        table = any_table(session, by_habit(session, name))
        found = _state_of(newer_than(session.io, table), name, cuts, until, at_cuts) if table is not None else None
        if found is not None:
            session.catalog.create_namespace_if_not_exists(name.namespace)
            made[name] = found.metadata_location
    return made


def _end_of(tip: Table | None) -> tuple[int, frozenset[str]] | None:
    """The last moment in milliseconds that the cuts know, and the cycles that published them."""
    last = tip.current_snapshot() if tip is not None else None
    if tip is None or last is None:
        return None
    return last.timestamp_ms, frozenset(cycle_of(snapshot) for snapshot in tip.metadata.snapshots) - {""}


def _state_of(
    newer: Newer,
    name: TableName,
    cuts: Mapping[str, Cut],
    until: tuple[int, frozenset[str]] | None,
    at_cuts: set[TableName],
) -> Table | None:
    """The state that a table goes to; adds it to `at_cuts` where that is the one which a cut names."""
    source = name.namespace.removeprefix("raw_")
    if source != name.namespace and source in cuts:
        snapshot_id = cuts[source].snapshots.get(name.name)
        if snapshot_id is not None and (found := newer.at_snapshot(snapshot_id)) is not None:
            at_cuts.add(name)
            return found
    if until is not None and (source != name.namespace or (name.namespace == "meta" and name.name in SCHEMAS)):
        return newer.until(*until)
    return next((table for table in newer.states() if newer.is_whole(table)), None)

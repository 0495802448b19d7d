"""Where the pointer of each table goes when a restored catalog is rolled forward.

A table that a cut names goes to the metadata file which holds the cut's snapshot; ingestion's own tables to their state
at the cuts; every other one to its newest state that is whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from backup.cuts import Cut
from backup.newer import Newer, any_table, by_habit, cycle_of, load, newer_than
from ingestion.meta_tables import SCHEMAS
from ingestion.publish import CUTS
from maintenance.lake import list_relations
from maintenance.outcome import TableName
from maintenance.session import Session

if TYPE_CHECKING:
    from pyiceberg.table import Table


def moves(
    session: Session, cuts: Mapping[str, Cut], tip: Table | None, say: Callable[[str], None]
) -> tuple[dict[TableName, tuple[str, str]], list[TableName]]:
    """From where to where each table's pointer goes, and the tables without any whole state.

    `tip` is the state of meta.cuts that counts.
    """
    moved: dict[TableName, tuple[str, str]] = {}
    gone: list[TableName] = []
    until = _end_of(tip)
    for relation in list_relations(session.catalog):
        if relation.kind != "table":
            continue
        say(f"looking at {relation.name}")
        table = load(session, relation.name) or any_table(session, relation)
        if table is None:
            gone.append(relation.name)
            continue
        found = tip if relation.name == CUTS else _state_of(newer_than(session.io, table), relation.name, cuts, until)
        if found is None:
            gone.append(relation.name)
        elif found.metadata_location != relation.metadata_location:
            moved[relation.name] = (relation.metadata_location, found.metadata_location)
    return moved, gone


def made_since(session: Session, cuts: Mapping[str, Cut], tip: Table | None) -> dict[TableName, str]:
    """Tables of ingestion that were made since the backup, with the metadata files of their states at the cuts."""
    known, until = {relation.name for relation in list_relations(session.catalog)}, _end_of(tip)
    wanted = {TableName("meta", name) for name in SCHEMAS}
    wanted |= {TableName(f"raw_{source}", name) for source, cut in cuts.items() for name in cut.snapshots}
    made = {}
    for name in sorted(wanted - known):
        table = any_table(session, by_habit(session, name))
        if table is not None and (found := _state_of(newer_than(session.io, table), name, cuts, until)) is not None:
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
    newer: Newer, name: TableName, cuts: Mapping[str, Cut], until: tuple[int, frozenset[str]] | None
) -> Table | None:
    source = name.namespace.removeprefix("raw_")
    if source != name.namespace and source in cuts:
        snapshot_id = cuts[source].snapshots.get(name.name)
        if snapshot_id is not None and (found := newer.at_snapshot(snapshot_id)) is not None:
            return found
    if until is not None and (source != name.namespace or (name.namespace == "meta" and name.name in SCHEMAS)):
        return newer.until(*until)
    return next((table for table in newer.states() if newer.is_whole(table)), None)

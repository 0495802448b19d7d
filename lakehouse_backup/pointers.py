"""Finds the new catalog pointer of each table when a restored catalog is rolled forward.

A table named by a cut moves to the metadata file with the cut's snapshot, ingestion's own tables move to their state at
the cuts, and all others to their newest complete state. What is there at a location is the state of one table: a second
name of it, as `register_table` gives one, stays where it was.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ingestion.mirrors.write import BRANCH
from ingestion.sink.cuts import CUTS
from ingestion.sink.meta_tables import SCHEMAS
from lakehouse.catalog.next_names import is_next
from lakehouse.catalog.open import history
from lakehouse.catalog.relations import Relation
from lakehouse.catalog.views.view_versions import with_long_text
from lakehouse_backup.cuts import Cut
from lakehouse_backup.metadata_files import (
    MetadataFiles,
    cycle_of,
    default_relation,
    load,
    load_at,
    metadata_files,
    newest_by_storage,
    newest_whole,
    version,
)
from maintenance.inventory.lake import list_relations
from maintenance.inventory.outcome import TableName
from maintenance.inventory.session import Session

if TYPE_CHECKING:
    from pyiceberg.table import Table

UUID = re.compile(r"-[0-9a-f]{32}$")


@dataclass(frozen=True)
class Pointers:
    """The catalog pointers to change.

    `moved`: old and new pointer of each table. `views`: the same of views. `made`: pointers of tables created since the
    backup. `gone`: tables without a complete state, and views without any. `unread`: tables whose metadata PyIceberg
    cannot read though nothing is missing of it. `behind`: by source, the tables that were not found at their cut's
    snapshot, and the snapshots that they have. `stayed`: tables at the location of another one, which are left as the
    backup has them.
    """

    moved: dict[TableName, tuple[str, str]]
    views: dict[TableName, tuple[str, str]]
    made: dict[TableName, str]
    gone: list[TableName]
    unread: list[TableName]
    behind: dict[str, dict[str, frozenset[int]]]
    stayed: list[TableName]


@dataclass
class RawStates:
    """The raw tables that are at their cut's snapshot, and the snapshots of those that are not."""

    at_cuts: set[TableName] = field(default_factory=set)
    others: dict[TableName, frozenset[int]] = field(default_factory=dict)


def find_pointers(session: Session, cuts: Mapping[str, Cut], tip: Table | None, say: Callable[[str], None]) -> Pointers:
    """Inspects every table of the catalog and of the cuts. `tip` is the chosen state of meta.cuts."""
    raw = RawStates()
    moved, gone, unread, stayed = _moves(session, cuts, tip, raw, say)
    views, lost = view_moves(session)
    made = _created_since(session, cuts, tip, raw)
    return Pointers(moved, views, made, [*gone, *lost], unread, behind(cuts, raw), stayed)


def behind(cuts: Mapping[str, Cut], raw: RawStates) -> dict[str, dict[str, frozenset[int]]]:
    """By source, the tables named by its cut that were not found at the cut's snapshot, and what they have; pure."""
    lacking = {
        source: {
            name.name: raw.others.get(name, frozenset())
            for name in (TableName(f"raw_{source}", table) for table in sorted(cut.snapshots))
            if name not in raw.at_cuts
        }
        for source, cut in cuts.items()
    }
    return {source: names for source, names in lacking.items() if names}


def _moves(
    session: Session, cuts: Mapping[str, Cut], tip: Table | None, raw: RawStates, say: Callable[[str], None]
) -> tuple[dict[TableName, tuple[str, str]], list[TableName], list[TableName], list[TableName]]:
    """Pointers to change, tables without a complete state, those that PyIceberg cannot read, and second names."""
    moved: dict[TableName, tuple[str, str]] = {}
    gone: list[TableName] = []
    unread: list[TableName] = []
    stayed: list[TableName] = []
    until = _end_of(tip)
    relations = [relation for relation in list_relations(session.catalog) if relation.kind == "table"]
    second = second_names(relations, cuts)
    for relation in relations:
        say(f"inspecting {relation.name}")
        table, pointer = load(session, relation.name), relation.metadata_location
        newest = newest_whole(session.io, relation) if table is None else None
        if newest is not None and (table := load_at(session, relation.name, newest)) is None:
            unread.append(relation.name)
            if newest != pointer:
                moved[relation.name] = (pointer, newest)
            continue
        if table is not None and relation.name in second and metadata_files(session.io, table).is_complete(table):
            stayed.append(relation.name)
            continue
        found = tip
        if relation.name != CUTS:
            found = _state_of(metadata_files(session.io, table), relation.name, cuts, until, raw) if table else None
        if table is None or found is None:
            gone.append(relation.name)
        elif found.metadata_location != pointer:
            moved[relation.name] = (pointer, found.metadata_location)
    return moved, gone, unread, stayed


def second_names(tables: Iterable[Relation], cuts: Mapping[str, Cut]) -> set[TableName]:
    """The tables at the location of another one, whose newest state is none of theirs; pure.

    The location belongs to the table that ingestion writes; else to the one with the newest metadata file, or among
    several, to that after which the location is named. A copy in which a next state is built has its table's location.
    """
    there: dict[str, list[Relation]] = defaultdict(list)
    for relation in tables:
        if not is_next(relation.name.namespace):
            there[relation.location].append(relation)
    return {r.name for found in there.values() for r in found if r not in _owners(found, cuts)}


def _owners(found: Sequence[Relation], cuts: Mapping[str, Cut]) -> Sequence[Relation]:
    if written := [relation for relation in found if _is_ingested(relation.name, cuts)]:
        return written
    newest = max(version(relation.metadata_location) for relation in found)
    owners = [relation for relation in found if version(relation.metadata_location) == newest]
    return [relation for relation in owners if _is_named_after(relation)] or owners


def _is_ingested(name: TableName, cuts: Mapping[str, Cut]) -> bool:
    source = name.namespace.removeprefix("raw_")
    is_raw = source != name.namespace and source in cuts and name.name in cuts[source].snapshots
    return is_raw or name == CUTS or (name.namespace == "meta" and name.name in SCHEMAS)


def _is_named_after(relation: Relation) -> bool:
    """Whether the location is the table's by name, as the catalog makes it: `<name>` or, by Trino, `<name>-<uuid>`."""
    folder, _, name = relation.location.rstrip("/").rpartition("/")
    is_there = folder.rpartition("/")[2].removesuffix(".db") == relation.name.namespace
    return is_there and relation.name.name in (name, UUID.sub("", name))


def view_moves(session: Session) -> tuple[dict[TableName, tuple[str, str]], list[TableName]]:
    """Views whose metadata file was deleted since the backup, or cut short, with their newest one; and those that have
    none.

    Each refresh of a mirror writes a file, and now and then deletes old ones.
    """
    moved, gone = dict[TableName, tuple[str, str]](), list[TableName]()
    for relation in list_relations(session.catalog):
        if relation.kind != "view":
            continue
        location, newest = relation.metadata_location, newest_whole(session.io, relation)
        if newest is None:
            gone.append(relation.name)
        elif newest != location:
            moved[relation.name] = (location, with_long_text(session.io, newest))
    return moved, gone


def _created_since(
    session: Session, cuts: Mapping[str, Cut], tip: Table | None, raw: RawStates
) -> dict[TableName, str]:
    known, until = {relation.name for relation in list_relations(session.catalog)}, _end_of(tip)
    wanted = {TableName(*CUTS), *(TableName("meta", name) for name in SCHEMAS)}
    wanted |= {TableName(f"raw_{source}", name) for source, cut in cuts.items() for name in cut.snapshots}
    made = {}
    for name in sorted(wanted - known):
        found, table = tip, newest_by_storage(session, default_relation(session, name))
        if name != CUTS:
            found = _state_of(metadata_files(session.io, table), name, cuts, until, raw) if table is not None else None
        if found is not None:
            session.catalog.create_namespace_if_not_exists(name.namespace)
            made[name] = found.metadata_location
    return made


def _end_of(tip: Table | None) -> tuple[int, frozenset[str]] | None:
    """The time of the last cut in milliseconds, and the cycles that published the cuts."""
    last = tip.current_snapshot() if tip is not None else None
    if tip is None or last is None:
        return None
    return last.timestamp_ms, frozenset(cycle_of(snapshot) for snapshot in tip.metadata.snapshots) - {""}


def _state_of(
    files: MetadataFiles,
    name: TableName,
    cuts: Mapping[str, Cut],
    until: tuple[int, frozenset[str]] | None,
    raw: RawStates,
) -> Table | None:
    """The state a table moves to; notes in `raw` whether it is at its cut's snapshot."""
    source = name.namespace.removeprefix("raw_")
    if source != name.namespace and source in cuts:
        snapshot_id = cuts[source].snapshots.get(name.name)
        if snapshot_id is not None and (found := files.with_rows_of(snapshot_id)) is not None:
            raw.at_cuts.add(name)
            return found
    if until is not None and (source != name.namespace or (name.namespace == "meta" and name.name in SCHEMAS)):
        found = files.until(*until)
    else:
        found = next((t for t in files.states() if files.is_complete(t) and not _is_half_written(t)), None)
    if found is not None and source != name.namespace:
        raw.others[name] = frozenset(snapshot.snapshot_id for snapshot in history(found.metadata))
    return found


def _is_half_written(table: Table) -> bool:
    """Whether it is a copy of a mirror in the middle of a refresh, which writes to the mirror's own location."""
    return BRANCH in table.metadata.refs

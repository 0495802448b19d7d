"""Rolls a restored catalog forward to the newest cut that the warehouse holds.

The authority on positions died with the catalog, but not what it said: a cut is a row of `meta.cuts`, published in one
transaction with the rows it covers, and names the snapshot of each table. So per source the newest cut is looked for,
its tables are pointed at the metadata files that hold those snapshots, and the position becomes the cut's.

Files are written before they are published, and the slot is moved after that. So a slot that stands beyond the newest
cut has passed nothing that concerns the tables, as long as the warehouse has lost nothing: the position goes along.
And a cut beyond the slot may have been staged and never published: to publish it now is as good, as positions move
with it, and what the slot sends again is filtered. Where two such are in each other's way, the one goes that no slot
has passed.

A source goes on from its slot when nothing but rows came since the backup. Where a table was altered, added, parked or
resumed meanwhile, its state is unknown; its rows are rolled forward all the same, and ingestion refuses the source
until `lakehouse ingest --recover` has compared it with the tables.

All other tables are pointed at their newest state that is whole; what dbt derives is derived again where it is behind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

import psycopg

from backup.newer import Newer, any_table, cycle_of, newer_than
from ingestion import state
from ingestion.meta_tables import SCHEMAS
from ingestion.publish import CUTS
from lakehouse.catalog import load_table
from lakehouse.commit import move_pointer
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings
from maintenance.cuts import newest_row
from maintenance.lake import Relation, list_relations
from maintenance.outcome import TableName
from maintenance.session import Session

if TYPE_CHECKING:
    from pyiceberg.table import Table

MAX_TIPS = 20  # states of meta.cuts that are tried
UNKNOWN = "restored from a backup"  # as system identifier: ingestion refuses such a source, and says how to go on
SlotOf = Callable[[str], int | None]  # source → LSN up to which its slot was consumed; None when it cannot be asked


@dataclass
class Forward:
    """Tables that were moved, sources that go on by themselves, those to recover and why, tables that are gone."""

    tables: list[str] = field(default_factory=list)
    going_on: list[str] = field(default_factory=list)
    to_recover: dict[str, str] = field(default_factory=dict)
    gone: list[str] = field(default_factory=list)


@dataclass(frozen=True, order=True)
class Cut:
    """The newest cut of a source in some state of `meta.cuts`; later cuts are greater."""

    epoch: int
    lsn: int
    at: datetime = field(compare=False)
    snapshots: dict[str, int] = field(compare=False)

    @property
    def position(self) -> int:
        """Everything below it is in the lake."""
        return self.lsn + 1


def roll_forward(
    settings: Settings, slot_of: SlotOf, warehouse_is_whole: bool, say: Callable[[str], None] = lambda step: None
) -> Forward:
    """Rolls all tables and positions forward. `warehouse_is_whole`: no object is missing that was there at the end."""
    session, forward = Session(settings), Forward()
    try:
        with state.connect_catalog(settings) as states:
            say("looking for the newest cuts")
            slots = {source: slot_of(source) for source in _sources(states)}
            tip, cuts = _newest_cuts(session, slots)
            moves = _moves(session, forward, cuts, tip, say)
            made = _made_since(session, cuts, tip)
            forward.tables += map(str, made)
            with states.transaction():
                for name, location in made.items():
                    _enter(states, settings.catalog_name, name, location)
                for name, (old, new) in moves.items():
                    _point(states, settings.catalog_name, name, old, new)
                for gone in forward.gone:
                    _drop(states, settings.catalog_name, tuple(gone.split(".", 1)))
                for source, cut in cuts.items():
                    _settle(states, session, forward, source, cut, slots[source], warehouse_is_whole)
    finally:
        session.close()
    return forward


def _sources(states: psycopg.Connection[Any]) -> list[str]:
    if states.execute("SELECT to_regclass('lakehouse.streams')").fetchone() == (None,):
        return []
    return [row[0] for row in states.execute("SELECT source FROM lakehouse.streams ORDER BY source").fetchall()]


def _newest_cuts(session: Session, slots: Mapping[str, int | None]) -> tuple[Table | None, dict[str, Cut]]:
    """The newest state of meta.cuts that takes back nothing which a slot has passed, and each source's cut in it."""
    relation = next((r for r in list_relations(session.catalog) if r.name == CUTS), None)
    table = (_load(session, relation.name) or any_table(session, relation)) if relation else None
    if table is None:
        return None, {}
    newer = newer_than(session.io, table)
    tips = rivals(list(islice((tip for tip in newer.states() if newer.is_whole(tip)), MAX_TIPS)))
    if not tips:
        return table, {}
    found = [{source: cut for source in slots if (cut := _newest_of(tip, source)) is not None} for tip in tips]
    place = choose(found, slots)
    return tips[place], found[place]


def rivals(tips: Sequence[Table]) -> list[Table]:
    """The newest of several states of a table, and those of the others that it does not come from."""
    if not tips:
        return []
    snapshots = {snapshot.snapshot_id: snapshot.timestamp_ms for snapshot in tips[0].metadata.snapshots}
    since = min(snapshots.values(), default=0)

    def is_rival(tip: Table) -> bool:
        last = tip.current_snapshot()
        return last is not None and last.snapshot_id not in snapshots and last.timestamp_ms >= since

    return [tips[0], *(tip for tip in tips[1:] if is_rival(tip))]


def choose(found: Sequence[Mapping[str, Cut]], slots: Mapping[str, int | None]) -> int:
    """Which of several states of the cuts is right, newest first: the first that no slot proves to be behind; pure.

    A slot that cannot be asked may stand anywhere.
    """

    def is_behind(cuts: Mapping[str, Cut], source: str) -> bool:
        best = max((other[source] for other in found if source in other), default=None)
        if best is None or (source in cuts and cuts[source] >= best):
            return False
        slot = slots[source]
        return slot is None or source not in cuts or slot > cuts[source].position

    behind = [sum(is_behind(cuts, source) for source in slots) for cuts in found]
    return behind.index(min(behind))


def _newest_of(cuts: Table, source: str) -> Cut | None:
    if (row := newest_row(cuts, source)) is None:
        return None
    snapshots = {table: int(snapshot_id) for table, snapshot_id in row["snapshots"]}
    return Cut(row["epoch"], row["cut_lsn"], row["cut_at"], snapshots)


def _moves(
    session: Session,
    forward: Forward,
    cuts: Mapping[str, Cut],
    tip: Table | None,
    say: Callable[[str], None],
) -> dict[TableName, tuple[str, str]]:
    """Where each table's pointer goes; tables without any whole state are noted as gone."""
    moves: dict[TableName, tuple[str, str]] = {}
    until = _end_of(tip)
    for relation in list_relations(session.catalog):
        if relation.kind != "table":
            continue
        say(f"looking at {relation.name}")
        table = _load(session, relation.name) or any_table(session, relation)
        if table is None:
            forward.gone.append(str(relation.name))
            continue
        found = tip if relation.name == CUTS else _state_of(newer_than(session.io, table), relation.name, cuts, until)
        if found is None:
            forward.gone.append(str(relation.name))
        elif found.metadata_location != relation.metadata_location:
            moves[relation.name] = (relation.metadata_location, found.metadata_location)
            forward.tables.append(str(relation.name))
    return moves


def _end_of(tip: Table | None) -> tuple[int, frozenset[str]] | None:
    """The last moment in milliseconds that the cuts know, and the cycles that published them."""
    last = tip.current_snapshot() if tip is not None else None
    if tip is None or last is None:
        return None
    return last.timestamp_ms, frozenset(cycle_of(snapshot) for snapshot in tip.metadata.snapshots) - {""}


def _made_since(session: Session, cuts: Mapping[str, Cut], tip: Table | None) -> dict[TableName, str]:
    """Tables of ingestion that were made since the backup, with the metadata files of their states at the cuts."""
    known, until = {relation.name for relation in list_relations(session.catalog)}, _end_of(tip)
    wanted = {TableName("meta", name) for name in SCHEMAS}
    wanted |= {TableName(f"raw_{source}", name) for source, cut in cuts.items() for name in cut.snapshots}
    made = {}
    for name in sorted(wanted - known):
        table = any_table(session, _by_habit(session, name))
        if table is not None and (found := _state_of(newer_than(session.io, table), name, cuts, until)) is not None:
            session.catalog.create_namespace_if_not_exists(name.namespace)
            made[name] = found.metadata_location
    return made


def _by_habit(session: Session, name: TableName) -> Relation:
    """Where ingestion's catalog puts a table that says nothing else."""
    return Relation(name, "table", f"{session.settings.warehouse.rstrip('/')}/{name.namespace}/{name.name}/metadata/")


def _load(session: Session, name: TableName) -> Table | None:
    try:
        return load_table(session.catalog, *name)
    except FileNotFoundError:
        return None


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


def _settle(
    states: psycopg.Connection[Any],
    session: Session,
    forward: Forward,
    source: str,
    cut: Cut,
    slot: int | None,
    warehouse_is_whole: bool,
) -> None:
    """Moves the source's position to its cut, or to the slot beyond it; marks it where it cannot go on by itself."""
    stream, positions = state.read_stream(states, source), state.read_positions(states, source)
    assert stream is not None
    reason = why_not(stream, positions, cut) or _altered(session, source, stream.lsn)
    reached = max(cut.position, slot or 0) if warehouse_is_whole else cut.position
    if slot is not None and slot > reached:
        reason = reason or "its slot stands beyond the newest cut that was restored"
    states.execute(
        "UPDATE lakehouse.streams SET cut_lsn = %s, cut_at = %s, cut_tables = %s, epoch = %s,"
        " revision = revision + 1 WHERE source = %s",
        (cut.lsn, cut.at, sorted(cut.snapshots), max(cut.epoch, stream.epoch), source),
    )
    if states.execute("SELECT to_regclass('lakehouse.witnesses')").fetchone() != (None,):
        states.execute("DELETE FROM lakehouse.witnesses WHERE source = %s", (source,))
    state.advance_positions(states, source, reached)
    if reason is None:
        forward.going_on.append(source)
        return
    forward.to_recover[source] = reason
    states.execute("UPDATE lakehouse.streams SET system_identifier = %s WHERE source = %s", (UNKNOWN, source))


def why_not(stream: state.Stream, positions: Mapping[str, state.Position], cut: Cut) -> str | None:
    """Why the source's state of the backup does not hold at the cut; None when it does; pure."""
    streaming = {name for name, position in positions.items() if position.state == "streaming"}
    if cut.epoch != stream.epoch:
        return f"it was recovered since: epoch {stream.epoch} is now {cut.epoch}"
    if other := sorted((streaming ^ cut.snapshots.keys()) | (positions.keys() - streaming)):
        return f"{', '.join(other)} joined or left the cuts, or was loading, parked or paused"
    return None


def _altered(session: Session, source: str, since: int) -> str | None:
    """Whether a table of the source was altered since the position of the backup."""
    from pyiceberg.expressions import And, EqualTo, GreaterThanOrEqual

    name = TableName("meta", "schema_changes")
    table = _load(session, name) or any_table(session, _by_habit(session, name))
    newest = next(newer_than(session.io, table).states(), None) if table is not None else None
    if newest is None:
        return None
    later = And(EqualTo(term="source", value=source), GreaterThanOrEqual(term="noticed_lsn", value=since))
    names = newest.scan(row_filter=later, selected_fields=("table",)).to_arrow().column("table").to_pylist()
    return f"{', '.join(sorted(set(names)))} was altered" if names else None


def _point(states: psycopg.Connection[Any], catalog: str, name: tuple[str, str], old: str, new: str) -> None:
    if not move_pointer(states, catalog, name, old, new):
        raise LakehouseError(f"{'.'.join(name)} was changed meanwhile: stop what writes to the lake, and run it again")


def _enter(states: psycopg.Connection[Any], catalog: str, name: tuple[str, str], location: str) -> None:
    states.execute(
        "INSERT INTO iceberg_tables (catalog_name, table_namespace, table_name, metadata_location, iceberg_type)"
        " VALUES (%s, %s, %s, %s, 'TABLE')",
        (catalog, *name, location),
    )


def _drop(states: psycopg.Connection[Any], catalog: str, name: tuple[str, ...]) -> None:
    states.execute(
        "DELETE FROM iceberg_tables WHERE catalog_name = %s AND table_namespace = %s AND table_name = %s",
        (catalog, *name),
    )

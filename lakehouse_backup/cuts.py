"""Finds the cut that each source is restored to: the newest in the warehouse that no slot contradicts.

Ingestion writes files, publishes the cut, then advances the slot. If the warehouse is complete, a slot beyond the
newest cut has therefore passed no changes of the tables, and the position follows the slot. A cut beyond the slot may
never have been published; publishing it now is safe, because the position moves with it and changes that the slot sends
again are filtered. If two unpublished states diverge, the one that no slot has passed is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

from ingestion.schema.positions import Position
from ingestion.sink.cuts import CUTS
from ingestion.state import stored
from lakehouse_backup.metadata_files import default_relation, load, metadata_files, newest_by_storage
from maintenance.inventory.cuts import newest_row, rows_of, sources_of
from maintenance.inventory.lake import list_relations
from maintenance.inventory.outcome import TableName
from maintenance.inventory.session import Session

if TYPE_CHECKING:
    from pyiceberg.table import Table

MAX_STATES = 20  # metadata files of meta.cuts that are read
SlotOf = Callable[[str], Position | None]  # source → confirmed position of its slot; None if it cannot be read


@dataclass(frozen=True, order=True)
class Cut:
    """The newest cut of a source in one state of `meta.cuts`; ordered by epoch and the number of its position."""

    epoch: int
    lsn: int
    at: datetime = field(compare=False)
    snapshots: dict[str, int] = field(compare=False)
    text: str | None = field(compare=False, default=None)

    def position(self, kind: str) -> Position:
        """The lake contains everything below this position, which is of a source of that kind."""
        found: Position = stored.read(kind, self.text, self.lsn + 1)
        return found


@dataclass(frozen=True)
class Newest:
    """The newest state of meta.cuts that contains everything the slots have passed, each source's cut in it, also of
    sources that the backup does not know, and their slots."""

    tip: Table | None = None
    cuts: dict[str, Cut] = field(default_factory=dict)
    slots: dict[str, Position | None] = field(default_factory=dict)


def newest_cuts(session: Session, known: Collection[str], slot_of: SlotOf) -> Newest:
    """Finds it. `known` are the sources of the backup."""
    known_to_backup = (r for r in list_relations(session.catalog) if r.name == CUTS)
    relation = next(known_to_backup, None) or default_relation(session, TableName(*CUTS))
    table = load(session, relation.name) or newest_by_storage(session, relation)
    if table is None:
        return Newest()
    files = metadata_files(session.io, table)
    states = diverging_states(list(islice((state for state in files.states() if files.is_complete(state)), MAX_STATES)))
    if not states:
        return Newest(table)
    slots = {source: slot_of(source) for source in sorted({*known}.union(*map(sources_of, states)))}
    found = [{source: cut for source in slots if (cut := _newest_of(state, source)) is not None} for state in states]
    chosen = choose(found, slots)
    return Newest(states[chosen], found[chosen], slots)


def diverging_states(states: Sequence[Table]) -> list[Table]:
    """The newest of several states of a table, and the states that are not among its ancestors."""
    if not states:
        return []
    snapshots = {snapshot.snapshot_id: snapshot.timestamp_ms for snapshot in states[0].metadata.snapshots}
    since = min(snapshots.values(), default=0)

    def diverges(state: Table) -> bool:
        last = state.current_snapshot()
        return last is not None and last.snapshot_id not in snapshots and last.timestamp_ms >= since

    return [states[0], *(state for state in states[1:] if diverges(state))]


def choose(found: Sequence[Mapping[str, Cut]], slots: Mapping[str, Position | None]) -> int:
    """The index of the first state (newest first) that is behind no slot; pure.

    A slot that cannot be read may be at any position.
    """

    def is_behind(cuts: Mapping[str, Cut], source: str) -> bool:
        best = max((other[source] for other in found if source in other), default=None)
        if best is None or (source in cuts and cuts[source] >= best):
            return False
        slot = slots[source]
        return slot is None or source not in cuts or slot.commit_bound > cuts[source].lsn + 1

    behind = [sum(is_behind(cuts, source) for source in slots) for cuts in found]
    return behind.index(min(behind))


def cuts_of(cuts: Table, source: str) -> Iterator[Cut]:
    """All cuts of a source in a state of `meta.cuts`, newest first."""
    return map(_cut, rows_of(cuts, source))


def newest_held(cuts: Iterable[Cut], epoch: int, held: Mapping[str, Collection[int]]) -> Cut | None:
    """The newest cut of an epoch whose rows these tables have, by the snapshots that each one has; pure."""
    return next(
        (c for c in cuts if c.epoch == epoch and all(c.snapshots.get(name) in ids for name, ids in held.items())), None
    )


def _newest_of(cuts: Table, source: str) -> Cut | None:
    row = newest_row(cuts, source)
    return None if row is None else _cut(row)


def _cut(row: Mapping[str, Any]) -> Cut:
    snapshots = {table: int(snapshot_id) for table, snapshot_id in row["snapshots"]}
    return Cut(row["epoch"], row["cut_lsn"], row["cut_at"], snapshots, row.get("position"))

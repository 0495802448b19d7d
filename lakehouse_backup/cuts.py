"""Which cut of each source counts after a restore: the newest that the warehouse holds and no slot proves to be wrong.

Files are written before they are published, and the slot is moved after that. So a slot that stands beyond the newest
cut has passed nothing that concerns the tables, as long as the warehouse has lost nothing: the position goes along.
And a cut beyond the slot may have been staged and never published: to publish it now is as good, as positions move
with it, and what the slot sends again is filtered. Where two such are in each other's way, the one goes that no slot
has passed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING

from ingestion.sink.publish import CUTS
from lakehouse_backup.newer import any_table, load, newer_than
from maintenance.inventory.cuts import newest_row
from maintenance.inventory.lake import list_relations
from maintenance.inventory.session import Session

if TYPE_CHECKING:
    from pyiceberg.table import Table

MAX_TIPS = 20  # states of meta.cuts that are tried


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


def newest_cuts(session: Session, slots: Mapping[str, int | None]) -> tuple[Table | None, dict[str, Cut]]:
    """The newest state of meta.cuts that takes back nothing which a slot has passed, and each source's cut in it."""
    relation = next((r for r in list_relations(session.catalog) if r.name == CUTS), None)
    table = (load(session, relation.name) or any_table(session, relation)) if relation else None
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

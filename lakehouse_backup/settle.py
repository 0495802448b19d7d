"""The position of a source whose catalog was restored, and whether ingestion may go on by itself."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ingestion.state import store
from lakehouse.servers.database import CatalogConnection
from lakehouse_backup.cuts import Cut
from lakehouse_backup.newer import any_table, by_habit, load, newer_than
from maintenance.inventory.outcome import TableName
from maintenance.inventory.session import Session

UNKNOWN = "restored from a backup"  # as system identifier: ingestion refuses such a source, and says how to go on


def settle(
    states: CatalogConnection,
    session: Session,
    source: str,
    cut: Cut,
    slot: int | None,
    warehouse_is_whole: bool,
    behind: Collection[str],
) -> str | None:
    """Moves the source's position to its cut, or to the slot beyond it. `behind` are tables that are not at the cut.

    Where it cannot go on by itself, marks it and returns the reason.
    """
    stream, positions = store.read_stream(states, source), store.read_positions(states, source)
    assert stream is not None
    reason = why_not(stream, positions, cut, behind) or _altered(session, source, stream.lsn)
    reached = max(cut.position, slot or 0) if warehouse_is_whole else cut.position
    if slot is not None and slot > reached:
        reason = reason or "its slot stands beyond the newest cut that was restored"
    states.execute(
        "UPDATE lakehouse.streams SET cut_lsn = %s, cut_at = %s, cut_tables = %s, epoch = %s,"
        " revision = revision + 1 WHERE source = %s",
        (cut.lsn, cut.at, sorted(cut.snapshots), max(cut.epoch, stream.epoch), source),
    )
    states.execute("DELETE FROM lakehouse.witnesses WHERE source = %s", (source,))
    store.advance_positions(states, source, reached)
    if reason is not None:
        states.execute("UPDATE lakehouse.streams SET system_identifier = %s WHERE source = %s", (UNKNOWN, source))
    return reason


def why_not(
    stream: store.Stream, positions: Mapping[str, store.Position], cut: Cut, behind: Collection[str]
) -> str | None:
    """Why the source's state of the backup does not hold at the cut; None when it does; pure."""
    streaming = {name for name, position in positions.items() if position.state == "streaming"}
    if cut.epoch != stream.epoch:
        return f"it was recovered since: epoch {stream.epoch} is now {cut.epoch}"
    if other := sorted((streaming ^ cut.snapshots.keys()) | (positions.keys() - streaming)):
        return f"{', '.join(other)} joined or left the cuts, or was loading, parked or paused"
    if behind:
        return f"the warehouse lacks files of {', '.join(sorted(behind))} at the newest cut"
    return None


def _altered(session: Session, source: str, since: int) -> str | None:
    """Whether a table of the source was altered since the position of the backup."""
    from pyiceberg.expressions import And, EqualTo, GreaterThanOrEqual

    name = TableName("meta", "schema_changes")
    table = load(session, name) or any_table(session, by_habit(session, name))
    newest = next(newer_than(session.io, table).states(), None) if table is not None else None
    if newest is None:
        return None
    later = And(EqualTo(term="source", value=source), GreaterThanOrEqual(term="noticed_lsn", value=since))
    names = newest.scan(row_filter=later, selected_fields=("table",)).to_arrow().column("table").to_pylist()
    return f"{', '.join(sorted(set(names)))} was altered" if names else None

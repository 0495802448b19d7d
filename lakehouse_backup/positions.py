"""Sets the position of a source after its catalog was restored, and decides whether ingestion may continue."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ingestion.schema.positions import Position
from ingestion.state import store
from lakehouse.servers.database import CatalogConnection
from lakehouse_backup.cuts import Cut
from lakehouse_backup.metadata_files import default_relation, load, metadata_files, newest_by_storage
from maintenance.inventory.outcome import TableName
from maintenance.inventory.session import Session

UNKNOWN = "restored from a backup"  # as system identifier: ingestion refuses the source and names the remedy


def restore_position(
    states: CatalogConnection,
    session: Session,
    source: str,
    cut: Cut,
    slot: Position | None,
    warehouse_is_complete: bool,
    behind: Collection[str],
) -> str | None:
    """Moves the source's position to its cut, or to the slot beyond it. `behind` are tables not found at the cut.

    If ingestion cannot continue, marks the source for recovery and returns the reason.
    """
    stream, positions = store.read_stream(states, source), store.read_positions(states, source)
    assert stream is not None
    reason = recovery_reason(stream, positions, cut, behind) or _changed_tables(
        session, source, stream.position.commit_bound
    )
    reached = position = cut.position(stream.kind)
    if warehouse_is_complete and slot is not None:
        reached = position.join(slot)
    if slot is not None and not slot <= reached:
        reason = reason or "its slot is beyond the newest restored cut"
    states.execute(
        "UPDATE lakehouse.streams SET epoch = %s, revision = revision + 1 WHERE source = %s",
        (max(cut.epoch, stream.epoch), source),
    )
    store.put_cut(states, source, position, cut.at, sorted(cut.snapshots))
    states.execute("DELETE FROM lakehouse.witnesses WHERE source = %s", (source,))
    store.advance_positions(states, source, reached)
    if reason is not None:
        states.execute("UPDATE lakehouse.streams SET system_identifier = %s WHERE source = %s", (UNKNOWN, source))
    return reason


def recovery_reason(
    stream: store.Stream, positions: Mapping[str, store.TablePosition], cut: Cut, behind: Collection[str]
) -> str | None:
    """Why the source's state in the backup is not valid at the cut; None if it is valid; pure."""
    streaming = {name for name, position in positions.items() if position.state == "streaming"}
    if cut.epoch != stream.epoch:
        return f"it was recovered since: epoch {stream.epoch} is now {cut.epoch}"
    if other := sorted((streaming ^ cut.snapshots.keys()) | (positions.keys() - streaming)):
        return f"{', '.join(other)} joined or left the cuts, or was loading, parked or paused"
    if behind:
        return f"the warehouse lacks files of {', '.join(sorted(behind))} at the newest cut"
    return None


def _changed_tables(session: Session, source: str, since: int) -> str | None:
    """The tables of the source with schema changes since the backup, in words; None without any."""
    from pyiceberg.expressions import And, EqualTo, GreaterThanOrEqual

    name = TableName("meta", "schema_changes")
    table = load(session, name) or newest_by_storage(session, default_relation(session, name))
    newest = next(metadata_files(session.io, table).states(), None) if table is not None else None
    if newest is None:
        return None
    later = And(EqualTo(term="source", value=source), GreaterThanOrEqual(term="noticed_lsn", value=since))
    names = newest.scan(row_filter=later, selected_fields=("table",)).to_arrow().column("table").to_pylist()
    return f"{', '.join(sorted(set(names)))} was altered" if names else None

"""Sets the position of a source after its catalog was restored, and decides whether ingestion may continue."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from ingestion.schema.offsets import Offsets
from ingestion.schema.positions import Position
from ingestion.schema.transaction_offsets import TransactionOffsets
from ingestion.state import store
from lakehouse.servers.database import CatalogConnection
from lakehouse.settings import Settings, SourceSettings
from lakehouse_backup.cuts import Cut, newest_held
from lakehouse_backup.metadata_files import default_relation, load, metadata_files, newest_by_storage
from maintenance.inventory.outcome import TableName
from maintenance.inventory.session import Session

ADDED = "it was added since the backup"


def begin_stream(states: CatalogConnection, settings: Settings, source: str) -> None:
    """Records a stream that the backup does not know, for ingestion would take the source for one that it never read.

    Raises LakehouseError if the source has no connection: nobody knows its kind then.
    """
    configured = settings.connection(source)
    slot = (configured.slot or f"lakehouse_{source}") if isinstance(configured, SourceSettings) else ""
    store.create_stream(states, source, slot, store.Cluster(f"{store.RESTORED}: {ADDED}", 0), 0, configured.kind)


def restore_position(
    states: CatalogConnection,
    session: Session,
    source: str,
    cut: Cut,
    slot: Position | None,
    warehouse_is_complete: bool,
    behind: Mapping[str, Collection[int]],
    cuts: Iterable[Cut],
) -> str | None:
    """Moves the source's position to its cut, or to the slot beyond it if the warehouse has all that was published.
    `behind` are tables not found at the cut, with the snapshots that they have. A recovery from topics compares
    nothing: there it goes back to what the tables have, by the source's `cuts`, newest first.

    If ingestion cannot continue, marks the source for recovery, by a system identifier that says why, and returns the
    reason.
    """
    stream, positions = store.read_stream(states, source), store.read_positions(states, source)
    assert stream is not None
    reason = recovery_reason(stream, positions, cut, behind) or _changed_tables(
        session, source, stream.position.commit_bound
    )
    reached = position = cut.position(stream.kind)
    is_older = (cut.epoch, cut.lsn) < known_cut(stream)  # the warehouse than the backup
    if warehouse_is_complete and not is_older and slot is not None:
        reached = position.join(slot)
    if slot is not None and not slot <= reached:
        reason = reason or "its slot is beyond the newest restored cut"
    states.execute(
        "UPDATE lakehouse.streams SET epoch = %s, revision = revision + 1 WHERE source = %s",
        (max(cut.epoch, stream.epoch), source),
    )
    states.execute("DELETE FROM lakehouse.witnesses WHERE source = %s", (source,))
    if behind and isinstance(position, Offsets):
        topics = {name: table.facts.relation[1] for name, table in positions.items() if table.versions}
        held = held_offsets(cut, cuts, stream.kind, topics, behind)
        store.set_positions(states, source, held)
    else:
        store.put_cut(states, source, position, cut.at, sorted(cut.snapshots))
        move = store.set_positions if is_older else store.advance_positions
        move(states, source, reached)
    if reason is not None and not stream.system_identifier.startswith(store.RESTORED):
        mark = f"{store.RESTORED}: {reason}"
        states.execute("UPDATE lakehouse.streams SET system_identifier = %s WHERE source = %s", (mark, source))
    return reason


def known_cut(stream: store.Stream) -> tuple[int, int]:
    """Epoch and number of the newest cut that the backup knows of a source; pure."""
    return stream.epoch, -1 if stream.cut_lsn is None else stream.cut_lsn


def held_offsets(
    cut: Cut, cuts: Iterable[Cut], kind: str, topics: Mapping[str, str], behind: Mapping[str, Collection[int]]
) -> Offsets:
    """How far topics are read where tables are behind: to the newest cut whose rows these have, or not at all; pure.

    What is read again is there in two epochs; what is passed over is lost. Topics of transactions go back together,
    others by themselves. `topics` are those of the tables that the backup knows.
    """
    known = {name: snapshots for name, snapshots in behind.items() if name in topics}
    found, is_known = newest_held(cuts, cut.epoch, known), known.keys() == behind.keys()
    newest = cut.position(kind)
    held = newest.start() if found is None else found.position(kind)
    assert isinstance(newest, Offsets) and isinstance(held, Offsets)
    if isinstance(newest, TransactionOffsets):
        return held if is_known else newest.start()
    back = {topics[name] for name in known}
    kept = {topic for (topic, _), _ in newest if is_known or topic in topics.values()} - back
    return Offsets.of({p: n for p, n in newest if p[0] in kept} | {p: n for p, n in held if p[0] in back})


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

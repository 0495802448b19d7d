"""The stream of a source: its slot and the checks that going on from it loses nothing."""

from dataclasses import replace
from functools import partial

import psycopg

from ingestion.schema.positions import Lsn
from ingestion.sources.base import LiveStream
from ingestion.sources.kinds import check_not_restored, check_same_kind
from ingestion.sources.postgres import connection as src
from ingestion.sources.postgres.configured import Configured
from ingestion.sources.postgres.history.slots import put_made_lsn, read_made_lsn
from ingestion.sources.postgres.history.timelines import lost_by_promotion
from ingestion.sources.postgres.history.witness import (
    Witness,
    check_may_mark,
    leave_mark,
    newest_in_slot,
    proves,
    read_witness,
    same_history,
)
from ingestion.sources.postgres.standby import check_standby, hasten, source_now
from ingestion.state import store
from lakehouse.errors import LakehouseError
from lakehouse.servers.database import CatalogConnection, SourceConnection

INVALIDATED = {  # what to change in the source, by pg_replication_slots.invalidation_reason
    "wal_removed": ": raise max_slot_wal_keep_size there",
    "idle_timeout": ": raise idle_replication_slot_timeout there, or ingest more often",
    "wal_level_insufficient": ": set wal_level = logical there",
    "rows_removed": ": set hot_standby_feedback = on on the standby, and let it stream from a physical slot",
}


def ensure_stream(
    of: Configured, connection: SourceConnection, primary: SourceConnection, states: CatalogConnection,
    live: LiveStream[Lsn] | None = None,
) -> store.Stream:  # fmt: skip
    """The stream with its slot, both made at the first cycle; raises LakehouseError where going on would lose rows.

    `primary` is `connection` itself unless that is to a standby.
    An open live stream is proof that the cluster, and what is behind the lake's position, are the same as before.
    """
    name = of.name
    cluster: store.Cluster | None = None
    check_same_kind(store.read_stream(states, name), "postgres")  # before its slot is touched, or positions meet
    publication = src.publication_oid(of.settings, connection, name, of.publication)
    if live is None:
        _check_slot_is_ours(of, connection, store.read_stream(states, name))  # before its reader is ended
        if of.on_standby:
            check_standby(of.settings, name, connection, primary)
        src.free_slot(connection, name, of.slot)
        if not of.on_standby:
            src.check_standbys(connection, name)
            src.let_standbys_take_over(of.settings, name, connection, of.slot)
        cluster = src.identify(of.settings, name, connection)
    stream, slot = store.read_stream(states, name), src.read_slot(connection, of.slot)
    if stream is None:
        assert cluster is not None
        _check_slot_is_ours(of, connection, stream)
        # Written down before the slot is made, so that a crash in between leaves a slot that is known to be ours.
        store.create_stream(states, name, of.slot, cluster, publication)
        stream = store.read_stream(states, name)
        assert stream is not None
    _check_goes_on(of, connection, primary, states, stream, slot, publication, cluster)
    if stream.position == 0:
        store.note_slot(states, name, of.slot)  # `lakehouse remove` forgets it
        lsn = Lsn(slot.confirmed_lsn) if slot else _make_slot(of, connection, primary)
        leave_mark(primary, name)
        with states.transaction():
            put_made_lsn(states, name, stream.epoch, lsn)
            store.advance_positions(states, name, lsn)
        return replace(stream, position=lsn)
    if cluster is not None:
        assert slot is not None
        _check_history(of, connection, primary, states, stream, slot)
        if cluster.timeline != stream.timeline:
            store.follow_timeline(states, name, cluster.timeline)
            return replace(stream, timeline=cluster.timeline)
    return stream


def check_stream(
    of: Configured, connection: SourceConnection, primary: SourceConnection, states: CatalogConnection,
    publication: int | None,
) -> None:  # fmt: skip
    """Raises LakehouseError where `ensure_stream` would, but for what a read of the slot alone shows; changes nothing.

    `publication` is its oid; None leaves it to the caller that there is none, or one that will not do. A slot that is
    being read is proof of the cluster, as its reader has checked that.
    """
    slot = src.read_slot(connection, of.slot)  # before the position, which a writer at work moves first
    stream = store.read_stream(states, of.name) if store.has_state(states) else None
    check_same_kind(stream, "postgres")
    _check_slot_is_ours(of, connection, stream)
    src.check_reader(connection, of.name, of.slot)
    if stream is None or stream.position == 0:
        check_may_mark(primary, of.name)
    if stream is None:
        return
    is_read = slot is not None and slot.active_pid is not None
    cluster = None if is_read else src.identify(of.settings, of.name, connection)
    _check_goes_on(of, connection, primary, states, stream, slot, publication, cluster)
    if slot is not None and stream.position > 0:
        _check_left_here(of, states, stream, slot)


def _make_slot(of: Configured, connection: SourceConnection, primary: SourceConnection) -> Lsn:
    execute = partial(of.patience.execute, meanwhile=hasten(primary)) if of.on_standby else of.patience.execute
    return src.create_slot(connection, of.slot, execute, standby=of.on_standby)


def _check_slot_is_ours(of: Configured, connection: SourceConnection, stream: store.Stream | None) -> None:
    """Raises LakehouseError where another lake, or anybody else, may rely on the slot."""
    if stream is not None and stream.slot not in ("", of.slot):
        raise LakehouseError(
            f"source {of.name!r}: the lake was read from slot {stream.slot}, not {of.slot}: set it back"
        )
    check_made_here(of, connection, stream)


def check_made_here(of: Configured, connection: SourceConnection, stream: store.Stream | None) -> None:
    """Raises LakehouseError where there is a slot of that name that this lake did not make."""
    if (stream is None or stream.slot != of.slot) and src.has_slot(connection, of.slot):
        raise LakehouseError(
            f"source {of.name!r}: slot {of.slot} exists but this lake did not make it: set another name with "
            f"LAKEHOUSE_SOURCES__{of.name.upper()}__SLOT, or drop it if nothing else reads it"
        )


def _check_goes_on(
    of: Configured, connection: SourceConnection, primary: SourceConnection, states: CatalogConnection,
    stream: store.Stream, slot: src.Slot | None, publication: int | None, cluster: store.Cluster | None,
) -> None:  # fmt: skip
    """Raises LakehouseError where publication, cluster, WAL and slot are not those that the lake was read from; what is
    None is not looked at, but for the slot of a stream that has been read."""
    reached = max(stream.position, *_landed(states, of.name))
    if publication is not None:
        _check_identity(of, stream, publication)
    if cluster is not None:
        _check_cluster(of, connection, stream, slot, cluster, reached)
    if stream.position > 0:
        _check_not_behind(of, reached, source_now(of.name, connection, primary).position)
        check_slot(of, stream, slot)


def _check_identity(of: Configured, stream: store.Stream, publication: int) -> None:
    where = f"source {of.name!r}"
    if stream.publication_oid not in (0, publication):  # 0: of a restored stream, which is another cluster's, too
        raise LakehouseError(
            f"{where}: publication {of.publication!r} was dropped and made again; Postgres did not record the "
            f"changes in between; {_remedy(of)}"
        )


def _check_cluster(
    of: Configured, connection: SourceConnection, stream: store.Stream, slot: src.Slot | None, now: store.Cluster,
    reached: int,
) -> None:  # fmt: skip
    """Raises LakehouseError where the server is neither the one that the lake was read from, nor went on from it."""
    if (stream.system_identifier, stream.timeline) == (now.system_identifier, now.timeline):
        return
    check_not_restored(stream)
    said = (
        f"source {of.name!r}: this is not the cluster the lake was read from (system identifier, timeline: "
        f"{stream.system_identifier}, {stream.timeline}; now {now.system_identifier}, {now.timeline})"
    )
    if stream.system_identifier != now.system_identifier or now.timeline < stream.timeline:
        raise LakehouseError(f"{said}, so changes may be missing; {_other_url(of)}")
    if slot is None or not (slot.synced or of.on_standby):
        raise LakehouseError(
            f"{said}: it was promoted without slot {of.slot}, which its primary did not synchronize to it, so changes "
            f"may be missing; {_other_url(of)}"
        )
    history = src.timeline_history(of.settings, of.name, connection, now.timeline)
    if lost := lost_by_promotion(history, stream.timeline, reached):
        raise LakehouseError(f"{said}: {lost}; {_other_url(of)}")


def _landed(states: CatalogConnection, source: str) -> list[int]:
    """How far tables are in the lake: one that is being loaded may be ahead of the stream."""
    return [0, *(position.position for position in store.read_positions(states, source).values())]


def _check_not_behind(of: Configured, reached: int, flushed: int) -> None:
    if flushed < reached and of.on_standby:
        raise LakehouseError(
            f"source {of.name!r}: its standby has replayed the WAL up to {src.lsn_text(flushed)}, and the lake has it "
            f"up to {src.lsn_text(reached)}: nothing was written; a standby that was started again gets there by "
            f"itself, and for one that was made anew `lakehouse ingest --recover {of.name}` repairs the lake"
        )
    if flushed < reached:
        raise LakehouseError(
            f"source {of.name!r}: its WAL ends at {src.lsn_text(flushed)}, before the lake's "
            f"{src.lsn_text(reached)}: it was restored from an older backup; {_remedy(of)}"
        )


def check_slot(of: Configured, stream: store.Stream, slot: src.Slot | None) -> None:
    """Raises LakehouseError where the slot has not everything from the stream's position on."""
    where = f"source {of.name!r}: slot {of.slot}"
    if slot is None:
        raise LakehouseError(
            f"{where} is gone: changes since {src.lsn_text(stream.position)} are lost to the stream; {_remedy(of)}"
        )
    if slot.invalid is not None:
        raise LakehouseError(
            f"{where} was invalidated by the server ({slot.invalid}{INVALIDATED.get(slot.invalid, '')}); {_remedy(of)}"
        )
    if slot.confirmed_lsn > stream.position:
        raise LakehouseError(
            f"{where} stands at {src.lsn_text(slot.confirmed_lsn)}, beyond the lake's {src.lsn_text(stream.position)}: "
            f"something else consumed it or made it again, and the changes in between are lost to the stream; "
            f"{_remedy(of)}"
        )


def _check_history(
    of: Configured, connection: SourceConnection, primary: SourceConnection, states: CatalogConnection,
    stream: store.Stream, slot: src.Slot,
) -> None:  # fmt: skip
    """Proves that the slot, and what is behind the position, are those of the source that the lake was read from."""
    kept, behind = read_witness(states, of.name, stream.epoch), slot.confirmed_lsn < stream.position
    seen = _newest(of, connection, stream) if behind else None
    if behind and not same_history(kept, seen, slot.confirmed_lsn):
        raise LakehouseError(
            f"source {of.name!r}: below the lake's position {src.lsn_text(stream.position)} its WAL holds other "
            f"transactions than the lake was read from: it was restored from an older backup and has gone on since; "
            f"{_remedy(of)}"
        )
    made = _check_left_here(of, states, stream, slot)
    if made is None:
        put_made_lsn(states, of.name, stream.epoch, slot.confirmed_lsn)
    if kept is None or not (slot.signed or _is_proven(stream, slot, kept)):
        leave_mark(primary, of.name)


def _check_left_here(of: Configured, states: CatalogConnection, stream: store.Stream, slot: src.Slot) -> int | None:
    """Where the slot was made, if that is known; raises LakehouseError where it does not stand as this lake left it."""
    made = read_made_lsn(states, of.name, stream.epoch)
    known = slot.signed or slot.confirmed_lsn == (stream.position if made is None else made)
    if not known and not _is_proven(stream, slot, read_witness(states, of.name, stream.epoch)):
        raise LakehouseError(
            f"source {of.name!r}: slot {of.slot} stands at {src.lsn_text(slot.confirmed_lsn)}, where this lake "
            f"did not leave it, and does not show the changes that the lake has: it was made again on a source that "
            f"was restored from an older backup; {_remedy(of)}"
        )
    return made


def _is_proven(stream: store.Stream, slot: src.Slot, kept: Witness | None) -> bool:
    """Whether the slot is behind the lake, and has shown, or has to show, the newest transaction that the lake has."""
    return slot.confirmed_lsn < stream.position and proves(kept, slot.confirmed_lsn)


def _newest(of: Configured, connection: SourceConnection, stream: store.Stream) -> Witness | None:
    try:
        return newest_in_slot(connection, of.slot, of.publication, below=stream.position)
    except psycopg.errors.UndefinedFile as error:
        raise LakehouseError(
            f"source {of.name!r}: slot {of.slot} cannot be read ({error.diag.message_primary}); {_remedy(of)}"
        ) from None


def _remedy(of: Configured) -> str:
    return f"nothing was written: {_repair(of)}"


def _other_url(of: Configured) -> str:
    return f"nothing was written: correct its URL, or {_repair(of)}"


def _repair(of: Configured) -> str:
    return f"`lakehouse ingest --recover {of.name}` repairs the lake from the tables"

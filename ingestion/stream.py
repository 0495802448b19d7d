"""The stream of a source: its slot and the checks that going on from it loses nothing."""

from dataclasses import replace

from ingestion import source as src
from ingestion import state
from ingestion.context import Connection, Writer
from ingestion.live import LiveStream
from ingestion.witness import Witness, newest_in_slot, read_witness, same_history
from lakehouse.errors import LakehouseError

INVALIDATED = {  # what to change in the source, by pg_replication_slots.invalidation_reason
    "wal_removed": ": raise max_slot_wal_keep_size there",
    "idle_timeout": ": raise idle_replication_slot_timeout there, or ingest more often",
    "wal_level_insufficient": ": set wal_level = logical there",
}


def ensure_stream(
    writer: Writer, connection: Connection, states: Connection, live: LiveStream | None = None
) -> state.Stream:
    """The stream with its slot, both made at the first cycle; raises LakehouseError where going on would lose rows.

    An open live stream is proof that the cluster, and what is behind the lake's position, are the same as before.
    """
    name = writer.name
    publication = src.publication_oid(connection, name, writer.publication)
    if live is None:
        src.free_slot(connection, name, writer.slot)
        cluster = src.identify(writer.settings, name)
    stream, slot = state.read_stream(states, name), src.read_slot(connection, writer.slot)
    if stream is None:
        assert live is None
        if slot is not None:
            raise LakehouseError(
                f"source {name!r}: slot {writer.slot} exists but this lake did not make it: set another name with "
                f"LAKEHOUSE_SOURCES__{name.upper()}__SLOT, or drop it if nothing else reads it"
            )
        # Written down before the slot is made, so that a crash in between leaves a slot that is known to be ours.
        state.create_stream(states, name, writer.slot, cluster, publication)
        stream = state.read_stream(states, name)
        assert stream is not None
    _check_identity(writer, stream, cluster if live is None else None, publication)
    if stream.lsn == 0:
        lsn = slot.confirmed_lsn if slot else src.create_slot(connection, writer.slot)
        state.advance_positions(states, name, lsn)
        return replace(stream, lsn=lsn)
    _check_not_behind(writer, stream, src.source_now(connection).lsn)
    confirmed = _check_slot(writer, stream, slot)
    if confirmed < stream.lsn and live is None:
        kept = read_witness(states, name, stream.epoch)
        seen = newest_in_slot(connection, writer.slot, writer.publication, below=stream.lsn)
        _check_history(writer, stream, kept, seen, confirmed)
    return stream


def _check_identity(writer: Writer, stream: state.Stream, cluster: state.Cluster | None, publication: int) -> None:
    where = f"source {writer.name!r}"
    if stream.slot != writer.slot:
        raise LakehouseError(f"{where}: the lake was read from slot {stream.slot}, not {writer.slot}: set it back")
    if cluster and (stream.system_identifier, stream.timeline) != (cluster.system_identifier, cluster.timeline):
        raise LakehouseError(
            f"{where}: this is not the cluster the lake was read from (system identifier, timeline: "
            f"{stream.system_identifier}, {stream.timeline}; now {cluster.system_identifier}, {cluster.timeline}), so "
            f"changes may be missing; correct its URL, or {_remedy(writer)}"
        )
    if stream.publication_oid != publication:
        raise LakehouseError(
            f"{where}: publication {writer.publication!r} was dropped and made again; Postgres did not record the "
            f"changes in between; {_remedy(writer)}"
        )


def _check_not_behind(writer: Writer, stream: state.Stream, flushed: int) -> None:
    if flushed < stream.lsn:
        raise LakehouseError(
            f"source {writer.name!r}: its WAL ends at {src.lsn_text(flushed)}, before the lake's "
            f"{src.lsn_text(stream.lsn)}: it was restored from an older backup; {_remedy(writer)}"
        )


def _check_slot(writer: Writer, stream: state.Stream, slot: src.Slot | None) -> int:
    """The LSN from which the slot still has everything."""
    where = f"source {writer.name!r}: slot {writer.slot}"
    if slot is None:
        raise LakehouseError(
            f"{where} is gone: changes since {src.lsn_text(stream.lsn)} are lost to the stream; {_remedy(writer)}"
        )
    if slot.invalid is not None:
        raise LakehouseError(
            f"{where} was invalidated by the server ({slot.invalid}{INVALIDATED.get(slot.invalid, '')}); "
            f"{_remedy(writer)}"
        )
    if slot.confirmed_lsn > stream.lsn:
        raise LakehouseError(
            f"{where} stands at {src.lsn_text(slot.confirmed_lsn)}, beyond the lake's {src.lsn_text(stream.lsn)}: "
            f"something else consumed it or made it again, and the changes in between are lost to the stream; "
            f"{_remedy(writer)}"
        )
    return slot.confirmed_lsn


def _check_history(
    writer: Writer, stream: state.Stream, kept: Witness | None, seen: Witness | None, confirmed: int
) -> None:
    if not same_history(kept, seen, confirmed):
        raise LakehouseError(
            f"source {writer.name!r}: below the lake's position {src.lsn_text(stream.lsn)} its WAL holds other "
            f"transactions than the lake was read from: it was restored from an older backup and has gone on since; "
            f"{_remedy(writer)}"
        )


def _remedy(writer: Writer) -> str:
    return f"nothing was written: `lakehouse ingest --recover {writer.name}` repairs the lake from the tables"

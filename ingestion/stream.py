"""The stream of a source: its slot and the checks that going on from it loses nothing."""

from dataclasses import replace

from ingestion import source as src
from ingestion import state
from ingestion.context import Connection, Writer
from lakehouse.errors import LakehouseError


def ensure_stream(writer: Writer, connection: Connection, states: Connection) -> state.Stream:
    """The stream with its slot, both made at the first cycle; raises LakehouseError where going on would lose rows."""
    name = writer.name
    publication = src.publication_oid(connection, name, writer.publication)
    cluster = src.identify(writer.settings, name)
    stream, slot = state.read_stream(states, name), src.read_slot(connection, writer.slot)
    if stream is None:
        if slot is not None:
            raise LakehouseError(
                f"source {name!r}: slot {writer.slot} exists but this lake did not make it: set another name with "
                f"LAKEHOUSE_SOURCES__{name.upper()}__SLOT, or drop it if nothing else reads it"
            )
        # Written down before the slot is made, so that a crash in between leaves a slot that is known to be ours.
        state.create_stream(states, name, writer.slot, cluster, publication)
        stream = state.read_stream(states, name)
        assert stream is not None
    _check_identity(writer, stream, cluster, publication)
    if stream.lsn == 0:
        lsn = slot.confirmed_lsn if slot else src.create_slot(connection, writer.slot)
        state.advance_positions(states, name, lsn)
        return replace(stream, lsn=lsn)
    _check_slot(writer, stream, slot)
    return stream


def _check_identity(writer: Writer, stream: state.Stream, cluster: state.Cluster, publication: int) -> None:
    where = f"source {writer.name!r}"
    if stream.slot != writer.slot:
        raise LakehouseError(f"{where}: the lake was read from slot {stream.slot}, not {writer.slot}: set it back")
    if (stream.system_identifier, stream.timeline) != (cluster.system_identifier, cluster.timeline):
        raise LakehouseError(
            f"{where}: this is not the cluster the lake was read from (system identifier, timeline: "
            f"{stream.system_identifier}, {stream.timeline}; now {cluster.system_identifier}, {cluster.timeline}), so "
            "changes may be missing; nothing was written: correct its URL, or read its tables anew with "
            f"`lakehouse ingest --recover {writer.name}`"
        )
    if stream.publication_oid != publication:
        raise LakehouseError(
            f"{where}: publication {writer.publication!r} was dropped and made again; Postgres did not record the "
            f"changes in between; nothing was written: `lakehouse ingest --recover {writer.name}` reads the tables anew"
        )


def _check_slot(writer: Writer, stream: state.Stream, slot: src.Slot | None) -> None:
    where = f"source {writer.name!r}: slot {writer.slot}"
    remedy = f"`lakehouse ingest --recover {writer.name}` reads the tables anew"
    if slot is None:
        raise LakehouseError(
            f"{where} is gone: changes since {src.lsn_text(stream.lsn)} are lost to the stream: {remedy}"
        )
    if slot.wal_status == "lost":
        raise LakehouseError(f"{where} was invalidated, its WAL is removed: raise max_slot_wal_keep_size; {remedy}")
    if slot.confirmed_lsn > stream.lsn:
        raise LakehouseError(
            f"{where} stands at {src.lsn_text(slot.confirmed_lsn)}, beyond the lake's {src.lsn_text(stream.lsn)}: "
            f"something else consumed it, and the changes in between are lost to the stream: {remedy}"
        )

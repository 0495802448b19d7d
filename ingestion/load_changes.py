"""Brings the changes of a source into the lake: read below a position, publish with a cut, advance the slot."""

import uuid
from dataclasses import replace

from ingestion import lease as leases
from ingestion import source as src
from ingestion import state
from ingestion.changes import ChangePlan, ChangeResult, read_changes
from ingestion.context import Connection, Cycle, RowCounts, Writer, append_of, register, target
from ingestion.describe import TableFacts, facts_from_json
from ingestion.publish import Cut, Publication, publish
from ingestion.raw_tables import add_missing_columns
from ingestion.rows import SchemaChanged
from ingestion.source import SourceNow
from ingestion.tasks import run_tasks
from lakehouse.errors import LakehouseError

Facts = dict[str, TableFacts]


def load_changes(writer: Writer, connection: Connection, states: Connection, facts: Facts, now: SourceNow) -> RowCounts:
    """Everything committed below `now.lsn` to the lake; returns the rows added by table and operation.

    When nothing changed, positions and slot move on without an Iceberg snapshot.
    """
    stream = state.read_stream(states, writer.name)
    assert stream is not None
    positions = state.read_positions(states, writer.name)
    cycle = Cycle(uuid.uuid4().hex, stream.epoch, state.catalog_clock(states))
    result = _read(writer, states, cycle, positions, facts, now)
    if src.publication_oid(connection, writer.name, writer.publication) != stream.publication_oid:
        raise LakehouseError(f"source {writer.name!r}: its publication changed during the read; nothing was published")
    covered = tuple(sorted(p.table for p in positions.values() if p.state == "streaming" and p.lsn <= now.lsn))
    if result.written or covered != tuple(stream.cut_tables):
        publication = Publication(
            cycle_id=cycle.id,
            source=writer.name,
            epoch=stream.epoch,
            appends=tuple(append_of(writer, cycle, written) for written in result.written),
            cut=Cut(stream.epoch, now.lsn - 1, now.at, covered),
            advance_to=now.lsn,
        )
        publish(writer.settings, writer.catalog, writer.lease, publication)
    else:
        with states.transaction():
            leases.check(states, writer.lease, writer.limits.lease_seconds)
            state.advance_positions(states, writer.name, now.lsn)
    src.advance_slot(connection, writer.slot, now.lsn)
    return {written.name: written.operations for written in result.written}


def _read(
    writer: Writer,
    states: Connection,
    cycle: Cycle,
    positions: dict[str, state.Position],
    facts: Facts,
    now: SourceNow,
) -> ChangeResult:
    """Reads with the types the tables were made with; where the stream has newer ones, once more with those."""
    known = {name: facts_from_json(position.facts) for name, position in positions.items()}
    try:
        return _run(writer, states, cycle, positions, known, now)
    except SchemaChanged:
        for table in writer.source.tables:
            add_missing_columns(writer.catalog.load_table(table.identifier), table, facts[table.name])
        result = _run(writer, states, cycle, positions, facts, now)
        for name, position in positions.items():
            state.put_position(states, writer.name, replace(position, facts=facts[name].to_json()))
        return result


def _run(
    writer: Writer,
    states: Connection,
    cycle: Cycle,
    positions: dict[str, state.Position],
    facts: Facts,
    now: SourceNow,
) -> ChangeResult:
    icebergs = {table.name: writer.catalog.load_table(table.identifier) for table in writer.source.tables}
    register(states, writer, cycle, icebergs.values())
    plan = ChangePlan(
        **writer.task_settings,
        slot=writer.slot,
        publication=writer.publication,
        upto_lsn=now.lsn,
        xid=now.xid,
        targets=tuple(
            target(table, icebergs[table.name], facts[table.name], cycle, positions[table.name].lsn)
            for table in writer.source.tables
        ),
    )
    return run_tasks(writer.session, read_changes, [plan])[0]

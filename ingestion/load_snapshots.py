"""Brings tables that are new to the lake in: all their rows at one consistent point."""

import uuid

from ingestion import state
from ingestion.context import Connection, Cycle, RowCounts, Writer, append_of, merge, register, target
from ingestion.describe import TableFacts
from ingestion.publish import Publication, publish
from ingestion.raw_tables import ensure_raw_table
from ingestion.snapshot import Chunk, ChunkPlan, Point, consistent_point, plan_chunks, read_chunk, select_sql
from ingestion.tasks import run_tasks
from ingestion.writer import Written
from lakehouse.declarations import RawTable

Chunks = dict[str, list[Chunk]]


def load_new_tables(
    writer: Writer, connection: Connection, states: Connection, epoch: int, facts: dict[str, TableFacts]
) -> RowCounts:
    """Snapshots every declared table that has no position yet; returns the rows added by table and operation.

    Tables that are no longer declared lose their position, so that declaring them again snapshots them again.
    """
    positions = state.read_positions(states, writer.name)
    state.forget_positions(states, writer.name, sorted(set(positions) - set(facts)))
    new = [table for table in writer.source.tables if table.name not in positions]
    rows: RowCounts = {}
    if new:
        with consistent_point(writer.settings, writer.name, new) as point:
            chunks = {t.name: plan_chunks(connection, facts[t.name], writer.limits.snapshot_chunk_bytes) for t in new}
            for group in publish_groups(new, chunks):
                rows |= _load_group(writer, states, epoch, facts, point, group, chunks)
    return rows


def publish_groups(tables: list[RawTable], chunks: Chunks) -> list[list[RawTable]]:
    """Small tables are published together, larger ones one by one: a table that is done is not read again."""
    small = [table for table in tables if len(chunks[table.name]) <= 1]
    large = [[table] for table in tables if len(chunks[table.name]) > 1]
    return [small, *large] if small else large


def _load_group(
    writer: Writer,
    states: Connection,
    epoch: int,
    facts: dict[str, TableFacts],
    point: Point,
    group: list[RawTable],
    chunks: Chunks,
) -> RowCounts:
    cycle = Cycle(uuid.uuid4().hex, epoch, state.catalog_clock(states))
    icebergs = {table.name: ensure_raw_table(writer.catalog, table, facts[table.name]) for table in group}
    register(states, writer, cycle, icebergs.values())
    plans = [
        ChunkPlan(
            **writer.task_settings,
            chunk=chunk,
            select=select_sql(facts[table.name], chunk),
            point=point,
            target=target(table, icebergs[table.name], facts[table.name], cycle, from_lsn=0),
            restart=icebergs[table.name].current_snapshot() is not None,
        )
        for table in group
        for chunk in chunks[table.name]
    ]
    written = merge(run_tasks(writer.session, read_chunk, plans)) if plans else {}
    complete = [written.get(table.name, Written(table.name, (), {}, {})) for table in group]
    publication = Publication(
        cycle_id=cycle.id,
        source=writer.name,
        epoch=epoch,
        appends=tuple(append_of(writer, cycle, part) for part in complete),
        positions=tuple(
            state.Position(table.name, epoch, point.lsn, "streaming", facts[table.name].to_json()) for table in group
        ),
    )
    publish(writer.settings, writer.catalog, writer.lease, publication)
    return {part.name: part.operations for part in complete}

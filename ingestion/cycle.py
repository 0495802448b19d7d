"""One cycle: check the source, snapshot new tables, read changes, publish, and only then advance the slot.

A crash anywhere replays from the first step: positions tell what is in the lake, and the slot has not moved past it.
"""

import time
from collections import Counter
from dataclasses import dataclass, replace

from ingestion import source as src
from ingestion import state
from ingestion.context import Connection, RowCounts, Writer
from ingestion.describe import describe
from ingestion.load_changes import load_changes
from ingestion.load_snapshots import load_new_tables
from ingestion.stream import ensure_stream

FLUSH_PATIENCE_SECONDS = 2.0


@dataclass(frozen=True)
class CycleOutcome:
    """Rows added by table and operation, and the position reached."""

    rows: RowCounts
    lsn: int


def run_cycle(writer: Writer, until: int | None = None) -> CycleOutcome:
    """Brings a source up to now, or at least to the LSN `until`; raises LakehouseError, with nothing half-done.

    A backlog larger than `cycle_max_bytes` is published in several cuts.
    """
    with (
        src.connect_source(writer.settings, writer.name) as connection,
        state.connect_catalog(writer.settings) as states,
    ):
        src.check_server(connection, writer.name)
        src.publication_oid(connection, writer.name, writer.publication)
        facts = {table.name: describe(connection, table, writer.publication) for table in writer.source.tables}
        stream = ensure_stream(writer, connection, states)
        rows = load_new_tables(writer, connection, states, stream.epoch, facts)
        now = _now_at_least(connection, until)
        reached = stream.lsn
        while reached < now.lsn:
            reached = min(now.lsn, reached + writer.limits.cycle_max_bytes)
            rows = add_counts(rows, load_changes(writer, connection, states, facts, replace(now, lsn=reached)))
    return CycleOutcome(rows, reached)


def add_counts(left: RowCounts, right: RowCounts) -> RowCounts:
    """Sums rows by table and operation."""
    return {
        table: dict(Counter(left.get(table, {})) + Counter(right.get(table, {})))
        for table in left.keys() | right.keys()
    }


def _now_at_least(connection: Connection, until: int | None) -> src.SourceNow:
    """The source's flushed end, once what was written up to `until` is flushed."""
    deadline = time.monotonic() + FLUSH_PATIENCE_SECONDS
    now = src.source_now(connection)
    while until is not None and now.lsn < until and time.monotonic() < deadline:
        time.sleep(0.02)
        now = src.source_now(connection)
    return now

"""One cycle: check the source, read changes, publish, and only then advance the slot; load tables that need a point.

A crash anywhere replays from the first step: positions tell what is in the lake, and the slot has not moved past it.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from ingestion.pipeline.load_changes import load_changes
from ingestion.pipeline.load_tables import load_tables, to_load
from ingestion.pipeline.replay import resume
from ingestion.pipeline.session import RowCounts, Writer, add_counts, total_rows
from ingestion.pipeline.stream import ensure_stream
from ingestion.pipeline.survey import Outlook, survey
from ingestion.pipeline.table_plans import covered
from ingestion.sink.publish import Outdated
from ingestion.sources.postgres import connection as src
from ingestion.sources.postgres.live import LiveStream
from ingestion.state import progress, store
from lakehouse.declarations import RawTable
from lakehouse.errors import LakehouseError
from lakehouse.servers.database import CatalogConnection, SourceConnection

FLUSH_PATIENCE_SECONDS = 2.0
LIVE_PATIENCE_SECONDS = 10.0
MAX_REPLANS = 20
WAL_PAGE_BYTES = 64 * 1024  # the largest that Postgres can be built with; it is 8 kB nearly everywhere


@dataclass(frozen=True)
class CycleOutcome:
    """Rows added by table and operation, and the position reached."""

    rows: RowCounts
    lsn: int


@contextmanager
def connections(writer: Writer) -> Iterator[tuple[SourceConnection, CatalogConnection]]:
    """A connection to the source and one to the catalog database."""
    with (
        src.connect_source(writer.settings, writer.name) as connection,
        store.connect_catalog(writer.settings) as states,
    ):
        yield connection, states


def run_cycle(writer: Writer, until: int | None = None) -> CycleOutcome:
    """Brings a source up to now, or at least to the LSN `until`; raises LakehouseError, with nothing half-done.

    Tables that are new or in doubt are loaded first. A table with a problem of its own does not hold up the others.
    """
    with connections(writer) as (connection, states):
        outcome = catch_up(writer, connection, states, until)
        rows, fewest, passes = outcome.rows, len(writer.source.tables) + 1, 0
        while passes < MAX_REPLANS:
            wanted = waiting_tables(writer, connection, states)
            if not wanted:
                return CycleOutcome(rows, outcome.lsn)
            passes = 0 if len(wanted) < fewest else passes + 1
            fewest = min(fewest, len(wanted))

            def reach(lsn: int) -> RowCounts:
                return catch_up(writer, connection, states, lsn).rows

            rows = add_counts(rows, load_tables(writer, connection, states, wanted, reach))
            outcome = catch_up(writer, connection, states)
            rows = add_counts(rows, outcome.rows)
    raise LakehouseError(
        f"source {writer.name!r}: its tables are altered faster than they can be read; nothing was lost"
    )


def waiting_tables(writer: Writer, connection: SourceConnection, states: CatalogConnection) -> list[RawTable]:
    """The tables that have to be loaded at a point, new ones without a problem among them."""
    positions = store.read_positions(states, writer.name)
    return to_load(writer, positions, survey(writer, connection, positions))


def catch_up(
    writer: Writer,
    connection: SourceConnection,
    states: CatalogConnection,
    until: int | None = None,
    live: LiveStream | None = None,
) -> CycleOutcome:
    """Reads the stream up to now, or at least to `until`; what the tables lack beyond the stream is left alone.

    A backlog larger than `cycle_max_bytes` is published in several cuts. Raises LiveStreamLost when `live` has ended.
    """
    rows: RowCounts = {}
    for _ in range(MAX_REPLANS):
        src.check_server(connection, writer.name)
        stream = ensure_stream(writer, connection, states, live)
        outlooks = _outlooks(writer, connection, states)
        try:
            rows = add_counts(rows, _resume_tables(writer, connection, states, outlooks))
        except Outdated:
            continue
        positions = store.read_positions(states, writer.name)
        points = [position.point for position in positions.values() if position.state == "streaming"]
        now = _now_at_least(connection, max(until or 0, *points, 0))
        if live:
            live.reach(now.lsn, LIVE_PATIENCE_SECONDS)
        reached = stream.lsn
        cut_is_due = covered(positions, now.lsn) != tuple(stream.cut_tables)
        if next_stop(reached, now.lsn, writer.limits.cycle_max_bytes) < now.lsn:
            progress.begin(states, writer.name, "changes", now.lsn - reached)
        try:
            while reached < now.lsn or cut_is_due:
                before, reached = reached, next_stop(reached, now.lsn, writer.limits.cycle_max_bytes)
                landed = load_changes(writer, connection, states, outlooks, replace(now, lsn=reached), live)
                progress.advance(states, writer.name, reached - before, total_rows(landed))
                rows = add_counts(rows, landed)
                cut_is_due = False
            return CycleOutcome(rows, reached)
        except Outdated:
            continue
    raise LakehouseError(
        f"source {writer.name!r}: its tables are altered faster than they can be read; nothing was lost"
    )


def next_stop(reached: int, end: int, max_bytes: int) -> int:
    """The LSN up to which one publish reads: the end, or a page's boundary about `max_bytes` further on; never back.

    Postgres stops reading behind the first record that ends at or beyond the LSN it is given. Between a page's boundary
    and the first record on it is a header: an LSN within would let in a transaction that commits behind it.
    """
    pages = max((reached + max_bytes) // WAL_PAGE_BYTES, reached // WAL_PAGE_BYTES + 1)
    return max(reached, min(end, pages * WAL_PAGE_BYTES))


def _outlooks(writer: Writer, connection: SourceConnection, states: CatalogConnection) -> dict[str, Outlook]:
    """How the declared tables look; those that are declared no longer are forgotten, new ones' problems noted."""
    positions = store.read_positions(states, writer.name)
    outlooks = survey(writer, connection, positions)
    if gone := set(positions) - set(outlooks):
        with states.transaction():
            store.forget_positions(states, writer.name, gone)
            store.revise(states, writer.name)
    stream = store.read_stream(states, writer.name)
    assert stream is not None
    for name, outlook in outlooks.items():
        known = positions.get(name)
        if known is None or (known.state == "new" and known.reason != outlook.problem):
            store.note_new(states, writer.name, name, stream.epoch, outlook.problem)
    return outlooks


def _resume_tables(
    writer: Writer, connection: SourceConnection, states: CatalogConnection, outlooks: dict[str, Outlook]
) -> RowCounts:
    rows: RowCounts = {}
    for name, position in store.read_positions(states, writer.name).items():
        if position.state == "resuming":
            rows = add_counts(rows, resume(writer, connection, states, outlooks[name]))
    return rows


def _now_at_least(connection: SourceConnection, until: int) -> src.SourceNow:
    """The source's flushed end, once what was written up to `until` is flushed."""
    deadline = time.monotonic() + FLUSH_PATIENCE_SECONDS
    now = src.source_now(connection)
    while now.lsn < until and time.monotonic() < deadline:
        time.sleep(0.02)
        now = src.source_now(connection)
    return now

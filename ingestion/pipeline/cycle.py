"""One cycle: check the source, read changes, publish, and only then advance the slot; load tables that need a point.

A crash anywhere replays from the first step: positions tell what is in the lake, and the slot has not moved past it.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from ingestion.pipeline.load_changes import load_changes
from ingestion.pipeline.load_tables import load_tables, to_load
from ingestion.pipeline.replay import resume
from ingestion.pipeline.session import RowCounts, Session, add_counts, total_rows
from ingestion.pipeline.survey import Outlook, survey
from ingestion.pipeline.table_plans import covered
from ingestion.schema.positions import Position
from ingestion.sink.publish import Outdated
from ingestion.sources.base import LiveStream, OpenSource, SourceNow
from ingestion.state import progress, store
from lakehouse.declarations import RawTable
from lakehouse.errors import LakehouseError
from lakehouse.servers.database import CatalogConnection

FLUSH_PATIENCE_SECONDS = 2.0
LIVE_PATIENCE_SECONDS = 10.0
MAX_REPLANS = 20


@dataclass(frozen=True)
class CycleOutcome:
    """Rows added by table and operation, and the position reached."""

    rows: RowCounts
    position: Position


@contextmanager
def connections(session: Session) -> Iterator[tuple[OpenSource, CatalogConnection]]:
    """The source, and a connection to the catalog database."""
    with session.upstream.open() as source, store.connect_catalog(session.settings) as states:
        yield source, states


def run_cycle(session: Session, until: Position | None = None) -> CycleOutcome:
    """Brings a source up to now, or at least to the position `until`; raises LakehouseError, with nothing half-done.

    New and stale tables are loaded first. A table with a problem of its own does not delay the others.
    """
    with connections(session) as (source, states):
        outcome = catch_up(session, source, states, until)
        rows, fewest, passes = outcome.rows, len(session.source.tables) + 1, 0
        while passes < MAX_REPLANS:
            wanted = waiting_tables(session, source, states)
            if not wanted:
                return CycleOutcome(rows, outcome.position)
            passes = 0 if len(wanted) < fewest else passes + 1
            fewest = min(fewest, len(wanted))

            def reach(position: Position) -> RowCounts:
                return catch_up(session, source, states, position).rows

            rows = add_counts(rows, load_tables(session, source, states, wanted, reach))
            outcome = catch_up(session, source, states)
            rows = add_counts(rows, outcome.rows)
    raise LakehouseError(
        f"source {session.name!r}: its tables are altered faster than they can be read; nothing was lost"
    )


def waiting_tables(session: Session, source: OpenSource, states: CatalogConnection) -> list[RawTable]:
    """The tables that have to be loaded at a point, new ones without a problem among them."""
    positions = store.read_positions(states, session.name)
    return to_load(session, positions, survey(session, source, positions))


def catch_up(
    session: Session,
    source: OpenSource,
    states: CatalogConnection,
    until: Position | None = None,
    live: LiveStream | None = None,
) -> CycleOutcome:
    """Reads the stream up to now, or at least to `until`; what the tables lack beyond the stream is left alone.

    A backlog larger than `cycle_max_bytes` is published in several cuts. Raises LiveStreamLost when `live` has ended.
    """
    rows: RowCounts = {}
    for _ in range(MAX_REPLANS):
        stream = source.check(states, live)
        outlooks = outlooks_of(session, source, states)
        try:
            rows = add_counts(rows, resume_tables(session, source, states, outlooks))
            positions = store.read_positions(states, session.name)
            points = [position.point for position in positions.values() if position.state == "streaming"]
            now = _now_at_least(source, points if until is None else [*points, until])
            if live:
                live.reach(now.position, LIVE_PATIENCE_SECONDS)
            reached = session.reached(stream)
            is_due = covered(positions, now.position) != tuple(stream.cut_tables) or _altered(positions, outlooks)
            is_due = is_due or session.flush_is_due(stream)
            if not now.position <= source.stop_between(reached, now.position, session.limits.cycle_max_bytes):
                progress.begin(states, session.name, "changes", source.distance(reached, now.position))
            most = session.limits.cycle_max_bytes
            while not now.position <= reached or is_due:
                before, stop = reached, source.stop_between(reached, now.position, most)
                landed, reached = load_changes(session, source, states, outlooks, replace(now, position=stop), live)
                progress.advance(states, session.name, source.distance(before, reached), total_rows(landed))
                rows = add_counts(rows, landed)
                is_due = False
                if not stop <= reached and now.position <= stop:
                    break  # the rest waits for what the source has not got yet
                most = most * 4 if reached <= before else session.limits.cycle_max_bytes
            if now.position <= reached:
                store.note_read(states, session.name, now.at)
            return CycleOutcome(rows, reached)
        except Outdated:
            session.forget_held()
            continue
    raise LakehouseError(
        f"source {session.name!r}: its tables are altered faster than they can be read; nothing was lost"
    )


def note_if_read(session: Session, source: OpenSource, states: CatalogConnection) -> None:
    """Notes until when everything was read, where nothing has come since: positions of an idle source stand still."""
    now, stream = source.now(), store.read_stream(states, session.name)
    if stream is not None and now.position <= session.reached(stream):
        store.note_read(states, session.name, now.at)


def outlooks_of(session: Session, source: OpenSource, states: CatalogConnection) -> dict[str, Outlook]:
    """Inspects the declared tables; forgets those that are no longer declared, and records problems of new ones."""
    positions = store.read_positions(states, session.name)
    outlooks = survey(session, source, positions)
    if gone := set(positions) - set(outlooks):
        with states.transaction():
            store.forget_positions(states, session.name, gone)
            store.revise(states, session.name)
    stream = store.read_stream(states, session.name)
    assert stream is not None
    for name, outlook in outlooks.items():
        known = positions.get(name)
        if known is None or (known.state == "new" and known.reason != outlook.problem):
            store.note_new(states, session.name, name, stream.epoch, outlook.problem)
    return outlooks


def _altered(positions: Mapping[str, store.TablePosition], outlooks: Mapping[str, Outlook]) -> bool:
    """Whether a table has to follow its source or its declaration, which may come without a change of rows."""
    landing = {name: p for name, p in positions.items() if p.lands and p.versions and name in outlooks}
    return any(position.fingerprint != outlooks[name].fingerprint for name, position in landing.items())


def resume_tables(
    session: Session, source: OpenSource, states: CatalogConnection, outlooks: dict[str, Outlook]
) -> RowCounts:
    """Lands the spool of the tables that are resuming."""
    rows: RowCounts = {}
    for name, position in store.read_positions(states, session.name).items():
        if position.state == "resuming":
            rows = add_counts(rows, resume(session, source, states, outlooks[name]))
    return rows


def _now_at_least(source: OpenSource, positions: Sequence[Position]) -> SourceNow:
    """The source's end, once what was written up to all these positions can be read."""
    deadline = time.monotonic() + FLUSH_PATIENCE_SECONDS
    now = source.now()
    while not all(at <= now.position for at in positions) and time.monotonic() < deadline:
        time.sleep(0.02)
        now = source.now()
    return now

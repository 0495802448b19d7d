"""What followers do that share a source: each reads events of its own parts, and nothing else.

Whatever else there is to do (a table that is new, resumes or follows another declaration, a cut that has to name other
tables) is done by one writer alone. All of them see it in the state, and leave.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ingestion.pipeline.cycle import outlooks_of, resume_tables, waiting_tables
from ingestion.pipeline.load_changes import load_changes
from ingestion.pipeline.load_tables import load_tables
from ingestion.pipeline.session import RowCounts, Session, add_counts
from ingestion.pipeline.survey import survey
from ingestion.pipeline.table_plans import covered
from ingestion.schema.positions import Position
from ingestion.sources.base import NextOf, OpenSource, SourceNow
from ingestion.state import claims, live, store
from ingestion.state.claims import Turn
from lakehouse.servers.database import CatalogConnection


def for_one_writer(session: Session, source: OpenSource, states: CatalogConnection) -> str | None:
    """What followers that share the source have to leave to one of them; None where there are only events to read."""
    stream, positions = store.read_stream(states, session.name), store.read_positions(states, session.name)
    if stream is None:
        return "it has not been ingested yet"
    outlooks = survey(session, source, positions)
    if gone := sorted(positions.keys() - outlooks.keys()):
        return f"table {gone[0]} is declared no more"
    for name, outlook in sorted(outlooks.items()):
        position = positions.get(name)
        if position is None or (position.state == "new" and position.reason != outlook.problem):
            return f"table {name} is new"
        if position.state in ("loading", "stale", "resuming"):
            return f"table {name} is {position.state}"
        if position.lands and position.fingerprint != outlook.fingerprint:
            return f"table {name} follows another declaration"
        if position.state != "new" and not position.position <= stream.position:
            return f"table {name} is ahead of the others"
    if covered(positions, stream.position) != tuple(stream.cut_tables):
        return "the next cut names other tables"
    return "live tables wait for their publish" if live.shown(states, session.name) is not None else None


def work_alone(session: Session, source: OpenSource, states: CatalogConnection) -> RowCounts:
    """Does what is for one writer, and reads no events beyond that: they are for all. The session has the source's
    lease. Raises Outdated where a table is altered meanwhile."""

    def reach(position: Position | None = None) -> RowCounts:
        stream = source.check(states)
        at = stream.position if position is None else stream.position.join(position)
        at = source.stop_between(at, at, session.limits.cycle_max_bytes)
        outlooks = outlooks_of(session, source, states)
        rows = resume_tables(session, source, states, outlooks)
        landed, _ = load_changes(session, source, states, outlooks, replace(source.now(), position=at))
        return add_counts(rows, landed)

    rows = reach()
    if wanted := waiting_tables(session, source, states):
        rows = add_counts(rows, load_tables(session, source, states, wanted, reach))
        rows = add_counts(rows, reach())
    return rows


def take_turn(session: Session, states: CatalogConnection, mine: Mapping[str, int], what: NextOf) -> Turn | None:
    """The next turn of this follower; None where there is nothing to read. Raises LeaseLost, TurnVoid."""
    limits = session.limits
    return claims.take_turn(states, session.lease, limits.lease_seconds, limits.wait_seconds, mine, what.stop)


def read_turn(session: Session, source: OpenSource, states: CatalogConnection, turn: Turn) -> RowCounts:
    """Reads and publishes a turn; returns the rows added. The source reads on from `turn.base`.

    Raises LeaseLost, Outdated and TurnVoid, after which it is to be given up: nothing of it is published.
    """
    outlooks = survey(session, source, store.read_positions(states, session.name))
    now = SourceNow(turn.reach, turn.at, 0)
    return load_changes(replace(session, turn=turn), source, states, outlooks, now)[0]

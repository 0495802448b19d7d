"""Brings tables to the source's state at a consistent point: new ones by a snapshot, stale ones by a resync.

While this goes on the tables' records land from the point on, outside of the cuts; other tables do not wait. A point
and the locks it comes with are held for a few tables: the next ones have another.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pyiceberg.expressions import And, EqualTo, GreaterThanOrEqual
from pyiceberg.table import Table

from ingestion.pipeline.repair import stage_repair
from ingestion.pipeline.replay import has_spooled
from ingestion.pipeline.session import (
    Cycle,
    RowCounts,
    Session,
    add_counts,
    appends_of,
    begin_cycle,
    meta_metadata,
    publication_of,
    register,
    settle,
    target,
    total_rows,
)
from ingestion.pipeline.survey import Outlook, survey
from ingestion.pipeline.together import HELD_SECONDS, first_together
from ingestion.schema.evolve import changes, steps
from ingestion.schema.facts import TableFacts
from ingestion.schema.positions import Position
from ingestion.schema.problem import TableProblem
from ingestion.sink.publish import publish
from ingestion.sink.raw_tables import ensure_raw_table, follow_source, landed_facts
from ingestion.sink.writer import Written, merge
from ingestion.sources.base import InTheWay, NotThere, OpenSource, Point
from ingestion.state import chunks, progress, store
from ingestion.state import lease as leases
from ingestion.state.chunks import Chunk
from ingestion.tasks.runner import run_tasks
from ingestion.tasks.snapshot import ChunkPlan, read_chunk
from lakehouse.declarations import RawTable
from lakehouse.errors import LakehouseError
from lakehouse.servers.database import CatalogConnection

log = logging.getLogger("lakehouse.waiting")
WAVE_CHUNKS = 16
LET_THROUGH_SECONDS = 0.2
SMALL_TABLES = 8  # that make up one range: each point costs a survey of all tables, however many are loaded at it
Reach = Callable[[Position], RowCounts]


class _PointPassed(Exception):
    """The tables could not be registered with the point: the stream went past it, or a table was moved meanwhile."""

    def __init__(self, by_stream: bool = False) -> None:
        super().__init__()
        self.by_stream = by_stream


@dataclass(frozen=True)
class _Loading:
    """One table at a point; `ranges` are what is left to read, None for a repair."""

    table: RawTable
    iceberg: Table
    position: store.TablePosition
    facts: TableFacts
    ranges: list[Chunk] | None
    afresh: bool


Wave = list[tuple[_Loading, Chunk]]
Joining = list[tuple[_Loading, store.TableState]]


def to_load(
    session: Session, positions: dict[str, store.TablePosition], outlooks: dict[str, Outlook]
) -> list[RawTable]:
    """The tables that a point has to be made for."""
    waiting = ("new", "loading", "stale")
    return [
        o.table
        for name, o in outlooks.items()
        if o.problem is None and (name not in positions or positions[name].state in waiting)
    ]


def load_tables(
    session: Session, source: OpenSource, states: CatalogConnection, wanted: list[RawTable], reach: Reach
) -> RowCounts:
    """Loads the next of the wanted tables at one point; returns the rows added by table and operation.

    Those are as many as are read at once, or one that is larger; who wants the others asks again.

    `reach(position)` returns when the stream has been read up to there, before any row of the point lands: what the
    lake has is always below the position, so a source that is restored meanwhile is found out. A table with a problem
    of its own is parked with the reason; the others continue.
    """
    together = _next(session, source, states, wanted)
    before: dict[str, Outlook] = {}
    if session.passed.intersection(table.name for table in together):
        session.registering.set()

    def inspect() -> None:
        before.update(survey(session, source, store.read_positions(states, session.name)))

    try:
        with source.snapshot(together, inspect) as point:
            return _load_at(point, session, source, states, together, before, reach)
    except NotThere:  # the next survey tells so of that table, and the others continue
        return {}
    except InTheWay as waiting:  # the point is given up, so that they can
        log.warning("%s", waiting)
        session.stop.wait(LET_THROUGH_SECONDS)
        return {}
    finally:
        session.registering.clear()


def _next(session: Session, source: OpenSource, states: CatalogConnection, wanted: list[RawTable]) -> list[RawTable]:
    """Tables whose heaps are read in one wave: small ones first, after them those that were loaded before."""
    if not source.holds_tables:
        return wanted
    before = {
        name: position.point.commit_bound for name, position in store.read_positions(states, session.name).items()
    }
    weights = {
        name: _weight(source, sizes, session.limits.snapshot_chunk_bytes)
        for name, sizes in source.sizes(wanted).items()
    }
    in_turn = sorted(wanted, key=lambda table: (before.get(table.name, 0), weights[table.name]))
    return first_together(in_turn, weights, WAVE_CHUNKS * SMALL_TABLES)


def _weight(source: OpenSource, sizes: Sequence[int], chunk_bytes: int) -> int:
    """A range weighs as much as so many small tables; each heap is locked, however small it is."""
    if sum(sizes) * SMALL_TABLES <= chunk_bytes:
        return max(1, len(sizes))
    return max(1, sum(source.ranges_of(size, chunk_bytes) for size in sizes)) * SMALL_TABLES


def _load_at(
    point: Point, session: Session, source: OpenSource, states: CatalogConnection, wanted: list[RawTable],
    before: dict[str, Outlook], reach: Reach,
) -> RowCounts:  # fmt: skip
    rows: RowCounts = {}
    held_until = time.monotonic() + HELD_SECONDS
    try:
        loading = _register(session, source, states, wanted, before, point)
    except _PointPassed as passed:
        if passed.by_stream:
            _tell_if_again(session, wanted)
        return rows
    session.passed.clear()
    session.registering.clear()
    if loading:
        rows = reach(point.position)
    for group in _groups([item for item in loading if item.ranges is not None]):
        found = _contained(session, states, group, lambda g: _snapshot(session, source, states, g, point))
        rows = add_counts(rows, found)
    for item in (item for item in loading if item.ranges is None):
        found = _contained(session, states, [item], lambda g: _repair(session, source, states, g[0], point))
        rows = add_counts(rows, found)
        if time.monotonic() > held_until or session.stop.is_set():  # the others stay stale: the next point is for them
            break
    return rows


def _tell_if_again(session: Session, tables: list[RawTable]) -> None:
    """It happens; what happens to the same tables again may go on for ever."""
    names = {table.name for table in tables}
    if again := sorted(names & session.passed):
        log.warning(
            "source %r, tables %s: the stream passed the point of their load again before they were registered with "
            "it: they are tried again; if this goes on, raise LAKEHOUSE_INGESTION__FLUSH_INTERVAL_SECONDS",
            session.name,
            ", ".join(again),
        )
    session.passed.update(names)


def _register(
    session: Session, source: OpenSource, states: CatalogConnection, wanted: list[RawTable],
    before: dict[str, Outlook], point: Point,
) -> list[_Loading]:  # fmt: skip
    """Makes the stream land the tables' records from the point on, before anything is read at it.

    What was altered since `before`, around the point, waits for another one: it may have left the publication for a
    while, and its changes are then in no stream.
    """
    positions = store.read_positions(states, session.name)
    outlooks = survey(session, source, positions)
    stream = store.read_stream(states, session.name)
    assert stream is not None
    loading, met, start = [], dict[str, store.TablePosition](), type(stream.position).start()
    for table in wanted:
        outlook = outlooks[table.name]
        is_as_before = outlook.fingerprint == before[table.name].fingerprint
        if outlook.facts is not None and outlook.problem is None and is_as_before:
            position = positions.get(table.name) or store.TablePosition(table.name, stream.epoch, start, "new", start)
            met[table.name] = position
            altered = bool(position.versions) and position.fingerprint != outlook.fingerprint
            if position.state == "new" or not altered:  # else the next read has to judge first what was altered
                try:
                    loading.append(_begin(session, source, states, outlook, position, point))
                except TableProblem as problem:  # after which the point is made anew, for the others
                    _park(session, states, position, problem)
    with states.transaction():
        leases.check(states, session.lease, session.limits.lease_seconds)
        current = store.read_stream(states, session.name)
        if current is None or not current.position <= point.position or current.revision != stream.revision:
            raise _PointPassed(current is not None and not current.position <= point.position)
        there = store.read_positions(states, session.name, [item.table.name for item in loading])
        if any((at.state, at.known) != (met[name].state, met[name].known) for name, at in there.items()):
            raise _PointPassed
        for item in loading:
            store.put_position(states, session.name, item.position, "load")
            if not source.holds_tables:
                store.note_topic(states, session.name, item.table.raw.topic, item.table.name, item.facts.oid)
            if item.afresh and item.ranges is not None:
                chunks.plan(states, session.name, item.table.name, item.ranges)
        store.revise(states, session.name)
    return loading


def _begin(
    session: Session,
    source: OpenSource,
    states: CatalogConnection,
    outlook: Outlook,
    position: store.TablePosition,
    point: Point,
) -> _Loading:
    table, facts = outlook.table, outlook.facts
    assert facts is not None
    source.check_readable(table, facts)
    now = store.ingestion_clock(states, session.name)
    iceberg = ensure_raw_table(session.catalog, table, facts, now)
    if not source.holds_tables and not position.versions:
        landed = landed_facts(iceberg, table, facts)
        if changes(landed, facts):  # no row is read again: the next read follows, or parks the table
            at = replace(position, position=point.position, point=point.position, reason=None)
            return _Loading(table, iceberg, replace(at, state="loading", versions=(landed,)), landed, [], afresh=True)
    before = position.facts if position.versions else facts.without_columns
    to_take = steps(table, before, facts, consent=True)
    iceberg = follow_source(iceberg, table, to_take, before, facts, now)
    described = replace(position, versions=(facts,), fingerprint=outlook.fingerprint, unfollowed=0, resync_reason=None)
    compared = position.state == "stale" and table.key and iceberg.current_snapshot() is not None
    if compared and source.holds_tables:
        kept = replace(described, versions=(*position.versions, facts))
        return _Loading(table, iceberg, kept, facts, None, afresh=True)
    begun = replace(described, state="loading", position=point.position, point=point.position, reason=None)
    left = chunks.open_ranges(states, session.name, table.name)
    begun_before = position.state == "loading" and chunks.first_point(states, session.name, table.name) is not None
    if begun_before and (table.key or not left) and position.fingerprint == outlook.fingerprint:
        resumed = replace(begun, position=position.position, versions=position.versions)
        return _Loading(table, iceberg, resumed, facts, left, afresh=False)
    goes_on = not source.holds_tables and iceberg.current_snapshot() is not None  # with what is there already
    if position.state == "new" and goes_on and has_spooled(session, table, iceberg):
        begun = replace(begun, state="resuming", point=position.point)
    ranges = source.ranges(facts, session.limits.snapshot_chunk_bytes) if source.holds_tables else []
    return _Loading(table, iceberg, begun, facts, ranges, afresh=True)


def _groups(loading: list[_Loading]) -> list[list[_Loading]]:
    """Small tables are published together, larger ones one by one."""
    small = [item for item in loading if len(item.ranges or ()) <= 1]
    large = [[item] for item in loading if len(item.ranges or ()) > 1]
    return [small, *large] if small else large


def _contained(
    session: Session, states: CatalogConnection, group: list[_Loading], load: Callable[[list[_Loading]], RowCounts]
) -> RowCounts:
    """A problem of one table parks it until it is resumed, and lets the others of its group go on."""
    while group:
        try:
            return load(group)
        except TableProblem as problem:
            culprit = next((item for item in group if item.table.name == problem.table), None)
            if culprit is None:
                raise
            _park(session, states, culprit.position, problem)
            group = [_rest(session, states, item) for item in group if item is not culprit]
    return {}


def _park(session: Session, states: CatalogConnection, position: store.TablePosition, problem: TableProblem) -> None:
    """Until it is resumed, which reads it anew."""
    settle(session, states, replace(position.forgotten, state="parked", reason=str(problem)), "load")


def _rest(session: Session, states: CatalogConnection, item: _Loading) -> _Loading:
    """A table of a group that begins again: what the group's waves have published is not read twice."""
    if item.ranges is None:
        return item
    return replace(item, ranges=chunks.open_ranges(states, session.name, item.table.name))


def _snapshot(
    session: Session, source: OpenSource, states: CatalogConnection, group: list[_Loading], point: Point
) -> RowCounts:
    """Reads what is left of the tables in waves, each published by itself, and lets them into the cuts."""
    for item in group:  # not before they are registered: it may read a whole table, and the stream does not wait
        source.check_key(item.table, item.facts)
    stream = store.read_stream(states, session.name)
    assert stream is not None
    rows: RowCounts = {}
    pending = [(item, chunk) for item in group for chunk in item.ranges or ()]
    if len(pending) > WAVE_CHUNKS:
        progress.begin(states, session.name, "snapshot", len(pending))
    while True:
        wave, pending = pending[:WAVE_CHUNKS], pending[WAVE_CHUNKS:]
        with begin_cycle(session, states, stream.epoch) as cycle:
            meta = meta_metadata(session, states, cycle, "unrepresentable")
            register(states, session, cycle, [item.iceberg for item in group])
            plans = [_chunk_plan(session, source, item, chunk, point, cycle, meta) for item, chunk in wave]
            written = merge(run_tasks(session.spark, read_chunk, plans)) if plans else {}
            point.check()
            parts = [written.get(i.table.name, Written(i.table.name, (), {}, {})) for i in group]
            last = not pending
            joining = [(item, _joins_as(session, states, item)) for item in group] if last else []

            def record(connection: CatalogConnection, wave: Wave = wave, joining: Joining = joining) -> None:
                for item, chunk in wave:
                    chunks.done(connection, session.name, item.table.name, [chunk], point.position)
                for item, joins_as in joining:
                    _finish(connection, session, item, joins_as, point)

            appends = appends_of(session, cycle, [part for part in parts if part.operations or last])
            publication = replace(publication_of(session, cycle, appends), record=record)
            publish(session.settings, session.catalog, session.lease, publication)
        landed = {part.name: part.operations for part in parts}
        progress.advance(states, session.name, len(wave), total_rows(landed))
        rows = add_counts(rows, landed)
        if last or session.stop.is_set():
            return rows


def _chunk_plan(
    session: Session, source: OpenSource, item: _Loading, chunk: Chunk, point: Point, cycle: Cycle, meta: dict[str, str]
) -> ChunkPlan:
    return ChunkPlan(
        **session.task_settings,
        reader=source.row_reader(item.table, item.facts, chunk, point),
        number=chunk.number,
        point=point,
        target=target(item.table, item.iceberg, item.facts, cycle, from_lsn=0),
        restart=item.afresh and item.iceberg.current_snapshot() is not None,
        unrepresentable=meta["unrepresentable"],
    )


def _joins_as(session: Session, connection: CatalogConnection, item: _Loading) -> store.TableState:
    """`streaming`, unless the snapshot went on after an interruption and the stream meanwhile left values out.

    An update that does not carry a TOASTed value needs the version before it; where that row's range was read later,
    and the row moved in between, there is none. A repair then finds and restates such rows.
    """
    first = chunks.first_point(connection, session.name, item.table.name)
    if item.afresh or first is None:
        return "streaming"
    fresh = session.catalog.load_table(item.table.identifier)
    since = And(EqualTo(term="_epoch", value=item.position.epoch), GreaterThanOrEqual(term="_commit_lsn", value=first))
    rows = fresh.scan(row_filter=since, selected_fields=("_commit_lsn", "_unchanged")).to_arrow()
    column = rows.column("_unchanged")
    return "stale" if column.null_count < len(column) else "streaming"


def _repair(session: Session, source: OpenSource, states: CatalogConnection, item: _Loading, point: Point) -> RowCounts:
    """Restates the rows that differ at the point, and lets the table into the cuts again."""
    source.check_key(item.table, item.facts)
    stream = store.read_stream(states, session.name)
    assert stream is not None
    if not point.position <= stream.position:
        raise LakehouseError(
            f"source {session.name!r}: the stream has not reached the point of a repair; it is made again"
        )
    with begin_cycle(session, states, stream.epoch) as cycle:
        register(states, session, cycle, [item.iceberg])
        written = stage_repair(session, cycle, item.table, item.iceberg.refresh(), item.facts, point)
        point.check()
        publication = replace(
            publication_of(session, cycle, appends_of(session, cycle, [written])),
            record=lambda connection: _finish(connection, session, item, "streaming", point),
        )
        publish(session.settings, session.catalog, session.lease, publication)
    return {item.table.name: written.operations}


def _finish(
    connection: CatalogConnection, session: Session, item: _Loading, joins_as: store.TableState, point: Point
) -> None:
    """The table joins the cuts, unless it was altered, or its state or need of a resync changed, while it was read."""
    name, begun = item.table.name, item.position
    now = store.read_positions(connection, session.name, [name]).get(name)
    if now is not None and (now.state, now.fingerprint, now.resync_reason) == (begun.state, begun.fingerprint, None):
        joined = replace(now, state=joins_as, point=point.position, reason=None)
        store.put_position(connection, session.name, joined, "load")
        store.revise(connection, session.name)

"""Brings the changes of a source into the lake: read below a position, publish with a cut, advance the slot."""

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

import pyarrow as pa
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from ingestion.pipeline.held import Files
from ingestion.pipeline.hold import hold
from ingestion.pipeline.session import (
    Cycle,
    RowCounts,
    Session,
    append_of,
    begin_cycle,
    meta_appends,
    meta_metadata,
    publication_of,
    register,
    target,
)
from ingestion.pipeline.survey import Outlook, unaltered, withholding
from ingestion.pipeline.table_plans import Course, conclude, covered, plan_course
from ingestion.schema.positions import Position
from ingestion.schema.problem import TableProblem
from ingestion.sink.meta_tables import ensure_meta
from ingestion.sink.publication import Cut
from ingestion.sink.publish import Outdated, publish
from ingestion.sink.raw_tables import follow_source, is_under_way, keys_renamed
from ingestion.sink.rows import TableTarget
from ingestion.sink.writer import Written
from ingestion.sources.base import ChangeReader, LiveStream, OpenSource, SourceNow
from ingestion.state import claims, store
from ingestion.state import lease as leases
from ingestion.state import live as live_states
from ingestion.tasks.changes import ChangePlan, ChangeResult, as_one, read_changes
from ingestion.tasks.lanes import Findings
from ingestion.tasks.runner import run_tasks
from lakehouse.catalog.private_pyiceberg import data_files
from lakehouse.declarations import RawTable
from lakehouse.errors import LakehouseError
from lakehouse.servers.database import CatalogConnection

Courses = dict[str, Course]
log = logging.getLogger("lakehouse.ingestion")


def load_changes(
    session: Session,
    source: OpenSource,
    states: CatalogConnection,
    outlooks: Mapping[str, Outlook],
    now: SourceNow,
    live: LiveStream | None = None,
) -> tuple[RowCounts, Position]:
    """Lands or spools everything committed below `now.position`; returns the rows added by table and operation, and the
    position that was reached: another one where the source has not got everything yet that belongs together. What is
    only held until the flush is due adds no rows yet.

    When nothing changed, positions and slot move on without an Iceberg snapshot. Raises Outdated when a table was
    altered, or its state changed, while this was under way, TurnVoid when what others read before it is not published,
    LiveStreamLost when `live` has ended.
    """
    stream = store.read_stream(states, session.name)
    assert stream is not None
    held = session.held
    if held is not None and not held.still_of(stream):
        raise Outdated
    positions = store.read_positions(states, session.name)
    known = {name: position for name, position in positions.items() if name in outlooks and position.state != "new"}
    courses = {name: plan_course(position, outlooks[name]) for name, position in known.items()}
    with begin_cycle(session, states, stream.epoch, held.cycle_id if held else None) as cycle:
        if not unaltered(source, withholding(outlooks)):  # else the survey does not bound what is read
            raise Outdated
        reader = source.change_reader(now, live, [c.position.facts for c in courses.values() if c.position.versions])
        follows = any(_follows(course, outlooks[name]) for name, course in courses.items())  # without rows, too
        if not courses or (reader.is_silent and not follows):
            result = ChangeResult()
        else:
            result = _read(session, source, states, cycle, courses, outlooks, reader)
        now = result.by_source.reached or now
        for warning in result.by_source.warnings:
            warn_once(f"source {session.name!r}: {warning}")
        if not unaltered(source, outlooks):
            raise Outdated
        source.check_again(stream, live)
        courses = {n: conclude(c, result.noticed.get(n, Findings()), now.position) for n, c in courses.items()}
        if session.turn is not None:
            claims.wait_for(states, session.turn, session.limits.wait_seconds, session.stop)
        landed = _publish(session, source, states, cycle, stream, courses, result, now)
    tell_out_of_cuts(session.name, courses.values())
    if landed is None:
        return {}, now.position
    source.confirm(now.position, live)
    return {written.name: written.operations for written in landed}, now.position


def tell_out_of_cuts(source: str, courses: Iterable[Course]) -> None:
    """Tells of tables that have left the cuts with this read, and why."""
    for course in courses:
        now = course.position
        if now.state != course.before.state and now.state in ("parked", "stale", "new"):
            what = "parked" if now.state == "parked" else "out of the cuts, and read anew"
            log.warning("source %r: %s is %s: %s", source, now.table, what, now.reason)


@lru_cache(4096)
def warn_once(says: str) -> None:
    """Tells what every read finds."""
    log.warning(says)


def tell_dead_letters(source: str, files: Mapping[str, Sequence[DataFile]]) -> None:
    """Tells of the records that a cycle could not read, by table."""
    kept = Counter[str]()
    for file in files.get("quarantine", ()):
        kept[file.partition[1]] += file.record_count
    if kept:
        counts = ", ".join(f"{count} of {source}.{table}" for table, count in sorted(kept.items()))
        log.warning(
            "source %r: new dead letters: %s; see `reason` in meta.quarantine, fix the cause, then"
            " `lakehouse ingest --replay`", source, counts,
        )  # fmt: skip


def _read(
    session: Session,
    source: OpenSource,
    states: CatalogConnection,
    cycle: Cycle,
    courses: Courses,
    outlooks: Mapping[str, Outlook],
    reader: ChangeReader,
) -> ChangeResult:
    """The tables follow their source first; `courses` then park one that cannot."""
    tables = {name: outlooks[name].table for name, course in courses.items() if course.position.versions}
    loaded = session.catalog.load_tables([table.identifier for table in tables.values()])
    if gone := [".".join(table.identifier) for table in tables.values() if table.identifier not in loaded]:
        anew = f"--resnapshot {session.name}.<table>" if source.holds_tables else f"--recover {session.name}"
        raise LakehouseError(
            f"source {session.name!r}: {', '.join(gone)} is not in the catalog any more: restore it, or make it anew "
            f"with `lakehouse ingest {anew}`"
        )
    icebergs = {name: loaded[table.identifier] for name, table in tables.items()}
    for name, iceberg in icebergs.items():
        course, outlook = courses[name], outlooks[name]
        if course.aside is None:
            followed, facts = course.followed, course.position.facts
            try:
                if _follows(course, outlook) or is_under_way(iceberg, followed):
                    icebergs[name] = follow_source(
                        iceberg, outlook.table, course.steps, followed, facts, cycle.ingested_at
                    )
            except TableProblem as problem:
                courses[name] = plan_course(course.before, replace(outlook, problem=str(problem)))
    meta = meta_metadata(session, states, cycle, "spool", "quarantine", "unrepresentable")
    tables = tables_of(tables, courses, reader.relations)
    register(states, session, cycle, [icebergs[name] for name in tables])
    plan = ChangePlan(
        **session.task_settings,
        reader=reader,
        records=source.records({name: courses[name].position.facts for name in tables}),
        targets=tuple(_target(cycle, courses[name], outlooks[name], icebergs[name]) for name in tables),
        aside={name: course.aside for name, course in courses.items() if course.aside is not None and name in tables},
        meta=meta,
    )
    return as_one(run_tasks(session.spark, read_changes, [replace(plan, reader=part) for part in reader.parts()]))


def _follows(course: Course, outlook: Outlook) -> bool:
    """Whether a schema change of the source is one of the raw table, too."""
    if not course.before.versions or not course.position.versions:
        return bool(course.steps)
    return bool(course.steps or keys_renamed(outlook.table, course.before.followed, course.position.facts))


def tables_of(tables: dict[str, RawTable], courses: Courses, relations: frozenset[int] | None) -> dict[str, RawTable]:
    """The tables of the changes, where these are known: what a task is told of a table costs, whether it has any.

    Rows of a table's partition, or of itself, may come as another table's: then it has none, and has to be told.
    """
    if relations is None:
        return tables
    known = {name: courses[name].position.versions for name in tables}
    return {name: table for name, table in tables.items() if any(facts.oids & relations for facts in known[name])}


def _target(cycle: Cycle, course: Course, outlook: Outlook, iceberg: Table) -> TableTarget:
    position, seen = course.position, outlook.seen
    return target(
        outlook.table,
        iceberg,
        position.facts,
        cycle,
        position.position.commit_bound,
        position.versions,
        seen,
        is_there=outlook.is_there,
    )


def _publish(
    session: Session,
    source: OpenSource,
    states: CatalogConnection,
    cycle: Cycle,
    stream: store.Stream,
    courses: Courses,
    result: ChangeResult,
    now: SourceNow,
) -> tuple[Written, ...] | None:
    """Publishes what was read, and with it what is held; returns all of it, None where it is held instead."""
    moved = {name: course.position for name, course in courses.items() if course.position != course.before}
    after = {name: replace(c.position, position=c.position.position.join(now.position)) for name, c in courses.items()}
    in_cut = covered(after, now.position)
    files: Files = result.meta_files | schema_change_files(session, states, cycle, courses, now)
    held, written = session.held, result.written
    if held is not None:
        is_plain = bool(in_cut) and not moved and in_cut == tuple(stream.cut_tables) and _all_stream(courses)
        if is_plain and (held.cycle_id or written or files) and not held.is_due(stream):
            hold(session, states, cycle, stream, written, files, now.position)
            return None
        written, files = held.with_read(written, files)

    def record(connection: CatalogConnection) -> None:
        if session.turn is not None:
            claims.end_turn(connection, session.turn)
            if moved:  # others have read by what the tables were
                store.revise(connection, session.name)
        for position in moved.values():
            store.put_position(connection, session.name, position, "read")
        source.remember(connection, stream.epoch, result.by_source.witness)
        if session.source.kind == "kafka":
            live_states.end(connection, session.name, lists=session.source.flush is not None)

    if written or files or in_cut != tuple(stream.cut_tables):
        joining = {name for name in in_cut if name not in stream.cut_tables}
        landing = (*written, *_without_rows(joining, written))
        appends = (
            *(replace(append_of(session, cycle, w), joins=w.name in joining) for w in landing),
            *meta_appends(session, cycle, files),
        )
        publication = replace(
            publication_of(session, cycle, appends),
            revision=stream.revision,
            cut=Cut(stream.epoch, now.position, now.at, in_cut),
            advance_to=now.position,
            record=record,
        )
        publish(session.settings, session.catalog, session.lease, publication)
        session.forget_held()
        tell_dead_letters(session.name, files)
        return written
    with states.transaction():
        leases.check(states, session.lease, session.limits.lease_seconds)
        current = store.read_stream(states, session.name)
        if current is None or current.revision != stream.revision:
            raise Outdated
        record(states)
        store.advance_positions(states, session.name, now.position)
    session.forget_held()
    return written


def _without_rows(joining: Collection[str], written: Collection[Written]) -> list[Written]:
    """The tables that the cut before left out, and of which nothing lands: each gets a snapshot without rows.

    Loads go by the newest snapshot, and read up to the cut. One that came while the table was in no cut has seen rows
    that it did not load: no snapshot later, and it would not look again.
    """
    lands = {each.name for each in written}
    return [Written(name, (), {}, {}) for name in sorted(joining) if name not in lands]


def _all_stream(courses: Courses) -> bool:
    """Whether no table is being loaded, resynced or resumed: others wait for those."""
    return all(course.before.state in ("streaming", "parked", "paused") for course in courses.values())


def schema_change_files(
    session: Session, states: CatalogConnection, cycle: Cycle, courses: Courses, now: SourceNow
) -> dict[str, tuple[DataFile, ...]]:
    """Rows of `meta.schema_changes`: one for each schema change, and for each table that is parked or resynced."""
    rows = [
        row
        for name, course in courses.items()
        if course.position != course.before
        for row in _change_rows(session.name, name, course, cycle, now)
    ]
    if not rows:
        return {}
    table = ensure_meta(session.catalog, "schema_changes")
    meta_metadata(session, states, cycle, "schema_changes")
    data = pa.Table.from_pylist(rows, schema=table.schema().as_arrow())
    return {"schema_changes": tuple(data_files(table.metadata, data, table.io))}


def _change_rows(source: str, name: str, course: Course, cycle: Cycle, now: SourceNow) -> list[dict[str, object]]:
    head = {"source": source, "table": name, "epoch": cycle.epoch}
    head |= {"noticed_lsn": now.position.commit_bound, "noticed_at": now.at}
    rows = [
        head | {"kind": c.kind, "column": c.column, "before": c.before, "after": c.after, "effect": course.effect}
        for c in course.changes
    ]
    if course.position.state != course.before.state:
        rows.append(
            head | {"kind": "table " + course.position.state, "before": course.before.state,
                    "after": course.position.state, "effect": course.position.reason}
        )  # fmt: skip
    return rows

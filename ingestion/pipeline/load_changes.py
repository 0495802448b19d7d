"""Brings the changes of a source into the lake: read below a position, publish with a cut, advance the slot."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

import psycopg
import pyarrow as pa
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from ingestion.pipeline.session import (
    Connection,
    Cycle,
    RowCounts,
    Writer,
    append_of,
    begin_cycle,
    meta_appends,
    meta_metadata,
    register,
    target,
)
from ingestion.pipeline.stream import check_slot
from ingestion.pipeline.survey import Outlook, unaltered, withholding
from ingestion.pipeline.table_plans import Course, conclude, covered, plan_course
from ingestion.schema.problem import TableProblem
from ingestion.sink.meta_tables import ensure_meta
from ingestion.sink.publish import Cut, Outdated, Publication, publish
from ingestion.sink.raw_tables import follow_source, is_under_way
from ingestion.sink.rows import TableTarget
from ingestion.sources.postgres import connection as src
from ingestion.sources.postgres.connection import SourceNow
from ingestion.sources.postgres.history.server import started_at
from ingestion.sources.postgres.history.witness import put_witness
from ingestion.sources.postgres.live import LiveStream
from ingestion.state import lease as leases
from ingestion.state import store
from ingestion.tasks.changes import ChangePlan, ChangeResult, read_changes
from ingestion.tasks.lanes import Kept
from ingestion.tasks.runner import run_tasks
from lakehouse.catalog.private_pyiceberg import data_files
from lakehouse.errors import LakehouseError

Courses = dict[str, Course]


def load_changes(
    writer: Writer,
    connection: Connection,
    states: Connection,
    outlooks: Mapping[str, Outlook],
    now: SourceNow,
    live: LiveStream | None = None,
) -> RowCounts:
    """Everything committed below `now.lsn` to the lake or the spool; returns the rows added by table and operation.

    When nothing changed, positions and slot move on without an Iceberg snapshot. Raises Outdated when a table was
    altered, or its state changed, while this was under way, LiveStreamLost when `live` has ended.
    """
    stream = store.read_stream(states, writer.name)
    assert stream is not None
    positions = store.read_positions(states, writer.name)
    known = {name: position for name, position in positions.items() if name in outlooks and position.state != "new"}
    courses = {name: plan_course(position, outlooks[name]) for name, position in known.items()}
    with begin_cycle(writer, states, stream.epoch) as cycle:
        if not unaltered(writer, connection, withholding(outlooks)):  # else the looks do not bound what is read
            raise Outdated
        received = live.below(now.lsn) if live else None
        follows = any(course.steps for course in courses.values())  # which an alteration asks for that comes alone
        silent = received is not None and not len(received)
        if not courses or (silent and not follows):
            result = ChangeResult((), {}, {}, None)
        else:
            result = _read(writer, connection, states, cycle, courses, outlooks, now, received)
        if not unaltered(writer, connection, outlooks):
            raise Outdated
        if src.publication_oid(writer.settings, connection, writer.name, writer.publication) != stream.publication_oid:
            raise LakehouseError(
                f"source {writer.name!r}: its publication changed during the read; nothing was published"
            )
        if live is None:
            check_slot(writer, stream, src.read_slot(connection, writer.slot))
        courses = {n: conclude(c, result.noticed.get(n, Kept()), now.lsn) for n, c in courses.items()}
        _publish(writer, states, cycle, stream, courses, result, now)
    if live:
        live.confirm(now.lsn)
    else:
        src.advance_slot(connection, writer.slot, now.lsn)
    return {written.name: written.operations for written in result.written}


def stream_url(writer: Writer, connection: Connection) -> str:
    """The source's URL for reading the slot.

    The server's own default of decoding memory is 64 MB; a transaction that outgrows it is sent unfinished, and costs
    the reader a file. A database in SQL_ASCII may hold what is not UTF-8; unless asked not to, the server would check
    it and refuse all.
    """
    memory = f"{writer.limits.decoding_memory_bytes // 1024}kB"
    url = src.source_url(writer.settings.source(writer.name), logical_decoding_work_mem=memory)
    is_ascii = connection.info.parameter_status("server_encoding") == "SQL_ASCII"
    return url.replace("client_encoding=UTF8", "client_encoding=SQL_ASCII") if is_ascii else url


def _read(
    writer: Writer,
    connection: Connection,
    states: Connection,
    cycle: Cycle,
    courses: Courses,
    outlooks: Mapping[str, Outlook],
    now: SourceNow,
    received: pa.Array | None,
) -> ChangeResult:
    """The tables follow their source first; `courses` then park one that cannot."""
    tables = {name: outlooks[name].table for name, course in courses.items() if course.position.versions}
    loaded = writer.catalog.load_tables([table.identifier for table in tables.values()])
    if gone := [".".join(table.identifier) for table in tables.values() if table.identifier not in loaded]:
        raise LakehouseError(
            f"source {writer.name!r}: {', '.join(gone)} is not in the catalog any more: restore it, or make it anew "
            f"with `lakehouse ingest --resnapshot {writer.name}.<table>`"
        )
    icebergs = {name: loaded[table.identifier] for name, table in tables.items()}
    for name, iceberg in icebergs.items():
        course, outlook = courses[name], outlooks[name]
        if course.aside is None and course.before.versions:
            followed, facts = course.before.followed, course.position.facts
            try:
                if course.steps or is_under_way(iceberg, followed):
                    icebergs[name] = follow_source(
                        iceberg, outlook.table, course.steps, followed, facts, cycle.ingested_at
                    )
            except TableProblem as problem:
                courses[name] = plan_course(course.before, replace(outlook, problem=str(problem)))
    meta = meta_metadata(writer, states, cycle, "spool", "quarantine", "unrepresentable")
    register(states, writer, cycle, icebergs.values())
    plan = ChangePlan(
        **(writer.task_settings | {"url": stream_url(writer, connection)}),
        server=started_at(connection),
        slot=writer.slot,
        publication=writer.publication,
        upto_lsn=now.lsn,
        xid=now.xid,
        targets=tuple(_target(cycle, courses[name], outlooks[name], icebergs[name]) for name in tables),
        aside={name: course.aside for name, course in courses.items() if course.aside is not None and name in tables},
        meta=meta,
        received=received,
    )
    return run_tasks(writer.session, read_changes, [plan])[0]


def _target(cycle: Cycle, course: Course, outlook: Outlook, iceberg: Table) -> TableTarget:
    position, seen = course.position, outlook.seen
    return target(
        outlook.table, iceberg, position.facts, cycle, position.lsn, position.versions, seen, is_there=outlook.is_there
    )


def _publish(
    writer: Writer,
    states: Connection,
    cycle: Cycle,
    stream: store.Stream,
    courses: Courses,
    result: ChangeResult,
    now: SourceNow,
) -> None:
    moved = {name: course.position for name, course in courses.items() if course.position != course.before}
    after = {name: replace(c.position, lsn=max(c.position.lsn, now.lsn)) for name, c in courses.items()}
    in_cut = covered(after, now.lsn)
    files = result.meta_files | schema_change_files(writer, states, cycle, courses, now)

    def record(connection: psycopg.Connection) -> None:
        for position in moved.values():
            store.put_position(connection, writer.name, position)
        if result.newest is not None:
            put_witness(connection, writer.name, stream.epoch, result.newest)

    if result.written or files or in_cut != tuple(stream.cut_tables):
        publication = Publication(
            cycle_id=cycle.id,
            source=writer.name,
            epoch=stream.epoch,
            appends=(*(append_of(writer, cycle, w) for w in result.written), *meta_appends(writer, cycle, files)),
            revision=stream.revision,
            cut=Cut(stream.epoch, now.lsn - 1, now.at, in_cut),
            advance_to=now.lsn,
            record=record,
        )
        publish(writer.settings, writer.catalog, writer.lease, publication)
        return
    with states.transaction():
        leases.check(states, writer.lease, writer.limits.lease_seconds)
        current = store.read_stream(states, writer.name)
        if current is None or current.revision != stream.revision:
            raise Outdated
        record(states)
        store.advance_positions(states, writer.name, now.lsn)


def schema_change_files(
    writer: Writer, states: Connection, cycle: Cycle, courses: Courses, now: SourceNow
) -> dict[str, tuple[DataFile, ...]]:
    """One row of `meta.schema_changes` for each alteration, and for each table that is parked or read anew by doubt."""
    rows = [
        row
        for name, course in courses.items()
        if course.position != course.before
        for row in _change_rows(writer.name, name, course, cycle, now.lsn, now.at)
    ]
    if not rows:
        return {}
    table = ensure_meta(writer.catalog, "schema_changes")
    meta_metadata(writer, states, cycle, "schema_changes")
    data = pa.Table.from_pylist(rows, schema=table.schema().as_arrow())
    return {"schema_changes": tuple(data_files(table.metadata, data, table.io))}


def _change_rows(
    source: str, name: str, course: Course, cycle: Cycle, lsn: int, at: datetime
) -> list[dict[str, object]]:
    head = {"source": source, "table": name, "epoch": cycle.epoch, "noticed_lsn": lsn, "noticed_at": at}
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

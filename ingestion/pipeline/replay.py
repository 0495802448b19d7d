"""Lands what was kept aside: the spool of a table that resumes, and on demand what is left there and in quarantine."""

import logging
from dataclasses import replace

from pyiceberg.expressions import AlwaysFalse, And, BooleanExpression, EqualTo, GreaterThanOrEqual, LessThan, Or
from pyiceberg.table import Table

from ingestion.pipeline.load_changes import schema_change_files, tell_dead_letters
from ingestion.pipeline.session import (
    Cycle,
    RowCounts,
    Session,
    add_counts,
    append_of,
    begin_cycle,
    meta_appends,
    meta_metadata,
    publication_of,
    register,
    settle,
    target,
)
from ingestion.pipeline.survey import Outlook
from ingestion.pipeline.table_plans import Course, conclude, plan_course
from ingestion.schema.problem import TableProblem
from ingestion.sink.aside import of_table
from ingestion.sink.meta_tables import ensure_meta
from ingestion.sink.publish import publish
from ingestion.sink.raw_tables import follow_source
from ingestion.sources.base import ChecksTogether, OpenSource
from ingestion.state import store
from ingestion.state.transitions import Mover
from ingestion.tasks.lanes import Findings
from ingestion.tasks.replay import ReplayPlan, merged, replay
from ingestion.tasks.runner import run_tasks
from ingestion.tasks.shared_keys.hold import SPLIT
from lakehouse.catalog.loads.load_facts import LANDED_LATE, moment
from lakehouse.catalog.open import load_table
from lakehouse.catalog.relations import begun_at
from lakehouse.declarations import RawTable
from lakehouse.errors import LakehouseError
from lakehouse.servers.database import CatalogConnection

log = logging.getLogger("lakehouse.replay")
KEPT_IN = ("spool", "quarantine")


def resume(session: Session, source: OpenSource, states: CatalogConnection, outlook: Outlook) -> RowCounts:
    """Lands the spool of a table that is `resuming`, and lets its records land again; parks it anew where that fails.

    To have resumed it is the user's consent to a type change that the lake follows only by setting old values aside: of
    a topic, if that was the reason why it was parked.
    """
    position = store.read_positions(states, session.name)[outlook.table.name]
    if not position.versions:
        settle(session, states, replace(position, state="new", reason=None), "resume")
        return {}
    landing = replace(position, state="streaming", reason=None)
    course = plan_course(landing, outlook, consent=source.holds_tables)
    if course.aside is not None and course.aside == position.reason:  # it was told, and nothing reads a topic anew
        course = plan_course(landing, outlook, consent=True)
    if course.aside is not None:
        settle(session, states, course.position, "resume")
        return {}
    try:
        return _land(session, source, states, outlook, replace(course, before=position), "spool")
    except TableProblem as problem:
        settle(session, states, replace(position, state="parked", reason=str(problem)), "resume")
        return {}


def replay_kept(session: Session, source: OpenSource, states: CatalogConnection, outlook: Outlook) -> RowCounts:
    """Tries the table's quarantined records again, and those left in the spool; what still cannot be read stays.

    Returns the rows that landed.
    """
    rows: RowCounts = {}
    for kept_in in KEPT_IN:  # what lands from the first one may leave the table in need of a resync
        position = store.read_positions(states, session.name).get(outlook.table.name)
        if position is None or not position.lands or not position.versions:
            raise LakehouseError(
                f"source {session.name!r}, table {outlook.table.name!r}: its records do not land now: resume it first"
            )
        rows = add_counts(rows, _land(session, source, states, outlook, Course(position, position, None), kept_in))
    return rows


def _land(
    session: Session,
    source: OpenSource,
    states: CatalogConnection,
    outlook: Outlook,
    course: Course,
    kept_in: str,
) -> RowCounts:
    table, stream = outlook.table, store.read_stream(states, session.name)
    assert stream is not None
    by: Mover = "resume" if course.before.state == "resuming" else "read"
    with begin_cycle(session, states, stream.epoch) as cycle:
        iceberg = session.catalog.load_table(table.identifier)
        followed, facts = course.before.followed, course.position.facts
        iceberg = follow_source(iceberg, table, course.steps, followed, facts, cycle.ingested_at)
        kept = ensure_meta(session.catalog, kept_in)
        all_mine = of_table(session.name, table.name)
        mine, former = _by_begin(all_mine, iceberg)
        register(states, session, cycle, [iceberg])
        plans = _plans(session, source, states, cycle, course, table, iceberg, kept, mine)
        result = merged(run_tasks(session.spark, replay, plans) if plans else [])
        let_go = kept.scan(row_filter=former).count()
        noticed = result.noticed.get(table.name, Findings())
        if result.written and _any_before(kept, mine, stream.epoch, course.position.point.commit_bound):
            noticed = replace(noticed, stale=noticed.stale or "records landed that a later snapshot or repair knew not")
        if result.written and kept_in == "quarantine" and plans[0].target.shares_keys:
            noticed = replace(noticed, stale=noticed.stale or SPLIT)
        course = conclude(course, noticed, stream.position)
        if noticed.parked is not None:  # the spool stays as it is
            settle(session, states, course.position, by)
            return {}
        now = source.now()
        late = {LANDED_LATE: moment(cycle.ingested_at)}
        files = result.meta_files | schema_change_files(session, states, cycle, {table.name: course}, now)

        def record(connection: CatalogConnection) -> None:
            store.put_position(connection, session.name, course.position, by)
            store.revise(connection, session.name)

        appends = (
            *(replace(append_of(session, cycle, written), properties=late) for written in result.written),
            *meta_appends(session, cycle, files, leaving={kept_in: all_mine} if plans or let_go else {}),
        )
        publication = replace(publication_of(session, cycle, appends), record=record, revision=stream.revision)
        publish(session.settings, session.catalog, session.lease, publication)
        tell_dead_letters(session.name, {} if kept_in == "quarantine" else files)
        for says in result.let_go:
            log.warning("source %r: %s; it has left meta.quarantine", session.name, says)
        if let_go:
            log.warning(
                "source %r, table %r: %s records in meta.%s were of a table that was dropped, and have left it",
                session.name, table.name, f"{let_go:,}", kept_in,
            )  # fmt: skip
    return {written.name: written.operations for written in result.written}


def has_spooled(session: Session, table: RawTable, iceberg: Table) -> bool:
    """Whether records of the table are kept aside, of whatever epoch."""
    spool = load_table(session.catalog, "meta", "spool")
    if spool is None:
        return False
    mine, _ = _by_begin(of_table(session.name, table.name), iceberg)
    return spool.scan(row_filter=mine, selected_fields=("epoch",), limit=1).to_arrow().num_rows > 0


def _by_begin(mine: BooleanExpression, iceberg: Table) -> tuple[BooleanExpression, BooleanExpression]:
    """The records of the table, and those of one that had the name before and was dropped: what they say was read
    again, or was not wanted."""
    begun = begun_at(iceberg.properties)
    if begun is None:
        return mine, AlwaysFalse()
    at = begun.isoformat()
    return And(mine, GreaterThanOrEqual(term="kept_at", value=at)), And(mine, LessThan(term="kept_at", value=at))


def _any_before(kept: Table, mine: BooleanExpression, epoch: int, point: int) -> bool:
    """Whether records are older than the table's newest snapshot: what they say may have been undone by then."""
    older = And(EqualTo(term="epoch", value=epoch), LessThan(term="commit_lsn", value=point))
    before = Or(LessThan(term="epoch", value=epoch), older)
    return kept.scan(row_filter=And(mine, before), selected_fields=("epoch",)).to_arrow().num_rows > 0


def _plans(
    session: Session,
    source: OpenSource,
    states: CatalogConnection,
    cycle: Cycle,
    course: Course,
    table: RawTable,
    iceberg: Table,
    kept: Table,
    mine: BooleanExpression,
) -> list[ReplayPlan]:
    """One for each epoch that has records."""
    epochs = kept.scan(row_filter=mine, selected_fields=("epoch",)).to_arrow().column("epoch").unique().to_pylist()
    meta = meta_metadata(session, states, cycle, "spool", "quarantine", "unrepresentable") if epochs else {}
    landing = target(table, iceberg, course.position.facts, cycle, 0, course.position.versions)
    records, are_dead_letters = source.records({table.name: course.position.facts}), kept.name()[-1] == "quarantine"
    if are_dead_letters and isinstance(records, ChecksTogether):
        records = records.beside_landed()
    return [
        ReplayPlan(
            metadata_json=kept.metadata.model_dump_json(),
            tasks=tuple(kept.scan(row_filter=And(mine, EqualTo(term="epoch", value=epoch))).plan_files()),
            target=replace(landing, epoch=epoch),
            meta=meta,
            io_properties=session.task_settings["io_properties"],
            file_bytes=session.limits.file_bytes,
            records=records,
            since=begun_at(iceberg.properties),
            lets_go=are_dead_letters,
        )
        for epoch in epochs
    ]

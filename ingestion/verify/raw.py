"""Reconciles the raw layer with the source at one cut, while both go on, and repairs it on demand."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyiceberg.types import DoubleType, FloatType

from ingestion.mirrors.refresh import refresh
from ingestion.pipeline.cycle import MAX_REPLANS, connections, run_cycle
from ingestion.pipeline.load_changes import load_changes
from ingestion.pipeline.repair.compare import Comparison, Wanted, compare, plain_errors
from ingestion.pipeline.repair.stage import write_repair
from ingestion.pipeline.session import Session, appends_of, begin_cycle, publication_of, register
from ingestion.pipeline.survey import survey
from ingestion.pipeline.together import HELD_SECONDS
from ingestion.run.api import bring_up
from ingestion.run.mirrors import mirrors_held
from ingestion.schema.compared import KeyRange, stand_ins
from ingestion.schema.facts import TableFacts
from ingestion.sink.publication import Cut
from ingestion.sink.publish import Outdated, publish
from ingestion.sink.writer import Written, pack, unpack
from ingestion.sources.base import Point
from ingestion.state import lease as leases
from ingestion.state import store
from ingestion.tasks.outage import OUTAGES, outage
from ingestion.verify.compare import TableComparison
from ingestion.verify.differences import ComparedColumn, add, examine
from ingestion.verify.run import select, without_logs
from lakehouse.catalog.open import open_catalog
from lakehouse.declarations import Declarations, RawTable, Source
from lakehouse.errors import LakehouseError
from lakehouse.servers.spark import spark_session
from lakehouse.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLES_AT_A_POINT = 64
TABLES_TOGETHER = 16


def reconcile_raw(
    settings: Settings,
    declarations: Declarations,
    wanted: Sequence[str] = (),
    *,
    key_range: KeyRange | None = None,
    repair: bool = False,
    mirrors: bool = False,
    spark: SparkSession | None = None,
) -> Iterator[TableComparison]:
    """Compares the wanted tables (`source`, `source.table`; all when empty) with their raw logs, at one consistent
    point of each source up to which the lake is brought first; yields each as it is done. A point is let go after
    HELD_SECONDS, or as many tables, and another one made for the rest; a large table has one of its own.

    With `repair`, what differs is published as events of that point. With `mirrors` the mirrors are compared, which
    are refreshed at the point. Tables without a key, or without a mirror, come first: they are not compared. Raises
    LakehouseError for an unknown name, a server that does not answer, and with `repair` or `mirrors` while another
    writer is at work.
    """
    chosen, logs = without_logs(settings, select(declarations, wanted))
    yield from logs
    yield from (_without_key(table) for _, tables in chosen for table in tables if not table.key)
    if mirrors:
        unmirrored = [table for _, tables in chosen for table in tables if table.key and not table.is_mirrored]
        yield from (TableComparison(t.source, t.name, (), aside="declared without a mirror") for t in unmirrored)
    keyed = [
        (source, found)
        for source, tables in chosen
        if (found := [table for table in tables if (table.is_mirrored if mirrors else table.key)])
    ]
    if not keyed:
        return
    running = spark or spark_session(settings, "lakehouse-reconcile")
    for source, tables in keyed:
        with _session(settings, source, running, alone=repair or mirrors) as session:
            waiting = list(tables)
            while waiting:
                looked_at = at_one_point(waiting, _sizes(session, waiting), session.limits.snapshot_chunk_bytes)
                with _at_point(session, looked_at, repair or mirrors) as (point, made_at):
                    if mirrors:
                        _refresh(session)
                    while looked_at:
                        group, looked_at = looked_at[:TABLES_TOGETHER], looked_at[TABLES_TOGETHER:]
                        waiting = [table for table in waiting if table not in group]
                        yield from _reconcile_tables(session, group, point, key_range, repair, mirrors)
                        if time.monotonic() - made_at > HELD_SECONDS:
                            break


def at_one_point(tables: Sequence[RawTable], sizes: Mapping[str, int], large: int) -> list[RawTable]:
    """Which of the tables share the next point: the first one if it is large, else the small ones, in their order."""
    if sizes[tables[0].name] > large:
        return [tables[0]]
    return [table for table in tables if sizes[table.name] <= large][:TABLES_AT_A_POINT]


def _sizes(session: Session, tables: Sequence[RawTable]) -> dict[str, int]:
    with connections(session) as (source, _):
        return {name: sum(sizes) for name, sizes in source.sizes(tables).items()}


def _without_key(table: RawTable) -> TableComparison:
    """What is said of a table whose rows cannot be paired."""
    remedy = f"`lakehouse ingest --resnapshot {table.source}.{table.name}` makes the lake equal"
    return TableComparison(table.source, table.name, (), aside=f"without a key, so its rows cannot be paired: {remedy}")


@contextmanager
def _session(settings: Settings, source: Source, spark: SparkSession, alone: bool) -> Iterator[Session]:
    """The source's writer; with `alone` it holds the lease, else its lease is one that could not publish."""
    with closing(open_catalog(settings)) as catalog:
        reader = Session(settings, catalog, spark, leases.Lease(source.name, 0, ""), source)
        if not alone:
            yield reader
            return
        with store.connect_catalog(settings) as states:
            store.ensure_state(states)
            lease = leases.acquire(states, source.name, settings.ingestion.lease_seconds, "once")
            held = leases.holder_of(states, source.name)
        if lease is None:
            raise LakehouseError(
                f"source {source.name!r}: {held[0] if held else 'another session'} is at work: stop it, then repair"
            )
        with leases.kept_alive(settings, lease):
            yield replace(reader, lease=lease)


@contextmanager
def _at_point(session: Session, tables: list[RawTable], alone: bool) -> Iterator[tuple[Point, float]]:
    """A point below which the lake has everything, with `alone` and nothing from there on; when it was made."""
    declared = Declarations(sources=(session.source,))
    try:
        if alone:
            run_cycle(session)
        else:
            bring_up(session.settings, declared, session.name, session.spark)
        with session.upstream.snapshot(tables) as point:
            made_at = time.monotonic()
            if alone:
                _read_exactly_to(session, point)
            else:
                bring_up(session.settings, declared, session.name, session.spark)
            yield point, made_at
    except OUTAGES as error:
        raise outage(session.name, error) from error


def _read_exactly_to(session: Session, point: Point) -> None:
    """Changes after the point must not land before its repair: they may leave out values that the repair restates."""
    for _ in range(MAX_REPLANS):
        with connections(session) as (source, states), suppress(Outdated):
            source.check(states)
            outlooks = survey(session, source, store.read_positions(states, session.name))
            now = source.now()
            load_changes(session, source, states, outlooks, replace(now, position=point.position, at=point.at))
            return
    raise LakehouseError(f"source {session.name!r}: its tables are altered faster than they can be read; try again")


def _refresh(session: Session) -> None:
    """Brings the mirrors to the point, up to which the lake has been read."""
    with mirrors_held(session.settings, session.name) as lease, store.connect_catalog(session.settings) as states:
        refresh(replace(session, lease=lease), states)


def _reconcile_tables(
    session: Session,
    tables: Sequence[RawTable],
    point: Point,
    key_range: KeyRange | None,
    repair: bool,
    mirrors: bool,
) -> Iterator[TableComparison]:
    """The tables' digests together, then each by itself what differs."""
    started = time.monotonic()
    with store.connect_catalog(session.settings) as states:
        stream, positions = store.read_stream(states, session.name), store.read_positions(states, session.name)
    assert stream is not None
    asides = {table.name: _aside(positions[table.name], point) for table in tables}
    yield from (TableComparison(t.source, t.name, (), aside=asides[t.name]) for t in tables if asides[t.name])
    streaming = [table for table in tables if not asides[table.name]]
    if not streaming:
        return
    wanted = [_wanted(session, table, positions[table.name].facts, mirrors) for table in streaming]
    compared = compare(session, wanted, point, stream.epoch, key_range)
    share = (time.monotonic() - started) / len(streaming)
    for table, found, item in zip(streaming, compared, wanted, strict=True):
        result = _reconcile_table(session, table, positions[table.name], item.facts, point, found, repair, share)
        if mirrors:
            _count_doubles(session, found, result)
        yield result


def _aside(position: store.TablePosition, point: Point) -> str | None:
    """Why a table is not compared at the point."""
    if position.state != "streaming":
        return f"{position.state}: {position.reason}" if position.reason else position.state
    if not position.point <= point.position:  # its newest rows of a snapshot or repair are true from then on
        return "loaded or resynced while this began: compare it again"
    return None


def _wanted(session: Session, table: RawTable, facts: TableFacts, mirrors: bool) -> Wanted:
    if not mirrors:
        return Wanted(table, session.catalog.load_table(table.identifier), facts)
    declared = replace(facts, columns=tuple(column for column in facts.columns if column.name in table.landed))
    return Wanted(table, session.catalog.load_table(table.mirror_identifier), declared, is_mirror=True)


def _count_doubles(session: Session, found: Comparison, result: TableComparison) -> None:
    """Rows beyond one per key, which a comparison by key does not see."""
    rows = session.spark.table(found.lake_table).count()
    result.extra += rows - result.lake_rows
    result.lake_rows = rows


def _reconcile_table(
    session: Session,
    table: RawTable,
    position: store.TablePosition,
    facts: TableFacts,
    point: Point,
    found: Comparison,
    repair: bool,
    seconds: float,
) -> TableComparison:
    started = time.monotonic()
    result = _looked_at(session, table, facts, found)
    if doubled := _doubled(table, result):
        found = replace(found, leaves_doubled=True)
        result = _looked_at(session, table, facts, found)
        if result.equal:
            result.aside = doubled
        else:
            result.doubled = doubled
    point.check()
    if repair and not (result.equal or result.aside):
        written = _publish_repair(session, table, position, point, found)
        result.repaired = dict(written.operations)
    result.seconds = seconds + time.monotonic() - started
    return result


def _looked_at(session: Session, table: RawTable, facts: TableFacts, found: Comparison) -> TableComparison:
    result = TableComparison(table.source, table.name, tuple(column.source.name for column in found.columns))
    result.source_rows, result.lake_rows = found.rows
    result.absent_columns = tuple(c.name for c in facts.columns if c.name not in result.columns)
    if found.buckets:
        _look_closer(session, table, found, result)
    return result


def _doubled(table: RawTable, result: TableComparison) -> str | None:
    """Why rows are no rows of the lake's although none is missing: the source has several of one declared key, which a
    comparison by key takes for one."""
    more = result.source_rows - result.lake_rows - result.missing + result.extra
    if more <= 0:
        return None
    return (
        f"ambiguous: {more} rows have the declared key ({', '.join(table.key)}) of another one, and the lake shows "
        "one of each: declare a key that tells rows apart, or delete those that are too many and add a unique index"
    )


def _publish_repair(
    session: Session, table: RawTable, position: store.TablePosition, point: Point, found: Comparison
) -> Written:
    """Publishes the events with a cut that holds them: readers go no further than the newest cut."""
    with store.connect_catalog(session.settings) as states:
        stream = store.read_stream(states, session.name)
        assert stream is not None
        with begin_cycle(session, states, stream.epoch) as cycle:
            iceberg = session.catalog.load_table(table.identifier)
            register(states, session, cycle, [iceberg])
            written = write_repair(session, cycle, table, iceberg, position.facts, point, found)
            point.check()
            publication = replace(
                publication_of(session, cycle, appends_of(session, cycle, [written])),
                cut=Cut(stream.epoch, stream.position, point.at, tuple(stream.cut_tables)),
            )
            publish(session.settings, session.catalog, session.lease, publication)
    return written


def _look_closer(session: Session, table: RawTable, found: Comparison, result: TableComparison) -> None:
    """Rows of the differing ranges, compared in Spark tasks."""
    columns = compared_columns(table, found)
    empty = pack(TableComparison(table.source, table.name, result.columns))

    def compare_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        part = unpack(empty)
        assert isinstance(part, TableComparison)
        examine(part, columns, batches)
        yield pa.RecordBatch.from_pydict({"result": [pack(part)]})

    sides = [f"s{i}" for i in range(len(columns))]
    sides += [f"{column.lake_text(f'c{i}')} AS l{i}" for i, column in enumerate(found.columns)]
    with plain_errors(table):
        rows = found.differences(printed=False)
        parts = rows.selectExpr("line", "lake_line", *sides).mapInArrow(compare_rows, "result binary").collect()
    for row in parts:
        part = unpack(bytes(row["result"]))
        assert isinstance(part, TableComparison)
        add(result, part)


def compared_columns(table: RawTable, found: Comparison) -> list[ComparedColumn]:
    """How each column's spelling is to be read."""
    return [
        ComparedColumn(
            name=column.source.name,
            is_key=column in found.key,
            bits={FloatType: "f", DoubleType: "d"}.get(type(column.lake_type)),  # type: ignore[arg-type]
            stand_ins=() if column.mask else stand_ins(table.raw.on_unrepresentable, str(column.lake_type)),
        )
        for column in found.columns
    ]

"""Writes the events that make a table's raw log right at a point: `r` for rows that are missing or differ, `d` for keys
that the source no longer has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.table import Table

from ingestion.pipeline.repair.compare import Comparison, Wanted, compare, plain_errors
from ingestion.pipeline.repair.spelling import SpelledColumn
from ingestion.pipeline.session import Cycle, Session, meta_metadata, target
from ingestion.schema.compared import KeyRange
from ingestion.schema.facts import TableFacts
from ingestion.schema.problem import TableProblem
from ingestion.sink.rows import BadRow, Counts, TableTarget, raw_rows
from ingestion.sink.writer import TableWriter, Written, merge, pack, unpack, write_unrepresentable
from ingestion.sources.base import Point
from ingestion.state import store
from ingestion.tasks.snapshot import CHUNK_SEQ, rows_at
from lakehouse.catalog.file_io import file_io
from lakehouse.declarations import RawTable
from lakehouse.errors import LakehouseError

# Far above any snapshot's chunk of the same point; deletes come before rows.
DELETE_SEQ = 1 << 61
ROW_SEQ = 1 << 62


@dataclass(frozen=True)
class RepairTask:
    """How a Spark task writes its share of the differences. Travels by pickle; holds secrets."""

    target: TableTarget
    columns: tuple[SpelledColumn, ...]
    key: tuple[SpelledColumn, ...]
    point: Point
    unrepresentable: str
    io_properties: dict[str, str]
    file_bytes: int


def stage_repair(
    session: Session,
    cycle: Cycle,
    table: RawTable,
    iceberg: Table,
    facts: TableFacts,
    point: Point,
    key_range: KeyRange | None = None,
) -> Written:
    """Writes, below the cycle's staged prefix, the events that make the log below `point` say what the source has.

    The caller holds the point, has registered the prefix, and publishes; once per table and point, as the events are
    numbered from the same base. Raises ValueError for a table without a key, LakehouseError for what cannot be read.
    """
    (found,) = compare(session, [Wanted(table, iceberg, facts)], point, cycle.epoch, key_range)
    return write_repair(session, cycle, table, iceberg, facts, point, found)


def write_repair(
    session: Session, cycle: Cycle, table: RawTable, iceberg: Table, facts: TableFacts, point: Point, found: Comparison
) -> Written:
    """The same for a comparison that has been made."""
    if not found.buckets:
        return Written(table.name, (), {}, {})
    with store.connect_catalog(session.settings) as states:
        unrepresentable = meta_metadata(session, states, cycle, "unrepresentable")["unrepresentable"]
    task = RepairTask(
        target=target(table, iceberg, facts, cycle, from_lsn=0),
        columns=found.columns,
        key=found.key,
        point=point,
        unrepresentable=unrepresentable,
        io_properties=session.task_settings["io_properties"],
        file_bytes=session.limits.file_bytes,
    )

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"result": [pack(_outcome(task, batches))]})

    with plain_errors(table):
        differing = found.differences(printed=True)
        collected = differing.mapInArrow(write, "result binary").collect()
    parts: list[Any] = [unpack(bytes(row["result"])) for row in collected]
    for part in parts:
        if isinstance(part, LakehouseError):
            raise part
    return merge(parts).get(table.name, Written(table.name, (), {}, {}))


def _outcome(task: RepairTask, batches: Iterable[pa.RecordBatch]) -> Written | LakehouseError:
    """Errors for people travel as values."""
    try:
        return _write(task, batches)
    except BadRow as error:
        return TableProblem(task.target.source, task.target.name, str(error))
    except LakehouseError as error:
        return error


def _write(task: RepairTask, batches: Iterable[pa.RecordBatch]) -> Written:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    io = file_io(task.io_properties)
    session = TableWriter(task.target.metadata_json, io, task.file_bytes)
    counts = Counts()
    first = context.partitionId() * CHUNK_SEQ
    deleted, landed = DELETE_SEQ + first, ROW_SEQ + first
    for batch in batches:
        rows = pa.Table.from_batches([batch])
        gone = rows.filter(pc.is_null(rows.column("line")))
        if gone.num_rows:
            session.add(_deletes(task, gone, deleted, session.schema, counts))
        deleted += gone.num_rows
        there = _really_different(task, rows.filter(pc.is_valid(rows.column("line"))), session.schema)
        meta = rows_at(task.point, "r", landed, there.num_rows)
        session.add(raw_rows(task.target, _texts(task.columns, there), meta, session.schema, counts))
        landed += there.num_rows
    unrepresentable = write_unrepresentable(counts.texts, task.unrepresentable, io, task.file_bytes)
    return Written(task.target.name, session.close(), counts.operations, counts.unrepresentable, unrepresentable)


def _texts(columns: Sequence[SpelledColumn], rows: pa.Table) -> dict[str, pa.ChunkedArray]:
    return {column.source.name: rows.column(f"s{i}") for i, column in enumerate(columns)}


def _deletes(task: RepairTask, rows: pa.Table, first_seq: int, schema: pa.Schema, counts: Counts) -> pa.Table:
    """A delete carries the key as the lake has it."""
    deletes = raw_rows(task.target, {}, rows_at(task.point, "d", first_seq, rows.num_rows), schema, counts)
    for column in task.key:
        index = schema.get_field_index(column.lake_name)
        value = rows.column(f"c{task.columns.index(column)}").cast(schema.field(index).type)
        deletes = deletes.set_column(index, schema.field(index), value)
    return deletes


def _really_different(task: RepairTask, rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Without the rows that would land as the lake has them already: a value that the lake cannot hold is spelled
    otherwise there, by the table's policy."""
    if task.target.policy == "error":
        return rows
    counts = Counts()
    landing = raw_rows(
        task.target, _texts(task.columns, rows), rows_at(task.point, "r", 0, rows.num_rows), schema, counts
    )
    if not counts.unrepresentable:
        return rows
    same = pc.is_valid(rows.column("lake_line"))
    for i, column in enumerate(task.columns):
        same = pc.and_(same, _same(landing.column(column.lake_name), rows.column(f"c{i}")))
    return rows.filter(pc.invert(same))


def _same(landing: pa.ChunkedArray, lake: pa.ChunkedArray) -> pa.ChunkedArray:
    lake = lake.cast(landing.type)
    if pa.types.is_floating(landing.type):  # as text, NaN is NaN and -0 is not 0
        landing, lake = landing.cast(pa.string()), lake.cast(pa.string())
    both_null = pc.and_(pc.is_null(landing), pc.is_null(lake))
    return pc.or_(both_null, pc.fill_null(pc.equal(landing, lake), False))

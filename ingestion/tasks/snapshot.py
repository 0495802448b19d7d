"""Snapshots: all rows of a table at one consistent point of the source, read in ranges by Spark tasks."""

from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa

from ingestion.schema.changes import META_SCHEMA
from ingestion.schema.problem import TableProblem
from ingestion.schema.types import NeedsText
from ingestion.sink.rows import BadRow, Counts, TableTarget, raw_rows
from ingestion.sink.writer import TableWriter, Written, write_unrepresentable
from ingestion.sources.base import Point, RowReader
from lakehouse.catalog.file_io import file_io

CHUNK_SEQ = 1 << 32


@dataclass(frozen=True)
class ChunkPlan:
    """One range to read at a point, by its number. Travels by pickle; holds secrets."""

    source: str
    reader: RowReader
    number: int
    point: Point
    target: TableTarget
    restart: bool
    unrepresentable: str
    io_properties: dict[str, str]
    file_bytes: int


def read_chunk(plan: ChunkPlan) -> Written:
    """Reads and writes one range.

    A value that only its text describes makes the whole range be read again as text. Raises LakehouseError naming
    source and relation, TableProblem for a value that does not land.
    """
    try:
        return _read_chunk(plan, as_text=False)
    except NeedsText:
        return _read_chunk(plan, as_text=True)


def _read_chunk(plan: ChunkPlan, *, as_text: bool) -> Written:
    counts = Counts()
    io = file_io(plan.io_properties)
    writer = TableWriter(plan.target.metadata_json, io, plan.file_bytes)
    if plan.restart and plan.number == 0:
        writer.add(raw_rows(plan.target, {}, rows_at(plan.point, "t", -1, 1), writer.schema, counts))
    row = plan.number * CHUNK_SEQ
    try:
        with closing(plan.reader.rows(as_text=as_text)) as parts:
            for values in parts:
                meta = rows_at(plan.point, "r", row, values.num_rows)
                writer.add(raw_rows(plan.target, values, meta, writer.schema, counts))
                row += values.num_rows
    except BadRow as error:
        raise TableProblem(plan.source, plan.target.name, str(error)) from None
    unrepresentable = write_unrepresentable(counts.texts, plan.unrepresentable, io, plan.file_bytes)
    return Written(plan.target.name, writer.close(), counts.operations, counts.unrepresentable, unrepresentable)


def rows_at(point: Point, operation: str, first_seq: int, rows: int) -> pa.Table:
    """Metadata columns of rows that are true at the point: one below it, which sorts before the stream."""
    import numpy as np

    columns = {
        "_op": pa.repeat(operation, rows),
        "_commit_lsn": pa.repeat(pa.scalar(point.position.commit_bound - 1, pa.int64()), rows),
        "_seq": pa.array(np.arange(first_seq, first_seq + rows, dtype=np.int64)),
        "_committed_at": pa.repeat(pa.scalar(point.at, pa.timestamp("us", "UTC")), rows),
    }
    fields = [pa.field(item.name, item.type) for item in META_SCHEMA]
    return pa.table([columns.get(f.name, pa.nulls(rows, f.type)) for f in fields], schema=pa.schema(fields))

"""The source's side: digests that Postgres itself makes, and the rows of the ranges that differ.

The heap is read in page ranges by Spark tasks, each on the point's exported snapshot.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from ingestion.pipeline.repair.spelling import SpelledColumn, source_cell
from ingestion.sources.postgres.snapshot import from_sql, is_of_the_table, reason_of, refused
from ingestion.state.chunks import Chunk
from ingestion.tasks.runner import run_tasks, run_threads
from lakehouse.errors import LakehouseError
from lakehouse.text.sql import literal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MAX_TASKS = 64
READERS = 4  # connections to the source that read small tables
BUCKET_DIGITS = 3
Digests = dict[str, tuple[int, int]]


@dataclass(frozen=True)
class SourceRead:
    """Statements to run on the point's snapshot in one task. Travels by pickle; holds secrets."""

    source: str
    table: str
    url: str
    snapshot: str
    batch_bytes: int
    statements: tuple[str, ...] = ()


def digest_sql(
    columns: Sequence[SpelledColumn], key: Sequence[SpelledColumn], chunk: Chunk, conditions: Sequence[str]
) -> str:
    """Rows and the sum of their 64-bit hashes in each bucket of the key's hash."""
    number = "sum(('x' || substr(line, 1, 16))::bit(64)::bigint)::text"
    return (
        f"SELECT substr(md5(convert_to(key, 'UTF8')), 1, {BUCKET_DIGITS}) AS bucket, count(*) AS rows,"
        f" {number} AS total FROM ({_lines(columns, key, (), chunk, conditions)}) AS lines GROUP BY 1"
    )


def rows_sql(
    columns: Sequence[SpelledColumn],
    key: Sequence[SpelledColumn],
    shown: Sequence[str],
    chunk: Chunk,
    conditions: Sequence[str],
    buckets: Sequence[str] | None,
) -> str:
    """Key, hash and the `shown` expressions (`s0`, `s1` …) of the rows in the buckets; of all when they are None."""
    if buckets is None:
        return _lines(columns, key, shown, chunk, conditions)
    listed = ", ".join(map(literal, buckets))
    spelled = " || ".join(source_cell(column.source_text) for column in key)
    bucket = f"substr(md5(convert_to({spelled}, 'UTF8')), 1, {BUCKET_DIGITS}) IN ({listed})"
    return _lines(columns, key, shown, chunk, [*conditions, bucket])


def _lines(
    columns: Sequence[SpelledColumn],
    key: Sequence[SpelledColumn],
    shown: Sequence[str],
    chunk: Chunk,
    conditions: Sequence[str],
) -> str:
    """`OFFSET 0` keeps Postgres from printing a value once for every place that uses it."""
    texts = [f"{column.source_text} AS c{i}" for i, column in enumerate(columns)]
    texts += [f"{expression} AS s{i}" for i, expression in enumerate(shown)]
    relations, pages = from_sql(chunk)
    where = " AND ".join([*pages, *conditions]) or "true"
    inner = f"SELECT {', '.join(texts)} FROM {relations} WHERE {where} OFFSET 0"
    cells = " || ".join(source_cell(f"c{i}") for i in range(len(columns)))
    keys = " || ".join(source_cell(f"c{columns.index(column)}") for column in key)
    outer = "".join(f", s{i}" for i in range(len(shown)))
    return f"SELECT {keys} AS key, md5(convert_to({cells}, 'UTF8')) AS line{outer} FROM ({inner}) AS printed"


def spread(read: SourceRead, statements: Sequence[str]) -> list[SourceRead]:
    """The statements over at most MAX_TASKS tasks."""
    tasks = min(MAX_TASKS, len(statements))
    return [replace(read, statements=tuple(statements[first::tasks])) for first in range(tasks)]


def source_digests(session: SparkSession, reads: Sequence[Sequence[SourceRead]]) -> list[Digests]:
    """The digests of each table's statements together: tables of one statement are read from here, those of several
    in one Spark job. Raises LakehouseError."""
    merged: list[Digests] = [{} for _ in reads]
    small = [(place, read) for place, of_table in enumerate(reads) for read in of_table if len(of_table) == 1]
    large = [(place, read) for place, of_table in enumerate(reads) for read in of_table if len(of_table) > 1]
    parts = run_threads(READERS, _digest_task, [read for _, read in small])
    parts += run_tasks(session, _digest_task, [read for _, read in large]) if large else []
    for (place, _), part in zip(small + large, parts, strict=True):
        _merge(merged[place], part.items())
    return merged


def source_frame(session: SparkSession, reads: Sequence[SourceRead], columns: int) -> DataFrame:
    """`key`, `line`, `s0` … of the statements' rows."""

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for index in batch.column("id").to_pylist():
                yield from _batches(reads[index])

    schema = ", ".join(f"{name} string" for name in ("key", "line", *(f"s{i}" for i in range(columns))))
    return session.range(0, len(reads), 1, max(1, len(reads))).mapInArrow(read, schema)


def _digest_task(read: SourceRead) -> Digests:
    merged: Digests = {}
    for batch in _batches(read):
        rows = zip(*(batch.column(name).to_pylist() for name in ("bucket", "rows", "total")), strict=True)
        _merge(merged, ((bucket, (count, int(total))) for bucket, count, total in rows))
    return merged


def _merge(merged: Digests, parts: Iterable[tuple[str, tuple[int, int]]]) -> None:
    for bucket, (rows, total) in parts:
        seen = merged.get(bucket, (0, 0))
        merged[bucket] = (seen[0] + rows, seen[1] + total)


def _batches(read: SourceRead) -> Iterator[pa.RecordBatch]:
    import adbc_driver_postgresql.dbapi as adbc

    try:
        with adbc.connect(read.url) as connection, connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            cursor.execute(f"SET TRANSACTION SNAPSHOT {literal(read.snapshot)}")
            cursor.adbc_statement.set_options(**{"adbc.postgresql.batch_size_hint_bytes": str(read.batch_bytes)})
            for statement in read.statements:
                cursor.execute(statement)
                yield from cursor.fetch_record_batch()
    except adbc.Error as error:
        reason = reason_of(error)
        if is_of_the_table(error):
            raise refused(read.source, read.table, f"a comparison: {reason}", error) from None
        raise LakehouseError(f"source {read.source!r}: reading it for a comparison: {reason}") from None

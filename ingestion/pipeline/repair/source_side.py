"""What the readers of a source's side of a comparison bring: digests in this process or by Spark, rows as a frame."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from ingestion.sources.base import ComparisonReader
from ingestion.tasks.runner import run_tasks, run_threads

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

READERS = 4  # connections to the source that read small tables
Digests = dict[str, tuple[int, int]]


def source_digests(session: SparkSession, reads: Sequence[Sequence[ComparisonReader]]) -> list[Digests]:
    """The digests of each table's readers together: tables with one reader are read by this process, the others in one
    Spark job. Raises LakehouseError."""
    merged: list[Digests] = [{} for _ in reads]
    small = [(i, read) for i, of_table in enumerate(reads) for read in of_table if len(of_table) == 1]
    large = [(i, read) for i, of_table in enumerate(reads) for read in of_table if len(of_table) > 1]
    parts = run_threads(READERS, _digest_task, [read for _, read in small])
    parts += run_tasks(session, _digest_task, [read for _, read in large]) if large else []
    for (i, _), part in zip(small + large, parts, strict=True):
        _merge(merged[i], part.items())
    return merged


def source_frame(session: SparkSession, reads: Sequence[ComparisonReader], columns: int) -> DataFrame:
    """`key`, `line`, `s0` … of the readers' rows."""

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for index in batch.column("id").to_pylist():
                yield from reads[index].batches()

    schema = ", ".join(f"{name} string" for name in ("key", "line", *(f"s{i}" for i in range(columns))))
    return session.range(0, len(reads), 1, max(1, len(reads))).mapInArrow(read, schema)


def _digest_task(read: ComparisonReader) -> Digests:
    merged: Digests = {}
    for batch in read.batches():
        rows = zip(*(batch.column(name).to_pylist() for name in ("bucket", "rows", "total")), strict=True)
        _merge(merged, ((bucket, (count, int(total))) for bucket, count, total in rows))
    return merged


def _merge(merged: Digests, parts: Iterable[tuple[str, tuple[int, int]]]) -> None:
    for bucket, (rows, total) in parts:
        seen = merged.get(bucket, (0, 0))
        merged[bucket] = (seen[0] + rows, seen[1] + total)

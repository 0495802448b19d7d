"""Source and lake at one point: digests first, then a join by key of what lies in the ranges that differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyiceberg.table import Table

from ingestion.context import Writer
from ingestion.describe import TableFacts
from ingestion.repair.key_range import Bounds, KeyRange, bounds
from ingestion.repair.lake_side import lake_digests, lake_state, with_lines
from ingestion.repair.source_side import (
    Digests,
    SourceRead,
    digest_sql,
    rows_sql,
    source_digests,
    source_frame,
    spread,
)
from ingestion.repair.spelling import SpelledColumn, spelled_columns
from ingestion.snapshot import Chunk, Point, plan_chunks
from ingestion.source import connect_source
from lakehouse.declarations import RawTable
from lakehouse.errors import LakehouseError
from lakehouse.sql import spark_relation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MAX_LISTED = 512


@dataclass(frozen=True)
class Comparison:
    """One table at a point: its digests, and what is needed to look closer. Holds secrets."""

    columns: tuple[SpelledColumn, ...]
    key: tuple[SpelledColumn, ...]
    source: Digests
    lake: Digests
    _writer: Writer
    _read: SourceRead
    _chunks: tuple[Chunk, ...]
    _bounds: Bounds
    _lines: DataFrame

    @property
    def rows(self) -> tuple[int, int]:
        """How many rows the source and the lake have."""
        return sum(rows for rows, _ in self.source.values()), sum(rows for rows, _ in self.lake.values())

    @property
    def buckets(self) -> list[str]:
        """The ranges of hashed keys in which the two sides differ."""
        return sorted(b for b in self.source.keys() | self.lake.keys() if self.source.get(b) != self.lake.get(b))

    def differences(self, shown: Sequence[str]) -> DataFrame:
        """The keys of those ranges that differ: `line` and `s0` … (`shown`, SQL for Postgres) of the source, null
        where it has no such row; `lake_line` and `c0` … (values) of the lake, null where that has none."""
        buckets = self.buckets if len(self.buckets) <= MAX_LISTED else None
        statements = [
            rows_sql(self.columns, self.key, shown, chunk, self._bounds.source, buckets) for chunk in self._chunks
        ]
        ours = source_frame(self._writer.session, spread(self._read, statements), len(shown))
        theirs = self._lines if buckets is None else self._lines.where(self._lines["bucket"].isin(buckets))
        theirs = theirs.withColumnsRenamed({"key": "lake_key", "line": "lake_line"}).drop("bucket", "whole")
        joined = ours.join(theirs, ours["key"] == theirs["lake_key"], "full_outer")
        return joined.where("NOT line <=> lake_line")


def compare(
    writer: Writer,
    table: RawTable,
    iceberg: Table,
    facts: TableFacts,
    point: Point,
    epoch: int,
    key_range: KeyRange | None,
) -> Comparison:
    """Digests both sides at the point. Raises LakehouseError, and ValueError for a table without a key."""
    if not table.key:
        raise ValueError(f"source {table.source!r}, table {table.name!r}: no key, so rows cannot be told apart")
    columns = spelled_columns(table, iceberg, facts)
    key = tuple(column for name in table.key for column in columns if column.source.name == name)
    where = f"source {table.source!r}, table {table.name!r}"
    with connect_source(writer.settings, writer.name) as connection:
        kept = bounds(connection, facts.oid, key[0], key_range, where)
        chunks = tuple(plan_chunks(connection, facts, writer.limits.snapshot_chunk_bytes))
    url, size = writer.task_settings["url"], writer.limits.batch_bytes
    read = SourceRead(writer.name, table.name, url, point.snapshot, size)
    name = spark_relation(writer.settings.catalog_name, *iceberg.name()[-2:])
    with plain_errors():
        ours = source_digests(
            writer.session, spread(read, [digest_sql(columns, key, chunk, kept.source) for chunk in chunks])
        )
        state = lake_state(writer.session, name, columns, key, (epoch, point.lsn))
        lines = with_lines(state, columns, kept.on_lake(f"c{columns.index(key[0])}"))
        theirs = lake_digests(lines)
    return Comparison(columns, key, ours, theirs, writer, read, chunks, kept, lines)


@contextmanager
def plain_errors() -> Iterator[None]:
    """A task's LakehouseError comes back as itself rather than inside a page of Spark's."""
    from pyspark.errors import PythonException

    try:
        yield
    except PythonException as error:
        found = str(error).rpartition("lakehouse.errors.LakehouseError: ")
        if not found[1]:
            raise
        raise LakehouseError(found[2].splitlines()[0]) from None

"""Source and lake at one point: digests first, then a join by key of what lies in the ranges that differ."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from pyiceberg.table import Table

from ingestion.pipeline.repair.key_range import Bounds, KeyRange, bounds
from ingestion.pipeline.repair.lake_side import LakeSide, Log, lake_digests, lake_sides
from ingestion.pipeline.repair.small_side import is_small, small_digests
from ingestion.pipeline.repair.source_side import (
    Digests,
    SourceRead,
    digest_sql,
    rows_sql,
    source_digests,
    source_frame,
    spread,
)
from ingestion.pipeline.repair.spelling import SpelledColumn, spelled_columns
from ingestion.pipeline.session import Session
from ingestion.schema.facts import TableFacts
from ingestion.schema.problem import TableProblem
from ingestion.sources.base import Point
from ingestion.sources.postgres.connection import connect_source, source_url
from ingestion.sources.postgres.snapshot import check_readable, plan_chunks
from ingestion.state.chunks import Chunk
from lakehouse.declarations import RawTable
from lakehouse.errors import LakehouseError
from lakehouse.servers.database import SourceConnection
from lakehouse.text.sql import spark_relation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MAX_LISTED = 512
_TOLD = re.compile(r"^(?:lakehouse|ingestion)\.[\w.]*?(\w+): (source .+)$", re.MULTILINE)


@dataclass(frozen=True)
class Comparison:
    """One table at a point: its digests, and what is needed to look closer. Holds secrets."""

    columns: tuple[SpelledColumn, ...]
    key: tuple[SpelledColumn, ...]
    source: Digests
    lake: Digests
    _session: Session
    _read: SourceRead
    _chunks: tuple[Chunk, ...]
    _bounds: Bounds
    _log: Log
    _below: tuple[int, int]

    @cached_property
    def _lake(self) -> LakeSide:
        (side,) = lake_sides(self._session.spark, [self._log], self._below)
        return side

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
        ours = source_frame(self._session.spark, spread(self._read, statements), len(shown))
        theirs = self._lake.lines
        theirs = theirs if buckets is None else theirs.where(theirs["bucket"].isin(buckets))
        theirs = theirs.withColumnsRenamed({"key": "lake_key", "line": "lake_line"}).drop("bucket", "whole")
        joined = ours.join(theirs, ours["key"] == theirs["lake_key"], "full_outer")
        return joined.where("NOT line <=> lake_line")


@dataclass(frozen=True)
class Wanted:
    """A table to compare, as both sides have it."""

    table: RawTable
    iceberg: Table
    facts: TableFacts


@dataclass(frozen=True)
class _Plan:
    """How one table is read on both sides. Holds secrets."""

    columns: tuple[SpelledColumn, ...]
    key: tuple[SpelledColumn, ...]
    read: SourceRead
    chunks: tuple[Chunk, ...]
    bounds: Bounds
    name: str

    @property
    def reads(self) -> list[SourceRead]:
        """The source's digests."""
        statements = [digest_sql(self.columns, self.key, chunk, self.bounds.source) for chunk in self.chunks]
        return spread(self.read, statements)

    @property
    def log(self) -> Log:
        """The lake's side."""
        return Log(self.name, self.columns, self.key, self.bounds)


def compare(
    session: Session, wanted: Sequence[Wanted], point: Point, epoch: int, key_range: KeyRange | None
) -> list[Comparison]:
    """Digests both sides of all the tables at the point, with a few jobs for all of them.

    Raises LakehouseError, and ValueError for a table without a key.
    """
    below = (epoch, point.lsn)
    with connect_source(session.settings, session.name) as connection:
        plans = [_plan(session, connection, item, point, key_range) for item in wanted]
    ours = source_digests(session.spark, [plan.reads for plan in plans])
    theirs = _lake_digests(session, wanted, plans, below)
    return [
        Comparison(plan.columns, plan.key, here, there, session, plan.read, plan.chunks, plan.bounds, plan.log, below)
        for plan, here, there in zip(plans, ours, theirs, strict=True)
    ]


def _lake_digests(
    session: Session, wanted: Sequence[Wanted], plans: Sequence[_Plan], below: tuple[int, int]
) -> list[Digests]:
    """Small logs are read here, the others by Spark."""
    small = [n for n, item in enumerate(wanted) if not plans[n].bounds.lake and is_small(item.iceberg)]
    read = small_digests([(wanted[n].iceberg, plans[n].columns, plans[n].key) for n in small], below)
    found = {n: digests for n, digests in zip(small, read, strict=True) if digests is not None}
    rest = [n for n in range(len(plans)) if n not in found]
    if rest:
        sides = lake_sides(session.spark, [plans[n].log for n in rest], below)
        found |= zip(rest, lake_digests(sides), strict=True)
    return [found[n] for n in range(len(plans))]


def _plan(
    session: Session, connection: SourceConnection, wanted: Wanted, point: Point, key_range: KeyRange | None
) -> _Plan:
    table, facts = wanted.table, wanted.facts
    where = f"source {table.source!r}, table {table.name!r}"
    if not table.key:
        raise ValueError(f"{where}: no key, so rows cannot be told apart")
    check_readable(connection, table, facts)
    columns = spelled_columns(table, wanted.iceberg, facts)
    key = tuple(column for name in table.key for column in columns if column.source.name == name)
    url, size = source_url(session.settings.source(session.name)), session.limits.batch_bytes
    return _Plan(
        columns=columns,
        key=key,
        read=SourceRead(session.name, table.name, url, point.snapshot, size),
        chunks=tuple(plan_chunks(connection, facts, session.limits.snapshot_chunk_bytes)),
        bounds=bounds(connection, facts.oid, key[0], key_range, where),
        name=spark_relation(session.settings.catalog_name, *wanted.iceberg.name()[-2:]),
    )


@contextmanager
def plain_errors(table: RawTable) -> Iterator[None]:
    """An error for people of the table's tasks comes back as itself rather than inside a page of Spark's."""
    from pyspark.errors import PythonException

    try:
        yield
    except PythonException as error:
        told = _TOLD.findall(str(error))
        if not told:
            raise
        kind, text = told[-1]
        if kind == TableProblem.__name__:
            raise TableProblem(table.source, table.name, text.partition(": ")[2]) from None
        raise LakehouseError(text) from None

"""Source and lake at one point: digests first, then a join by key of what lies in the ranges that differ."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from pyiceberg.table import Table

from ingestion.pipeline.repair.lake_side import LakeSide, Log, lake_digests, lake_sides
from ingestion.pipeline.repair.small_side import is_small, small_digests
from ingestion.pipeline.repair.source_side import Digests, source_digests, source_frame
from ingestion.pipeline.repair.spelling import SpelledColumn, spelled_columns
from ingestion.pipeline.session import Session
from ingestion.schema.compared import KeyRange
from ingestion.schema.facts import TableFacts
from ingestion.schema.problem import TableProblem
from ingestion.sources.base import ComparedTable, OpenSource, Point
from lakehouse.declarations import RawTable
from lakehouse.errors import LakehouseError
from lakehouse.text.sql import spark_relation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MAX_LISTED = 512
DOUBLED = "(lake_line IS NOT NULL AND count(line) OVER (PARTITION BY coalesce(key, lake_key)) > 1)"
_TOLD = re.compile(r"^(?:lakehouse|ingestion)\.[\w.]*?(\w+): (source .+)$", re.MULTILINE)


@dataclass(frozen=True)
class Comparison:
    """One table at a point: its digests, and what is needed to look closer. Holds secrets."""

    columns: tuple[SpelledColumn, ...]
    key: tuple[SpelledColumn, ...]
    source: Digests
    lake: Digests
    _spark: SparkSession
    _there: ComparedTable
    _log: Log
    _below: tuple[int, int]
    leaves_doubled: bool = False  # keys that several rows of the source have, of which the lake has one

    @cached_property
    def _lake(self) -> LakeSide:
        (side,) = lake_sides(self._spark, [self._log], self._below)
        return side

    @property
    def lake_table(self) -> str:
        """The lake's table as Spark calls it."""
        return self._log.table

    @property
    def rows(self) -> tuple[int, int]:
        """How many rows the source and the lake have."""
        return sum(rows for rows, _ in self.source.values()), sum(rows for rows, _ in self.lake.values())

    @property
    def buckets(self) -> list[str]:
        """The ranges of hashed keys in which the two sides differ."""
        return sorted(b for b in self.source.keys() | self.lake.keys() if self.source.get(b) != self.lake.get(b))

    def differences(self, *, printed: bool) -> DataFrame:
        """The keys of those ranges that differ: `line` and `s0` … of the source, as the stream prints them or in
        canonical form, null where it has no such row; `lake_line` and `c0` … (values) of the lake, null where that has
        none."""
        buckets = self.buckets if len(self.buckets) <= MAX_LISTED else None
        ours = source_frame(self._spark, self._there.rows(buckets, printed=printed), len(self.columns))
        theirs = self._lake.lines
        theirs = theirs if buckets is None else theirs.where(theirs["bucket"].isin(buckets))
        theirs = theirs.withColumnsRenamed({"key": "lake_key", "line": "lake_line"}).drop("bucket", "whole")
        joined = ours.join(theirs, ours["key"] == theirs["lake_key"], "full_outer")
        if self.leaves_doubled:
            joined = joined.selectExpr("*", f"{DOUBLED} AS doubled").where("NOT doubled").drop("doubled")
        return joined.where("NOT line <=> lake_line")


@dataclass(frozen=True)
class Wanted:
    """A table to compare, as both sides have it: the raw table, or its mirror with the columns that it has."""

    table: RawTable
    iceberg: Table
    facts: TableFacts
    is_mirror: bool = False


@dataclass(frozen=True)
class _Plan:
    """How one table is read on both sides. Holds secrets."""

    columns: tuple[SpelledColumn, ...]
    key: tuple[SpelledColumn, ...]
    there: ComparedTable
    log: Log


def compare(
    session: Session, wanted: Sequence[Wanted], point: Point, epoch: int, key_range: KeyRange | None
) -> list[Comparison]:
    """Digests both sides of all the tables at the point, with a few jobs for all of them.

    Raises LakehouseError, and ValueError for a table without a key.
    """
    below = (epoch, point.position.commit_bound)
    with session.upstream.open() as source:
        plans = [_plan(session, source, item, point, key_range) for item in wanted]
    ours = source_digests(session.spark, [plan.there.digests() for plan in plans])
    theirs = _lake_digests(session, wanted, plans, below)
    return [
        Comparison(plan.columns, plan.key, here, there, session.spark, plan.there, plan.log, below)
        for plan, here, there in zip(plans, ours, theirs, strict=True)
    ]


def _lake_digests(
    session: Session, wanted: Sequence[Wanted], plans: Sequence[_Plan], below: tuple[int, int]
) -> list[Digests]:
    """Small logs are read here, the others by Spark."""
    logs = [n for n, item in enumerate(wanted) if not item.is_mirror]
    small = [n for n in logs if not plans[n].there.bounds and is_small(wanted[n].iceberg)]
    read = small_digests([(wanted[n].iceberg, plans[n].columns, plans[n].key) for n in small], below)
    found = {n: digests for n, digests in zip(small, read, strict=True) if digests is not None}
    rest = [n for n in range(len(plans)) if n not in found]
    if rest:
        sides = lake_sides(session.spark, [plans[n].log for n in rest], below)
        found |= zip(rest, lake_digests(sides), strict=True)
    return [found[n] for n in range(len(plans))]


def _plan(session: Session, source: OpenSource, wanted: Wanted, point: Point, key_range: KeyRange | None) -> _Plan:
    table, facts = wanted.table, wanted.facts
    if not table.key:
        raise ValueError(f"source {table.source!r}, table {table.name!r}: no key, so rows cannot be told apart")
    columns = spelled_columns(table, wanted.iceberg, facts)
    key = tuple(column for name in table.key for column in columns if column.source.name == name)
    there = source.compared(table, facts, columns, key, point, key_range)
    name = spark_relation(session.settings.catalog_name, *wanted.iceberg.name()[-2:])
    return _Plan(columns, key, there, Log(name, columns, key, there.bounds, wanted.is_mirror))


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

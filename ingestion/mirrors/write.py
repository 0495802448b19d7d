"""Writes a mirror's next rows to its copy: key by key with position deletes, or all of them as new files.

Readers of plain Iceberg know both; none has to know equality deletes. A small mirror is written anew, in one file: that
costs less than the deletes. So is one whose deletes have become many, which happens so seldom that on average it costs
no more than the changes themselves. What refreshes have added is merged now and then, as a reader pays for a file more
than for its rows.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyiceberg.types import IcebergType

from ingestion.mirrors.changes import Changes, key_bounds, key_range
from lakehouse.text.sql import spark_ident, spark_literal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

SMALL_BYTES = 16 * 1024 * 1024
FILE_BYTES = 128 * 1024 * 1024
LARGEST_BYTES = 2**50
MANY_DELETES = 0.2  # of the rows
MERGED_BYTES = 8 * 1024 * 1024  # a file of that size is merged no more
FAN = 8  # files that refreshes have added become one
BRANCH = "lakehouse_refresh"
COUNTED = ("count(*) AS changed", "count_if(gone) AS gone")


@dataclass(frozen=True)
class Size:
    """A mirror's files; `added` of them since files were last merged, compacted or all written."""

    bytes: int
    rows: int
    deletes: int
    added: int = 0


@dataclass(frozen=True)
class Target:
    """The copy to write: its name in Spark, and its columns, the key's among them."""

    table: str
    columns: Sequence[str]
    key: Sequence[str]
    leading: IcebergType


def is_written_anew(size: Size, changed: int) -> bool:
    """Whether all rows are written rather than those that changed."""
    return size.bytes <= SMALL_BYTES or size.deletes + changed > MANY_DELETES * size.rows


def write_changes(spark: SparkSession, target: Target, size: Size, changes: Changes) -> tuple[int, int]:
    """Brings the copy up to date; how many keys have a new row, and how many are gone."""
    from pyspark.sql.functions import expr

    row = changes.rows.agg(*map(expr, (*COUNTED, *key_bounds("k0", target.leading)))).first()
    assert row is not None
    if is_written_anew(size, row["changed"]):
        rows = _after(spark.table(target.table), target, changes.rows)
        write_all(target, rows, size.bytes)
    else:
        if size.added >= FAN:
            spark.sql(merge_sql(target))
        _replace(spark, target, changes.rows, row, size)
    return row["changed"] - row["gone"], row["gone"]


def write_all(target: Target, rows: DataFrame, expected_bytes: int) -> None:
    """Replaces all rows, in the order of the key where they are many."""
    from pyspark.sql.functions import col, lit

    rows = rows.select(*(col(spark_ident(name)) for name in target.columns))
    files = expected_bytes // FILE_BYTES + 1
    key = [col(spark_ident(name)) for name in target.key]
    placed = rows.repartitionByRange(files, *key) if files > 1 else rows.coalesce(1)
    placed.sortWithinPartitions(*key).writeTo(target.table).overwrite(lit(True))


def _after(mirror: DataFrame, target: Target, changes: DataFrame) -> DataFrame:
    """The mirror's other rows, and the changed ones."""
    from pyspark.sql.functions import expr

    kept = mirror.alias("t").join(changes.alias("s"), expr(_same(target)), "left_anti")
    return kept.select(*map(spark_ident, target.columns)).unionByName(_new_rows(target, changes))


def merge_sql(target: Target) -> str:
    """The statement that puts one file in the place of the small ones; the large ones stay as they are."""
    catalog = target.table.partition(".")[0]
    options = {
        "target-file-size-bytes": MERGED_BYTES,
        "min-file-size-bytes": MERGED_BYTES * 3 // 4,
        "max-file-size-bytes": LARGEST_BYTES,
        "min-input-files": 2,
        "delete-ratio-threshold": 1.0,
    }
    given = ", ".join(f"'{name}', '{value}'" for name, value in options.items())
    return f"CALL {catalog}.system.rewrite_data_files(table => {spark_literal(target.table)}, options => map({given}))"


def _replace(spark: SparkSession, target: Target, changes: DataFrame, counted: Row, size: Size) -> None:
    """On a branch, so that nobody who travels in time finds the rows gone between the two commits.

    One MERGE would do, but its outer join shuffles and sorts all keys of the mirror: 12 s for 10,000 of 10 million
    rows, where a delete, which holds the changes against them, and an append take 3.
    """
    view = f"mirror_{uuid.uuid4().hex}"
    keys = changes.select(*(f"k{n}" for n in range(len(target.key))))
    keys.localCheckpoint().createOrReplaceTempView(view)  # no DELETE takes a plan that calls Java, as of a double key
    try:
        spark.sql(f"ALTER TABLE {target.table} CREATE OR REPLACE BRANCH {BRANCH}")
        spark.sql(delete_sql(target, view, counted))
    finally:
        spark.catalog.dropTempView(view)
    if counted["changed"] > counted["gone"]:
        files = size.bytes * counted["changed"] // max(size.rows, 1) // FILE_BYTES + 1
        _new_rows(target, changes).coalesce(files).writeTo(_branch(target)).append()


def delete_sql(target: Target, view: str, counted: Row) -> str:
    """The statement, which reads the files of the changed keys alone where they are numbers."""
    within = key_range(f"t.{spark_ident(target.key[0])}", counted)
    named = f"EXISTS (SELECT 1 FROM {view} AS s WHERE {_same(target)})"
    return f"DELETE FROM {_branch(target)} AS t WHERE {within} AND {named}"


def _branch(target: Target) -> str:
    return f"{target.table}.branch_{BRANCH}"


def _same(target: Target) -> str:
    return " AND ".join(f"t.{spark_ident(name)} <=> s.k{n}" for n, name in enumerate(target.key))


def _new_rows(target: Target, changes: DataFrame) -> DataFrame:
    return changes.where("NOT gone").selectExpr(*(f"c{i} AS {spark_ident(n)}" for i, n in enumerate(target.columns)))

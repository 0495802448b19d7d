"""The lake's side: what a raw table's log amounts to below a point, computed by Spark where the data is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ingestion.repair.carried import newest_filled
from ingestion.repair.source_side import BUCKET_DIGITS, Digests
from ingestion.repair.spelling import SpelledColumn, lake_cell
from lakehouse.sql import spark_ident

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Position = tuple[int, int, int]


def lake_state(
    session: SparkSession,
    table: str,
    columns: Sequence[SpelledColumn],
    key: Sequence[SpelledColumn],
    below: tuple[int, int],
) -> DataFrame:
    """The live rows after all events with (`_epoch`, `_commit_lsn`) below `below`.

    `key` is the spelled key, `c0`, `c1` … the values in the order of `columns`, `whole` is false where the log lacks
    a value that an update left out.
    """
    epoch, lsn = below
    log = session.table(table).where(f"_epoch < {epoch} OR _epoch = {epoch} AND _commit_lsn < {lsn}")
    truncated, lacking = _facts(log)
    if truncated is not None:
        log = log.where(_after(truncated))
    lacks = [i for i, column in enumerate(columns) if any(called.name in lacking for called in column.names)]
    return newest_filled(_versions(log, columns, key, lacks), lacks, len(columns))


def with_lines(state: DataFrame, columns: Sequence[SpelledColumn], conditions: Sequence[str]) -> DataFrame:
    """The state with `line`, the hash of each row's spelling, and `bucket`, as the source's side makes them.

    A row that is not whole has a line that no row of the source has.
    """
    cells = ", ".join(lake_cell(column.lake_text(f"c{i}")) for i, column in enumerate(columns))
    kept = state.where(" AND ".join(conditions)) if conditions else state
    return kept.selectExpr(
        "*",
        f"CASE WHEN whole THEN md5(encode(concat({cells}), 'UTF-8')) ELSE 'lacking' END AS line",
        f"substr(md5(encode(key, 'UTF-8')), 1, {BUCKET_DIGITS}) AS bucket",
    )


def lake_digests(lines: DataFrame) -> Digests:
    """Rows and the sum of their 64-bit hashes by bucket; a row that is not whole spoils its bucket's."""
    from pyspark.sql.functions import expr

    number = "CASE WHEN whole THEN CAST(conv(substr(line, 1, 16), 16, -10) AS decimal(20, 0)) ELSE 0.5 END"
    grouped = lines.selectExpr("bucket", f"{number} AS number").groupBy("bucket")
    rows = grouped.agg(expr("count(*) AS rows"), expr("sum(number) AS total")).collect()
    return {row["bucket"]: (row["rows"], row["total"]) for row in rows}


def _facts(log: DataFrame) -> tuple[Position | None, frozenset[str]]:
    """Where the last truncate is, and which columns some update left out."""
    row = log.selectExpr(
        "max(CASE WHEN _op = 't' THEN struct(_epoch, _commit_lsn, _seq) END) AS truncated",
        "array_distinct(flatten(collect_set(_unchanged))) AS lacking",
    ).first()
    assert row is not None
    truncated = row["truncated"]
    return (truncated[0], truncated[1], truncated[2]) if truncated else None, frozenset(row["lacking"] or ())


def _after(position: Position) -> str:
    epoch, lsn, seq = position
    return f"_epoch > {epoch} OR _epoch = {epoch} AND (_commit_lsn > {lsn} OR _commit_lsn = {lsn} AND _seq > {seq})"


def _versions(
    log: DataFrame, columns: Sequence[SpelledColumn], key: Sequence[SpelledColumn], lacks: Sequence[int]
) -> DataFrame:
    here = ", ".join(lake_cell(column.lake_text(spark_ident(column.lake_name))) for column in key)
    before = ", ".join(lake_cell(column.printed_text(column.in_old_key)) for column in key)
    return log.where("_op <> 't'").selectExpr(
        f"concat({here}) AS key",
        f"CASE WHEN _old_key IS NOT NULL THEN concat({before}) END AS from_key",
        "struct(_epoch, _commit_lsn, _seq) AS position",
        "_op AS op",
        *(f"{columns[i].left_out(spark_ident(columns[i].lake_name))} AS l{i}" for i in lacks),
        *(f"{spark_ident(column.lake_name)} AS c{i}" for i, column in enumerate(columns)),
    )

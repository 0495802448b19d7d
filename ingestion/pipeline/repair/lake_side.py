"""The lake's side: what a raw table's log amounts to below a point, computed by Spark where the data is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import TYPE_CHECKING

from ingestion.pipeline.repair.carried import newest_filled
from ingestion.pipeline.repair.key_range import within
from ingestion.pipeline.repair.source_side import Digests
from ingestion.pipeline.repair.spelling import SpelledColumn, lake_cell, old_keys
from ingestion.schema.compared import BUCKET_DIGITS
from lakehouse.text.sql import spark_ident

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

Position = tuple[int, int, int]
_POSITION = ("_epoch", "_commit_lsn", "_seq")
_AT = "struct(_epoch, _commit_lsn, _seq) AS position"
_BUCKET = f"substr(md5(encode(key, 'UTF-8')), 1, {BUCKET_DIGITS})"
_NUMBER = "CAST(conv(substr(line, 1, 16), 16, -10) AS decimal(20, 0))"
_TRUNCATED = "max(CASE WHEN _op = 't' THEN struct(_epoch, _commit_lsn, _seq) END) AS truncated"
_AS_EVENTS = (
    "'r' AS _op", "0 AS _epoch", "0L AS _commit_lsn", "0L AS _seq", "CAST(NULL AS string) AS _old_key",
    "CAST(NULL AS array<string>) AS _unchanged",
)  # fmt: skip
_LACKING = "array_distinct(flatten(collect_set(_unchanged))) AS lacking"


@dataclass(frozen=True)
class Log:
    """A raw table to be read: its name in Spark, how its columns, its key among them, are spelled, and a range.

    A mirror is read as a log that has the newest event of each key alone.
    """

    table: str
    columns: Sequence[SpelledColumn]
    key: Sequence[SpelledColumn]
    bounds: Sequence[tuple[str, str]]
    is_mirror: bool = False

    def within(self, value: str) -> list[str]:
        """The conditions that keep the leading key column's value in the range."""
        return within(value, self.key[0].lake_type, self.bounds)


@dataclass(frozen=True)
class LakeSide:
    """A log's rows below a point, after their last truncate if `is_truncated`; `lacks` are the indexes of the columns
    that some update left out."""

    log: Log
    rows: DataFrame
    lacks: tuple[int, ...]
    is_truncated: bool = False

    @cached_property
    def keyed(self) -> DataFrame:
        """Every version: its `key` spelled, `from_keys` where a key change led to it, `position`, `op`, the values
        `c0`, `c1` … in the order of the columns, and `l0` … of those that an update may have left out."""
        return _versions(self.rows, self.log.columns, self.log.key, self.lacks)

    @cached_property
    def live(self) -> DataFrame:
        """The live rows: `key`, `c0`, `c1` …, and `whole`, which is false where the log lacks a value that an update
        left out."""
        return newest_filled(self.keyed, self.lacks, len(self.log.columns))

    @cached_property
    def lines(self) -> DataFrame:
        """The live rows with `line`, the hash of the row's spelling, and `bucket`, as the source's side makes them. A
        row that is not whole has a line that none has."""
        log, state = self.log, self.live
        conditions = log.within(f"c{log.columns.index(log.key[0])}")
        line = _line([column.lake_text(f"c{i}") for i, column in enumerate(log.columns)])
        kept = state.where(" AND ".join(conditions)) if conditions else state
        return kept.selectExpr("*", f"CASE WHEN whole THEN {line} ELSE 'lacking' END AS line", f"{_BUCKET} AS bucket")

    def versions(self, nth: int) -> DataFrame:
        """Every version as its key and its line alone, so that logs of any columns go together."""
        log = self.log
        conditions = ["_op <> 't'", *log.within(spark_ident(log.key[0].lake_name))]
        keys = ", ".join(lake_cell(column.lake_text(spark_ident(column.lake_name))) for column in log.key)
        line = _line([column.lake_text(spark_ident(column.lake_name)) for column in log.columns])
        return self.rows.where(" AND ".join(conditions)).selectExpr(
            f"{nth} AS log", f"concat({keys}) AS key", _AT, "_op AS op", f"{line} AS line"
        )


def lake_sides(session: SparkSession, logs: Sequence[Log], below: tuple[int, int]) -> list[LakeSide]:
    """Of each log all events with (`_epoch`, `_commit_lsn`) below `below`, and after its last truncate."""
    return sides_of(logs, [_rows(session, log, below) for log in logs])


def _rows(session: SparkSession, log: Log, below: tuple[int, int]) -> DataFrame:
    rows = session.table(log.table)
    return rows.selectExpr("*", *_AS_EVENTS) if log.is_mirror else rows.where(earlier(below))


def sides_of(logs: Sequence[Log], rows: Sequence[DataFrame]) -> list[LakeSide]:
    """Of each log these rows of it, after its last truncate among them."""
    return [_side(log, frame, *facts) for log, frame, facts in zip(logs, rows, _facts(rows), strict=True)]


def earlier(below: tuple[int, int]) -> str:
    """The condition that an event is before this epoch and commit LSN."""
    epoch, lsn = below
    return f"(_epoch < {epoch} OR _epoch = {epoch} AND _commit_lsn < {lsn})"


def _side(log: Log, rows: DataFrame, truncated: Position | None, lacking: frozenset[str]) -> LakeSide:
    lacks = (i for i, column in enumerate(log.columns) if any(called.name in lacking for called in column.names))
    after = rows if truncated is None else rows.where(_after(truncated))
    return LakeSide(log, after, tuple(lacks), truncated is not None)


def lake_digests(sides: Sequence[LakeSide]) -> list[Digests]:
    """Of each table rows and the sum of their 64-bit hashes by bucket; a row that is not whole spoils its bucket's.

    Tables whose updates left nothing out are hashed before their newest versions are looked for, all in one pass.
    """
    plain = [side.versions(n) for n, side in enumerate(sides) if not side.lacks]
    parts = (
        [_newest(_together(plain)).selectExpr("log", f"{_BUCKET} AS bucket", f"{_NUMBER} AS number")] if plain else []
    )
    for n, side in enumerate(sides):
        if side.lacks:
            number = f"CASE WHEN whole THEN {_NUMBER} ELSE 0.5 END AS number"
            parts.append(side.lines.selectExpr(f"{n} AS log", "bucket", number))
    digests: list[Digests] = [{} for _ in sides]
    totals = ("count(*) AS rows", "sum(number) AS total")
    for row in _together(parts).groupBy("log", "bucket").agg(*map(_aggregate, totals)).collect():
        digests[row["log"]][row["bucket"]] = (row["rows"], row["total"])
    return digests


def _newest(versions: DataFrame) -> DataFrame:
    nth = "row_number() OVER (PARTITION BY log, key ORDER BY position DESC) AS nth"
    return versions.selectExpr("*", nth).where("nth = 1 AND op <> 'd'")


def _line(spelled: Sequence[str]) -> str:
    return f"md5(encode(concat({', '.join(map(lake_cell, spelled))}), 'UTF-8'))"


def _facts(logs: Sequence[DataFrame]) -> list[tuple[Position | None, frozenset[str]]]:
    """Of each log where its last truncate is, and which columns some update left out."""
    numbered = [frame.selectExpr(f"{n} AS nth", "_op", *_POSITION, "_unchanged") for n, frame in enumerate(logs)]
    rows = _together(numbered).groupBy("nth").agg(*map(_aggregate, (_TRUNCATED, _LACKING))).collect()
    found: list[tuple[Position | None, frozenset[str]]] = [(None, frozenset())] * len(logs)
    for row in rows:
        at = row["truncated"]
        found[row["nth"]] = (at[0], at[1], at[2]) if at else None, frozenset(row["lacking"] or ())
    return found


def _aggregate(sql: str) -> Column:
    from pyspark.sql.functions import expr

    return expr(sql)


def _together(frames: Sequence[DataFrame]) -> DataFrame:
    """One job for all of them: a job of its own costs a small table more than all its rows."""
    return reduce(lambda one, other: one.unionAll(other), frames)


def _after(position: Position) -> str:
    epoch, lsn, seq = position
    return f"_epoch > {epoch} OR _epoch = {epoch} AND (_commit_lsn > {lsn} OR _commit_lsn = {lsn} AND _seq > {seq})"


def _versions(
    log: DataFrame, columns: Sequence[SpelledColumn], key: Sequence[SpelledColumn], lacks: Sequence[int]
) -> DataFrame:
    here = ", ".join(lake_cell(column.lake_text(spark_ident(column.lake_name))) for column in key)
    return log.where("_op <> 't'").selectExpr(
        f"concat({here}) AS key",
        f"{old_keys(key)} AS from_keys",
        _AT,
        "_op AS op",
        *(f"{columns[i].left_out(spark_ident(columns[i].lake_name))} AS l{i}" for i in lacks),
        *(f"{spark_ident(column.lake_name)} AS c{i}" for i, column in enumerate(columns)),
    )

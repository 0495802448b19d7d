"""What has happened to a table since its mirror was refreshed: the keys that events name, and their rows after them.

It goes by the moment of ingestion and by position, never by Iceberg snapshots: those expire. The newest event of a key
has the whole row, but for large values that an update left out. They are the mirror's, which stands before all these
events as one more version of each key.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from pyiceberg.types import IcebergType, IntegerType, LongType

from ingestion.mirrors.state import MirrorState
from ingestion.pipeline.repair.carried import newest_filled
from ingestion.pipeline.repair.lake_side import LakeSide, Log, earlier, lake_sides, sides_of
from ingestion.pipeline.repair.spelling import lake_cell
from lakehouse.text.sql import spark_ident

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

_LATEST = "unix_micros(max(_ingested_at)) AS latest"
BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)
_BEFORE_ALL = "named_struct('_epoch', -1, '_commit_lsn', -1L, '_seq', -1L)"


class NotWhole(Exception):
    """A live row lacks a value that an update left out, and no earlier version has it either."""


@dataclass(frozen=True)
class Whole:
    """All live rows of a table at a cut, and when the newest event among them was ingested."""

    rows: DataFrame
    ingested_at: datetime


@dataclass(frozen=True)
class Changes:
    """The keys that events name since the last refresh: `k0` … of the key, `c0` … of the row, and `gone`.

    `lacking` says that the mirror lacks a value that an update left out.
    """

    rows: DataFrame
    ingested_at: datetime
    lacking: bool


def whole(spark: SparkSession, log: Log, below: tuple[int, int]) -> Whole:
    """The table at a cut, from its whole history. Raises NotWhole."""
    latest = _latest(spark.table(log.table).where(earlier(below)))  # first: what lands in between is read again
    (side,) = lake_sides(spark, [log], below)
    return _live(side, latest or BEGINNING)


def _live(side: LakeSide, ingested_at: datetime) -> Whole:
    if side.lacks and not side.live.where("NOT whole").isEmpty():
        raise NotWhole
    return Whole(_columns(side.log, side.live), ingested_at)


@contextmanager
def changes_since(
    spark: SparkSession, log: Log, mirror: DataFrame, state: MirrorState, below: tuple[int, int]
) -> Iterator[Changes | Whole | None]:
    """What has happened up to a cut: nothing, changes of keys, or so much that all rows are new.

    The latter after a truncate, and where an event has come late: before the cut at which the mirror stands, as records
    that were kept aside have and those of a repair. Raises NotWhole.
    """
    new = spark.table(log.table).where(f"{earlier(below)} AND {_is_new(state)}").persist()
    try:
        seen = _seen(new, log, state)
        if seen.latest is None:
            yield None
            return
        (side,) = sides_of([log], [new])
        if seen.is_late:
            yield whole(spark, log, below)
        elif side.is_truncated:
            yield _live(side, max(seen.latest, state.ingested_at))
        else:
            rows = _changes(side, mirror.where(seen.keys)).persist()
            try:
                lacking = bool(side.lacks) and not rows.where("NOT gone AND NOT whole").isEmpty()
                yield Changes(rows, max(seen.latest, state.ingested_at), lacking)
            finally:
                rows.unpersist()
    finally:
        new.unpersist()


def _is_new(state: MirrorState) -> str:
    """Without a negation: `_epoch <> 1` would have Iceberg read every file, whatever bounds it has."""
    epoch, lsn = state.epoch, state.cut_lsn
    after = f"_epoch > {epoch} OR _epoch = {epoch} AND _commit_lsn > {lsn}"
    return f"(_ingested_at > timestamp_micros({_micros(state.ingested_at)}) OR {after})"


def _micros(moment: datetime) -> int:
    return int(moment.timestamp()) * 10**6 + moment.microsecond


@dataclass(frozen=True)
class _Seen:
    """New events: when the newest was ingested, whether one came late, and a condition that holds for their keys."""

    latest: datetime | None
    is_late: bool
    keys: str


def _seen(new: DataFrame, log: Log, state: MirrorState) -> _Seen:
    from pyspark.sql.functions import expr

    leading = spark_ident(log.key[0].lake_name)
    late = f"coalesce(bool_or({earlier((state.epoch, state.cut_lsn + 1))}), false) AS late"
    row = new.agg(*map(expr, (_LATEST, late, *key_bounds(leading, log.key[0].lake_type)))).first()
    assert row is not None
    keys = key_range(leading, row)
    return _Seen(_moment(row["latest"]), row["late"], keys)


def key_bounds(leading: str, type_: IcebergType) -> tuple[str, ...]:
    """What `key_range` asks for of the leading key column. No other types: Python has no time of the year 0 or 10000,
    which those of the lake may be in the machine's time zone.
    """
    if not isinstance(type_, IntegerType | LongType):
        return ()
    return f"min({leading}) AS first", f"max({leading}) AS last", f"count_if({leading} IS NULL) AS nulls"


def key_range(leading: str, counted: Row) -> str:
    """Where the leading key column is, if it is a number: it spares the files outside of its range."""
    if "first" not in counted or counted["first"] is None:
        return "true"
    within = f"{leading} BETWEEN {counted['first']} AND {counted['last']}"
    return f"({within} OR {leading} IS NULL)" if counted["nulls"] else within


def _latest(rows: DataFrame) -> datetime | None:
    from pyspark.sql.functions import expr

    row = rows.agg(expr(_LATEST)).first()
    assert row is not None
    return _moment(row["latest"])


def _moment(micros: int | None) -> datetime | None:
    return None if micros is None else BEGINNING + timedelta(microseconds=micros)


def _changes(side: LakeSide, mirror: DataFrame) -> DataFrame:
    from pyspark.sql.functions import expr

    log, versions = side.log, side.keyed
    numbers = [log.columns.index(column) for column in log.key]
    named = ", ".join(f"c{i} AS k{n}" for n, i in enumerate(numbers))
    touched = versions.selectExpr("key", "position", f"struct({named}) AS named")
    touched = touched.groupBy("key").agg(expr("max_by(named, position) AS named"))
    live = side.live if not side.lacks else _filled(side, mirror, touched)
    return touched.join(live, "key", "left").selectExpr(
        "named.*",
        *(f"c{i}" for i in range(len(log.columns))),
        "coalesce(whole, false) AS whole",
        "whole IS NULL AS gone",
    )


def _filled(side: LakeSide, mirror: DataFrame, touched: DataFrame) -> DataFrame:
    """The live rows of the events, with the mirror's rows of the same keys as their first versions: what updates left
    out, as every key has an event that is newer.

    The keys are compared as they are: to spell those of all rows of a mirror takes longer than to read them.
    """
    from pyspark.sql.functions import expr

    log = side.log
    same = " AND ".join(f"t.{spark_ident(column.lake_name)} <=> s.k{n}" for n, column in enumerate(log.key))
    named = mirror.alias("t").join(touched.selectExpr("named.*").alias("s"), expr(same), "left_semi")
    key = ", ".join(lake_cell(column.lake_text(spark_ident(column.lake_name))) for column in log.key)
    before = named.selectExpr(
        f"concat({key}) AS key", "CAST(NULL AS array<string>) AS from_keys", f"{_BEFORE_ALL} AS position", "'r' AS op",
        *(f"false AS l{i}" for i in side.lacks),
        *(f"CASE WHEN {i in side.lacks} THEN {spark_ident(column.lake_name)} END AS c{i}"
          for i, column in enumerate(log.columns)),
    )  # fmt: skip
    return newest_filled(side.keyed.unionByName(before), side.lacks, len(log.columns))


def _columns(log: Log, rows: DataFrame) -> DataFrame:
    return rows.selectExpr(*(f"c{i} AS {spark_ident(column.lake_name)}" for i, column in enumerate(log.columns)))

"""What both texts of a fresh view are made of: what it reads, and how an engine spells it."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from pyiceberg.types import (
    BinaryType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    StringType,
    TimeType,
)

from ingestion.pipeline.repair.spelling import SpelledColumn
from lakehouse.catalog.trino_types import trino_type
from lakehouse.text.sql import literal, spark_ident, spark_literal, trino_ident

LARGE = (StringType, BinaryType, DecimalType)  # an update may leave out values of these types alone
SMALL_DIGITS = (
    24  # a number of so many is no longer than what Postgres puts in the place of a value that it stores apart
)
UUID = 2950  # a type whose values are never stored apart, though a text in the lake
KEY = "_lh_key_"


@dataclass(frozen=True)
class Position:
    """Where the rows of a mirror stand; every cut that was published until `seen` is at or before it.

    `regular` is the tag of raw at which a short text reads (see `lakehouse.catalog.views.regular`); None where there
    can be none.
    """

    snapshot: int
    epoch: int
    cut_lsn: int
    seen: datetime
    regular: str | None = None


@dataclass(frozen=True)
class Column:
    """A column of the view, and of raw and the mirror; `type` is the view's."""

    source: SpelledColumn
    name: str
    type: IcebergType

    @property
    def may_be_left_out(self) -> bool:
        """Whether an update may not carry it."""
        type_ = self.source.lake_type
        is_small = isinstance(type_, DecimalType) and type_.precision <= SMALL_DIGITS
        return isinstance(type_, LARGE) and not is_small and self.source.source.type_oid != UUID


@dataclass(frozen=True)
class FreshView:
    """What a fresh view reads: source and table, the view's columns in order, and the key.

    `catalog` is the lake's name in Trino, `spark_catalog` in Spark. `nulls` are the key's columns in which a row of the
    mirror has a null: the others need no more than an `=`, which reads the files of a key alone.
    """

    catalog: str
    spark_catalog: str
    source: str
    table: str
    columns: Sequence[Column]
    key: Sequence[SpelledColumn]
    nulls: Collection[str] = ()

    @property
    def left_out(self) -> list[Column]:
        """The columns whose values an update may leave out."""
        names = {column.lake_name for column in self.key}
        return [c for c in self.columns if c.may_be_left_out and c.source.lake_name not in names]


@dataclass(frozen=True)
class Dialect:
    """How an engine spells what SQL does not settle. `cast` returns None for a column that it cannot show."""

    ident: Callable[[str], str]
    literal: Callable[[str], str]
    version: str
    boxed: str
    unboxed: str
    contains: str
    text: str
    cast: Callable[[str, Column], str | None]


def _trino_cast(value: str, column: Column) -> str | None:
    if isinstance(column.type, TimeType):
        return f"CAST(at_timezone(from_unixtime_nanos({value} * 1000), 'UTC') AS time(6))"  # not in the session's zone
    type_ = trino_type(str(column.type))
    return f"CAST({value} AS {type_})" if type_ else None


def _spark_cast(value: str, column: Column) -> str | None:
    if isinstance(column.type, TimeType):
        return None
    names = {"long": "bigint", "timestamptz": "timestamp", "timestamp": "timestamp_ntz"}
    type_ = str(column.type)
    return f"CAST({value} AS {names.get(type_, type_.replace('list<', 'array<'))})"


TRINO = Dialect(
    trino_ident, literal, "FOR VERSION AS OF {}", "ARRAY[{}]", "{}[1]", "contains({}, {})", "varchar",
    _trino_cast,
)  # fmt: skip
SPARK = Dialect(
    spark_ident, spark_literal, "VERSION AS OF {}", "array({})", "{}[0]", "array_contains({}, {})",
    "string", _spark_cast,
)  # fmt: skip
_NAMED = re.compile(rf"{TRINO.version.format('([0-9]+)')} AS m\b")  # as `mirror_of` writes it


def mirror_of(view: FreshView, at: Position, say: Dialect) -> str:
    """The mirror at the snapshot, called `m`."""
    mirror = relation_of(say, view.catalog, f"mirror_{view.source}", view.table)
    return f"{mirror} {say.version.format(at.snapshot)} AS m"


def named_snapshots(text: str) -> set[int]:
    """The snapshots of the mirror that a fresh view's text for Trino reads."""
    return {int(number) for number in _NAMED.findall(text)}


def same_key(view: FreshView, say: Dialect) -> str:
    """That a row of the mirror and one of the tail, called `t`, have the same key."""
    own = [comparable(view, column, f"m.{say.ident(column.lake_name)}", say) for column in view.key]
    return " AND ".join(f"{mine} = t.{key}" for mine, key in zip(own, key_names(view), strict=True))


def events(view: FreshView, say: Dialect) -> list[str]:
    """What a text reads of raw, called `r`: the columns, and the key as it is compared."""
    columns = [f"r.{say.ident(column.source.lake_name)}" for column in view.columns]
    keys = [comparable(view, column, f"r.{say.ident(column.lake_name)}", say) for column in view.key]
    return columns + [f"{key} AS {name}" for key, name in zip(keys, key_names(view), strict=True)]


def select_list(view: FreshView, say: Dialect, value: Callable[[Column], str]) -> str:
    """The view's columns, of these values. A `real` is not cast: once the source has widened it, a cast of a double
    would round in silence."""
    shown = ((column, value(column)) for column in view.columns)
    return ", ".join(
        f"{text if isinstance(column.type, FloatType) else say.cast(text, column)} AS {say.ident(column.name)}"
        for column, text in shown
    )


def key_names(view: FreshView) -> list[str]:
    """What the columns of a comparable key are called."""
    return [f"{KEY}{n}" for n in range(len(view.key))]


def comparable(view: FreshView, column: SpelledColumn, value: str, say: Dialect) -> str:
    """For an `=`: a NaN does not equal itself, nor does a null. Trino prints seven digits of a `real`, and all of a
    `double`."""
    has_nulls = column.lake_name in view.nulls
    if isinstance(column.lake_type, FloatType):
        value = f"CAST({value} AS double)"
    if has_nulls and isinstance(column.lake_type, StringType):
        return f"coalesce('=' || {value}, '')"  # a text may be empty
    if has_nulls and isinstance(column.lake_type, BinaryType):
        return f"coalesce(X'3D' || {value}, X'')"
    if has_nulls or isinstance(column.lake_type, DoubleType | FloatType):
        return f"coalesce(CAST({value} AS {say.text}), '')"
    return value


def moment(moment: datetime) -> str:
    """A literal."""
    return f"TIMESTAMP '{moment.astimezone(UTC).strftime('%Y-%m-%d %H:%M:%S.%f')} UTC'"


def relation_of(say: Dialect, *parts: str) -> str:
    """A name of several parts."""
    return ".".join(map(say.ident, parts))

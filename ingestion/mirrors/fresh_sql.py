"""The text of a fresh view: the rows of the mirror whose keys nothing has touched since, and the newest of the others.

It names the mirror's snapshot and its position as literals, so no text takes rows of one state and the position of
another. What raw has after the position is read up to the newest cut, but not beyond one that leaves the table out:
while it is loaded again, raw has rows that belong to no cut. Some changes cannot be followed by SQL that reads the tail
as few times as this does, so the view stays before their commit until the next refresh: a truncate; a key change that
leaves a large value out, whose old key is looked up through others; and events that came late, which are below the
position.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
)

from ingestion.pipeline.repair.spelling import SpelledColumn
from ingestion.schema.former_names import Called
from lakehouse.catalog.current_views import with_past
from lakehouse.catalog.trino_types import trino_type
from lakehouse.text.sql import ident, literal, spark_ident, spark_literal

LARGE = (StringType, BinaryType, DecimalType)  # an update may leave out values of these types alone
SMALL_DIGITS = (
    24  # a number of so many is no longer than what Postgres puts in the place of a value that it stores apart
)
UUID = 2950  # a type whose values are never stored apart, though a text in the lake
KEY = "_lh_key_"


@dataclass(frozen=True)
class Position:
    """Where the rows of a mirror stand; every cut that was published until `seen` is at or before it."""

    snapshot: int
    epoch: int
    cut_lsn: int
    seen: datetime


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

    `catalog` is the lake's name in Trino, `spark_catalog` in Spark.
    """

    catalog: str
    spark_catalog: str
    source: str
    table: str
    columns: Sequence[Column]
    key: Sequence[SpelledColumn]
    nulls_in_keys: bool

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
        return f"CAST(from_unixtime_nanos({value} * 1000) AS time(6))"
    type_ = trino_type(str(column.type))
    return f"CAST({value} AS {type_})" if type_ else None


def _spark_cast(value: str, column: Column) -> str | None:
    if isinstance(column.type, TimeType):
        return None
    names = {"long": "bigint", "timestamptz": "timestamp", "timestamp": "timestamp_ntz"}
    type_ = str(column.type)
    return f"CAST({value} AS {names.get(type_, type_.replace('list<', 'array<'))})"


TRINO = Dialect(
    ident, literal, "FOR VERSION AS OF {}", "ARRAY[{}]", "{}[1]", "contains({}, {})", "varchar",
    _trino_cast,
)  # fmt: skip
SPARK = Dialect(
    spark_ident, spark_literal, "VERSION AS OF {}", "array({})", "{}[0]", "array_contains({}, {})",
    "string", _spark_cast,
)  # fmt: skip


def trino_text(view: FreshView, at: Position, past: str, say: Dialect = TRINO) -> str | None:
    """The text for Trino; None if it cannot show one of the columns."""
    parts = _parts(view, at, say)
    return with_past(past, *parts) if parts else None


def spark_text(view: FreshView, at: Position) -> str | None:
    """The same for Spark."""
    parts = _parts(replace(view, catalog=view.spark_catalog), at, SPARK)
    return f"WITH _lh_cut AS (\n{parts[0]}\n), {parts[1]}" if parts else None


def _parts(view: FreshView, at: Position, say: Dialect) -> tuple[str, str] | None:
    if any(say.cast("x", column) is None for column in view.columns):
        return None
    queries = {"_lh_read": _read(view, at, say), "_lh_newest": _newest(view, say)}
    named = ", ".join(f"{name} AS (\n{query}\n)" for name, query in queries.items())
    return _cut(view, at, say), f"{named}\n{_of_mirror(view, at, say)}\nUNION ALL\n{_of_tail(view, say)}"


def _cut(view: FreshView, at: Position, say: Dialect) -> str:
    """The newest cut before the first one that leaves the table out."""
    covered = f"coalesce({say.contains.format('map_keys(snapshots)', say.literal(view.table))}, false)"
    return (
        "SELECT max(cut_lsn) AS cut_lsn FROM (SELECT cut_lsn, "
        f"bool_and({covered}) OVER (ORDER BY published_at) AS covered FROM {_named(say, view.catalog, 'meta', 'cuts')} "
        f"WHERE source = {say.literal(view.source)} AND epoch = {at.epoch} AND published_at > {_moment(at.seen)}) "
        "WHERE covered"
    )


def _read(view: FreshView, at: Position, say: Dialect) -> str:
    """What raw has after the position, beside it the newest cut and the first commit that cannot be followed.

    The cut comes as a row more, and not by a join: Trino knows the size of no join, and would shuffle the mirror.
    """
    events = [f"r.{say.ident(column.source.lake_name)}" for column in view.columns]
    events += [
        f"{_comparable(view, column, f'r.{say.ident(column.lake_name)}', say)} AS {KEY}{n}"
        for n, column in enumerate(view.key)
    ]
    events += ["r._op", "r._commit_lsn", "r._seq", *(["r._unchanged", "r._ingested_at"] if view.left_out else [])]
    moved = " OR r._old_key IS NOT NULL AND r._unchanged IS NOT NULL" if view.left_out else ""
    stop = f"CASE WHEN r._op = 't'{moved} THEN r._commit_lsn END AS _lh_at"
    return (
        "SELECT *, min(_lh_at) OVER () AS _lh_stop, max(_lh_until) OVER () AS _lh_newest_cut FROM ("
        f"SELECT {', '.join(events)}, {stop}, CAST(NULL AS bigint) AS _lh_until "
        f"FROM {_named(say, view.catalog, f'raw_{view.source}', view.table)} AS r "
        f"WHERE r._epoch = {at.epoch} AND r._commit_lsn > {at.cut_lsn} "
        f"UNION ALL SELECT {', '.join(['NULL'] * (len(events) + 1))}, cut_lsn FROM _lh_cut) AS e"
    )


def _newest(view: FreshView, say: Dialect) -> str:
    """The newest version of each key, beside it the last value that was carried of those that updates left out.

    A version that begins a life of its key carries all, or it is not followed. So a key none of whose versions carries
    all (`_lh_whole` is null) has a row in the mirror, and no other needs one.
    """
    over = f"OVER (PARTITION BY {', '.join(_keys(view))} ORDER BY _commit_lsn, _seq)"
    more = [f"lead(_commit_lsn) {over} AS _lh_next"]
    if view.left_out:
        more.append(f"max(CASE WHEN _op <> 'd' AND _unchanged IS NULL THEN 1 END) {over} AS _lh_whole")
    more += [
        f"last_value(CASE WHEN _op <> 'd' AND NOT {_lacks(column, say)} THEN"
        f" {say.boxed.format(say.ident(column.source.lake_name))} END) IGNORE NULLS {over} AS _lh_value_{n}"
        for n, column in enumerate(view.left_out)
    ]
    return (
        f"SELECT *, {_lacking(view)} AS _lh_lacking FROM (SELECT *, {', '.join(more)} FROM _lh_read "
        "WHERE _commit_lsn <= _lh_newest_cut AND (_lh_stop IS NULL OR _commit_lsn < _lh_stop)) AS v "
        "WHERE _lh_next IS NULL"
    )


def _of_mirror(view: FreshView, at: Position, say: Dialect) -> str:
    """The rows whose keys nothing has touched, and those of which no event carries a value: that is the mirror's."""
    key, values = {column.lake_name for column in view.key}, _values(view)

    def shown(column: Column) -> str:
        name = column.source.lake_name
        own = f"m.{say.ident(name)}"
        if name in key or not values:
            return own
        if name in values:
            carried = f"t.{values[name]}"
            return f"CASE WHEN {carried} IS NULL THEN {own} ELSE {say.unboxed.format(carried)} END"
        return f"CASE WHEN t._lh_lacking IS NULL THEN {own} ELSE t.{say.ident(name)} END"

    same = " AND ".join(f"{mine} = t.{key}" for mine, key in zip(_own_key(view, say), _keys(view), strict=True))
    lacking = " OR t._lh_lacking" if values else ""
    return (
        f"SELECT {_shown(view, say, shown)} FROM {_mirror(view, at, say)} LEFT JOIN _lh_newest AS t ON {same} "
        f"WHERE t._lh_lacking IS NULL{lacking}"
    )


def _of_tail(view: FreshView, say: Dialect) -> str:
    """The rows that need nothing of the mirror."""
    values = _values(view)

    def shown(column: Column) -> str:
        name = column.source.lake_name
        return say.unboxed.format(f"t.{values[name]}") if name in values else f"t.{say.ident(name)}"

    return f"SELECT {_shown(view, say, shown)} FROM _lh_newest AS t WHERE t._op <> 'd' AND NOT t._lh_lacking"


def _values(view: FreshView) -> dict[str, str]:
    """Where the carried values of columns are that updates may leave out: in a box, none where nothing was carried."""
    return {column.source.lake_name: f"_lh_value_{n}" for n, column in enumerate(view.left_out)}


def _lacking(view: FreshView) -> str:
    """Whether the newest version may need values of the mirror's row."""
    return "(_op <> 'd' AND _lh_whole IS NULL)" if view.left_out else "false"


def _mirror(view: FreshView, at: Position, say: Dialect) -> str:
    mirror = _named(say, view.catalog, f"mirror_{view.source}", view.table)
    return f"{mirror} {say.version.format(at.snapshot)} AS m"


def _own_key(view: FreshView, say: Dialect) -> list[str]:
    return [_comparable(view, column, f"m.{say.ident(column.lake_name)}", say) for column in view.key]


def _shown(view: FreshView, say: Dialect, value: Callable[[Column], str]) -> str:
    return ", ".join(f"{say.cast(value(column), column)} AS {say.ident(column.name)}" for column in view.columns)


def _keys(view: FreshView) -> list[str]:
    return [f"{KEY}{n}" for n in range(len(view.key))]


def _comparable(view: FreshView, column: SpelledColumn, value: str, say: Dialect) -> str:
    """For an `=`: a NaN does not equal itself, nor does the null that stands for what the lake cannot hold."""
    unrepresentable = isinstance(column.lake_type, DateType | TimestampType | TimestamptzType | DecimalType)
    if isinstance(column.lake_type, DoubleType | FloatType) or (view.nulls_in_keys and unrepresentable):
        return f"coalesce(CAST({value} AS {say.text}), '')"
    return value


def _lacks(column: Column, say: Dialect) -> str:
    """Whether a version did not carry it: it is null, and named as it was called then."""
    called = " OR ".join(_called(name, say) for name in column.source.names)
    return f"({say.ident(column.source.lake_name)} IS NULL AND coalesce({called}, false))"


def _called(name: Called, say: Dialect) -> str:
    parts = [say.contains.format("_unchanged", say.literal(name.name))]
    parts += [f"_ingested_at >= {_moment(name.since)}"] if name.since else []
    parts += [f"_ingested_at < {_moment(name.until)}"] if name.until else []
    return f"({' AND '.join(parts)})"


def _moment(moment: datetime) -> str:
    return f"TIMESTAMP '{moment.astimezone(UTC).strftime('%Y-%m-%d %H:%M:%S.%f')} UTC'"


def _named(say: Dialect, *parts: str) -> str:
    return ".".join(map(say.ident, parts))

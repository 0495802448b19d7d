"""The text of a fresh view: the rows of the mirror whose keys nothing has touched since, and the newest of the others.

It names the mirror's snapshot and its position as literals, so no text takes rows of one state and the position of
another. What raw has after the position is read up to the newest cut, but not beyond one that leaves the table out:
while it is loaded again, raw has rows that belong to no cut. Two changes cannot be followed by SQL over the tail alone,
so the view stays before their commit until the next refresh: a key change that leaves a large value out, whose old key
is looked up through others; and events that came late, which are below the position.
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
KEY = "_lh_key_"
LIVES = "'c', 'r', 'd'"  # a row's life with a key begins after them, or with them


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
        return isinstance(self.source.lake_type, LARGE)


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
    pair: str
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
    ident, literal, "FOR VERSION AS OF {}", "ROW({}, {})", "ARRAY[{}]", "{}[1]", "contains({}, {})", "varchar",
    _trino_cast,
)  # fmt: skip
SPARK = Dialect(
    spark_ident, spark_literal, "VERSION AS OF {}", "struct({}, {})", "array({})", "{}[0]", "array_contains({}, {})",
    "string", _spark_cast,
)  # fmt: skip


def trino_text(view: FreshView, at: Position, past: str) -> str | None:
    """The text for Trino; None if it cannot show one of the columns."""
    parts = _parts(view, at, TRINO)
    return with_past(past, *parts) if parts else None


def spark_text(view: FreshView, at: Position) -> str | None:
    """The same for Spark."""
    parts = _parts(replace(view, catalog=view.spark_catalog), at, SPARK)
    return f"WITH _lh_cut AS (\n{parts[0]}\n), {parts[1]}" if parts else None


def _parts(view: FreshView, at: Position, say: Dialect) -> tuple[str, str] | None:
    if any(say.cast("x", column) is None for column in view.columns):
        return None
    queries = {"_lh_read": _read(view, at, say), "_lh_tail": _tail(view, say), "_lh_lives": _lives(view, say)}
    if view.left_out:
        queries["_lh_carried"] = _carried(view, say)
    newest = "_lh_carried" if view.left_out else "_lh_lives"
    queries["_lh_newest"] = f"SELECT * FROM {newest} WHERE _lh_nth = 1"
    named = ", ".join(f"{name} AS (\n{query}\n)" for name, query in queries.items())
    return _cut(view, at, say), f"{named}\n" + "\nUNION ALL\n".join(_rows(view, at, say))


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
    """What raw has after the position, and the first commit that cannot be followed."""
    own = [f"r.{say.ident(column.source.lake_name)}" for column in view.columns]
    moved = "min(CASE WHEN r._old_key IS NOT NULL AND r._unchanged IS NOT NULL THEN r._commit_lsn END) OVER ()"
    more = ["r._unchanged", "r._ingested_at", f"{moved} AS _lh_stop"] if view.left_out else []
    key = [
        f"{_comparable(view, column, f'r.{say.ident(column.lake_name)}', say)} AS {KEY}{n}"
        for n, column in enumerate(view.key)
    ]
    return (
        f"SELECT {', '.join([*own, *key, 'r._op', 'r._commit_lsn', 'r._seq', *more])} "
        f"FROM {_named(say, view.catalog, f'raw_{view.source}', view.table)} AS r CROSS JOIN _lh_cut AS c "
        f"WHERE r._epoch = {at.epoch} AND r._commit_lsn > {at.cut_lsn} AND r._commit_lsn <= c.cut_lsn"
    )


def _tail(view: FreshView, say: Dialect) -> str:
    place = say.pair.format("_commit_lsn", "_seq")
    followed = " WHERE _lh_stop IS NULL OR _commit_lsn < _lh_stop" if view.left_out else ""
    return f"SELECT *, max(CASE WHEN _op = 't' THEN {place} END) OVER () AS _lh_truncated FROM _lh_read{followed}"


def _lives(view: FreshView, say: Dialect) -> str:
    """The versions after the last truncate: how new each one is, and in which life of its key."""
    place, key = say.pair.format("_commit_lsn", "_seq"), _key(view)
    life = (
        f", sum(CASE WHEN _op IN ({LIVES}) THEN 1 ELSE 0 END) OVER (PARTITION BY {key} ORDER BY _commit_lsn, _seq)"
        " AS _lh_life"
    )
    return (
        f"SELECT *, row_number() OVER (PARTITION BY {key} ORDER BY _commit_lsn DESC, _seq DESC) AS _lh_nth"
        f"{life if view.left_out else ''} FROM _lh_tail "
        f"WHERE _op <> 't' AND (_lh_truncated IS NULL OR {place} > _lh_truncated)"
    )


def _carried(view: FreshView, say: Dialect) -> str:
    """Beside each version the last value of its life that was carried."""
    found = (
        f"last_value(CASE WHEN _op <> 'd' AND NOT {_lacks(column, say)} THEN"
        f" {say.boxed.format(say.ident(column.source.lake_name))} END) IGNORE NULLS OVER"
        f" (PARTITION BY {_key(view)}, _lh_life ORDER BY _commit_lsn, _seq) AS _lh_value_{n}"
        for n, column in enumerate(view.left_out)
    )
    return f"SELECT *, {', '.join(found)} FROM _lh_lives"


def _rows(view: FreshView, at: Position, say: Dialect) -> list[str]:
    mirror = _named(say, view.catalog, f"mirror_{view.source}", view.table)
    mirrored = f"{mirror} {say.version.format(at.snapshot)} AS m"
    same = " AND ".join(
        f"t.{KEY}{n} = {_comparable(view, column, f'm.{say.ident(column.lake_name)}', say)}"
        for n, column in enumerate(view.key)
    )
    untouched = (
        f"SELECT {_shown(view, say, lambda c: f'm.{say.ident(c.source.lake_name)}')} FROM {mirrored} "
        f"LEFT JOIN _lh_newest AS t ON {same} "
        "WHERE t._lh_nth IS NULL AND NOT EXISTS (SELECT 1 FROM _lh_tail WHERE _op = 't')"
    )
    values = {c.source.lake_name: f"t._lh_value_{n}" for n, c in enumerate(view.left_out)}
    whole = "".join(f" AND {value} IS NOT NULL" for value in values.values())

    def carried(column: Column) -> str:
        name = column.source.lake_name
        return say.unboxed.format(values[name]) if name in values else f"t.{say.ident(name)}"

    def filled(column: Column) -> str:
        name = column.source.lake_name
        if name not in values:
            return f"t.{say.ident(name)}"
        return f"CASE WHEN {values[name]} IS NOT NULL THEN {carried(column)} ELSE m.{say.ident(name)} END"

    touched = f"SELECT {_shown(view, say, carried)} FROM _lh_newest AS t WHERE t._op <> 'd'{whole}"
    if not values:
        return [untouched, touched]
    lacking = " OR ".join(f"t._lh_value_{n} IS NULL" for n in range(len(values)))
    lacks = f"(SELECT * FROM _lh_newest AS t WHERE t._op <> 'd' AND ({lacking})) AS t"
    return [untouched, touched, f"SELECT {_shown(view, say, filled)} FROM {mirrored} RIGHT JOIN {lacks} ON {same}"]


def _shown(view: FreshView, say: Dialect, value: Callable[[Column], str]) -> str:
    return ", ".join(f"{say.cast(value(column), column)} AS {say.ident(column.name)}" for column in view.columns)


def _key(view: FreshView) -> str:
    return ", ".join(f"{KEY}{n}" for n in range(len(view.key)))


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

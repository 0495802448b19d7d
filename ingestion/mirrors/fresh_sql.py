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
    """How an engine spells what SQL does not settle. `cast` returns None for a column that it cannot show.

    With `map_of` the newest versions are looked up in maps, as one row beside each of the mirror's: Trino knows the
    size of the mirror, and not that of the tail, so in a join it would hold the mirror in memory. An engine without it
    joins. `{2}` is the filter of what the map is made of.
    """

    ident: Callable[[str], str]
    literal: Callable[[str], str]
    version: str
    boxed: str
    unboxed: str
    contains: str
    text: str
    cast: Callable[[str, Column], str | None]
    map_of: str | None = None
    look_up: str = ""


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
    _trino_cast, "map_agg({0}, {1}){2}", "element_at({}, {})",
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
    """What raw has after the position, and the first commit that cannot be followed."""
    own = [f"r.{say.ident(column.source.lake_name)}" for column in view.columns]
    more = ["r._unchanged", "r._ingested_at"] if view.left_out else []
    moved = " OR r._old_key IS NOT NULL AND r._unchanged IS NOT NULL" if view.left_out else ""
    key = [
        f"{_comparable(view, column, f'r.{say.ident(column.lake_name)}', say)} AS {KEY}{n}"
        for n, column in enumerate(view.key)
    ]
    return (
        f"SELECT {', '.join([*own, *key, 'r._op', 'r._commit_lsn', 'r._seq', *more])}, "
        f"min(CASE WHEN r._op = 't'{moved} THEN r._commit_lsn END) OVER () AS _lh_stop "
        f"FROM {_named(say, view.catalog, f'raw_{view.source}', view.table)} AS r CROSS JOIN _lh_cut AS c "
        f"WHERE r._epoch = {at.epoch} AND r._commit_lsn > {at.cut_lsn} AND r._commit_lsn <= c.cut_lsn"
    )


def _newest(view: FreshView, say: Dialect) -> str:
    """The newest version of each key, beside it the last value that was carried of those that updates left out.

    A version that begins a life of its key carries all, or it is not followed.
    """
    over = f"OVER (PARTITION BY {', '.join(_keys(view))} ORDER BY _commit_lsn, _seq)"
    carried = (
        f", last_value(CASE WHEN _op <> 'd' AND NOT {_lacks(column, say)} THEN"
        f" {say.boxed.format(say.ident(column.source.lake_name))} END) IGNORE NULLS {over} AS _lh_value_{n}"
        for n, column in enumerate(view.left_out)
    )
    return (
        f"SELECT * FROM (SELECT *, lead(_commit_lsn) {over} AS _lh_next{''.join(carried)} FROM _lh_read "
        "WHERE _lh_stop IS NULL OR _commit_lsn < _lh_stop) AS v WHERE _lh_next IS NULL"
    )


def _of_mirror(view: FreshView, at: Position, say: Dialect) -> str:
    """The rows whose keys nothing has touched, and those of which no event carries a value: that is the mirror's."""
    beside = _looked_up(view, at, say) if say.map_of else _joined(view, at, say)
    key, values = {column.lake_name for column in view.key}, _values(view)
    held = [column for column in view.columns if column.source.lake_name not in key]

    def shown(column: Column) -> str:
        name = column.source.lake_name
        own = f"m.{say.ident(name)}"
        if name in key or not values:
            return own
        newest = f"{beside.row}[{held.index(column) + 1}]" if say.map_of else f"t.{values.get(name, say.ident(name))}"
        if name in values:
            carried = f"NOT {beside.untouched} AND {newest} IS NOT NULL"
            return f"CASE WHEN {carried} THEN {say.unboxed.format(newest)} ELSE {own} END"
        return f"CASE WHEN {beside.untouched} THEN {own} ELSE {newest} END"

    lacking = f" OR {beside.lacking}" if values else ""
    return f"SELECT {_shown(view, say, shown)} FROM {beside.relation} WHERE {beside.untouched}{lacking}"


@dataclass(frozen=True)
class _Beside:
    """The mirror as `m`, each row beside the newest version of its key: if there is none, or one that lacks values."""

    relation: str
    untouched: str
    lacking: str
    row: str = ""


def _joined(view: FreshView, at: Position, say: Dialect) -> _Beside:
    same = " AND ".join(f"{mine} = t.{key}" for mine, key in zip(_own_key(view, say), _keys(view), strict=True))
    relation = f"{_mirror(view, at, say)} LEFT JOIN (SELECT *, true AS _lh_found FROM _lh_newest) AS t ON {same}"
    return _Beside(relation, "(t._lh_found IS NULL)", f"(t._op <> 'd' AND ({_lacking(view, 't.')}))")


def _looked_up(view: FreshView, at: Position, say: Dialect) -> _Beside:
    """One map says of each touched key whether its newest version lacks values, another has those versions.

    A row of the mirror that nothing has touched, as most are, is looked up in the first one alone.
    """
    key, values = {column.lake_name for column in view.key}, _values(view)
    names = (column.source.lake_name for column in view.columns)
    held = ", ".join(values.get(name, say.ident(name)) for name in names if name not in key)
    assert say.map_of is not None
    named, lacks = _one(_keys(view)), f"_op <> 'd' AND ({_lacking(view)})" if values else "false"
    maps = [f"{say.map_of.format(named, lacks, '')} AS _lh_touched"]
    if values:
        maps.append(f"{say.map_of.format(named, f'ROW({held})', f' FILTER (WHERE {lacks})')} AS _lh_lacking")
    own = _one(_own_key(view, say))
    found = ["m.*", f"{say.look_up.format('s._lh_touched', own)} AS _lh_found", *(["s._lh_lacking"] if values else [])]
    beside = f"{_mirror(view, at, say)} CROSS JOIN (SELECT {', '.join(maps)} FROM _lh_newest) AS s"
    relation = f"(SELECT {', '.join(found)} FROM {beside}) AS m"
    return _Beside(relation, "(m._lh_found IS NULL)", "m._lh_found", say.look_up.format("m._lh_lacking", own))


def _of_tail(view: FreshView, say: Dialect) -> str:
    """The rows that need nothing of the mirror."""
    values = _values(view)

    def shown(column: Column) -> str:
        name = column.source.lake_name
        return say.unboxed.format(f"t.{values[name]}") if name in values else f"t.{say.ident(name)}"

    whole = f" AND NOT ({_lacking(view, 't.')})" if values else ""
    return f"SELECT {_shown(view, say, shown)} FROM _lh_newest AS t WHERE t._op <> 'd'{whole}"


def _values(view: FreshView) -> dict[str, str]:
    """Where the carried values of columns are that updates may leave out: in a box, none where nothing was carried."""
    return {column.source.lake_name: f"_lh_value_{n}" for n, column in enumerate(view.left_out)}


def _lacking(view: FreshView, of: str = "") -> str:
    return " OR ".join(f"{of}{value} IS NULL" for value in _values(view).values())


def _mirror(view: FreshView, at: Position, say: Dialect) -> str:
    mirror = _named(say, view.catalog, f"mirror_{view.source}", view.table)
    return f"{mirror} {say.version.format(at.snapshot)} AS m"


def _own_key(view: FreshView, say: Dialect) -> list[str]:
    return [_comparable(view, column, f"m.{say.ident(column.lake_name)}", say) for column in view.key]


def _one(values: Sequence[str]) -> str:
    return values[0] if len(values) == 1 else f"ROW({', '.join(values)})"


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

"""The long text of a fresh view, which follows whatever it can of the tail and stays before what it cannot.

What raw has after the position is read up to the newest cut, but not beyond one that leaves the table out: while it is
loaded again, raw has rows that belong to no cut. Some changes cannot be followed by SQL that reads the tail as few
times as this does, so the view stays before their commit until the next refresh: a truncate; a key change that leaves a
large value out, whose old key is looked up through others; and events that came late, which are below the position.
"""

from __future__ import annotations

from ingestion.mirrors.view_parts import (
    Column,
    Dialect,
    FreshView,
    Position,
    events,
    key_names,
    mirror_of,
    moment,
    relation_of,
    same_key,
    select_list,
)
from ingestion.schema.former_names import Called


def long_parts(view: FreshView, at: Position, say: Dialect) -> tuple[str, str]:
    """The query of the cut, and what follows it."""
    queries = {"_lh_read": _read(view, at, say), "_lh_newest": _newest(view, say)}
    named = ", ".join(f"{name} AS (\n{query}\n)" for name, query in queries.items())
    return _cut(view, at, say), f", {named}\n{_of_mirror(view, at, say)}\nUNION ALL\n{_of_tail(view, say)}"


def _cut(view: FreshView, at: Position, say: Dialect) -> str:
    """The newest cut before the first one that leaves the table out."""
    covered = f"coalesce({say.contains.format('map_keys(snapshots)', say.literal(view.table))}, false)"
    cuts = relation_of(say, view.catalog, "meta", "cuts")
    return (
        "SELECT max(cut_lsn) AS cut_lsn FROM (SELECT cut_lsn, "
        f"bool_and({covered}) OVER (ORDER BY published_at) AS covered FROM {cuts} "
        f"WHERE source = {say.literal(view.source)} AND epoch = {at.epoch} AND published_at > {moment(at.seen)}) "
        "WHERE covered"
    )


def _read(view: FreshView, at: Position, say: Dialect) -> str:
    """What raw has after the position, beside it the newest cut and the first commit that cannot be followed.

    The cut comes as a row more, and not by a join: Trino knows the size of no join, and would shuffle the mirror.
    """
    read = [*events(view, say), "r._op", "r._commit_lsn", "r._seq"]
    read += ["r._unchanged", "r._ingested_at"] if view.left_out else []
    moved = " OR r._old_key IS NOT NULL AND r._unchanged IS NOT NULL" if view.left_out else ""
    stop = f"CASE WHEN r._op = 't'{moved} THEN r._commit_lsn END AS _lh_at"
    return (
        "SELECT *, min(_lh_at) OVER () AS _lh_stop, max(_lh_until) OVER () AS _lh_newest_cut FROM ("
        f"SELECT {', '.join(read)}, {stop}, CAST(NULL AS bigint) AS _lh_until "
        f"FROM {relation_of(say, view.catalog, f'raw_{view.source}', view.table)} AS r "
        f"WHERE r._epoch = {at.epoch} AND r._commit_lsn > {at.cut_lsn} "
        f"UNION ALL SELECT {', '.join(['NULL'] * (len(read) + 1))}, cut_lsn FROM _lh_cut) AS e"
    )


def _newest(view: FreshView, say: Dialect) -> str:
    """The newest version of each key, beside it the last value that was carried of those that updates left out.

    A version that begins a life of its key carries all, or it is not followed. So a key none of whose versions carries
    all (`_lh_whole` is null) has a row in the mirror, and no other needs one.
    """
    over = f"OVER (PARTITION BY {', '.join(key_names(view))} ORDER BY _commit_lsn, _seq)"
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

    lacking = " OR t._lh_lacking" if values else ""
    return (
        f"SELECT {select_list(view, say, shown)} FROM {mirror_of(view, at, say)} LEFT JOIN _lh_newest AS t "
        f"ON {same_key(view, say)} WHERE t._lh_lacking IS NULL{lacking}"
    )


def _of_tail(view: FreshView, say: Dialect) -> str:
    """The rows that need nothing of the mirror."""
    values = _values(view)

    def shown(column: Column) -> str:
        name = column.source.lake_name
        return say.unboxed.format(f"t.{values[name]}") if name in values else f"t.{say.ident(name)}"

    return f"SELECT {select_list(view, say, shown)} FROM _lh_newest AS t WHERE t._op <> 'd' AND NOT t._lh_lacking"


def _values(view: FreshView) -> dict[str, str]:
    """Where the carried values of columns are that updates may leave out: in a box, none where nothing was carried."""
    return {column.source.lake_name: f"_lh_value_{n}" for n, column in enumerate(view.left_out)}


def _lacking(view: FreshView) -> str:
    """Whether the newest version may need values of the mirror's row."""
    return "(_op <> 'd' AND _lh_whole IS NULL)" if view.left_out else "false"


def _lacks(column: Column, say: Dialect) -> str:
    """Whether a version did not carry it: it is null, and named as it was called then."""
    called = " OR ".join(_called(name, say) for name in column.source.names)
    return f"({say.ident(column.source.lake_name)} IS NULL AND coalesce({called}, false))"


def _called(name: Called, say: Dialect) -> str:
    parts = [say.contains.format("_unchanged", say.literal(name.name))]
    parts += [f"_ingested_at >= {moment(name.since)}"] if name.since else []
    parts += [f"_ingested_at < {moment(name.until)}"] if name.until else []
    return f"({' AND '.join(parts)})"

"""The short text of a fresh view, and the plain one.

The short one has the mirror's rows whose keys are not in the tail, and the newest of the others. It is right while
every version in the tail carries all its values and is in a cut: then the newest one of a key is its row, and what raw
has after the position is all there is to know. It reads raw at a tag that stays before anything else (see
`lakehouse.catalog.views.regular`), and the publish that brings such gives the view its long text again.

The plain one has the mirror's rows. It is right while there is no tail, and the publish that begins one gives the view
its short text or its long one. It reads the mirror at a tag, which a compaction moves along (see
`lakehouse.catalog.views.mirrored`).
"""

from __future__ import annotations

from ingestion.mirrors.view_parts import (
    Dialect,
    FreshView,
    Position,
    events,
    key_names,
    mirror_of,
    relation_of,
    same_key,
    select_list,
)
from lakehouse.catalog.views.current_views import MIRROR
from lakehouse.catalog.views.mirrored import tag_of


def short_parts(view: FreshView, at: Position, say: Dialect) -> tuple[str, str]:
    """The query of the tail, and what follows it.

    The keys are read a second time for the join, without a look for the newest: a condition on the key, and the names
    of the columns that a query reads, reach the files of mirror and tail.
    """
    of_mirror = (
        f"SELECT {select_list(view, say, lambda column: f'm.{say.ident(column.source.lake_name)}')} "
        f"FROM {mirror_of(view, at, say)} LEFT JOIN _lh_tail AS t ON {same_key(view, say)} WHERE t._op IS NULL"
    )
    nth = (
        f"row_number() OVER (PARTITION BY {', '.join(key_names(view))} ORDER BY _commit_lsn DESC, _seq DESC) AS _lh_nth"
    )
    of_tail = (
        f"SELECT {select_list(view, say, lambda column: f't.{say.ident(column.source.lake_name)}')} "
        f"FROM (SELECT *, {nth} FROM _lh_tail) AS t WHERE t._lh_nth = 1 AND t._op <> 'd'"
    )
    return _tail(view, at, say), f"\n{of_mirror}\nUNION ALL\n{of_tail}"


def plain_parts(view: FreshView, at: Position, say: Dialect) -> tuple[str, str]:
    """The query of the mirror, and what follows it."""
    shown = select_list(view, say, lambda column: f"m.{say.ident(column.source.lake_name)}")
    mirror, tag = relation_of(say, view.catalog, f"mirror_{view.source}", view.table), say.literal(tag_of(at.snapshot))
    return f"SELECT {shown} FROM {mirror} {say.version.format(tag)} AS m", f"\nSELECT * FROM {MIRROR}"


def _tail(view: FreshView, at: Position, say: Dialect) -> str:
    raw, tag = relation_of(say, view.catalog, f"raw_{view.source}", view.table), say.literal(at.regular or "")
    read = ", ".join([*events(view, say), "r._op", "r._commit_lsn", "r._seq"])
    return (
        f"SELECT {read} FROM {raw} {say.version.format(tag)} AS r "
        f"WHERE r._epoch = {at.epoch} AND r._commit_lsn > {at.cut_lsn}"
    )

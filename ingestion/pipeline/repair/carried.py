"""The newest version of each live key, with the values that its updates left out (unchanged TOAST).

A life of a key begins with its insert or snapshot row. Within a life the last value that was carried counts. A life
that a key change began goes on from the old key's: its values are looked up there, one link of the chain at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SO_FAR = "ORDER BY position ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW"
_NEWEST = "row_number() OVER (PARTITION BY key ORDER BY position DESC) AS nth"


def newest_filled(versions: DataFrame, lacks: Sequence[int], width: int) -> DataFrame:
    """`key`, `c0` … and `whole` of every live key.

    `lacks` are the indexes of the columns that some update left out; `l0` … says whether a version did.
    """
    names = [f"c{i}" for i in range(width)]
    if not lacks:
        return _live(versions).selectExpr("key", *names, "true AS whole")
    carried = _carried(versions, lacks)
    newest = _live(carried)
    found = _from_old_keys(newest, carried, lacks)
    if found is not None:
        newest = newest.join(found, "key", "left")
    values = {i: f"coalesce(f{i}, g{i})" if found is not None else f"f{i}" for i in lacks}
    whole = " AND ".join(f"({value} IS NOT NULL)" for value in values.values())
    filled = [f"{values[i]}.value AS c{i}" if i in lacks else f"c{i}" for i in range(width)]
    return newest.selectExpr("key", *filled, f"{whole} AS whole")


def _live(versions: DataFrame) -> DataFrame:
    return versions.selectExpr("*", _NEWEST).where("nth = 1 AND op <> 'd'")


def _carried(versions: DataFrame, lacks: Sequence[int]) -> DataFrame:
    """Beside each version: the last value carried in its life (`f`), where the life began, and from which key that
    may be: the first of `born_from` that is there."""

    def last(i: int) -> str:
        value = f"CASE WHEN op <> 'd' AND NOT l{i} THEN named_struct('value', c{i}) END"
        return f"last({value}, true) OVER (PARTITION BY key, life {_SO_FAR}) AS f{i}"

    lives = versions.selectExpr("*", f"count_if(op IN ('c', 'r', 'd')) OVER (PARTITION BY key {_SO_FAR}) AS life")
    return lives.selectExpr(
        "*",
        *map(last, lacks),
        f"first(position) OVER (PARTITION BY key, life {_SO_FAR}) AS born",
        f"first(from_keys) OVER (PARTITION BY key, life {_SO_FAR}) AS born_from",
    )


def _from_old_keys(newest: DataFrame, carried: DataFrame, columns: Sequence[int]) -> DataFrame | None:
    """`key` and `g` for the keys whose lives began with a key change and lack a value; None when there are none.

    Every round follows one link; the rounds are as many as the longest chain of key changes without the value.
    """
    from pyspark.sql.functions import expr

    lacking = " OR ".join(f"g{i} IS NULL" for i in columns)
    open_links = newest.selectExpr("key", "born", "born_from", *(f"f{i} AS g{i}" for i in columns))
    open_links = open_links.where(f"born_from IS NOT NULL AND ({lacking})").localCheckpoint()
    earlier = carried.where("op <> 'd'").selectExpr(
        "key AS old_key", "position AS at", "born AS old_born", "born_from AS old_from", *(f"f{p}" for p in columns)
    )
    closed: list[DataFrame] = []
    while not open_links.isEmpty():
        tried = open_links.selectExpr("*", "posexplode(born_from) AS (nth, from_key)")
        met = tried.join(earlier, (tried["from_key"] == earlier["old_key"]) & (earlier["at"] < tried["born"]), "left")
        was = ", ".join(["old_born", "old_from", *(f"f{p}" for p in columns)])
        links = met.groupBy("key").agg(
            expr(f"max_by(struct({was}), CASE WHEN at IS NOT NULL THEN struct(-nth AS nth, at) END) AS was"),
            *(expr(f"first(g{p}) AS g{p}") for p in columns),
        )
        values = [f"coalesce(g{p}, was.f{p}) AS g{p}" for p in columns]
        links = links.selectExpr("key", "was.old_born AS born", "was.old_from AS born_from", *values).localCheckpoint()
        closed.append(links.where(f"born_from IS NULL OR NOT ({lacking})"))
        open_links = links.where(f"born_from IS NOT NULL AND ({lacking})")
    if not closed:
        return None
    return reduce(lambda left, right: left.unionByName(right), closed).selectExpr("key", *(f"g{p}" for p in columns))

"""The keys of hubs and links that were mentioned until the cuts, while their row is of a mention after them.

A hub or a link has each key once, with the position of the mention that was loaded first. Where another stage mentioned
the key before, its satellite has the key as of a cut between the two, and the row's own position says that the hub has
not: cuts of several sources are not of one moment, and tables are not loaded in the order of commits.
"""

from __future__ import annotations

from lakehouse.catalog.relations import TableName
from lakehouse.errors import LakehouseError
from lakehouse.text.sql import ident, literal, relation
from lakehouse_serve.past.loaded import FirstSight, Loaded
from lakehouse_serve.past.queries import BY_COMMIT, BY_POSITION

MOST = 5000  # keys that are written into a query, whose text Trino limits to a million characters


def earlier_mentions(loaded: Loaded, table: TableName, may_read_stages: bool) -> str | None:
    """The condition of rows whose key any stage mentioned until its cut, though their own mention is after it.

    None where there are no such rows. Only the writer may read stages, so the keys themselves are given to others.
    Raises LakehouseError where these are too many.
    """
    made_of = _made_of(loaded, table)
    found = _keys(loaded, table, made_of) if made_of else None
    if made_of is None or found is None:
        return None
    keys = [key for [key] in loaded.ask(f"SELECT DISTINCT mentioned FROM ({found}) LIMIT {MOST + 1}")]
    if len(keys) > MOST and not may_read_stages:
        raise LakehouseError(
            f"{table}: more than {MOST:,} of its keys were there, while their row is of a later mention: ask with "
            "--role writer, who may look them up in its stages, or for another moment"
        )
    among = found if len(keys) > MOST else ", ".join(map(literal, sorted(keys)))
    return f"{ident(made_of.key)} IN ({among})" if keys else None


def _made_of(loaded: Loaded, table: TableName) -> FirstSight | None:
    kind = loaded.lake.kind_of(table)
    if kind is None or kind.columns >= BY_COMMIT:  # raw and parsed, for which no project is needed
        return None
    return next((m.first_sight for m in loaded.models().values() if m.relation == table and m.first_sight), None)


def _keys(loaded: Loaded, table: TableName, made_of: FirstSight) -> str | None:
    """The query of these keys; None where all rows are of mentions until the cuts, or no stage is there any more."""
    lake, key = loaded.lake, ident(made_of.key)
    later = f"FROM {ident(lake.catalog)}.{relation(*table)} WHERE NOT ({lake.condition(table, BY_POSITION)})"
    stages = [(loaded.stage_of(table, stage), ident(column)) for stage, column in made_of.mentions]
    alive = "" if made_of.of_deletes else " AND NOT is_deleted"
    mentions = [
        f"SELECT {column} AS mentioned FROM {ident(lake.catalog)}.{relation(*stage)}"
        f" WHERE ({lake.condition(stage, BY_POSITION)}){alive}"
        for stage, column in stages
        if stage is not None
    ]
    if not mentions or not loaded.ask(f"SELECT 1 {later} LIMIT 1"):
        return None
    return f"SELECT mentioned FROM ({' UNION ALL '.join(mentions)}) WHERE mentioned IN (SELECT {key} {later})"

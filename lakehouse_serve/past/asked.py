"""A query of the past through Trino: what its relations are, who asks, and whether all that it reads is loaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any

from lakehouse.catalog.relations import TableName
from lakehouse.declarations.access import read_relations
from lakehouse.errors import LakehouseError
from lakehouse.servers.logins import Role
from lakehouse.servers.trino import query
from lakehouse.settings import Settings
from lakehouse.text.sql import ident, literal, relation
from lakehouse_serve.past.cuts import Cut, Cuts, NoCut
from lakehouse_serve.past.moments import Moment, parse_warehouse
from lakehouse_serve.past.queries import BY_COMMIT, BY_POSITION, AsOfCuts, Kind, below

NEVER = "timestamp '0001-01-01 00:00:00 UTC'"
LOADED = "lakehouse.loaded."  # a table's property of what it has loaded from an input: see load_plan.sql
Ask = Callable[[str], list[list[Any]]]


def moment_of(settings: Settings, text: str) -> Moment:
    """A time, or positions such as `retail=0/3C87757`. Raises LakehouseError for anything else."""
    catalog = settings.trino.catalog
    try:
        moment = parse_warehouse(f"{catalog}@{text}", catalog)
    except ValueError as error:
        raise LakehouseError(str(error).replace(f"{catalog}@", "")) from None
    if moment is None:
        raise LakehouseError("no moment is given: use 2026-11-20T10:00 or retail=0/3C87757")
    return moment


def at_moment(settings: Settings, sql: str, moment: Moment, role: Role) -> tuple[str, tuple[Cut, ...]]:
    """The query as of the newest cut of each source until the moment, and those cuts that it reads.

    Raises LakehouseError where there is no cut, a relation has no past, or what was committed until then is not loaded.
    """
    try:
        cuts = {cut.source: cut for cut in Cuts(settings).at(moment, datetime.now(UTC))}
    except NoCut as error:
        raise LakehouseError(str(error)) from None

    def ask(statement: str) -> list[list[Any]]:
        return query(settings, statement)

    kind_of = cache(lambda name: _kind(ask, settings.trino.catalog, name))
    lake = AsOfCuts(cuts, settings.trino.catalog, kind_of, _hidden(settings, role))
    rewritten = lake.rewrite(sql)
    for table in sorted(lake.tables):
        _check_loaded(ask, lake, table)
    read = {lake.source_of(table) for table in lake.tables}
    return rewritten, tuple(cut for source, cut in sorted(cuts.items()) if source in read or None in read)


def _hidden(settings: Settings, role: Role) -> dict[TableName, frozenset[str]]:
    folder = settings.trino.access
    if role != "reader" or folder is None:
        return {}
    return {TableName(found.schema, found.name): found.personal for found in read_relations(folder)}


def _kind(ask: Ask, catalog: str, name: TableName) -> Kind | None:
    where = f"table_schema = {literal(name.namespace)} AND table_name = {literal(name.name)}"
    schema = f"{ident(catalog)}.information_schema"
    columns = ask(f"SELECT column_name FROM {schema}.columns WHERE {where}")
    views = ask(f"SELECT view_definition FROM {schema}.views WHERE {where}")
    return Kind(frozenset(column for (column,) in columns), views[0][0] if views else None) if columns else None


def _check_loaded(ask: Ask, lake: AsOfCuts, table: TableName) -> None:
    """Raises LakehouseError where the table lacks what was committed until its cut."""
    kind = lake.kind_of(table)
    assert kind is not None
    if not kind.columns >= BY_COMMIT:
        for load in _loads(ask, table):
            _check_load(ask, lake, table, load)
    elif table.namespace == "parsed" and (source := lake.source_of(table)):
        _check_parsed(ask, lake.cut_of(source, table), table)


def _check_parsed(ask: Ask, cut: Cut, table: TableName) -> None:
    """As `new_raw_rows.sql` knows new rows: by the newest moment that is there, and by their number at it."""
    raw, parsed = relation(cut.namespace, table.name.removeprefix(f"parsed_{cut.source}__")), relation(*table)
    [[newest]] = ask(f"SELECT cast(coalesce(max(_loaded_at), {NEVER}) AS varchar) FROM {parsed}")
    here = f"SELECT count(*) FROM {parsed} WHERE {below(cut)} AND _op <> 't' AND _loaded_at >= timestamp '{newest}'"
    [[rows, truncates, loaded]] = ask(
        f"SELECT count_if(_op <> 't'), count_if(_op = 't' AND _ingested_at > timestamp '{newest}'), ({here})"
        f" FROM {raw} WHERE {below(cut)} AND _ingested_at >= timestamp '{newest}'"
    )
    if truncates and rows == loaded:  # of an empty table there is nothing to load
        [[truncates]] = ask(f"SELECT count(*) FROM {relation('parsed', 'current' + table.name.removeprefix('parsed'))}")
    _refuse_lacking(table, rows - loaded + truncates)


@dataclass(frozen=True)
class _Load:
    """What a vault table remembers of a stage: the newest moment that it has, and how many rows were at it."""

    stage: TableName
    newest: str
    rows: int


def _loads(ask: Ask, table: TableName) -> set[_Load]:
    """What counts of a table's memory, as `load_plan.sql` has it. Raises LakehouseError if nothing does."""
    properties, history = (relation(table.namespace, f"{table.name}${what}") for what in ("properties", "history"))
    steps = {step for (step,) in ask(f"SELECT cast(snapshot_id AS varchar) FROM {history} WHERE is_current_ancestor")}
    found = set()
    for key, value in ask(f"SELECT key, value FROM {properties} WHERE key LIKE {literal(LOADED + '%')}"):
        newest, *numbers = value.split("|")
        if len(numbers) > 2 and numbers[-1] in steps:
            stage = TableName(table.namespace, key.removeprefix(LOADED).partition(".")[0])
            found.add(_Load(stage, newest, int(numbers[0])))
    if not found:
        raise LakehouseError(f"{table}: nothing says how far it is loaded: run its load first")
    return found


def _check_load(ask: Ask, lake: AsOfCuts, table: TableName, load: _Load) -> None:
    """A stage over tables that came into the lake after the cut has nothing to give yet."""
    read = lake.tables_below(load.stage)
    if not any(map(lake.covers, read)) and len(_loads(ask, table)) > 1:
        return
    for parsed in sorted(read):
        _check_loaded(ask, lake, parsed)
    [[later, at_newest]] = ask(
        f"SELECT count_if(load_date > timestamp '{load.newest}' AND ({lake.condition(load.stage, BY_POSITION)})),"
        f" count_if(load_date = timestamp '{load.newest}')"
        f" FROM {relation(*load.stage)} WHERE load_date >= timestamp '{load.newest}'"
    )
    _refuse_lacking(table, later + at_newest - load.rows)


def _refuse_lacking(table: TableName, count: int) -> None:
    if count:
        raise LakehouseError(
            f"{table} lacks {count:,} changes that are not loaded yet: run its load (`lakehouse run`, or the worker "
            "does), or ask for an earlier moment"
        )

"""A query of the past through Trino: what its relations are, who asks, and whether all that it reads is loaded."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import closing
from functools import cache
from typing import Any

from lakehouse.catalog.lake_catalog import LakeCatalog
from lakehouse.catalog.loads.remembered import LoadedInput, loaded_inputs
from lakehouse.catalog.open import load_table, open_catalog
from lakehouse.catalog.relations import TableName
from lakehouse.catalog.views.current_views import past_of
from lakehouse.declarations.access import read_relations
from lakehouse.declarations.manifest import load_manifest
from lakehouse.errors import LakehouseError
from lakehouse.servers.logins import Role
from lakehouse.servers.trino import query
from lakehouse.settings import Settings
from lakehouse.text.sql import ident, literal, relation
from lakehouse_serve.past.cuts import Cut
from lakehouse_serve.past.moments import Moment, parse_warehouse
from lakehouse_serve.past.queries import BY_COMMIT, BY_POSITION, AsOfCuts, Kind, below
from lakehouse_serve.past.states import State, came_later, newest_cuts, said_of_later, state_at

NEVER = "timestamp '0001-01-01 00:00:00 UTC'"
Ask = Callable[[str], list[list[Any]]]
Loads = Callable[[TableName], frozenset[LoadedInput]]
ModelOf = Callable[[str], TableName | None]


def moment_of(settings: Settings, text: str) -> Moment:
    """A time, positions such as `retail=0/3C87757`, or `pin:NAME`. Raises LakehouseError for anything else."""
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
    state = State(newest_cuts(settings, moment), {}, is_of_all=moment.at is not None)
    return _at(settings, sql, state, role)


def remarks(settings: Settings, moment: Moment, cuts: Collection[Cut]) -> list[str]:
    """What of the moment's own is not in these cuts, the newest until then."""
    with closing(open_catalog(settings)) as catalog:
        found = [(cut, came_later(catalog, cut, moment)) for cut in cuts]
    return [said_of_later(cut, changed) for cut, changed in found if changed]


def at_cut(settings: Settings, sql: str, moment: Moment, role: Role) -> tuple[str, tuple[Cut, ...]]:
    """The same as of a pin, or of positions that are cuts: mirrors have a past there too, and what a pin keeps."""
    state = state_at(settings, moment)
    rewritten, _ = _at(settings, sql, state, role)
    return rewritten, state.cuts


def _at(settings: Settings, sql: str, state: State, role: Role) -> tuple[str, tuple[Cut, ...]]:
    cuts = {cut.source: cut for cut in state.cuts}

    def ask(statement: str) -> list[list[Any]]:
        return query(settings, statement)

    kind_of = cache(lambda name: _kind(ask, settings.trino.catalog, name))
    lake = AsOfCuts(cuts, settings.trino.catalog, kind_of, _hidden(settings, role), state.snapshots, state.is_of_all)
    rewritten = lake.rewrite(sql)
    with closing(open_catalog(settings)) as catalog:
        loads, model_of = cache(lambda table: _loads(catalog, table)), cache(lambda name: _model_of(settings, name))
        for table in sorted(lake.tables):
            _check_loaded(ask, loads, model_of, lake, table)
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
    return (
        Kind(frozenset(column for (column,) in columns), past_of(views[0][0]) if views else None) if columns else None
    )


def _model_of(settings: Settings, name: str) -> TableName | None:
    """The relation of a model of the project; None if it has none of that name."""
    models = (node for node in load_manifest(settings)["nodes"].values() if node["resource_type"] == "model")
    return next((TableName(node["schema"], node["alias"]) for node in models if node["name"] == name), None)


def _check_loaded(ask: Ask, loads: Loads, model_of: ModelOf, lake: AsOfCuts, table: TableName) -> None:
    """Raises LakehouseError where the table lacks what was committed until its cut."""
    kind = lake.kind_of(table)
    assert kind is not None
    if not kind.columns >= BY_COMMIT:
        for load in loads(table):
            _check_load(ask, loads, model_of, lake, table, load)
    elif table.namespace == "parsed" and (source := lake.source_of(table)):
        _check_parsed(ask, lake.cut_of(source, table), table)


def _check_parsed(ask: Ask, cut: Cut, table: TableName) -> None:
    """As `new_raw_rows.sql` knows new rows: by the newest moment that is there, and by their number at it."""
    raw, parsed = relation(f"raw_{cut.source}", table.name.removeprefix(f"parsed_{cut.source}__")), relation(*table)
    [[newest]] = ask(f"SELECT cast(coalesce(max(_loaded_at), {NEVER}) AS varchar) FROM {parsed}")
    here = f"SELECT count(*) FROM {parsed} WHERE {below(cut)} AND _op <> 't' AND _loaded_at >= timestamp '{newest}'"
    [[rows, truncates, loaded]] = ask(
        f"SELECT count_if(_op <> 't'), count_if(_op = 't' AND _ingested_at > timestamp '{newest}'), ({here})"
        f" FROM {raw} WHERE {below(cut)} AND _ingested_at >= timestamp '{newest}'"
    )
    if truncates and rows == loaded:  # of an empty table there is nothing to load
        [[truncates]] = ask(f"SELECT count(*) FROM {relation('parsed', 'current' + table.name.removeprefix('parsed'))}")
    _refuse_lacking(table, rows - loaded + truncates)


def _loads(catalog: LakeCatalog, table: TableName) -> frozenset[LoadedInput]:
    """Raises LakehouseError if the table remembers nothing that counts."""
    found = load_table(catalog, *table)
    loads = loaded_inputs(found.metadata) if found else frozenset()
    if not loads:
        raise LakehouseError(f"{table}: nothing says how far it is loaded: run its load first")
    return loads


def _check_load(ask: Ask, loads: Loads, model_of: ModelOf, lake: AsOfCuts, table: TableName, load: LoadedInput) -> None:
    """A stage over tables that came into the lake after the cut has nothing to give yet, nor has one that is gone."""
    stage = _stage(model_of, lake, table, load)
    read = lake.tables_below(stage) if stage else set()
    if stage is None or any(lake.kind_of(name) is None for name in read):
        return
    if len(loads(table)) > 1 and not any(lake.covers(name) or _had_rows(ask, lake, name) for name in read):
        return
    for parsed in sorted(read):
        _check_loaded(ask, loads, model_of, lake, parsed)
    [[later, at_newest]] = ask(
        f"SELECT count_if(load_date > timestamp '{load.newest}' AND ({lake.condition(stage, BY_POSITION)})),"
        f" count_if(load_date = timestamp '{load.newest}')"
        f" FROM {relation(*stage)} WHERE load_date >= timestamp '{load.newest}'"
    )
    _refuse_lacking(table, later + at_newest - load.rows)


def _stage(model_of: ModelOf, lake: AsOfCuts, table: TableName, load: LoadedInput) -> TableName | None:
    """It is where its table is, unless the project has it elsewhere: in another schema, or under an alias."""
    beside = TableName(table.namespace, load.stage)
    if lake.kind_of(beside) is not None:
        return beside
    stage = model_of(load.stage)
    if stage is not None and lake.kind_of(stage) is None:
        raise LakehouseError(f"{table}: its stage {stage} is not in the lake: run its load first")
    return stage


def _had_rows(ask: Ask, lake: AsOfCuts, parsed: TableName) -> bool:
    """Whether raw has rows of a parsed table until its source's cut, as of one that was parked there."""
    source = str(lake.source_of(parsed))
    raw, cut = TableName(f"raw_{source}", parsed.name.removeprefix(f"parsed_{source}__")), lake.cuts.get(source)
    if cut is None or lake.kind_of(raw) is None:
        return False
    [[rows]] = ask(f"SELECT count(*) FROM {relation(*raw)} WHERE {below(cut)}")
    return bool(rows)


def _refuse_lacking(table: TableName, count: int) -> None:
    if count:
        raise LakehouseError(
            f"{table} lacks {count:,} changes that are not loaded yet: run its load (`lakehouse run`, or the worker "
            "does), or ask for an earlier moment"
        )

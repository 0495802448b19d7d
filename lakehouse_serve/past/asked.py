"""A query of the past through Trino: its cuts, what its relations are, and who asks."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from contextlib import closing
from datetime import UTC, datetime
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from lakehouse.catalog.lake_catalog import LakeCatalog
from lakehouse.catalog.loads.remembered import MADE_ANEW, LoadedInput, loaded_inputs
from lakehouse.catalog.open import history, load_table, open_catalog
from lakehouse.catalog.relations import TableName, begun_at
from lakehouse.catalog.views.current_views import past_of
from lakehouse.declarations.access.rules import read_relations
from lakehouse.declarations.dbt.manifest import load_manifest, parsed_last
from lakehouse.declarations.dbt.models import APPENDED, is_view, table_of_model
from lakehouse.errors import LakehouseError
from lakehouse.servers.logins import Role
from lakehouse.servers.trino import query
from lakehouse.settings import Settings
from lakehouse.text.sql import ident, literal
from lakehouse_serve.past.cuts import Cut
from lakehouse_serve.past.loaded import Ask, FirstSight, Loaded, Model
from lakehouse_serve.past.mentions import earlier_mentions
from lakehouse_serve.past.mirrors import MIRROR, key_of
from lakehouse_serve.past.mirrors import has_snapshot as mirror_has
from lakehouse_serve.past.moments import Moment, parse_warehouse
from lakehouse_serve.past.queries import AsOfCuts, Kind
from lakehouse_serve.past.reads import read_sources, said_of_unread, unread
from lakehouse_serve.past.states import State, came_later, cuts_read, mirrors_at, said_of_later, state_at

if TYPE_CHECKING:
    from pyiceberg.table import Table

log = logging.getLogger("lakehouse.past")


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

    Raises LakehouseError where there is no cut, a relation has no past, or what was committed until then is not loaded,
    or not read.
    """
    if moment.pin is not None:
        raise LakehouseError(f"pin:{moment.pin} is no time and no position: use --as-of-cut")
    cuts = cuts_read(settings, moment)
    standing = {cut.source: cut for cut in mirrors_at(settings, cuts)}
    snapshots = {name: found for cut in standing.values() for name, found in cut.tables.items()}
    return _at(settings, sql, State(cuts, snapshots, is_of_all=moment.at is not None), role, standing)


def remarks(settings: Settings, moment: Moment, cuts: Collection[Cut]) -> list[str]:
    """What of the moment's own is not in these cuts, the newest until then."""
    reads = read_sources(settings) if moment.at is not None else {}  # before what a publish meanwhile would tell of
    with closing(open_catalog(settings)) as catalog:
        found = [(cut, came_later(catalog, cut, moment)) for cut in cuts]
    not_read = unread(moment, cuts, reads)
    return [
        *(said_of_later(cut, changed) for cut, changed in found if changed),
        *(said_of_unread(source, read) for source, read in not_read.items()),
    ]


def at_cut(settings: Settings, sql: str, moment: Moment, role: Role) -> tuple[str, tuple[Cut, ...]]:
    """The same as of a pin, or of positions that are cuts: mirrors as they were there, and what else a pin keeps."""
    state = state_at(settings, moment)
    rewritten, _ = _at(settings, sql, state, role)
    return rewritten, state.cuts


def _at(
    settings: Settings, sql: str, state: State, role: Role, standing: Mapping[str, Cut] | None = None
) -> tuple[str, tuple[Cut, ...]]:
    """`standing` are the cuts of mirrors by source, where these have to have what landed late, too."""
    cuts = {cut.source: cut for cut in state.cuts}

    def ask(statement: str) -> list[list[Any]]:
        return query(settings, statement)

    name, hidden = settings.trino.catalog, _hidden(settings, role)
    with closing(open_catalog(settings)) as catalog:
        kind_of = cache(lambda table: _kind(ask, catalog, name, table))

        @cache
        def has_snapshot(mirror: TableName, snapshot: int) -> bool:
            source = mirror.namespace.removeprefix(MIRROR)
            landed = (cuts[source], standing[source]) if standing is not None else None
            return mirror_has(catalog, mirror, snapshot, landed)

        lake = AsOfCuts(cuts, name, kind_of, hidden, state.snapshots, state.is_of_all, has_snapshot)
        lake.rewrite(sql)  # tells which tables it reads
        models, since = cache(lambda: _models(settings)), cache(partial(_stands_since, catalog))
        loaded = Loaded(ask, partial(_remembered, catalog), since, models, lake)
        for table in sorted(lake.versions):
            _refuse_expired(load_table(catalog, *table), table, state.snapshots[table])
        for table in sorted(lake.tables):
            loaded.check(table)
            if further := earlier_mentions(loaded, table, may_read_stages=role == "writer"):
                lake.mentioned[table] = further
        rewritten = lake.rewrite(sql)
    read = {lake.source_of(table) for table in lake.tables | lake.versions}
    return rewritten, tuple(cut for source, cut in sorted(cuts.items()) if source in read or None in read)


def _refuse_expired(found: Table | None, name: TableName, snapshot_id: int) -> None:
    """Raises LakehouseError, which says what can be asked for, where a table has lost its snapshot of then."""
    if found is None or found.snapshot_by_id(snapshot_id) is not None:
        return
    oldest = min((s.timestamp_ms for s in history(found.metadata)), default=None)
    since = f"{_time(oldest):%Y-%m-%d %H:%M:%S} UTC" if oldest is not None else "now"
    raise LakehouseError(
        f"{name} has no snapshot of that cut any more: its retention has passed. It has those since {since}"
    )


def _hidden(settings: Settings, role: Role) -> dict[TableName, frozenset[str]]:
    folder = settings.trino.access
    if role != "reader" or folder is None:
        return {}
    return {TableName(found.schema, found.name): found.personal for found in read_relations(folder)}


def _kind(ask: Ask, lake: LakeCatalog, catalog: str, name: TableName) -> Kind | None:
    where = f"table_schema = {literal(name.namespace)} AND table_name = {literal(name.name)}"
    schema = f"{ident(catalog)}.information_schema"
    columns = ask(f"SELECT column_name, data_type FROM {schema}.columns WHERE {where} ORDER BY ordinal_position")
    views = ask(f"SELECT view_definition FROM {schema}.views WHERE {where}")
    if not columns:
        return None
    types = dict(columns)
    if views:
        return Kind(frozenset(types), past_of(views[0][0]), types=types)
    return Kind(frozenset(types), None, _begun_at(lake, name), types, _key(lake, name))


def _begun_at(catalog: LakeCatalog, name: TableName) -> datetime | None:
    """When a raw table was begun; None for another table, and one of a release that did not say so."""
    table = load_table(catalog, *name) if name.namespace.startswith("raw_") else None
    return begun_at(table.properties) if table else None


def _key(catalog: LakeCatalog, name: TableName) -> tuple[str, ...]:
    """The columns of a mirror's key; none of another table."""
    table = load_table(catalog, *name) if name.namespace.startswith(MIRROR) else None
    return key_of(table.properties) if table else ()


def _remembered(catalog: LakeCatalog, table: TableName) -> frozenset[LoadedInput]:
    found = load_table(catalog, *table)
    return loaded_inputs(found.metadata) if found else frozenset()


def _stands_since(catalog: LakeCatalog, table: TableName) -> datetime | None:
    """When a table was made anew, or else its oldest snapshot that is kept: it has lost nothing since."""
    found = load_table(catalog, *table)
    if found is None:
        return None
    if made := found.properties.get(MADE_ANEW):
        return datetime.fromisoformat(made.replace(" UTC", "+00:00")) if made.endswith(" UTC") else None
    return min((_time(s.timestamp_ms) for s in history(found.metadata)), default=None)


def _time(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def _models(settings: Settings) -> dict[str, Model]:
    """The models of the project by name; as it was when it last parsed, which is told, while somebody edits it.

    No load can have run of what does not parse. Raises LakehouseError where there is no project, or it never parsed.
    """
    try:
        nodes = load_manifest(settings)["nodes"]
    except LakehouseError as error:
        known = parsed_last(settings)
        if known is None:
            raise LakehouseError(f"what the vault is loaded from is not known without its project: {error}") from None
        nodes, at = known["nodes"], known["metadata"]["generated_at"]
        log.warning("what the vault is loaded from is told by the project as it last parsed, at %s: %s", at, error)
    models = {key: node for key, node in nodes.items() if node["resource_type"] == "model"}
    return {node["name"]: _model(node, models) for node in models.values()}


def _model(node: Mapping[str, Any], models: Mapping[str, Any]) -> Model:
    """What a table that only grows reads of views are its stages, which it remembers."""
    loads = node["config"]["materialized"] == APPENDED
    read = [models[key] for key in node["depends_on"]["nodes"] if key in models]
    names = (found["name"] for found in read if is_view(found) or not loads)
    return Model(TableName(*table_of_model(node)), tuple(names), loads, _first_sight(node))


def _first_sight(node: Mapping[str, Any]) -> FirstSight | None:
    """What the macro `first_sight` says of itself."""
    said = node["config"].get("meta", {}).get("first_sight")
    if said is None:
        return None
    mentions = ((mention["stage"], mention["key"].lower()) for mention in said["mentions"])
    return FirstSight(said["key"].lower(), tuple(mentions), said["of_deletes"])

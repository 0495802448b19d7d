"""Current views in tests without dbt: made as dbt marks them, then made fresh by refreshes of the mirrors."""

import json
from collections.abc import Mapping
from contextlib import closing
from datetime import datetime
from types import MappingProxyType
from typing import Any

from lakehouse.catalog.open import load_table, open_catalog
from lakehouse.catalog.relations import list_views, read_metadata
from lakehouse.catalog.views.current_views import MARK, is_fresh, is_plain
from lakehouse.servers.trino import query
from lakehouse.text.sql import columns, ident, relation
from tests.mirrored import metadata
from tests.world import Row, World, position, replay

Columns = Mapping[str, tuple[str, ...]]


def name_of(world: World, table: str) -> tuple[str, str]:
    """The current view's name."""
    return "parsed", f"current_{world.source.name}__{table}"


def make_views(world: World, shown: Columns = MappingProxyType({})) -> None:
    """A view for each table that has landed, as of a last load that found nothing; of all columns, or of these."""
    query(world.settings, "CREATE SCHEMA IF NOT EXISTS parsed")
    for table in world.source.mirrored:
        make_view(world, table.name, shown.get(table.name, table.landed))


def make_view(world: World, table: str, shown: tuple[str, ...], comment: str = f"Of a test. {MARK}test]") -> None:
    """One of them."""
    query(
        world.settings,
        f"CREATE OR REPLACE VIEW {relation(*name_of(world, table))} COMMENT '{comment}' SECURITY DEFINER AS"
        f" SELECT {columns(shown)} FROM {relation(f'raw_{world.source.name}', table)} WHERE false",
    )


def has_view(world: World, table: str) -> bool:
    """Whether the table has a current view."""
    with closing(open_catalog(world.settings)) as catalog:
        return bool(list_views(catalog, [name_of(world, table)]))


def view_metadata(world: World, table: str) -> dict[str, Any]:
    """The view as the catalog has it."""
    with closing(open_catalog(world.settings)) as catalog:
        (location,) = list_views(catalog, [name_of(world, table)]).values()
        found = read_metadata(catalog.file_io, location)
    assert found is not None
    return found


def version_of(world: World, table: str) -> dict[str, Any]:
    """Its current version."""
    found = view_metadata(world, table)
    return next(v for v in found["versions"] if v["version-id"] == found["current-version-id"])


def texts(world: World, table: str) -> dict[str, str]:
    """Its texts by dialect."""
    return {r["dialect"]: r["sql"] for r in version_of(world, table)["representations"]}


def is_fresh_view(world: World, table: str) -> bool:
    """Whether it reads the mirror."""
    return is_fresh(texts(world, table)["trino"])


def is_plain_view(world: World, table: str) -> bool:
    """Whether it reads the mirror alone."""
    return is_plain(texts(world, table)["trino"])


def is_short_view(world: World, table: str) -> bool:
    """Whether it reads the mirror, and no cuts."""
    return is_fresh_view(world, table) and "_lh_cut" not in texts(world, table)["trino"]


def seen_in_trino(world: World, table: str, shown: tuple[str, ...] = ()) -> list[str]:
    """The rows of the view, in an order."""
    named = columns(shown or world.source.table(table).landed)
    return sorted(
        repr(tuple(r)) for r in query(world.settings, f"SELECT {named} FROM {relation(*name_of(world, table))}")
    )


def seen_in_spark(world: World, spark: Any, table: str) -> list[str]:
    """The same, as Spark reads it."""
    schema, name = name_of(world, table)
    rows = spark.sql(f"SELECT * FROM {world.settings.catalog_name}.{schema}.{name}").collect()
    return sorted(repr(tuple(row)) for row in rows)


def in_source(world: World, table: str) -> list[str]:
    """What the source answers."""
    declared = world.source.table(table)
    schema, name = declared.relation
    named = ", ".join(map(ident, declared.landed))
    return sorted(map(repr, world.rows(f"SELECT {named} FROM {relation(schema, name)}")))


def promised(world: World, table: str, shown: tuple[str, ...]) -> list[str]:
    """What a fresh view has to show: the rows of the mirror that it names, and the changes that it may follow."""
    at = json.loads(version_of(world, table)["summary"]["lakehouse.mirror"])
    key = world.source.table(table).key
    with closing(open_catalog(world.settings)) as catalog:
        mirror = metadata(world, table).scan(snapshot_id=at["snapshot"]).to_arrow().to_pylist()
        listed = load_table(catalog, "meta", "cuts")
        assert listed is not None
        cuts = listed.scan().to_arrow().to_pylist()
    until = _followed(world, table, at, cuts)
    after = [r for r in world.raw(table) if r["_epoch"] == at["epoch"] and at["cut_lsn"] < r["_commit_lsn"] <= until]
    held = (r["_commit_lsn"] for r in after if r["_op"] == "t" or (r["_old_key"] and r["_unchanged"]))
    stop = min(held, default=until + 1)
    begun: list[Row] = [row | {"_op": "r", "_old_key": None, "_unchanged": None} for row in mirror]
    state = replay([*begun, *(r for r in sorted(after, key=position) if r["_commit_lsn"] < stop)], key)
    return sorted(repr(tuple(row.get(column) for column in shown)) for row in state.values())


def _followed(world: World, table: str, at: dict[str, Any], cuts: list[dict[str, Any]]) -> int:
    until: int = at["cut_lsn"]
    since = datetime.fromisoformat(at["seen"])
    own = (
        c for c in cuts if c["source"] == world.source.name and c["epoch"] == at["epoch"] and c["published_at"] > since
    )
    for cut in sorted(own, key=lambda c: c["published_at"]):
        if table not in dict(cut["snapshots"]):
            break
        until = cut["cut_lsn"]
    return until

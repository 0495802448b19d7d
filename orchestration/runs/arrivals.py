"""Which raw tables have never arrived. No mart is built of one: it would lack rows that the source may have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lakehouse.catalog.lake_catalog import LakeCatalog
    from lakehouse.declarations import Declarations
    from lakehouse.servers.database import CatalogConnection

Name = tuple[str, str]
IN_CUTS = "SELECT source, unnest(cut_tables) FROM lakehouse.streams"


def never_arrived(
    connection: CatalogConnection, catalog: LakeCatalog, declared: Declarations, manifest: Mapping[str, Any]
) -> list[Name]:
    """The declared raw tables that are in no cut, and of which no model that reads them has rows.

    One that left the cuts is not among them: what was made of it is as of the cut before.
    """
    from lakehouse.catalog.open import newest_data_snapshots

    is_new = connection.execute("SELECT to_regclass('lakehouse.streams')").fetchone() == (None,)
    covered = set() if is_new else set(connection.execute(IN_CUTS).fetchall())
    outside = [t for source in declared.sources for t in source.tables if (t.source, t.name) not in covered]
    readers = {table.asset_key: _readers(manifest, table.asset_key) for table in outside}
    facts = newest_data_snapshots(catalog, frozenset[Name]().union(*readers.values()))
    loaded = {name for name, fact in facts.items() if fact.total_rows}
    return [key for key, models in readers.items() if models and not loaded.intersection(map(".".join, models))]


def _readers(manifest: Mapping[str, Any], raw: Name) -> frozenset[Name]:
    """What models make directly of a raw table."""
    sources = [key for key, node in manifest["sources"].items() if (node["schema"], node["identifier"]) == raw]
    children = [manifest["nodes"].get(child) for key in sources for child in manifest["child_map"].get(key, ())]
    models = [child for child in children if child and child["resource_type"] == "model"]
    return frozenset((model["schema"], model["alias"]) for model in models)

"""Which raw tables have never arrived. No mart is built of one: it would lack rows that the source may have."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from lakehouse.declarations import Declarations, RawTable

if TYPE_CHECKING:
    from lakehouse.catalog.lake_catalog import LakeCatalog
    from lakehouse.servers.database import CatalogConnection

Name = tuple[str, str]
ARRIVED = "in_the_cut"  # the check of each raw table
STATE = "state"  # where the table stands, in the metadata of that check
IN_CUTS = "SELECT source, unnest(cut_tables) FROM lakehouse.streams"


@dataclass(frozen=True)
class Aside:
    """A raw table that a load did not bring, its state, and why."""

    table: str
    state: str
    reason: str

    @property
    def line(self) -> str:
        """The same for people, with what to do."""
        source, _, name = self.table.partition(".")
        reason = self.reason.removeprefix(f"source {source!r}, table {name!r}: ")
        resume = f"then `lakehouse ingest --resume {self.table}`"
        then = resume if self.state == "parked" else "the next load tries it again"
        return f"{self.table} is {self.state}: {reason}" + ("" if "`lakehouse ingest" in reason else f"; {then}")


class Read(NamedTuple):
    """A declared raw table, and what models make directly of it."""

    table: RawTable
    models: frozenset[Name]


def raw_read(declared: Declarations, manifest: Mapping[str, Any]) -> list[Read]:
    """The declared raw tables that a model reads."""
    ids = {(node["source_name"], node["name"]): key for key, node in manifest["sources"].items()}
    found = [Read(table, _models(manifest, ids[table.source, table.name])) for table in declared.tables]
    return [read for read in found if read.models]


def in_cuts(connection: CatalogConnection, tables: Collection[Name]) -> list[Name]:
    """Those of these raw tables that are in the newest cut of their source."""
    covered = _covered(connection)
    return [table for table in tables if table in covered]


def not_there(catalog: LakeCatalog, tables: Collection[Name]) -> list[Name]:
    """Those of the tables that the catalog has neither as a table nor as a view, which a source may be."""
    from lakehouse.catalog.relations import list_views

    there = catalog.locations(tables)
    missing = [table for table in tables if table not in there]
    views = list_views(catalog, missing)
    return [table for table in missing if table not in views]


def never_arrived(connection: CatalogConnection, catalog: LakeCatalog, reads: Sequence[Read]) -> list[Name]:
    """Those of the raw tables that are in no cut, and of which no model has rows.

    One that left the cuts is not among them: what was made of it is as of the cut before.
    """
    from lakehouse.catalog.open import newest_data_snapshots

    is_new = connection.execute("SELECT to_regclass('lakehouse.streams')").fetchone() == (None,)
    covered = set() if is_new else _covered(connection)
    outside = [read for read in reads if read.table.asset_key not in covered]
    facts = newest_data_snapshots(catalog, frozenset[Name]().union(*(read.models for read in outside)))
    loaded = {name for name, fact in facts.items() if fact.total_rows}
    return [read.table.asset_key for read in outside if not loaded.intersection(map(".".join, read.models))]


def _covered(connection: CatalogConnection) -> set[Name]:
    return {(f"raw_{source}", name) for source, name in connection.execute(IN_CUTS).fetchall()}


def _models(manifest: Mapping[str, Any], source: str) -> frozenset[Name]:
    children = (manifest["nodes"].get(child) for child in manifest["child_map"].get(source, ()))
    return frozenset((c["schema"], c["alias"]) for c in children if c and c["resource_type"] == "model")

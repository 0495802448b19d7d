"""Tells Dagster of mirrors that a follower has refreshed, which no run does: their assets looked never materialized."""

import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

import dagster as dg

from orchestration.assets.dbt_assets import snapshot_metadata
from orchestration.resources import TableKey
from orchestration.worker.reports.events import told_snapshots

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from lakehouse.catalog.lake_catalog import LakeCatalog
    from lakehouse.catalog.open import SnapshotFact

PACE_SECONDS = 60.0  # that of refreshes, as a rule


@dataclass(frozen=True)
class Standing:
    """What the metadata of a mirror says: the newest state of its rows, and the cut that it is at."""

    fact: "SnapshotFact"
    position: str

    @property
    def snapshot_id(self) -> str:
        """As text, as everywhere in the UI."""
        return str(self.fact.snapshot_id)


class Mirrors:
    """The mirrors of all sources, and the snapshots of them that Dagster knows."""

    def __init__(self, instance: dg.DagsterInstance, catalog: "LakeCatalog", tables: Collection[TableKey]) -> None:
        self._instance, self._catalog, self._tables = instance, catalog, tables
        self._due, self._told = 0.0, dict[TableKey, str]()

    def report(self) -> None:
        """One materialization for each mirror that has another snapshot than the one told of."""
        from lakehouse.catalog.derived import derived

        if time.monotonic() < self._due:
            return
        if not self._due:
            self._told = told_snapshots(self._instance, self._tables)
        self._due = time.monotonic() + PACE_SECONDS
        for table, mirror in derived(self._catalog, self._tables, standing).items():
            if mirror is not None and self._told.get(table) != mirror.snapshot_id:
                metadata = {**snapshot_metadata(mirror.fact), "position": mirror.position}
                made = dg.AssetMaterialization(dg.AssetKey(table), metadata=metadata)
                self._instance.report_runless_asset_event(made)
                self._told[table] = mirror.snapshot_id


def standing(mirror: "Table") -> Standing | None:
    """Where a mirror stands; None before its first refresh."""
    from lakehouse.catalog.open import MIRROR_POSITION, newest_of

    fact = newest_of(mirror)
    return Standing(fact, mirror.properties.get(MIRROR_POSITION, "")) if fact else None

"""The job that builds the marts, and the sensor that launches it when their inputs have new data."""

from datetime import timedelta
from typing import Any

import dagster as dg

from lakehouse.declarations import Declarations
from orchestration.assets.dbt_assets import marts_assets
from orchestration.assets.translator import MARTS, is_view, layer
from orchestration.resources import TableKey
from orchestration.runs import arrivals, tags
from orchestration.sensors.new_data import Watch, new_data_sensor

JOB = "build_marts"


def marts_definitions(manifest: dict[str, Any], declared: Declarations) -> dg.Definitions:
    """The assets, their job and its sensor; empty if the project has no marts."""
    marts = _marts(manifest)
    if not marts:
        return dg.Definitions()
    job = dg.define_asset_job(
        JOB,
        selection=dg.AssetSelection.groups(MARTS),
        description="Builds every mart from vault and parsed.",
        tags={tags.LOADS: MARTS},
    )
    reads = tables_read(manifest)
    freshness = [m for node in marts if (m := node["config"].get("meta", {}).get("freshness_minutes"))]
    watch = Watch(
        name=f"new_data_{MARTS}",
        tables=reads,
        confirm_after=timedelta(minutes=min(freshness)) / 2 if freshness else None,
        reads=arrivals.raw_read(declared, manifest),
    )
    return dg.Definitions(assets=[marts_assets(manifest, reads)], jobs=[job], sensors=[new_data_sensor(watch, job)])


def tables_read(manifest: dict[str, Any]) -> tuple[TableKey, ...]:
    """The tables that the marts are built from."""
    return tuple(sorted(tables_read_by(manifest, _marts(manifest))))


def tables_read_by(manifest: dict[str, Any], models: list[dict[str, Any]]) -> set[TableKey]:
    """The nearest upstream tables, looking through views: their snapshots show new data for the marts."""
    found: set[TableKey] = set()
    waiting, visited = list(models), set()
    while waiting:
        node = waiting.pop()
        for parent in node["depends_on"]["nodes"]:
            upstream = manifest["nodes"].get(parent)
            if upstream is None or parent in visited:
                continue
            visited.add(parent)
            if is_view(upstream) or layer(upstream) == MARTS:
                waiting.append(upstream)
            else:
                found.add((upstream["schema"], upstream["alias"]))
    return found


def _marts(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    models = (node for node in manifest["nodes"].values() if node["resource_type"] == "model")
    return [node for node in models if layer(node) == MARTS]

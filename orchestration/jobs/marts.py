"""The job that builds the marts, and the sensor that launches it when their inputs have new data."""

from datetime import timedelta
from typing import Any

import dagster as dg

from lakehouse.catalog.views.current_views import view_of
from lakehouse.declarations import Declarations
from lakehouse.declarations.dbt.models import is_view
from orchestration.assets.blocking_checks import blocking_tests
from orchestration.assets.dbt_assets import marts_assets
from orchestration.assets.next_tables import built_whole
from orchestration.assets.translator import MARTS, is_raw, layer, node_key
from orchestration.jobs.loads import loads_of
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
    reads, mirrors = tables_read(manifest), tuple(mirrors_read(manifest))
    loads = {load.job: load.tables for source in declared.sources for load in loads_of(source)}
    freshness = [m for node in marts if (m := node["config"].get("meta", {}).get("freshness_minutes"))]
    watch = Watch(
        name=f"new_data_{MARTS}",
        tables=reads,
        mirrors=mirrors,
        confirm_after=timedelta(minutes=min(freshness)) / 2 if freshness else None,
        reads=arrivals.raw_read(declared, manifest),
        tests=frozenset(blocking_tests(manifest).values()),
        built=tuple(sorted(built_whole(manifest))),
    )
    return dg.Definitions(
        assets=[marts_assets(manifest, (*reads, *mirrors), loads)], jobs=[job], sensors=[new_data_sensor(watch, job)]
    )


def tables_read(manifest: dict[str, Any]) -> tuple[TableKey, ...]:
    """The tables that the marts are built from."""
    return tuple(sorted(_read(manifest, _marts(manifest))[0]))


def mirrors_read(manifest: dict[str, Any]) -> dict[TableKey, TableKey]:
    """The mirrors of the current views that the marts read, with these: a refresh may change what such a view shows,
    though no row of the tables is new.
    """
    _, views = _read(manifest, _marts(manifest))
    raw = (node for node in manifest["sources"].values() if is_raw(node))
    current = {(n["source_name"], n["name"]): view_of(n["source_name"], n["name"]) for n in raw}
    return {(f"mirror_{source}", table): view for (source, table), view in sorted(current.items()) if view in views}


def _read(manifest: dict[str, Any], models: list[dict[str, Any]]) -> tuple[set[TableKey], set[TableKey]]:
    """The nearest upstream tables, whose snapshots show new data for the marts, and the views in between."""
    found, views = set[TableKey](), set[TableKey]()
    nodes, waiting, visited = {**manifest["sources"], **manifest["nodes"]}, list(models), set()
    while waiting:
        node = waiting.pop()
        for parent in node["depends_on"]["nodes"]:
            upstream = nodes.get(parent)
            if upstream is None or parent in visited or _is_elsewhere(upstream, node):
                continue
            visited.add(parent)
            schema, name = node_key(upstream).path
            key = (schema, name)
            if is_view(upstream):
                views.add(key)
            if is_view(upstream) or layer(upstream) == MARTS:
                waiting.append(upstream)
            else:
                found.add(key)
    return found, views


def _is_elsewhere(source: dict[str, Any], reader: dict[str, Any]) -> bool:
    """Whether it is a source that our catalog does not know by this name: of another one, or in capitals."""
    if source["resource_type"] != "source":
        return False
    is_lower = all(part.islower() for part in node_key(source).path)
    return not is_lower or source["database"] != reader["database"]


def _marts(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    models = (node for node in manifest["nodes"].values() if node["resource_type"] == "model")
    return [node for node in models if layer(node) == MARTS]

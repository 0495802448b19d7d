"""What holds for all assets alike, applied once at the root: owners, kinds, freshness, lineage, from the manifest."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import dagster as dg
from pydantic import ValidationError

from lakehouse.errors import LakehouseError
from lakehouse.lines import mistakes_in
from lakehouse.policies import ModelPolicy
from orchestration.lineage import column_lineage
from orchestration.translator import is_raw, node_key

RAW_KINDS = {"postgres", "pyspark", "iceberg"}
MODEL_KINDS = {"trino", "iceberg", "dbt"}


def policies(manifest: dict[str, Any]) -> Callable[[dg.AssetSpec], dg.AssetSpec]:
    """A function that completes the spec of any asset, raw or dbt: both are nodes of the manifest."""
    nodes = [*manifest["sources"].values(), *manifest["nodes"].values()]
    by_key = {
        node_key(node): node for node in nodes if node["resource_type"] in ("source", "model", "seed", "snapshot")
    }

    by_id = {node["unique_id"]: node for node in by_key.values()}

    def complete(spec: dg.AssetSpec) -> dg.AssetSpec:
        node = by_key.get(spec.key)
        if node is None:
            return spec
        lineage = column_lineage(node, by_id)
        spec = with_policies(spec, node)
        return spec.merge_attributes(metadata={"dagster/column_lineage": lineage}) if lineage else spec

    return complete


def with_policies(spec: dg.AssetSpec, node: dict[str, Any]) -> dg.AssetSpec:
    """The spec with the node's owners and freshness, and the kinds of its layer."""
    meta = {**node.get("meta", {}), **node.get("config", {}).get("meta", {})}
    shown = _shown(node, meta if node["resource_type"] != "source" else meta | meta.get("raw", {}))
    freshness = freshness_policy(shown.freshness_minutes)
    name = ".".join((node["database"], *spec.key.path))
    spec = spec.merge_attributes(metadata={"dagster/table_name": name}).replace_attributes(
        kinds=kinds_of(node),
        owners=list(shown.owners) or spec.owners,
    )
    return spec.replace_attributes(freshness_policy=freshness) if freshness else spec


def _shown(node: dict[str, Any], meta: dict[str, Any]) -> ModelPolicy:
    try:
        return ModelPolicy.model_validate({k: v for k, v in meta.items() if k in ModelPolicy.model_fields})
    except ValidationError as error:
        wrong = "; ".join(text for _, text in mistakes_in(error, "meta"))
        raise LakehouseError(f"{node['original_file_path']}: {node['name']}: {wrong}") from None


def kinds_of(node: dict[str, Any]) -> set[str]:
    """What made the table: shown as icons in the graph."""
    if node["resource_type"] == "source":
        return RAW_KINDS if is_raw(node) else {"iceberg"}
    return MODEL_KINDS


def freshness_policy(minutes: int | None) -> dg.FreshnessPolicy | None:
    """Warns at three quarters of the declared time; none when nothing is declared."""
    if minutes is None:
        return None
    window = timedelta(minutes=minutes)
    return dg.FreshnessPolicy.time_window(fail_window=window, warn_window=window * 0.75 if minutes > 1 else None)

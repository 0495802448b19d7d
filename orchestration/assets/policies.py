"""Owners, kinds, freshness and column lineage of all assets, read from the manifest and applied once at the root."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
from pydantic import ValidationError

from lakehouse.declarations.dbt.lineage import meta_of
from lakehouse.declarations.lines import line_in_model, line_in_source, mistakes_in, refuse
from lakehouse.declarations.policies import AccessPolicy, ModelPolicy
from lakehouse.text.spelling import close, unknown
from orchestration.assets.groups import STORED
from orchestration.assets.lineage import column_lineage
from orchestration.assets.translator import is_raw, node_key

RAW_KINDS = {"postgres", "pyspark", "iceberg"}
MODEL_KINDS = {"trino", "iceberg", "dbt"}


def policies(manifest: dict[str, Any], project_dir: Path) -> Callable[[dg.AssetSpec], dg.AssetSpec]:
    """A function that completes the spec of any asset; raw tables and dbt models are both nodes of the manifest."""
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
        spec = with_policies(spec, node, project_dir)
        if spec.freshness_policy is None and (freshness := freshness_policy(_minutes_of_raw(node, by_id))):
            spec = spec.replace_attributes(freshness_policy=freshness)
        return spec.merge_attributes(metadata={"dagster/column_lineage": lineage}) if lineage else spec

    return complete


def refuse_wrong_policies(manifest: dict[str, Any], project_dir: Path) -> None:
    """Raises LakehouseError, with the file, for what no code location is made of; `doctor` asks it before one is."""
    for node in manifest["nodes"].values():
        if node["resource_type"] in STORED:
            _policy(node, meta_of(node), project_dir)


def with_policies(spec: dg.AssetSpec, node: dict[str, Any], project_dir: Path) -> dg.AssetSpec:
    """The spec with the node's owners and freshness policy and the kinds of its layer."""
    meta = meta_of(node)
    policy = _policy(node, meta if node["resource_type"] != "source" else meta | meta.get("raw", {}), project_dir)
    freshness = freshness_policy(policy.freshness_minutes)
    name = ".".join((node["database"], *spec.key.path))
    spec = spec.merge_attributes(metadata={"dagster/table_name": name}).replace_attributes(
        kinds=kinds_of(node),
        owners=list(policy.owners) or spec.owners,
    )
    return spec.replace_attributes(freshness_policy=freshness) if freshness else spec


def _minutes_of_raw(node: dict[str, Any], by_id: dict[str, dict[str, Any]]) -> int | None:
    """The declared freshness of the raw tables a model reads: raw stays fresh when a model of it fails to build."""
    raw = [by_id[parent] for parent in node.get("depends_on", {}).get("nodes", ()) if parent in by_id]
    declared = [parent["config"].get("meta", {}).get("raw", {}) for parent in raw if is_raw(parent)]
    return min((minutes for policy in declared if (minutes := policy.get("freshness_minutes"))), default=None)


def _policy(node: dict[str, Any], meta: dict[str, Any], project_dir: Path) -> ModelPolicy:
    line = line_in_source if node["resource_type"] == "source" else line_in_model
    if node["resource_type"] != "source":
        refuse([f"{line(project_dir, node, path)}: {node['name']}: {text}" for path, text in _misspelt(meta)])
    read = ModelPolicy.model_fields.keys() - {"built_by"}  # where that is wrong, the mart is built all the same
    try:
        return ModelPolicy.model_validate({k: v for k, v in meta.items() if k in read})
    except ValidationError as error:
        mistakes = mistakes_in(error, ModelPolicy)
        refuse([f"{line(project_dir, node, path)}: {node['name']}: {text}" for path, text in mistakes])
        raise


def _misspelt(meta: dict[str, Any]) -> list[tuple[tuple[str, ...], str]]:
    """Keys of a model's meta that resemble one of ours; other keys belong to the project or to another tool."""
    known = {*ModelPolicy.model_fields, *AccessPolicy.model_fields, "maintenance"}
    return [((key,), f"meta: {unknown(key, known)}") for key in meta if key not in known and close(key, known)]


def kinds_of(node: dict[str, Any]) -> set[str]:
    """The tools that write the table, shown as icons in the asset graph."""
    if node["resource_type"] == "source":
        return RAW_KINDS if is_raw(node) else {"iceberg"}
    return MODEL_KINDS


def freshness_policy(minutes: int | None) -> dg.FreshnessPolicy | None:
    """A policy that warns at three quarters of the declared time; None if nothing is declared."""
    if minutes is None:
        return None
    window = timedelta(minutes=minutes)
    return dg.FreshnessPolicy.time_window(fail_window=window, warn_window=window * 0.75 if minutes > 1 else None)

"""Translates dbt nodes to Dagster assets: the key is [schema, table], the group is the layer."""

from collections.abc import Mapping
from typing import Any

import dagster as dg
from dagster_dbt import DagsterDbtTranslator, DagsterDbtTranslatorSettings

from orchestration.assets.markdown import escape_markdown

Node = Mapping[str, Any]
MARTS = "marts"
BUILT_WITH_MARTS = "marts"  # dbt tag of the marts and of the vault's PITs, bridges and rules, which are rebuilt in full


class LakeTranslator(DagsterDbtTranslator):
    """dbt tests, including those of sources, become asset checks."""

    def __init__(self) -> None:
        super().__init__(DagsterDbtTranslatorSettings(enable_source_tests_as_checks=True, enable_source_metadata=False))

    def get_asset_key(self, dbt_resource_props: Node) -> dg.AssetKey:
        """[schema, table], the name by which Trino knows the table."""
        return node_key(dbt_resource_props)

    def get_description(self, dbt_resource_props: Node) -> str:
        """The model's description and SQL, with Markdown escaped."""
        description = escape_markdown(dbt_resource_props.get("description", ""))
        code = dbt_resource_props.get("raw_code", "").replace("`" * 3, "'" * 3)  # would end the code block
        return super().get_description({**dbt_resource_props, "description": description, "raw_code": code})

    def get_group_name(self, dbt_resource_props: Node) -> str | None:
        """The layer."""
        return layer(dbt_resource_props)


def node_key(node: Node) -> dg.AssetKey:
    """The key of a dbt model or source table."""
    name = node["identifier"] if node["resource_type"] == "source" else node["alias"]
    return dg.AssetKey([node["schema"], name])


def layer(node: Node) -> str:
    """The schema (parsed, vault, marts …); `raw` for all raw schemas, `marts` for whatever is built with the marts."""
    if BUILT_WITH_MARTS in node.get("tags", ()):
        return MARTS
    return "raw" if is_raw(node) else str(node["schema"])


def is_raw(node: Node) -> bool:
    """Whether the node is a raw table (`meta` is a dbt source too, but belongs to ingestion)."""
    return node["resource_type"] == "source" and node["schema"].startswith("raw_")


def is_view(node: Node) -> bool:
    """Whether the node stores no rows."""
    return node.get("config", {}).get("materialized") in ("view", "ephemeral")


def stored_keys(manifest: Node) -> frozenset[dg.AssetKey]:
    """The keys of all tables that have a page in the UI: sources, models, seeds and snapshots."""
    models = (n for n in manifest["nodes"].values() if n["resource_type"] in ("model", "seed", "snapshot"))
    return frozenset(map(node_key, (*manifest["sources"].values(), *models)))

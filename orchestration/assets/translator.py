"""Translates dbt nodes to Dagster assets: the key is [schema, table], the group is the layer."""

from collections.abc import Mapping
from typing import Any

import dagster as dg
from dagster_dbt import DagsterDbtTranslator, DagsterDbtTranslatorSettings, DbtProject

from orchestration.assets.markdown import escape_markdown

Node = Mapping[str, Any]
MARTS = "marts"
MIRRORS = "mirrors"  # the group of the assets that no dbt node is
OF_DBT = {
    "unique": "each value once.",
    "not_null": "no NULL.",
    "accepted_values": "only the values that are listed.",
    "relationships": "each value is in the other table.",
}
BUILT_WITH_MARTS = "marts"  # dbt tag of the marts and of the vault's PITs, bridges and rules, which are rebuilt in full


class LakeTranslator(DagsterDbtTranslator):
    """dbt tests, including those of sources, become asset checks."""

    def __init__(self) -> None:
        super().__init__(DagsterDbtTranslatorSettings(enable_source_tests_as_checks=True, enable_source_metadata=False))

    def get_asset_key(self, dbt_resource_props: Node) -> dg.AssetKey:
        """[schema, table], the name by which Trino knows the table."""
        return node_key(dbt_resource_props)

    def get_description(self, dbt_resource_props: Node) -> str:
        """The model's description, with Markdown escaped. Its SQL is in the project."""
        return escape_markdown(dbt_resource_props.get("description", ""))

    def get_asset_check_spec(
        self, asset_spec: dg.AssetSpec, manifest: Node, unique_id: str, project: DbtProject | None
    ) -> dg.AssetCheckSpec | None:
        """The check of a test, with what the test demands."""
        spec = super().get_asset_check_spec(asset_spec, manifest, unique_id, project)
        return spec and spec._replace(description=spec.description or demand(manifest, unique_id))

    def get_group_name(self, dbt_resource_props: Node) -> str | None:
        """The layer."""
        return layer(dbt_resource_props)


def demand(manifest: Node, test: str) -> str | None:
    """What a test demands: its own description, or that of the generic test, with the column."""
    node = manifest["nodes"][test]
    generic = [manifest["macros"].get(macro, {}) for macro in node["depends_on"].get("macros", ())]
    described = next((macro["description"] for macro in generic if macro.get("description")), None)
    name = (node.get("test_metadata") or {}).get("name", "")
    column = f"{escape_markdown(node['column_name'])}: " if node.get("column_name") else ""
    text = node.get("description") or described or OF_DBT.get(name)
    return f"{column}{text}" if text else None


def node_key(node: Node) -> dg.AssetKey:
    """The key of a dbt model or source table."""
    name = node["identifier"] if node["resource_type"] == "source" else node["alias"]
    return dg.AssetKey([node["schema"], name])


def layer(node: Node) -> str:
    """The schema as Trino has it (parsed, vault, marts …); `raw` for all raw schemas, `marts` for what is built with
    the marts."""
    if BUILT_WITH_MARTS in node.get("tags", ()):
        return MARTS
    return "raw" if is_raw(node) else str(node["schema"]).lower()


def is_raw(node: Node) -> bool:
    """Whether the node is a raw table (`meta` is a dbt source too, but belongs to ingestion)."""
    return node["resource_type"] == "source" and node["schema"].startswith("raw_")


def stage_keys(manifest: Node) -> list[dg.AssetKey]:
    """The keys of the vault's stages that are views, by what the macro `stage` says of them."""
    views = (node for node in manifest["nodes"].values() if node.get("config", {}).get("materialized") == "view")
    return [node_key(view) for view in views if "hashed_keys" in view["config"].get("meta", {})]


def stored_keys(manifest: Node) -> frozenset[dg.AssetKey]:
    """The keys of all tables that have a page in the UI: sources, models, seeds and snapshots."""
    models = (n for n in manifest["nodes"].values() if n["resource_type"] in ("model", "seed", "snapshot"))
    return frozenset(map(node_key, (*manifest["sources"].values(), *models)))

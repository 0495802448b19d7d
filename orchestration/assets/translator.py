"""How a dbt node becomes a Dagster asset: the key is [schema, table] everywhere, the group is the layer."""

from collections.abc import Mapping
from typing import Any

import dagster as dg
from dagster_dbt import DagsterDbtTranslator, DagsterDbtTranslatorSettings

from orchestration.assets.markdown import plain

Node = Mapping[str, Any]
MARTS = "marts"
BUILT_WITH_MARTS = "marts"  # dbt's tag: the marts, and points in time, bridges and rules of the vault, each built whole


class LakeTranslator(DagsterDbtTranslator):
    """dbt tests, those of sources included, are asset checks."""

    def __init__(self) -> None:
        super().__init__(DagsterDbtTranslatorSettings(enable_source_tests_as_checks=True, enable_source_metadata=False))

    def get_asset_key(self, dbt_resource_props: Node) -> dg.AssetKey:
        """[schema, table]: what a Trino user types is what Dagster shows."""
        return node_key(dbt_resource_props)

    def get_description(self, dbt_resource_props: Node) -> str:
        """What the model says it is, and its SQL, neither of which can be more than text."""
        said = plain(dbt_resource_props.get("description", ""))
        code = dbt_resource_props.get("raw_code", "").replace("`" * 3, "'" * 3)  # would end the block of code
        return super().get_description({**dbt_resource_props, "description": said, "raw_code": code})

    def get_group_name(self, dbt_resource_props: Node) -> str | None:
        """The layer."""
        return layer(dbt_resource_props)


def node_key(node: Node) -> dg.AssetKey:
    """The key of a dbt model or source table."""
    name = node["identifier"] if node["resource_type"] == "source" else node["alias"]
    return dg.AssetKey([node["schema"], name])


def layer(node: Node) -> str:
    """raw, parsed, vault, marts …: the schema; one for all raw schemas, and what is built with the marts is theirs."""
    if BUILT_WITH_MARTS in node.get("tags", ()):
        return MARTS
    return "raw" if is_raw(node) else str(node["schema"])


def is_raw(node: Node) -> bool:
    """Whether the node is a raw table of a source (`meta` is a dbt source as well, but ingestion's own)."""
    return node["resource_type"] == "source" and node["schema"].startswith("raw_")


def is_view(node: Node) -> bool:
    """Whether the node holds no rows of its own."""
    return node.get("config", {}).get("materialized") in ("view", "ephemeral")


def stored_keys(manifest: Node) -> frozenset[dg.AssetKey]:
    """The keys of all tables that have a page: sources, models, seeds and snapshots."""
    models = (n for n in manifest["nodes"].values() if n["resource_type"] in ("model", "seed", "snapshot"))
    return frozenset(map(node_key, (*manifest["sources"].values(), *models)))

"""What dbt's manifest says of a model, in the terms that several packages need. Pure."""

from collections.abc import Mapping
from typing import Any

APPENDED = "append_only"  # the materialization of tables that only grow
REBUILT = "rebuilt_table"  # the materialization of tables that are built whole


def is_view(node: Mapping[str, Any]) -> bool:
    """Whether the node stores no rows."""
    return node.get("config", {}).get("materialized") in ("view", "ephemeral")


def table_of_model(node: Mapping[str, Any]) -> tuple[str, str]:
    """Schema and name of the table that a model makes, as Trino has them: in lower case."""
    return node["schema"].lower(), node["alias"].lower()

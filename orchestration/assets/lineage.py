"""Column lineage from the manifest: in every layer except the marts, a column keeps its name from table to table."""

from collections.abc import Mapping
from typing import Any

import dagster as dg

from orchestration.assets.translator import MARTS, Node, layer, node_key


def column_lineage(node: Node, nodes: Mapping[str, Node]) -> dg.TableColumnLineage | None:
    """The upstream columns of each column; `nodes` are by dbt's unique id.

    None for raw tables, for marts (they rename columns), and for a table without upstream columns.
    """
    if node["resource_type"] != "model" or layer(node) == MARTS:
        return None
    upstream = [nodes[parent] for parent in node["depends_on"]["nodes"] if parent in nodes]
    found = {name: _sources(name, upstream) for name in node["columns"]}
    dependencies: dict[str, Any] = {name: deps for name, deps in found.items() if deps}
    return dg.TableColumnLineage(deps_by_column=dependencies) if dependencies else None


def _sources(name: str, upstream: list[Node]) -> list[dg.TableColumnDep]:
    return [dg.TableColumnDep(node_key(node), name) for node in upstream if name in node["columns"]]

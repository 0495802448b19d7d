"""Declared tables that no model reads: they end in raw, and whoever expects more of them is told."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lakehouse.declarations.declared import Declarations, RawTable
from lakehouse.declarations.lines import line_in_source, refuse

MODELS = ("model", "snapshot")


def unread_tables(manifest: Mapping[str, Any], declared: Declarations, project_dir: Path) -> dict[tuple[str, str], str]:
    """The message for each table, by source and name, that no model reads; one without a key is meant to be so.

    Raises LakehouseError, with file and line, for one that is declared or modelled to go further.
    """
    nodes = {(node["source_name"], node["name"]): node for node in manifest["sources"].values()}
    read = {parent for model in _models(manifest) for parent in model["depends_on"]["nodes"]}
    found = [t for t in declared.tables if nodes[t.source, t.name]["unique_id"] not in read and t.key]
    wrong = (_mistake(table, manifest, nodes[table.source, table.name], project_dir) for table in found)
    refuse([mistake for mistake in wrong if mistake])
    return {(table.source, table.name): _told(table) for table in found}


def _mistake(table: RawTable, manifest: Mapping[str, Any], node: dict[str, Any], project_dir: Path) -> str | None:
    """A model of the table's name that does not read it, or a vault that nobody fills."""
    name = f"parsed_{table.source}__{table.name}"
    for model in _models(manifest):
        if model["name"] == name:
            file = f"{project_dir.name}/{model['original_file_path']}:1"
            return f"{file}: {name} does not read source({table.source!r}, {table.name!r}): no load would bring it"
    if table.vault is not None and table.vault.is_modelled:
        where = line_in_source(project_dir, node, ("vault",))
        return (
            f"{where}: meta.vault: no model reads {table.source}.{table.name}, so nothing of it comes into the vault: "
            f"run `lakehouse scaffold {table.source}`"
        )
    return None


def _told(table: RawTable) -> str:
    why = f"`lakehouse scaffold {table.source}` writes its models"
    return f"no model reads {table.source}.{table.name}, so it ends in raw ({why})"


def _models(manifest: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    return (node for node in manifest["nodes"].values() if node["resource_type"] in MODELS)

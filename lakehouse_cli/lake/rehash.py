"""`lakehouse rehash`: the whole vault anew, after a change of what its keys are made of."""

from collections.abc import Mapping
from contextlib import closing
from typing import Any

from erasure.targets import is_snapshot, unique_key
from lakehouse.catalog.open import open_catalog
from lakehouse.declarations import load_declarations
from lakehouse.declarations.dbt.manifest import load_manifest, rebuild
from lakehouse.declarations.dbt.models import APPENDED, table_of_model
from lakehouse.errors import LakehouseError
from lakehouse.servers.database import connect_catalog
from lakehouse.settings import Settings, load_settings
from lakehouse.text.shown import busy, console, say


def rehash() -> None:
    """Build the vault anew from parsed, and all that is made from it.

    For another hash function (vars.vault_hash), key or collision code: every table has to have the new keys. Loads wait
    until it is done. Run it again if it was interrupted.
    """
    from orchestration.runs.processes.interrupts import interruptible

    with interruptible(), busy(console(error=True), "building the vault and what is made from it anew"):
        left_out = rebuild_vault(settings := load_settings())
    for model in left_out:
        say(f"left out, with what is made from it: parsed.{model} was never loaded")
    for table in snapshots_by_hash(load_manifest(settings)):
        say(f"{table}: a snapshot of dbt, whose rows so far keep the former keys: erasures cannot find people there")


def rebuild_vault(settings: Settings) -> list[str]:
    """Builds it while no load runs; returns the parsed tables that are not there.

    Raises LakehouseError for dbt, and for a table that a full refresh passes over: it would keep its keys.
    """
    from lakehouse.servers.presence import writing
    from orchestration.assets.groups import load_groups, sources_of

    manifest = load_manifest(settings)
    if kept := _never_refreshed(manifest):
        raise LakehouseError(
            f"{', '.join(kept)} would keep the former keys, by `full_refresh: false` in the model's config: "
            "take it out, then run `lakehouse rehash` again"
        )
    groups = sources_of(manifest, load_groups(manifest))
    with closing(connect_catalog(settings)) as connection, writing(connection, settings.catalog_name, groups):
        missing = _never_loaded(settings)
        rebuild(settings, ["path:models/stage+"], without=[f"{model}+" for model in missing])
    return missing


def _never_refreshed(manifest: Mapping[str, Any]) -> list[str]:
    """The tables made from stages that a full refresh passes over; marts follow what they are made of in any case."""
    from orchestration.worker.plan import Graph

    graph = Graph(manifest)
    stages = [key for key, node in graph.nodes.items() if node["original_file_path"].startswith("models/stage/")]
    models = [graph.nodes[model] for model in graph.downstream_of(stages)]
    return sorted(
        ".".join(table_of_model(model))
        for model in models
        if model["config"].get("materialized") == APPENDED and model["config"].get("full_refresh") is False
    )


def snapshots_by_hash(manifest: Mapping[str, Any]) -> list[str]:
    """The snapshots of dbt that tell rows apart by a hash key: none of their rows is ever written again."""
    nodes = (node for node in manifest["nodes"].values() if is_snapshot(node))
    return sorted(
        f"{node['schema']}.{node['alias']}"
        for node in nodes
        if any(name.startswith("hk_") for name in unique_key(node))
    )


def _never_loaded(settings: Settings) -> list[str]:
    """The parsed tables of the vault that do not exist, such as those of a source that is not used here."""
    tables = load_declarations(settings).tables
    models = [f"parsed_{table.source}__{table.name}" for table in tables if table.vault and table.vault.is_modelled]
    with closing(open_catalog(settings)) as catalog:
        there = catalog.load_tables([("parsed", model) for model in models])
    return sorted(model for model in models if ("parsed", model) not in there)

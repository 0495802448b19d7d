"""The dbt project as two sets of assets: parsed and vault, partitioned by day of commit time, and the marts."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING, Any

import dagster as dg
from dagster_dbt import DbtCliInvocation, dbt_assets

from orchestration import tags
from orchestration.days import DayRange, daily_partitions, to_derive_again
from orchestration.dbt_resource import Dbt, clean_up, environment, run_environment
from orchestration.resources import Lake, TableKey
from orchestration.translator import BUILT_WITH_MARTS, MARTS, LakeTranslator, is_raw, is_view, layer, node_key

if TYPE_CHECKING:
    from lakehouse.catalog import SnapshotFact

Manifest = dict[str, Any]
VAULT_POOL = "vault"
IN_MARTS = f"tag:{BUILT_WITH_MARTS}"


def load_assets(manifest: Manifest, first_day: date) -> dg.AssetsDefinition:
    """Parsed and vault. One run at a time (the pool): two runs feeding one hub would both add its new keys."""

    @dbt_assets(
        manifest=manifest,
        name="load_models",
        exclude=IN_MARTS,
        partitions_def=daily_partitions(first_day),
        backfill_policy=dg.BackfillPolicy.single_run(),
        dagster_dbt_translator=LakeTranslator(),
        pool=VAULT_POOL,
    )
    def load_models(context: dg.AssetExecutionContext, dbt: Dbt, lake: Lake) -> Iterator[Any]:
        yield from build(context, dbt, lake, manifest, to_derive_again(context.run.tags))

    return load_models


def other_sources(manifest: Manifest) -> list[dg.AssetSpec]:
    """Tables that dbt reads and nobody materializes here (`meta`): they have a page, for maintenance to report on."""
    nodes = [node for node in manifest["sources"].values() if not is_raw(node)]
    return [dg.AssetSpec(node_key(node), description=node["description"], group_name=layer(node)) for node in nodes]


def marts_assets(manifest: Manifest, reads: Sequence[TableKey]) -> dg.AssetsDefinition:
    """The marts: not partitioned, each build is of the whole. `reads` are the tables they are built from."""

    @dbt_assets(
        manifest=manifest,
        name="marts_models",
        select=IN_MARTS,
        dagster_dbt_translator=LakeTranslator(),
        pool=MARTS,
    )
    def marts_models(context: dg.AssetExecutionContext, dbt: Dbt, lake: Lake) -> Iterator[Any]:
        tags.record_snapshots(context, lake.newest_snapshots(reads))
        yield from build(context, dbt, lake, manifest, None)

    return marts_models


def build(
    context: dg.AssetExecutionContext, dbt: Dbt, lake: Lake, manifest: Manifest, days: DayRange | None
) -> Iterator[Any]:
    """`dbt build` of the selected assets, with row counts from Iceberg's metadata.

    A backfill loads what is new before it derives its days again: those go up to what is loaded and no further. Their
    newest row would otherwise count as the mark up to which everything is loaded, and older rows of other
    days be passed over.
    """
    nodes = {node_key(node).to_python_identifier(): node for node in manifest["nodes"].values() if "alias" in node}
    if days is not None:
        context.log.info(f"first what is new, then {days.first} to {days.last} again")
        clean_up(invoke(context, dbt, lake, "run", None).wait().target_path)
    invocation = invoke(context, dbt, lake, "build", days)
    for event in invocation.stream():
        if isinstance(event, dg.Output):
            yield event.with_metadata({**event.metadata, **table_metadata(lake, nodes[event.output_name])})
        else:
            yield event
    clean_up(invocation.target_path)


def invoke(
    context: dg.AssetExecutionContext, dbt: Dbt, lake: Lake, command: str, days: DayRange | None
) -> DbtCliInvocation:
    """Starts dbt for the assets this run has selected."""
    with environment(run_environment(lake.settings(), days)):
        return dbt.cli([command], context=context)


def table_metadata(lake: Lake, node: Mapping[str, Any]) -> dict[str, Any]:
    """Row count and snapshot of the table just built, from its snapshot summary; nothing is counted."""
    if is_view(node):
        return {}
    table = (node["schema"], node["alias"])
    fact = lake.newest_snapshots([table]).get(".".join(table))
    return snapshot_metadata(fact) if fact else {"dagster/row_count": 0}


def snapshot_metadata(fact: "SnapshotFact") -> dict[str, Any]:
    """What the table's page plots. The id is text: JavaScript rounds 64-bit integers."""
    return {
        "dagster/row_count": fact.total_rows,
        "rows_added": fact.added_rows,
        "snapshot_id": dg.MetadataValue.text(str(fact.snapshot_id)),
        "snapshot_at": dg.MetadataValue.timestamp(fact.committed_at),
    }

"""The check `reconciles_with_source`: compares each raw table with its source table, in a daily job.

It scans the source's tables, so loads do not run it. Dagster adds a table's checks to each run that selects the table
by hand; the check is skipped there. Source and lake are compared at one consistent point while writes continue.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import dagster as dg

from lakehouse.declarations import Source
from orchestration.checks.daily_checks import daily_checks, skip_while_materializing
from orchestration.resources import Lake, LakeSpark, TableKey

if TYPE_CHECKING:
    from ingestion.verify import TableComparison

CHECK = "reconciles_with_source"
DAILY = "37 4 * * *"
SHOWN = 5


def check_keys(tables: Sequence[TableKey]) -> list[dg.AssetCheckKey]:
    """The checks of these raw tables."""
    return [dg.AssetCheckKey(dg.AssetKey(table), CHECK) for table in tables]


def reconciling_definitions(source: Source) -> dg.Definitions:
    """The checks, their job `reconcile_<source>` and its schedule; those without a key, and of topics, have none."""
    tables = [table for table in source.tables if table.is_compared]
    if not tables:
        return dg.Definitions()
    keys = check_keys([table.identifier for table in tables])
    job = f"reconcile_{source.name}"

    @dg.multi_asset_check(
        name=f"reconcile_raw_{source.name}",
        specs=[
            dg.AssetCheckSpec(CHECK, asset=key.asset_key, description="All rows and columns equal those of the source.")
            for key in keys
        ],
        can_subset=True,
        pool=f"raw_{source.name}",
        description=f"Compares the raw tables of {source.name} with the source, at one consistent point.",
    )
    def reconcile(
        context: dg.AssetCheckExecutionContext, lake: Lake, spark: LakeSpark
    ) -> Iterator[dg.AssetCheckResult]:
        if skip_while_materializing(context, f"{job} scans the source's tables"):
            return
        names = sorted(key.asset_key.path[-1] for key in context.selected_asset_check_keys)
        for found in lake.reconcile(source.name, names, spark):
            yield check_result(found)

    return daily_checks(source, reconcile, keys, job, f"Compares every row of {source.name} with the raw layer.", DAILY)


def check_result(found: "TableComparison") -> dg.AssetCheckResult:
    """The check result of one table: counts that plot, and a few examples."""
    return dg.AssetCheckResult(
        asset_key=dg.AssetKey((f"raw_{found.source}", found.table)),
        check_name=CHECK,
        passed=found.equal,
        severity=dg.AssetCheckSeverity.ERROR,
        metadata=_metadata(found),
    )


def _metadata(found: "TableComparison") -> dict[str, Any]:
    numbers = {
        "source_rows": found.source_rows,
        "lake_rows": found.lake_rows,
        "missing": found.missing,
        "only_in_lake": found.extra,
        "differing": found.differing,
        "replaced_by_policy": found.unrepresentable,
        "seconds": round(found.seconds, 1),
    }
    if found.equal:
        return numbers
    return numbers | {
        "differing_columns": ", ".join(f"{name} {count}" for name, count in found.differing_columns.items()) or "none",
        "not_compared": found.aside or found.doubled or "compared",
        "absent_columns": ", ".join(found.absent_columns) or "none",
        "examples": dg.MetadataValue.json([_example(example) for example in found.examples[:SHOWN]]),
        "repair": f"lakehouse reconcile {found.source}.{found.table} --repair",
    }


def _example(example: Any) -> dict[str, Any]:
    """Kind, key and columns, but no values: not everybody who sees the UI may read the source."""
    return {"kind": example.kind, "key": example.key, "columns": sorted(example.columns)}

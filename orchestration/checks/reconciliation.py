"""Is the raw layer what the source is? One check per raw table, in a job of its own with a daily schedule.

A load does not run it, as it reads the source's tables whole; Dagster adds a table's checks to every run that selects
the table by hand, so the check itself steps aside there. Source and lake are compared at one consistent
point, so neither has to be quiet.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import dagster as dg

from lakehouse.declarations import Source
from orchestration.checks.daily_checks import daily_checks, steps_aside
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
    """The source's checks, their job `reconcile_<source>` and its schedule; tables without a key have no check."""
    tables = [table for table in source.tables if table.key]
    if not tables:
        return dg.Definitions()
    keys = check_keys([table.identifier for table in tables])
    job = f"reconcile_{source.name}"

    @dg.multi_asset_check(
        name=f"reconcile_raw_{source.name}",
        specs=[
            dg.AssetCheckSpec(CHECK, asset=key.asset_key, description="Every row and column is as the source has it.")
            for key in keys
        ],
        can_subset=True,
        pool=f"raw_{source.name}",
        description=f"Compares the raw tables of {source.name} with the source, at one consistent point.",
    )
    def reconcile(
        context: dg.AssetCheckExecutionContext, lake: Lake, spark: LakeSpark
    ) -> Iterator[dg.AssetCheckResult]:
        if steps_aside(context, f"{job} reads the source's tables whole"):
            return
        names = sorted(key.asset_key.path[-1] for key in context.selected_asset_check_keys)
        for found in lake.reconcile(source.name, names, spark):
            yield checked(found)

    return daily_checks(source, reconcile, keys, job, f"Compares every row of {source.name} with the raw layer.", DAILY)


def checked(found: "TableComparison") -> dg.AssetCheckResult:
    """The result of one table, with counts that plot and a few examples."""
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
        "not_compared": found.aside or "compared",
        "absent_columns": ", ".join(found.absent_columns) or "none",
        "examples": dg.MetadataValue.json([_example(example) for example in found.examples[:SHOWN]]),
        "repair": f"lakehouse reconcile {found.source}.{found.table} --repair",
    }


def _example(example: Any) -> dict[str, Any]:
    """Kind, key and columns: a value is for who may read the source, not for everybody who sees the UI."""
    return {"kind": example.kind, "key": example.key, "columns": sorted(example.columns)}

"""The check `erasures_hold`: one per raw table with personal data, in a daily job.

A restore or a concurrent write may bring back erased data. The check scans every object of the affected tables and
fails if one contains an erased subject; `lakehouse erase --repeat` then removes it. The check does not do so itself:
erasing needs the source's lease, which a follower holds. Loads do not run it, and a run by hand skips it.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import dagster as dg

from lakehouse.declarations import Source
from orchestration.checks.daily_checks import daily_checks, skip_while_materializing
from orchestration.resources import Lake, TableKey

if TYPE_CHECKING:
    from erasure.proof import Search

CHECK = "erasures_hold"
DAILY = "7 5 * * *"
SHOWN = 5


def check_keys(tables: Sequence[TableKey]) -> list[dg.AssetCheckKey]:
    """The checks of these raw tables."""
    return [dg.AssetCheckKey(dg.AssetKey(table), CHECK) for table in tables]


def erasing_definitions(source: Source) -> dg.Definitions:
    """The checks, their job `verify_erasures_<source>` and its schedule; empty for a source without personal data."""
    tables = [table for table in source.tables if table.has_personal]
    if not tables:
        return dg.Definitions()
    keys = check_keys([table.identifier for table in tables])
    job = f"verify_erasures_{source.name}"

    @dg.multi_asset_check(
        name=f"verify_erasures_of_{source.name}",
        specs=[
            dg.AssetCheckSpec(CHECK, asset=key.asset_key, description="The lake contains no erased subject.")
            for key in keys
        ],
        can_subset=True,
        description=f"Scans every object of the tables of {source.name} that held erased subjects.",
    )
    def verify(context: dg.AssetCheckExecutionContext, lake: Lake) -> Iterator[dg.AssetCheckResult]:
        if skip_while_materializing(context, f"{job} scans whole tables"):
            return
        for key in sorted(context.selected_asset_check_keys, key=str):
            yield check_result(key, lake.verify_erasures(source.name, key.asset_key.path[-1]))

    about = f"Verifies that the lake contains no erased subject of {source.name}."
    return daily_checks(source, verify, keys, job, about, DAILY)


def check_result(key: dg.AssetCheckKey, found: "Search") -> dg.AssetCheckResult:
    """The check result of one table: it names paths, never values."""
    metadata: dict[str, Any] = {"objects": found.objects, "bytes": found.bytes, "left": len(found.traces)}
    if found.traces:
        first = [f"{trace.table}: {trace.path}: {trace.why}" for trace in found.traces[:SHOWN]]
        metadata |= {"first": "\n".join(first), "remedy": "lakehouse erase --repeat"}
    return dg.AssetCheckResult(
        asset_key=key.asset_key,
        check_name=CHECK,
        passed=not found.traces,
        severity=dg.AssetCheckSeverity.ERROR,
        metadata=metadata,
    )

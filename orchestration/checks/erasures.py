"""Do the erasures hold? One check per raw table with personal data, in a job of its own with a daily schedule.

A restore, or a write that was under way, may bring back what was erased. The check looks at every object of the tables
concerned and fails when one holds a subject; `lakehouse erase --repeat` then removes it. It only looks: to repeat takes
the source's lease, which a follower holds. Like `reconciles_with_source` it steps aside in a run that materializes.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import dagster as dg

from lakehouse.declarations import Source
from orchestration.checks.daily_checks import daily_checks, steps_aside
from orchestration.resources import Lake

if TYPE_CHECKING:
    from erasure.proof import Look

CHECK = "erasures_hold"
DAILY = "7 5 * * *"
SHOWN = 5


def erasing_definitions(source: Source) -> dg.Definitions:
    """The source's checks, their job `verify_erasures_<source>` and its schedule; none without personal data."""
    tables = [table for table in source.tables if table.personal]
    if not tables:
        return dg.Definitions()
    keys = [dg.AssetCheckKey(dg.AssetKey(table.identifier), CHECK) for table in tables]
    job = f"verify_erasures_{source.name}"

    @dg.multi_asset_check(
        name=f"verify_erasures_of_{source.name}",
        specs=[
            dg.AssetCheckSpec(CHECK, asset=key.asset_key, description="Nobody who was erased is in the lake.")
            for key in keys
        ],
        can_subset=True,
        description=f"Looks for erased subjects of {source.name} in every object of the tables that held them.",
    )
    def verify(context: dg.AssetCheckExecutionContext, lake: Lake) -> Iterator[dg.AssetCheckResult]:
        if steps_aside(context, f"{job} reads whole tables"):
            return
        for key in sorted(context.selected_asset_check_keys, key=str):
            yield held(key, lake.verify_erasures(source.name, key.asset_key.path[-1]))

    about = f"Makes sure that erased subjects of {source.name} are nowhere in the lake."
    return daily_checks(source, verify, keys, job, about, DAILY)


def held(key: dg.AssetCheckKey, found: "Look") -> dg.AssetCheckResult:
    """The result of one table: paths, never values."""
    metadata: dict[str, Any] = {"objects": found.objects, "bytes": found.bytes, "left": len(found.findings)}
    if found.findings:
        first = [f"{finding.table}: {finding.path}: {finding.why}" for finding in found.findings[:SHOWN]]
        metadata |= {"first": "\n".join(first), "remedy": "lakehouse erase --repeat"}
    return dg.AssetCheckResult(
        asset_key=key.asset_key,
        check_name=CHECK,
        passed=not found.findings,
        severity=dg.AssetCheckSeverity.ERROR,
        metadata=metadata,
    )

"""Lag as an asset check: a sensor evaluates slot and position of each source every three minutes without a run.

The check can also be executed from the UI, and each load evaluates it.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import dagster as dg

from lakehouse.declarations import RawTable, Source
from lakehouse.declarations.policies import LagLevel
from lakehouse.text.shown import shortened
from orchestration.resources import Lake

if TYPE_CHECKING:
    from ingestion import SourceStatus

CHECK = "lag_within_limits"
INTERVAL_SECONDS = 180  # it colours the UI; whoever is told of lag is told by the watch, within seconds
CONFIRM_TICKS = 5  # ticks after which an unchanged level is reported again, so that the check does not look stale


@dataclass(frozen=True)
class Verdict:
    """The result for one table."""

    table: RawTable
    level: LagLevel
    description: str
    metadata: dict[str, Any]


def lag_definitions(source: Source) -> dg.Definitions:
    """Checks and sensor for the tables that declare limits; empty if none does."""
    watched = [table for table in source.tables if table.lag is not None]
    if not watched:
        return dg.Definitions()

    @dg.multi_asset_check(
        name=f"check_lag_{source.name}",
        specs=[_spec(table) for table in watched],
        can_subset=True,
        description=f"How far the lake is behind {source.name}, against the declared limits.",
    )
    def check(context: dg.AssetCheckExecutionContext, lake: Lake) -> Iterator[dg.AssetCheckResult]:
        for verdict in verdicts(watched, lake):
            if _key(verdict.table) in context.selected_asset_check_keys:
                yield dg.AssetCheckResult(**_fields(verdict))

    @dg.sensor(
        name=f"lag_{source.name}",
        minimum_interval_seconds=INTERVAL_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Evaluates {CHECK} of the tables of {source.name}.",
    )
    def evaluate_lag(context: dg.SensorEvaluationContext, lake: Lake) -> dg.SensorResult:
        found = verdicts(watched, lake)
        due, cursor = to_report(found, context.cursor)
        levels = ", ".join(f"{verdict.table.name} {verdict.level}" for verdict in found)
        return dg.SensorResult(
            asset_events=[dg.AssetCheckEvaluation(**_fields(verdict)) for verdict in due],
            cursor=cursor,
            skip_reason=f"{levels}: {found[0].description}",
        )

    return dg.Definitions(asset_checks=[check], sensors=[evaluate_lag])


def verdicts(tables: list[RawTable], lake: Lake) -> list[Verdict]:
    """Reads the source's status once and compares it with each table's limits; an unreachable source is an error."""
    try:
        status = lake.source_status(tables[0].source)
    except Exception as error:
        reason = f"cannot read the status: {shortened(str(error).splitlines()[0], 300)}"
        return [Verdict(table, "error", reason, {}) for table in tables]
    return [judge(table, status) for table in tables]


def judge(table: RawTable, status: "SourceStatus") -> Verdict:
    """The table's level and the figures that led to it; pure."""
    assert table.lag is not None
    state = next((t.state for t in status.tables if t.name == table.name), "not yet snapshotted")
    level = table.lag.level(status.lag_bytes, status.lag_seconds) if status.slot_is_sound else "error"
    text = f"slot {status.slot_state}, {status.lag_bytes:,} bytes and {status.lag_seconds:,.0f} s behind"
    metadata = {
        "slot_lag_bytes": status.slot_lag_bytes,
        "behind_bytes": status.behind_bytes,
        "lag_seconds": round(status.lag_seconds, 1),
        "slot_state": status.slot_state,
        "table_state": state,
        "limits": dg.MetadataValue.json(table.lag.model_dump(exclude_none=True)),
    }
    return Verdict(table, level, text, metadata)


def to_report(found: list[Verdict], cursor: str | None) -> tuple[list[Verdict], str]:
    """All verdicts if a level has changed or the last report is old, else none; and the next cursor."""
    levels = {verdict.table.name: verdict.level for verdict in found}
    last = json.loads(cursor) if cursor else {}
    quiet = last.get("quiet", 0) + 1
    if last.get("levels") == levels and quiet < CONFIRM_TICKS:
        return [], json.dumps({"levels": levels, "quiet": quiet})
    return found, json.dumps({"levels": levels, "quiet": 0})


def _spec(table: RawTable) -> dg.AssetCheckSpec:
    return dg.AssetCheckSpec(
        name=CHECK,
        asset=dg.AssetKey(table.asset_key),
        description="Retained WAL and seconds since the position last advanced are below the declared limits.",
    )


def _key(table: RawTable) -> dg.AssetCheckKey:
    return dg.AssetCheckKey(dg.AssetKey(table.asset_key), CHECK)


def _fields(verdict: Verdict) -> dict[str, Any]:
    return {
        "asset_key": dg.AssetKey(verdict.table.asset_key),
        "check_name": CHECK,
        "passed": verdict.level == "ok",
        "severity": dg.AssetCheckSeverity.WARN if verdict.level == "warn" else dg.AssetCheckSeverity.ERROR,
        "description": verdict.description,
        "metadata": verdict.metadata,
    }

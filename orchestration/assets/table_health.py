"""Table health as an asset: figures of the whole lake that plot over time, and observations on each table's page."""

from collections.abc import Collection
from typing import Any

import dagster as dg

from orchestration.assets.markdown import escape_markdown
from orchestration.resources import Lake
from orchestration.runs import tags

KEY = dg.AssetKey(["meta", "table_health"])
JOB = "measure_table_health"
MINUTE = 57
HOURLY, AT_FIRST = f"{MINUTE} * * * *", "*/5 * * * *"
SUMMED = (
    "rows", "files", "bytes", "small_files", "delete_files", "snapshots", "manifests", "metadata_bytes", "objects",
    "object_bytes", "orphans", "orphan_bytes", "temporary", "temporary_bytes",
)  # fmt: skip
COLUMNS = {
    "files": "files", "small": "small_share", "deletes": "delete_files", "snapshots": "snapshots",
    "manifests": "manifests", "metadata": "metadata_bytes", "orphans": "orphan_bytes", "size": "bytes",
}  # fmt: skip
"""Heading → figure, for the summary of all tables."""

Line = dict[str, Any]


def health_definitions(keys: Collection[dg.AssetKey]) -> dg.Definitions:
    """The asset and its hourly job; `keys` are the tables that have a page."""

    @dg.asset(
        key=KEY,
        group_name="meta",
        kinds={"iceberg"},
        config_schema={},
        description="Files, deletes, snapshots, manifests, metadata and orphans of every maintained table.",
    )
    def table_health(context: dg.AssetExecutionContext, lake: Lake) -> dg.MaterializeResult:
        lines = lake.table_health()
        for line in lines:
            if line["health"] and (key := dg.AssetKey(line["table"].split(".", 1))) in keys:
                context.log_event(dg.AssetObservation(key, metadata=table_figures(line), description=summary(line)))
        return dg.MaterializeResult(metadata=lake_figures(lines))

    job = dg.define_asset_job(
        JOB,
        selection=dg.AssetSelection.assets(KEY),
        description="Measures how the tables are; changes nothing.",
        tags=tags.BACKGROUND,
    )
    return dg.Definitions(assets=[table_health], jobs=[job], schedules=[_schedule(job)])


def _schedule(job: Any) -> dg.ScheduleDefinition:
    @dg.schedule(
        job=job,
        cron_schedule=[HOURLY, AT_FIRST],
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description="Adds a point to the plots of every table's health; the first one as soon as there are tables.",
    )
    def measure_table_health_schedule(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        if context.scheduled_execution_time.minute != MINUTE and _measured(context.instance):
            return dg.SkipReason(f"there is a measurement; the next one is made at minute {MINUTE}")
        return dg.RunRequest()

    return measure_table_health_schedule


def _measured(instance: dg.DagsterInstance) -> bool:
    """Whether tables were measured before."""
    event = instance.get_latest_materialization_event(KEY)
    made = event.asset_materialization if event else None
    return made is not None and bool(made.metadata["tables"].value)


def table_figures(line: Line) -> dict[str, Any]:
    """The metadata of one table: its figures and the actions that are due."""
    last = line["last"]
    return {
        **{name: value for name, value in line["health"].items() if value is not None},
        "gain_seconds": line["gain_seconds"],
        "gain_bytes": line["gain_bytes"],
        "due": ", ".join(due["action"] for due in line["due"]) or "nothing",
        **({"last_action": f"{last['action']} {last['status']} {last['started_at']}"} if last else {}),
    }


def lake_figures(lines: list[Line]) -> dict[str, Any]:
    """Totals over all tables, and a summary table that starts with the largest expected gain."""
    measured = [line["health"] for line in lines if line["health"]]
    totals = {name: sum(health[name] for health in measured) for name in SUMMED}
    return {
        "tables": len(measured),
        "tables_due": sum(bool(line["due"]) for line in lines),
        **totals,
        "small_share": round(totals["small_files"] / totals["files"], 4) if totals["files"] else 0.0,
        "gain_seconds": round(sum(line["gain_seconds"] for line in lines), 3),
        "gain_bytes": sum(line["gain_bytes"] for line in lines),
        "by_table": dg.MetadataValue.md(_markdown(lines)),
    }


def summary(line: Line) -> str:
    """The actions that are due, or why none is."""
    return "; ".join(f"{due['action']}: {due['reason']}" for due in line["due"]) or line["reason"]


def _markdown(lines: list[Line]) -> str:
    heading = ("table", "due", *COLUMNS)
    rows = [heading, ["---"] * len(heading)]
    for line in lines:
        figures = (_text(name, (line["health"] or {}).get(name)) for name in COLUMNS.values())
        due = summary(line).removesuffix(line["reason"].partition("healthy")[2])  # the row shows the figures
        rows.append([line["table"], due, *figures])
    return "\n".join(f"| {' | '.join(escape_markdown(cell) for cell in row)} |" for row in rows)


def _text(name: str, value: float | None) -> str:
    from maintenance.command.show import size

    if value is None:
        return ""
    if name.endswith("bytes"):
        return size(int(value)).replace(" ", "\N{NO-BREAK SPACE}")
    return f"{value:.0%}" if name.endswith("share") else f"{value:,}"

"""The mirrors of a source as assets, which a job refreshes where no follower does.

All of them are written in one transaction, so they are one multi-asset that no run takes apart. A follower refreshes
them without Dagster; the next run of the job then finds nothing to do, and tells where each one stands.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import dagster as dg

from lakehouse.declarations import RawTable, Source
from orchestration.assets.markdown import escape_markdown
from orchestration.assets.translator import MIRRORS
from orchestration.resources import Lake, LakeSpark

if TYPE_CHECKING:
    from ingestion.mirrors.refresh import RefreshReport

CHECK = "at_the_newest_cut"


def mirror_definitions(source: Source) -> dg.Definitions:
    """The assets, their checks and the job `mirror_<source>`; empty if no table has a mirror."""
    if not source.mirrored:
        return dg.Definitions()
    job = dg.define_asset_job(
        f"mirror_{source.name}",
        selection=dg.AssetSelection.assets(*map(_key, source.mirrored)),
        description=f"Brings the mirrors of {source.name} to its newest cut.",
        tags={"source": source.name},
    )
    return dg.Definitions(assets=[_mirrors(source)], jobs=[job])


def _mirrors(source: Source) -> dg.AssetsDefinition:
    @dg.multi_asset(
        name=f"mirrors_{source.name}",
        specs=[_spec(table) for table in source.mirrored],
        check_specs=[
            dg.AssetCheckSpec(CHECK, asset=_key(table), description="The table is in the cut, and its mirror is at it.")
            for table in source.mirrored
        ],
        pool=f"mirrors_{source.name}",
        description=f"Brings the mirrors of {source.name} to its newest cut.",
    )
    def refresh(lake: Lake, spark: LakeSpark) -> Iterator[dg.MaterializeResult]:
        report = lake.refresh_mirrors(source.name, spark)
        for table in source.mirrored:
            yield dg.MaterializeResult(
                asset_key=_key(table), metadata=_metadata(report, table.name), check_results=[_check(report, table)]
            )

    return refresh


def _key(table: RawTable) -> dg.AssetKey:
    return dg.AssetKey(table.mirror_identifier)


def _spec(table: RawTable) -> dg.AssetSpec:
    return dg.AssetSpec(
        key=_key(table),
        deps=[dg.AssetKey(table.asset_key)],
        description=escape_markdown(f"{table.description} The present, one row per live key.".strip()),
        group_name=MIRRORS,
        kinds={"pyspark", "iceberg"},
        owners=list(table.owners),
        tags={"source": table.source},
        metadata={
            "dagster/table_name": ".".join(("lake", *table.mirror_identifier)),
            "dagster/column_schema": dg.TableSchema(
                [
                    dg.TableColumn(table.raw.alias.get(c.name, c.name), c.data_type or "?", c.description or None)
                    for c in table.columns
                    if c.name in table.landed
                ]
            ),
            "key": ", ".join(table.key),
        },
    )


def _metadata(report: "RefreshReport", name: str) -> dict[str, Any]:
    """What the run wrote. Snapshot ids are text: JavaScript rounds 64-bit integers."""
    written = next((mirror for mirror in report.written if mirror.name == name), None)
    cut: dict[str, Any] = {"position": dg.MetadataValue.text(report.position or "no cut yet")}
    if report.cut_at is not None:
        cut["cut_at"] = dg.MetadataValue.timestamp(report.cut_at)
    if written is None:
        return cut | {"rows_changed": 0, "rows_gone": 0}
    return cut | {
        "dagster/row_count": written.rows,
        "snapshot_id": dg.MetadataValue.text(str(written.snapshot_id)),
        "rows_changed": written.changed,
        "rows_gone": written.gone,
        "written_anew": written.anew,
        "seconds": round(written.seconds, 2),
    }


def _check(report: "RefreshReport", table: RawTable) -> dg.AssetCheckResult:
    why = report.reasons.get(table.name)
    return dg.AssetCheckResult(
        asset_key=_key(table),
        check_name=CHECK,
        passed=table.name not in report.aside,
        severity=dg.AssetCheckSeverity.WARN,
        description=None if why is None else f"its mirror stays as it was: {why}",
    )

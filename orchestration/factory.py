"""The factory: from one declared source to its raw assets, checks, jobs, sensors and schedules.

The raw tables of a source form one subsettable multi-asset because they share a replication slot: materializing any of
them ingests the whole source up to its current WAL end.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import dagster as dg

from lakehouse.declarations import Column, RawTable, Source
from lakehouse.declarations.metadata_columns import OF_KINDS
from orchestration.assets.markdown import escape_markdown
from orchestration.checks.erasures import erasing_definitions
from orchestration.checks.lag import lag_definitions
from orchestration.checks.reconciliation import reconciling_definitions
from orchestration.jobs.loads import load_definitions, loads_of
from orchestration.jobs.mirrors import mirror_definitions
from orchestration.resources import Lake, TableKey
from orchestration.runs import tags
from orchestration.runs.arrivals import ARRIVED, STATE

if TYPE_CHECKING:
    from ingestion import SourceReport, TableReport

CHECK, READ = "columns_as_declared", "read_by_a_model"
Unread = Mapping[tuple[str, str], str]
Rows = Mapping[TableKey, Mapping[str, int]]
OPERATIONS = {"r": "snapshot", "c": "inserted", "u": "updated", "d": "deleted", "t": "truncated"}


def source_definitions(
    source: Source, first_day: date, unread: Unread = MappingProxyType({}), stages: Sequence[dg.AssetKey] = ()
) -> dg.Definitions:
    """All definitions of one source; `unread` maps each table that no model reads to the reason, `stages` are those of
    all sources."""
    return dg.Definitions.merge(
        dg.Definitions(assets=[raw_assets(source, unread)]),
        *(load_definitions(load, first_day, stages) for load in loads_of(source)),
        mirror_definitions(source),
        reconciling_definitions(source),
        erasing_definitions(source),
        lag_definitions(source),
    )


def raw_assets(source: Source, unread: Unread) -> dg.AssetsDefinition:
    """The source's raw tables as one multi-asset. Its pool admits one run because a slot has one reader."""

    @dg.multi_asset(
        name=f"raw_{source.name}",
        specs=[raw_spec(table) for table in source.tables],
        check_specs=[spec for table in source.tables for spec in raw_checks(table, unread)],
        can_subset=True,
        pool=f"raw_{source.name}",
        backfill_policy=dg.BackfillPolicy.single_run(),
        description=f"Ingests {source.name} up to its current WAL end.",
    )
    def bring_up(context: dg.AssetExecutionContext, lake: Lake) -> Iterator[dg.MaterializeResult]:
        report = lake.bring_up(source.name)
        tags.record_snapshots(context, lake.newest_snapshots(table.identifier for table in source.tables))
        rows = lake.rows_since(last_snapshots(context.instance, context.selected_asset_keys))
        yield from _results(context, source, report, rows, unread)

    return bring_up


def raw_spec(table: RawTable) -> dg.AssetSpec:
    """The asset of one raw table."""
    return dg.AssetSpec(
        key=dg.AssetKey(table.asset_key),
        description=escape_markdown(table.description) or None,
        group_name="raw",
        tags={"source": table.source},
        metadata={
            "dagster/column_schema": dg.TableSchema(
                [dg.TableColumn(c.name, c.data_type or "?", c.description or None) for c in table.columns]
            ),
            "relation": ".".join(filter(None, table.relation)),
            "key": ", ".join(table.key) or "none",
        },
    )


def raw_checks(table: RawTable, unread: Unread) -> list[dg.AssetCheckSpec]:
    """Whether the table is in the cut and its columns are the declared ones, which the source may have changed.

    A table that no model reads has a third check, which warns at each load.
    """
    descriptions = {
        ARRIVED: "The published cut contains the table: it is not parked and needs no resync.",
        CHECK: "The table's columns and types are the declared ones, without the excluded columns.",
    }
    if (table.source, table.name) in unread:
        descriptions[READ] = "A model reads the table."
    key = dg.AssetKey(table.asset_key)
    return [dg.AssetCheckSpec(name=name, asset=key, description=text) for name, text in descriptions.items()]


def _results(
    context: dg.AssetExecutionContext, source: Source, report: "SourceReport", rows: Rows, unread: Unread
) -> Iterator[dg.MaterializeResult]:
    """One result per selected table. A table outside the cut fails its check and does not stop the others.

    Raises Failure if no selected table is in the cut.
    """
    tables = {table.name: table for table in report.tables}
    selected = sorted(context.selected_asset_keys)
    missing = {key.path[-1]: _why_missing(report, key.path[-1]) for key in selected if key.path[-1] not in tables}
    if missing:
        reasons = "; ".join(reason for _, reason in missing.values())
        message = f"{', '.join(missing)} of {source.name} did not arrive: {reasons}"
        if len(missing) == len(selected):
            raise dg.Failure(message)
        context.log.error(message)
    for key in selected:
        name, identifier = key.path[-1], (key.path[0], key.path[1])
        arrived, checks = tables.get(name), [_arrival(key, missing.get(name))]
        if arrived is not None:
            checks.append(check_columns(source.table(name), arrived))
        if why := unread.get((source.name, name)):
            checks.append(_warning(key, READ, why))
        yield dg.MaterializeResult(
            asset_key=key,
            metadata=raw_metadata(report, arrived, rows.get(identifier), _descriptions(source.table(name)))
            if arrived
            else {},
            check_results=[c for c in checks if _check_key(key, c) in context.selected_asset_check_keys],
        )


def _why_missing(report: "SourceReport", name: str) -> tuple[str, str]:
    """The table's state, and why it is in no cut."""
    known = ((aside.state, aside.reason) for aside in report.aside if aside.name == name)
    return next(known, ("not there", f"table {name!r} is in no cut yet"))


def _arrival(key: dg.AssetKey, why_not: tuple[str, str] | None) -> dg.AssetCheckResult:
    state, reason = why_not or ("streaming", None)
    return dg.AssetCheckResult(
        asset_key=key, check_name=ARRIVED, passed=why_not is None, severity=dg.AssetCheckSeverity.ERROR,
        description=reason, metadata={STATE: state},
    )  # fmt: skip


def _warning(key: dg.AssetKey, check: str, why: str) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(
        asset_key=key, check_name=check, passed=False, severity=dg.AssetCheckSeverity.WARN, description=why
    )


def _check_key(key: dg.AssetKey, result: dg.AssetCheckResult) -> dg.AssetCheckKey:
    return dg.AssetCheckKey(key, result.check_name or "")


def _descriptions(table: RawTable) -> dict[str, str]:
    return {name: doc for name, (_, doc) in OF_KINDS[table.kind].items()} | {
        c.name: c.description for c in table.columns
    }


def last_snapshots(instance: dg.DagsterInstance, keys: Iterable[dg.AssetKey]) -> dict[TableKey, int | None]:
    """The snapshot that each table's last materialization has told of; None if there was none."""
    found: dict[TableKey, int | None] = {(key.path[0], key.path[1]): None for key in keys}
    for record in instance.get_asset_records([dg.AssetKey(key) for key in found]):
        event = record.asset_entry.last_materialization_record
        made = event.asset_materialization if event else None
        told = str(made.metadata["snapshot_id"].value) if made and "snapshot_id" in made.metadata else ""
        if made is not None and told.isdecimal():  # not that of a table without rows
            found[made.asset_key.path[0], made.asset_key.path[1]] = int(told)
    return found


def raw_metadata(
    report: "SourceReport", table: "TableReport", rows: Mapping[str, int] | None, descriptions: Mapping[str, str]
) -> dict[str, Any]:
    """The metadata on the table's page. Snapshot ids are text: JavaScript rounds 64-bit integers.

    `rows` were published since the table's last materialization, by this run or a follower; None if nobody can tell.
    """
    counts = {f"rows_{word}": rows.get(op, 0) for op, word in OPERATIONS.items()} if rows is not None else {}
    return {
        "dagster/row_count": table.total_rows,
        "dagster/column_schema": dg.TableSchema(
            [dg.TableColumn(name, kind, descriptions.get(name)) for name, kind in table.columns]
        ),
        "snapshot_id": dg.MetadataValue.text(str(table.snapshot_id)),
        "lag_bytes": table.lag_bytes,
        "cut_lsn": dg.MetadataValue.text(report.cut_position),
        "cut_at": dg.MetadataValue.timestamp(report.cut_at),
        "epoch": report.epoch,
        **counts,
        **({"source_rows_per_second": round(report.rows_per_second)} if report.rows_per_second else {}),
        **({"source_seconds": round(report.seconds, 2)} if report.seconds is not None else {}),
    }


def check_columns(declared: RawTable, table: "TableReport") -> dg.AssetCheckResult:
    """Compares declared and landed columns. A difference only warns: the rows landed as they are in the source.

    What the source has no more stays in raw, and need not be declared.
    """
    columns = {declared.raw.alias.get(c.name, c.name).lower(): c for c in declared.columns if c.name in declared.landed}
    landed = {name.lower(): kind for name, kind in table.columns if name not in OF_KINDS[declared.kind]}
    wanted = set(columns)
    found = set(landed) - ({name.lower() for name in table.left} - wanted)
    types = [
        f"{name} ({columns[name].data_type}) is {landed[name]}"
        for name in sorted(wanted & found)
        if not _type_fits(declared, columns[name], landed[name])
    ]
    return dg.AssetCheckResult(
        asset_key=dg.AssetKey(declared.asset_key),
        check_name=CHECK,
        passed=wanted == found and not types,
        severity=dg.AssetCheckSeverity.WARN,
        metadata={
            "missing": ", ".join(sorted(wanted - found)) or "none",
            "not_declared": ", ".join(sorted(found - wanted)) or "none",
            "other_types": ", ".join(types) or "none",
        },
    )


def _type_fits(declared: RawTable, column: Column, landed: str) -> bool:
    from pyiceberg.types import IcebergType

    from ingestion.schema.evolve import suits

    return suits(column.data_type, declared.raw.mask.get(column.name), IcebergType.model_validate(landed))

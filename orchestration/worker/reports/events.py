"""Tells Dagster what the worker did: runless materializations and check evaluations, as a run of the job would."""

import math
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import dagster as dg

from orchestration.assets.blocking_checks import evaluated
from orchestration.assets.dbt_assets import snapshot_metadata
from orchestration.resources import TableKey
from orchestration.runs.arrivals import ARRIVED
from orchestration.runs.partitions import incremental_days
from orchestration.runs.state.last_runs import last_runs
from orchestration.runs.state.loaded import loaded_metadata
from orchestration.runs.subset import failing_checks

if TYPE_CHECKING:
    from lakehouse.catalog.open import SnapshotFact
    from orchestration.worker.dbt.warm_dbt import NodeResult

NO_DAYS: Mapping[TableKey, Collection[str]] = MappingProxyType({})


def report_tables(
    instance: dg.DagsterInstance,
    job: str,
    facts: Mapping[TableKey, "SnapshotFact | None"],
    seconds: Mapping[TableKey, float],
    loaded: Mapping[str, int],
    by_day: Collection[TableKey] = (),
    failed_days: Mapping[TableKey, Collection[str]] = NO_DAYS,
    behind: Collection[str] = (),
) -> None:
    """One materialization per table that changed; each records all snapshots that the job has `loaded`, or the tables
    that a load which has failed has left `behind`.

    That of a table in `by_day` is today's partition; those of its `failed_days` come before it.
    """
    today = datetime.now(UTC).date().isoformat()
    for table, fact in facts.items():
        took = {"load_seconds": round(seconds[table], 2)} if table in seconds else {}
        metadata = {**(snapshot_metadata(fact) if fact else {}), **took, **loaded_metadata(job, loaded, behind)}
        days: list[str | None] = [None]
        if table in by_day:
            days = [*sorted({*failed_days.get(table, ())} - {today}), today]
        for day in days:
            made = dg.AssetMaterialization(dg.AssetKey(table), metadata=metadata, partition=day)
            instance.report_runless_asset_event(made)


def report_days(
    instance: dg.DagsterInstance,
    job: str,
    tables: Mapping[TableKey, "SnapshotFact | None"],
    days: Sequence[str],
    loaded: Mapping[str, int],
    until: float = math.inf,
) -> list[TableKey]:
    """Those partitions of `days` that no event is of yet: a load brings all that raw has, of whatever day it is.

    Without them, the days on which a table did not change were missing in the UI for ever. Each says what the table has
    (nothing of a view), for the last one stands on the table's page. Ends at the moment `until`, but not before it has
    done something; the tables that are left then.
    """
    names = list(tables)
    for at, (table, fact) in enumerate(tables.items()):
        key = dg.AssetKey(table)
        there = instance.get_materialized_partitions(key)
        missing = [day for day in days if day not in there]
        for number, day in enumerate(missing, 1):
            metadata = {**(snapshot_metadata(fact) if fact else {}), **loaded_metadata(job, loaded)}
            instance.report_runless_asset_event(dg.AssetMaterialization(key, metadata=metadata, partition=day))
            if number < len(missing) and time.monotonic() >= until:
                return names[at:]
        if time.monotonic() >= until:
            return names[at + 1 :]
    return []


def told_snapshots(instance: dg.DagsterInstance, tables: Collection[TableKey]) -> dict[TableKey, str]:
    """The snapshot of each table's last materialization, by a run or by a worker."""
    records = instance.get_asset_records([dg.AssetKey(table) for table in tables]) if tables else []
    found = {}
    for record in records:
        made = record.asset_entry.last_materialization
        told = made.asset_materialization.metadata.get("snapshot_id") if made and made.asset_materialization else None
        if told is not None:
            schema, name = record.asset_entry.asset_key.path
            found[schema, name] = str(told.value)
    return found


_settled: set[str] = set()  # runs that have succeeded, or are no more


def red_tables(instance: dg.DagsterInstance, tables: Iterable[TableKey]) -> tuple[list[TableKey], bool]:
    """Those that the UI shows as failed: a run was to materialize them and failed, and nothing was told of them since.

    One that is not in the cut has every reason to be. Then whether each run that was to materialize any of them last
    has succeeded.
    """
    last = last_runs(instance, map(dg.AssetKey, tables))
    asked = set(last.values()) - _settled
    runs = {run_id: instance.get_run_by_id(run_id) for run_id in asked}
    _settled.update(run_id for run_id, run in runs.items() if run is None or run.is_success)
    failed = {run_id for run_id, run in runs.items() if run and run.is_failure_or_canceled}
    left = [key for key, run_id in last.items() if run_id in failed]
    entries = [record.asset_entry for record in instance.get_asset_records(left)] if left else []
    red = [
        entry.asset_key
        for entry in entries
        if entry.last_run_id in failed
        and not (entry.last_materialization and entry.last_materialization.run_id == entry.last_run_id)
    ]
    absent = {check.asset_key for check in failing_checks(instance, [dg.AssetCheckKey(key, ARRIVED) for key in red])}
    return sorted((key.path[0], key.path[1]) for key in red if key not in absent), asked <= _settled


def days_left_failed(instance: dg.DagsterInstance, tables: Collection[TableKey]) -> dict[TableKey, list[str]]:
    """Of each table the days that its last run, an incremental one, was to complete and has left failed.

    A day that was there before stays red, once it is over, until it is told of again; those that were not are told by
    `report_days`.
    """
    found = {}
    for record in instance.get_asset_records([dg.AssetKey(table) for table in tables]) if tables else []:
        entry = record.asset_entry
        run = instance.get_run_by_id(entry.last_run_id) if entry.last_run_id else None
        days = incremental_days(run.tags) if run and run.is_failure_or_canceled else []
        there = instance.get_materialized_partitions(entry.asset_key) if days else set()
        found[entry.asset_key.path[0], entry.asset_key.path[1]] = [day for day in days if day in there]
    return found


def report_arrivals(instance: dg.DagsterInstance, tables: Iterable[TableKey]) -> None:
    """Clears the check that a raw table is in the cut, where the last run said that it is not: no other run comes."""
    keys = [dg.AssetCheckKey(dg.AssetKey(table), ARRIVED) for table in tables]
    for key in failing_checks(instance, keys):
        evaluation = dg.AssetCheckEvaluation(
            asset_key=key.asset_key, check_name=key.name, passed=True, description="rows of it were published again"
        )
        instance.report_runless_asset_event(evaluation)


def report_tests(
    instance: dg.DagsterInstance, checks: Mapping[str, dg.AssetCheckKey], results: Iterable["NodeResult"]
) -> None:
    """One check evaluation per test that ran and has a check."""
    for result in results:
        key = checks.get(result.unique_id)
        if key is None or result.status == "skipped":
            continue
        figures: dict[str, Any] = {"failing_rows": result.failures, "seconds": round(result.seconds, 2)}
        figures |= {"examples": result.examples} if result.examples else {}
        instance.report_runless_asset_event(evaluated(key, result.status, figures, result.message or None))

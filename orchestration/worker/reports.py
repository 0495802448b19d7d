"""Tells Dagster what the worker did: runless materializations and check evaluations, as a run of the job would."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import dagster as dg
from dagster_dbt.asset_utils import get_asset_check_key_for_test

from orchestration.assets.dbt_assets import snapshot_metadata
from orchestration.assets.translator import LakeTranslator
from orchestration.factory import ARRIVED
from orchestration.resources import TableKey
from orchestration.runs.state.loaded import loaded_metadata
from orchestration.runs.subset import failing_checks

if TYPE_CHECKING:
    from lakehouse.catalog.open import SnapshotFact
    from orchestration.worker.warm_dbt import NodeResult


def report_tables(
    instance: dg.DagsterInstance,
    job: str,
    facts: Mapping[TableKey, "SnapshotFact"],
    seconds: Mapping[TableKey, float],
    loaded: Mapping[str, int],
) -> None:
    """One materialization per table that changed; each records all snapshots that the job has `loaded`."""
    for table, fact in facts.items():
        took = {"load_seconds": round(seconds[table], 2)} if table in seconds else {}
        metadata = {**snapshot_metadata(fact), **took, **loaded_metadata(job, loaded)}
        instance.report_runless_asset_event(dg.AssetMaterialization(dg.AssetKey(table), metadata=metadata))


def report_arrivals(instance: dg.DagsterInstance, tables: Iterable[TableKey]) -> None:
    """Clears the check that a raw table is in the cut, where the last run said that it is not: no other run comes."""
    keys = [dg.AssetCheckKey(dg.AssetKey(table), ARRIVED) for table in tables]
    for key in failing_checks(instance, keys):
        evaluation = dg.AssetCheckEvaluation(
            asset_key=key.asset_key, check_name=key.name, passed=True, description="rows of it were published again"
        )
        instance.report_runless_asset_event(evaluation)


def check_keys(manifest: Mapping[str, Any], tests: Iterable[str]) -> dict[str, dg.AssetCheckKey]:
    """The checks that tests are in Dagster, by the test's unique id."""
    translator = LakeTranslator()
    keys = {test: get_asset_check_key_for_test(manifest, translator, test, project=None) for test in tests}
    return {test: key for test, key in keys.items() if key is not None}


def report_tests(instance: dg.DagsterInstance, manifest: Mapping[str, Any], results: Iterable["NodeResult"]) -> None:
    """One check evaluation per test that ran."""
    translator = LakeTranslator()
    for result in results:
        key = get_asset_check_key_for_test(manifest, translator, result.unique_id, project=None)
        if key is None or result.status == "skipped":
            continue
        figures: dict[str, Any] = {
            "status": result.status,
            "failing_rows": result.failures,
            "seconds": round(result.seconds, 2),
        }
        evaluation = dg.AssetCheckEvaluation(
            asset_key=key.asset_key,
            check_name=key.name,
            passed=result.status == "pass",
            severity=dg.AssetCheckSeverity.WARN if result.status == "warn" else dg.AssetCheckSeverity.ERROR,
            metadata=figures | ({"examples": result.examples} if result.examples else {}),
            description=result.message or None,
        )
        instance.report_runless_asset_event(evaluation)

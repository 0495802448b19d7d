"""Which checks hold marts back while they fail, whoever builds them: a run or the worker.

dbt's tests do, but for those of marts, and `in_the_cut` of a raw table that has never arrived. Older marts would not
mend what other checks tell of, such as lag, a row that differs from the source, or a table that has left the cuts.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import dagster as dg
from dagster_dbt.asset_utils import get_asset_check_key_for_test

from orchestration.assets.translator import MARTS, LakeTranslator, layer, node_key
from orchestration.resources import TableKey
from orchestration.runs.arrivals import ARRIVED

Manifest = Mapping[str, Any]


def blocking_tests(manifest: Manifest) -> dict[str, dg.AssetCheckKey]:
    """By unique id, the checks of the tests that read a table and no mart: those of marts run when these are built."""
    nodes = {**manifest["sources"], **manifest["nodes"]}
    tests = {key: node for key, node in manifest["nodes"].items() if node["resource_type"] == "test"}
    read = {key: [nodes[id] for id in test["depends_on"]["nodes"] if id in nodes] for key, test in tests.items()}
    below = [key for key, tables in read.items() if tables and MARTS not in map(layer, tables)]
    return checks_of_all(manifest, below)


def blocking_checks(tests: Iterable[dg.AssetCheckKey], never: Iterable[TableKey]) -> frozenset[dg.AssetCheckKey]:
    """The checks of these tests, and those of the tables that have `never` arrived."""
    return frozenset({*tests, *(dg.AssetCheckKey(dg.AssetKey(table), ARRIVED) for table in never)})


def tell_tests_without_checks(instance: dg.DagsterInstance, manifest: Manifest, statuses: Mapping[str, str]) -> None:
    """Tells Dagster the results of those blocking tests of a run that it has no checks of; `statuses` are dbt's."""
    blocking = blocking_tests(manifest)
    for test in sorted(blocking.keys() & statuses.keys() - check_keys(manifest, blocking).keys()):
        if statuses[test] != "skipped":
            instance.report_runless_asset_event(evaluated(blocking[test], statuses[test]))


def evaluated(
    key: dg.AssetCheckKey, status: str, figures: Mapping[str, Any] | None = None, says: str | None = None
) -> dg.AssetCheckEvaluation:
    """The check evaluation of a test that ran outside of a run's own events; `status` is dbt's."""
    return dg.AssetCheckEvaluation(
        asset_key=key.asset_key,
        check_name=key.name,
        passed=status == "pass",
        severity=dg.AssetCheckSeverity.WARN if status == "warn" else dg.AssetCheckSeverity.ERROR,
        metadata={"status": status, **(figures or {})},
        description=says,
    )


def check_keys(manifest: Mapping[str, Any], tests: Iterable[str]) -> dict[str, dg.AssetCheckKey]:
    """The checks that tests are in Dagster, by the test's unique id."""
    translator = LakeTranslator()
    keys = {test: get_asset_check_key_for_test(manifest, translator, test, project=None) for test in tests}
    return {test: key for test, key in keys.items() if key is not None}


def checks_of_all(manifest: Mapping[str, Any], tests: Collection[str]) -> dict[str, dg.AssetCheckKey]:
    """The same of each test. Of one that reads several tables and is attached to none, Dagster makes no check: a run
    fails with it, but the worker has no run. It counts against the first table that it reads.
    """
    nodes = {**manifest["sources"], **manifest["nodes"]}
    read = {test: sorted(manifest["nodes"][test]["depends_on"]["nodes"]) for test in tests}
    own = {test: dg.AssetCheckKey(node_key(nodes[ids[0]]), nodes[test]["name"]) for test, ids in read.items() if ids}
    return own | check_keys(manifest, tests)

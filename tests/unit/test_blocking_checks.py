"""Marts wait for the same checks, whoever builds them."""

from collections.abc import Iterator
from typing import Any

import dagster as dg
import pytest

from orchestration.assets.blocking_checks import blocking_checks, blocking_tests, tell_tests_without_checks
from orchestration.runs.subset import failing_checks, waiting_for_checks
from orchestration.worker.plan import Graph, Task

RAW, HUB, MART = (dg.AssetKey(path) for path in (["raw_shop", "orders"], ["vault", "hub"], ["marts", "sales"]))
LAG, ARRIVED = dg.AssetCheckKey(RAW, "lag_within_limits"), dg.AssetCheckKey(RAW, "in_the_cut")
COMPARED, TEST = dg.AssetCheckKey(RAW, "reconciles_with_source"), dg.AssetCheckKey(HUB, "unique_hub")
SEVERAL = dg.AssetCheckKey(HUB, "no_store_is_a_product")  # of several tables: Dagster has no check of it
SPECS = [dg.AssetCheckSpec(key.name, asset=key.asset_key) for key in (LAG, ARRIVED, COMPARED, TEST)]


@dg.multi_asset_check(specs=SPECS)
def checks() -> Iterator[dg.AssetCheckResult]:
    yield from ()


DEFS = dg.Definitions(
    assets=[dg.AssetSpec(RAW), dg.AssetSpec(HUB, deps=[RAW]), dg.asset(key=MART, deps=[HUB])(lambda: None)],
    asset_checks=[checks],
    jobs=[dg.define_asset_job("build_marts", dg.AssetSelection.assets(MART))],
)


@pytest.mark.parametrize(
    ("failing", "never", "waits"),
    [
        (LAG, True, False),
        (COMPARED, True, False),
        (ARRIVED, False, False),
        (ARRIVED, True, True),
        (TEST, False, True),
        (SEVERAL, False, True),
    ],
)
def test_marts_wait_for_tests_and_for_a_table_that_has_never_arrived(
    failing: dg.AssetCheckKey, never: bool, waits: bool
) -> None:
    """A run waited for every check, as of lag, and the worker for tests alone: marts were as of other moments then. The
    worker alone waited for a test of several tables.
    """
    blocking = blocking_checks([TEST, SEVERAL], [("raw_shop", "orders")] if never else [])
    repository = DEFS.get_repository_def()
    with dg.DagsterInstance.ephemeral() as instance:
        told = dg.AssetCheckEvaluation(asset_key=failing.asset_key, check_name=failing.name, passed=False)
        instance.report_runless_asset_event(told)
        found = waiting_for_checks(instance, repository, repository.get_job("build_marts"), blocking)
    why = f"check {failing.name} of {'.'.join(failing.asset_key.path)} fails"
    assert found == ({"marts.sales": why} if waits else {})


def test_the_tests_below_the_marts_hold_marts_back(demo_tasks: tuple[dict[str, Any], tuple[Task, ...]]) -> None:
    manifest = demo_tasks[0]
    graph = Graph(manifest)
    found = blocking_tests(manifest)
    assert found.keys() == set(graph.tests_of(list(graph.nodes))), "those that the worker runs in the quiet"
    assert {key.asset_key.path[0] for key in found.values()} >= {"parsed", "vault"}
    assert "marts" not in {key.asset_key.path[0] for key in found.values()}


def test_a_run_tells_of_a_test_of_several_tables_which_dagster_has_no_check_of(
    demo_tasks: tuple[dict[str, Any], tuple[Task, ...]],
) -> None:
    """What the worker had told of it stayed: marts would wait for it after the worker had ended, though it passes."""
    manifest, name = demo_tasks[0], "test.lakehouse.no_store_is_a_product"
    read = ["model.lakehouse.hub_store", "model.lakehouse.hub_product"]
    test = {"resource_type": "test", "name": "no_store_is_a_product", "depends_on": {"nodes": read}, "config": {}}
    changed = {**manifest, "nodes": {**manifest["nodes"], name: test}}
    others = dict.fromkeys(blocking_tests(manifest), "fail")
    check = blocking_tests(changed)[name]
    with dg.DagsterInstance.ephemeral() as instance:
        for status, fails in (("fail", True), ("skipped", True), ("pass", False), ("error", True), ("warn", False)):
            tell_tests_without_checks(instance, changed, {**others, name: status})
            failing = failing_checks(instance, list(blocking_tests(changed).values()))
            assert failing == ([check] if fails else []), status

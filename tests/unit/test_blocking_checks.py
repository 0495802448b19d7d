"""Marts wait for the same checks, whoever builds them."""

from collections.abc import Iterator
from typing import Any

import dagster as dg
import pytest

from orchestration.assets.blocking_checks import blocking_checks, blocking_tests
from orchestration.runs.subset import waiting_for_checks
from orchestration.worker.plan import Graph, Task

RAW, HUB, MART = (dg.AssetKey(path) for path in (["raw_shop", "orders"], ["vault", "hub"], ["marts", "sales"]))
LAG, ARRIVED = dg.AssetCheckKey(RAW, "lag_within_limits"), dg.AssetCheckKey(RAW, "in_the_cut")
COMPARED, TEST = dg.AssetCheckKey(RAW, "reconciles_with_source"), dg.AssetCheckKey(HUB, "unique_hub")
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
    [(LAG, True, False), (COMPARED, True, False), (ARRIVED, False, False), (ARRIVED, True, True), (TEST, False, True)],
)
def test_marts_wait_for_tests_and_for_a_table_that_has_never_arrived(
    failing: dg.AssetCheckKey, never: bool, waits: bool
) -> None:
    """A run waited for every check, as of lag, and the worker for tests alone: marts were as of other moments then."""
    blocking = blocking_checks([TEST], [("raw_shop", "orders")] if never else [])
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

"""Which evaluation of a check is the newest one."""

from collections.abc import Iterator

import dagster as dg
import pytest

from orchestration.runs.state.evaluations import newest_evaluations
from orchestration.runs.subset import failing_checks

HUB = dg.AssetKey(["vault", "hub_store"])
CHECK, OTHER = dg.AssetCheckKey(HUB, "unique_key"), dg.AssetCheckKey(HUB, "not_null_key")
MEANWHILE: list[bool] = []


@dg.asset(key=HUB)
def hub() -> None:
    return


@dg.asset_check(asset=hub, name=CHECK.name)
def unique(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
    for passed in MEANWHILE:
        tell(context.instance, passed)
    return dg.AssetCheckResult(passed=not MEANWHILE or not MEANWHILE[-1])


DEFS = dg.Definitions(
    assets=[hub],
    asset_checks=[unique],
    jobs=[dg.define_asset_job("load_shop", dg.AssetSelection.assets(hub))],
    executor=dg.in_process_executor,
)


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    MEANWHILE.clear()
    with dg.DagsterInstance.ephemeral() as made:
        yield made


def tell(
    instance: dg.DagsterInstance, passed: bool, severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.ERROR
) -> None:
    """As the worker does, without a run."""
    told = dg.AssetCheckEvaluation(asset_key=HUB, check_name=CHECK.name, passed=passed, severity=severity)
    instance.report_runless_asset_event(told)


def test_a_check_goes_on_failing_while_a_run_waits_or_was_killed_before_it_came_to_the_check(
    instance: dg.DagsterInstance,
) -> None:
    """Marts were built of a table whose check fails, as soon as a load of it was launched."""
    tell(instance, passed=False)
    waiting = instance.create_run_for_job(DEFS.resolve_job_def("load_shop"), status=dg.DagsterRunStatus.STARTING)
    assert failing_checks(instance, [CHECK, OTHER]) == [CHECK]
    instance.report_run_failed(waiting, "its process is gone")
    assert failing_checks(instance, [CHECK, OTHER]) == [CHECK]
    DEFS.resolve_job_def("load_shop").execute_in_process(instance=instance)
    assert not failing_checks(instance, [CHECK, OTHER])


@pytest.mark.parametrize("meanwhile", [True, False])
def test_a_run_that_evaluates_a_check_after_the_worker_has_the_last_word(
    instance: dg.DagsterInstance, meanwhile: bool
) -> None:
    """Its row is older: it was planned before the worker came."""
    MEANWHILE.append(meanwhile)
    DEFS.resolve_job_def("load_shop").execute_in_process(instance=instance)
    assert failing_checks(instance, [CHECK]) == ([CHECK] if meanwhile else [])


def test_a_warning_blocks_nothing_and_what_was_never_evaluated_is_not_known(instance: dg.DagsterInstance) -> None:
    assert newest_evaluations(instance, [CHECK]) == newest_evaluations(instance, []) == {}
    tell(instance, passed=False, severity=dg.AssetCheckSeverity.WARN)
    assert newest_evaluations(instance, [CHECK]).keys() == {CHECK} and not failing_checks(instance, [CHECK])

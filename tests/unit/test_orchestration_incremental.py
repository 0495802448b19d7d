"""Runs without a partition, as launched by `dagster job launch`, the API and the launchpad."""

from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta

import dagster as dg
import pytest
from dagster._core.definitions.reconstruct import ReconstructableRepository

from orchestration.runs import tags
from orchestration.runs.partitions import backfill_days, daily_partitions
from orchestration.runs.pools import pool_executor
from orchestration.runs.state.history import read_history

FIRST_DAY = datetime.now(UTC).date() - timedelta(days=2)
PARSED, HUB = dg.AssetKey(["parsed", "things"]), dg.AssetKey(["vault", "hub"])


@dg.multi_asset(specs=[dg.AssetSpec(["raw_shop", "things"])])
def raw() -> dg.MaterializeResult:
    return dg.MaterializeResult(asset_key=["raw_shop", "things"])


@dg.multi_asset(
    specs=[
        dg.AssetSpec(PARSED, deps=[["raw_shop", "things"]], skippable=True),
        dg.AssetSpec(HUB, deps=[PARSED], skippable=True),
    ],
    can_subset=True,
    partitions_def=daily_partitions(FIRST_DAY),
    backfill_policy=dg.BackfillPolicy.single_run(),
)
def models(context: dg.AssetExecutionContext) -> Iterator[dg.MaterializeResult]:
    assert backfill_days(context.run.tags) is None or "again" in context.run.tags
    for key in (PARSED, HUB):
        if key in context.selected_asset_keys:
            yield dg.MaterializeResult(asset_key=key)


defs = dg.Definitions(assets=[raw, models], jobs=[dg.define_asset_job("load_shop")], executor=pool_executor)


@pytest.fixture
def instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dg.DagsterInstance]:
    with dg.instance_for_test(temp_dir=str(tmp_path_factory.mktemp("dagster"))) as made:
        yield made


def today() -> date:
    """The tests may run over midnight."""
    return datetime.now(UTC).date()


def days(
    instance: dg.DagsterInstance, run_tags: dict[str, str] | None = None, tables: Sequence[dg.AssetKey] | None = None
) -> list[date]:
    """Launches the load as Dagster's CLI does; returns the days it materialized."""
    job = ReconstructableRepository.for_module(__name__, "defs").get_reconstructable_job("load_shop")
    with dg.execute_job(job, instance, tags=run_tags, asset_selection=tables) as result:
        assert result.success
        marked = {e.partition for e in result.filter_events(lambda e: e.is_step_materialization) if e.partition}
    return sorted(map(date.fromisoformat, marked))


def test_a_load_without_days_is_an_ordinary_one_and_marks_those_it_completes(instance: dg.DagsterInstance) -> None:
    """The first one marked all days since the first: rows that it had added today, on days before there was a lake."""
    assert days(instance) == [today()]
    assert days(instance) == [today()], "the days since the last load"
    [run, _] = instance.get_runs()
    assert run.tags[tags.MODE] == tags.INCREMENTAL


def test_a_load_without_days_works_after_a_backfill(instance: dg.DagsterInstance) -> None:
    assert days(instance, {"dagster/partition": FIRST_DAY.isoformat(), "again": "yes"}) == [FIRST_DAY]
    assert days(instance)[-1] == today()


def test_chosen_tables_without_days_complete_today_alone(instance: dg.DagsterInstance) -> None:
    assert days(instance, tables=[HUB]) == [today()]
    assert read_history(instance, "load_shop", defs.resolve_job_def("load_shop")).last_load is None
    assert days(instance) == [today()]
    assert read_history(instance, "load_shop", defs.resolve_job_def("load_shop")).last_load is not None
    assert days(instance, tables=[dg.AssetKey(["raw_shop", "things"])]) == []

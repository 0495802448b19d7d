"""Reconciliation in Dagster: real runs on an ephemeral instance with a fake comparison."""

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, date, datetime
from typing import Any

import dagster as dg
import pytest

from ingestion.run.reports import SourceReport, TableReport
from ingestion.verify import Example, TableComparison
from lakehouse.declarations import Column, RawTable, Source
from lakehouse.declarations.policies import LoadPolicy, RawPolicy
from orchestration.checks.reconciliation import CHECK
from orchestration.factory import source_definitions
from orchestration.resources import Lake, LakeSpark


class InventedLake(Lake):
    """Two equal tables, but for one lost row in `sales`."""

    def bring_up(self, source: str) -> SourceReport:
        tables = tuple(TableReport(name, 1, {}, 10, 0, (("id", "long"),)) for name in ("things", "sales", "log"))
        return SourceReport(source, 1, "0/1F5", 500, datetime.now(UTC), tables)

    def rows_since(self, tables: Any) -> dict[Any, Any]:
        return {}

    def newest_snapshots(self, tables: Any) -> dict[str, Any]:
        return {}

    def reconcile(self, source: str, tables: Sequence[str], spark: Any) -> list[TableComparison]:
        found = [TableComparison(source, name, ("id", "v"), source_rows=10, lake_rows=10) for name in tables]
        for result in found:
            if result.table == "sales":
                result.differing, result.differing_columns = 1, Counter({"v": 1})
                result.examples.append(Example("differs", {"id": "7"}, {"v": ("secret", None)}))
        return found


def table(name: str, *key: str) -> RawTable:
    return RawTable(
        source="shop", name=name, description="", columns=(Column(name="id", data_type="bigint", description=""),),
        raw=RawPolicy(relation=f"public.{name}", key=key), load=LoadPolicy(), maintenance=None, owners=(),
    )  # fmt: skip


SHOP = Source(
    name="shop", description="", load=LoadPolicy(), tables=(table("things", "id"), table("sales", "id"), table("log"))
)


def definitions() -> dg.Definitions:
    return dg.Definitions.merge(
        source_definitions(SHOP, date(2026, 1, 1)),
        dg.Definitions(resources={"lake": InventedLake(), "spark": LakeSpark()}, executor=dg.in_process_executor),
    )


def run(job: str, **options: Any) -> dg.ExecuteInProcessResult:
    with dg.DagsterInstance.ephemeral() as instance:
        return definitions().resolve_job_def(job).execute_in_process(instance=instance, **options)


def test_the_check_fails_with_counts_and_examples_that_show_no_value() -> None:
    checks = {check.asset_key.path[-1]: check for check in run("reconcile_shop").get_asset_check_evaluations()}
    assert {name: check.passed for name, check in checks.items()} == {"things": True, "sales": False}
    metadata = checks["sales"].metadata
    assert (metadata["differing"].value, metadata["differing_columns"].value) == (1, "v 1")
    assert metadata["examples"].value == [{"kind": "differs", "key": {"id": "7"}, "columns": ["v"]}]
    assert metadata["repair"].value == "lakehouse reconcile shop.sales --repair"
    assert "secret" not in str(metadata)


@pytest.mark.parametrize("selected", [None, [dg.AssetKey(["raw_shop", "sales"])]])
def test_a_load_does_not_read_the_whole_source(selected: list[dg.AssetKey] | None) -> None:
    """Dagster adds all checks of a table that is selected by hand."""
    checks = run("load_shop", asset_selection=selected).get_asset_check_evaluations()
    assert checks and CHECK not in {check.check_name for check in checks}


def test_a_check_that_is_launched_alone_compares() -> None:
    """As the button on a check's page does."""
    key = dg.AssetCheckKey(dg.AssetKey(["raw_shop", "things"]), CHECK)
    repository = definitions().get_repository_def()
    job = repository.get_job("__ASSET_JOB").get_subset(asset_selection=set(), asset_check_selection={key})
    with dg.DagsterInstance.ephemeral() as instance:
        [check] = job.execute_in_process(instance=instance).get_asset_check_evaluations()
    assert check.asset_check_key == key and check.passed


@pytest.mark.parametrize("kind", ["kafka", "debezium"])
def test_tables_of_topics_have_no_check_that_nothing_can_answer(kind: Any) -> None:
    """It was there, and failed every day: topics have no point in common with a table."""
    raw = RawPolicy(topic="shop.public.things", key=("id",))
    of = table("things").model_copy(update={"kind": kind, "raw": raw})
    made = source_definitions(SHOP.model_copy(update={"tables": (of,)}), date(2026, 1, 1))
    keys = {key for checks in made.asset_checks or () for key in checks.check_keys}
    assert CHECK not in {key.name for key in keys}
    assert "reconcile_shop" not in {job.name for job in made.jobs or ()}

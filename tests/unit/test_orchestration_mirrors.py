"""Mirrors in Dagster: real runs on an ephemeral instance with a lake that invents its report."""

from datetime import UTC, date, datetime
from typing import Any

import dagster as dg

from ingestion.mirrors.build import MirrorReport
from ingestion.mirrors.refresh import RefreshReport
from lakehouse.declarations import Column, RawTable, Source
from lakehouse.declarations.policies import LoadPolicy, RawPolicy
from orchestration.factory import source_definitions
from orchestration.resources import Lake, LakeSpark

CUT_AT = datetime(2026, 11, 20, tzinfo=UTC)


class Spark(LakeSpark):
    """One that is never started."""

    @property
    def spark_session(self) -> Any:
        return None


class InventedLake(Lake):
    """Two keys of `sales` have changed, `things` is parked."""

    def refresh_mirrors(self, source: str, spark: Any) -> RefreshReport:
        return RefreshReport(
            source, "0/1F5", CUT_AT, (MirrorReport("sales", 12345678901234567, 10, 2, 1, False, 0.5),), (), ("things",),
            {"things": "it is in no cut now"},
        )  # fmt: skip


def table(name: str, *key: str, **more: Any) -> RawTable:
    return RawTable(
        source="shop", name=name, description="All.", columns=(Column(name="id", data_type="bigint", description=""),),
        raw=RawPolicy(relation=f"public.{name}", key=key), load=LoadPolicy(), maintenance=None, owners=(), **more,
    )  # fmt: skip


SHOP = Source(
    name="shop",
    description="",
    load=LoadPolicy(),
    tables=(table("things", "id"), table("sales", "id"), table("log"), table("hidden", "id", mirror="none")),
)


def definitions() -> dg.Definitions:
    return dg.Definitions.merge(
        source_definitions(SHOP, date(2026, 1, 1)),
        dg.Definitions(resources={"lake": InventedLake(), "spark": Spark()}, executor=dg.in_process_executor),
    )


def test_a_run_refreshes_all_mirrors_and_says_where_each_stands() -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        done = definitions().resolve_job_def("mirror_shop").execute_in_process(instance=instance)
        assert done.success
        made = {m.asset_key.to_user_string(): m.metadata for m in done.asset_materializations_for_node("mirrors_shop")}
        checked = {c.asset_key.to_user_string(): (c.passed, c.description) for c in done.get_asset_check_evaluations()}
    assert checked == {
        "mirror_shop/sales": (True, None),
        "mirror_shop/things": (False, "its mirror stays as it was: it is in no cut now"),
    }
    assert made["mirror_shop/sales"]["snapshot_id"].value == "12345678901234567"
    assert made["mirror_shop/sales"]["rows_changed"].value == 2
    assert made["mirror_shop/things"]["rows_changed"].value == 0


def test_loads_do_not_refresh_mirrors() -> None:
    layer = definitions().resolve_job_def("load_shop").asset_layer
    keys = {key.to_user_string() for key in layer.executable_asset_keys}
    assert "raw_shop/sales" in keys and not any(key.startswith("mirror_") for key in keys)

"""Vault and marts that lack rows: nobody told of a sensor that was off, or a worker that hung."""

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
import pytest

from lakehouse.catalog.open import SnapshotFact
from lakehouse.declarations.dbt.manifest import load_manifest
from lakehouse.settings import Settings, load_settings
from lakehouse_watch.probes import built
from lakehouse_watch.probes.built import Read, data_snapshots, read_built, waiting_since
from lakehouse_watch.probes.limits import Stored, stored_models
from orchestration.runs import tags
from orchestration.worker.reports.events import report_tables
from tests.unit import test_watch_dagster
from tests.unit.test_watch_loads import rows, table

instance, settings = test_watch_dagster.instance, test_watch_dagster.settings
HUB, MART, OTHER = ("vault", "hub_store"), ("marts", "fct_sales"), ("marts", "fct_staff")
ORDERS = "raw_shop.orders"


@dg.asset(key=list(MART))
def fct_sales(context: dg.AssetExecutionContext) -> None:
    if context.run.job_name == "build_marts":
        facts = {name: SnapshotFact(snapshot, datetime.now(UTC), 1, 1) for name, snapshot in READ.items()}
        tags.record_snapshots(context, facts)


READ: dict[str, int] = {}
DEFS = dg.Definitions(
    assets=[fct_sales],
    jobs=[dg.define_asset_job("build_marts", [fct_sales])],
    executor=dg.in_process_executor,
)


class Lake:
    """What tables have, by name: their snapshots with how many seconds ago they came, newest first."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *models: Stored) -> None:
        self.arrived: dict[str, tuple[tuple[int, float], ...]] = {}
        self.served: set[str] = set()
        self.is_restless = False
        monkeypatch.setattr(built, "declared_models", lambda _: models)
        monkeypatch.setattr(built, "is_served", lambda _, job: job in self.served)
        monkeypatch.setattr(built, "is_restless", lambda _: self.is_restless)
        monkeypatch.setattr("lakehouse.catalog.open.open_catalog", lambda _: self)
        monkeypatch.setattr("lakehouse.catalog.derived.derived", self.derived)

    def close(self) -> None:
        """As a catalog."""

    def derived(self, catalog: object, names: list[tuple[str, str]], derive: object) -> Mapping[object, object]:
        now = time.time()
        there = {tuple(name.split(".")): of for name, of in self.arrived.items()}
        return {
            name: tuple((i, now - ago) for i, ago in there[name]) for name in names if name in there
        }  # fmt: skip


def mart(name: tuple[str, str] = MART, minutes: float = 30, *below: str) -> Stored:
    return Stored(name, frozenset(below or {".".join(HUB), ORDERS}), minutes * 60, "build_marts")


def told(settings: Settings) -> dict[str, str]:
    return {occasion.key: occasion.summary for occasion in read_built(settings).occasions}


def build(instance: dg.DagsterInstance, **read: int) -> None:
    """A run of the marts that has read these snapshots."""
    READ.clear()
    READ.update({name.replace("__", "."): snapshot for name, snapshot in read.items()})
    assert DEFS.resolve_job_def("build_marts").execute_in_process(instance=instance).success


def test_a_mart_that_nothing_builds_is_told_once_its_time_is_over(
    instance: dg.DagsterInstance, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(monkeypatch, mart(), mart(OTHER, 30, "vault.hub_staff"))
    lake.arrived["vault.hub_store"] = ((7, 7200.0),)
    assert told(settings) == {}, "it was never made"
    build(instance, vault__hub_store=7)
    assert told(settings) == {}, "the source is quiet"
    lake.arrived["vault.hub_store"] = ((9, 10.0), (8, 1500.0), (7, 7200.0))
    assert told(settings) == {}
    lake.arrived["vault.hub_store"] = ((9, 10.0), (8, 1860.0), (7, 7200.0))
    assert told(settings) == {
        "freshness/build_marts": "marts.fct_sales lack rows that came 31 minutes ago: build_marts has not read them"
    }
    build(instance, vault__hub_store=9)
    assert told(settings) == {}


def test_what_the_worker_has_built_counts_likewise(
    instance: dg.DagsterInstance, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(monkeypatch, mart())
    lake.arrived["vault.hub_store"] = ((8, 3600.0), (7, 7200.0))
    report_tables(instance, "build_marts", {MART: None}, {}, {"vault.hub_store": 7})
    assert list(told(settings)) == ["freshness/build_marts"]
    lake.served.add("build_marts")
    assert told(settings) == {}, "one that lives and does not hang has looked, and found no mart to change"
    lake.is_restless = True
    assert list(told(settings)) == ["freshness/build_marts"], "one that is killed each time has found nothing"
    lake.served.clear()
    report_tables(instance, "build_marts", {MART: None}, {}, {"vault.hub_store": 8})
    assert told(settings) == {}


def test_a_table_of_the_vault_that_declares_its_age_is_told_by_the_job_that_makes_it(
    instance: dg.DagsterInstance, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker hung in the vault's step: parsed had the rows, and no `freshness` came."""
    lake = Lake(monkeypatch, Stored(HUB, frozenset({ORDERS, "parsed.parsed_shop__orders"}), 1800.0, None))
    lake.arrived[ORDERS] = ((5, 2400.0), (4, 90_000.0))
    report_tables(instance, "load_shop", {HUB: None}, {}, {ORDERS: 4})
    assert list(told(settings)) == ["freshness/load_shop"]
    report_tables(instance, "load_shop", {HUB: None}, {}, {ORDERS: 5})
    assert told(settings) == {}


def test_a_mart_that_somebody_has_built_by_hand_lacks_nothing_that_came_before(
    instance: dg.DagsterInstance, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(monkeypatch, mart())
    lake.arrived["vault.hub_store"] = ((8, 3600.0), (7, 7200.0))
    build(instance, vault__hub_store=7)
    DEFS.resolve_implicit_global_asset_job_def().execute_in_process(instance=instance)
    assert told(settings) == {}


def test_a_table_whose_snapshots_have_expired_is_judged_by_the_time_of_the_last_read() -> None:
    arrived = ((9, 300.0), (8, 200.0), (7, 100.0))
    assert waiting_since(arrived, Read(frozenset({7}), 150.0)) == 200.0
    assert waiting_since(arrived, Read(frozenset({7, 9}), 150.0)) is None
    assert waiting_since(arrived, Read(frozenset({1}), 250.0)) == 300.0
    assert waiting_since(arrived, Read(frozenset({1}), 400.0)) is None
    assert waiting_since((), Read(frozenset({1}), 0.0)) is None


def test_a_compaction_is_no_new_data() -> None:
    made = table((60, "append", rows(1)), (50, "replace", {}))
    assert [snapshot for snapshot, _ in data_snapshots(made)] == [1]


def test_each_mart_of_the_samples_is_watched_with_what_it_is_made_of(home: Path) -> None:
    models = {model.name: model for model in stored_models(load_manifest(load_settings(home=home)))}
    sales = models["marts", "fct_transactions"]
    assert sales.job == "build_marts" and sales.seconds == 26 * 3600
    assert {"raw_retail.transactions", "parsed.parsed_retail__transactions", "vault.hub_store"} <= sales.below
    assert not [name for name in sales.below if name.startswith("marts.")]

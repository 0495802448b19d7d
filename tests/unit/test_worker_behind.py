"""A load that fails in the worker holds the marts of the tables that it has left behind, and no others."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest
from dagster._core.events import AssetMaterializationPlannedData, DagsterEvent, StepMaterializationData
from dagster._core.utils import make_new_run_id

from lakehouse.catalog.open import SnapshotFact
from lakehouse.declarations.dbt.models import is_view
from lakehouse.errors import LakehouseError
from lakehouse.settings import load_settings
from orchestration.runs import tags
from orchestration.runs.dependencies import name_of
from orchestration.runs.state.behind import FROM_THE_GRAPH, left_behind
from orchestration.runs.state.load_state import HeldTable, LoadState, pack_state
from orchestration.worker.dbt.warm_dbt import NodeResult
from orchestration.worker.marts.marts import Marts
from orchestration.worker.plan import Graph, Task, table_of
from orchestration.worker.state import TaskState
from tests.unit.some_worker import some_worker

PRICES = "model.lakehouse.sat_product_price"


class Shop:
    """The demo's retail load and its marts, on a Dagster of their own; `failing` is a model that cannot be loaded."""

    def __init__(
        self, manifest: dict[str, Any], found: tuple[Task, ...], instance: dg.DagsterInstance, patch: pytest.MonkeyPatch
    ) -> None:
        self.manifest, self.graph, self.instance, self.patch = manifest, Graph(manifest), instance, patch
        *self.loads, self.marts = found
        [self.retail] = [task for task in self.loads if task.job == "load_retail"]
        self.snapshots: defaultdict[str, int] = defaultdict(lambda: 1)
        self.failing, self.is_refused, self.built = set[str](), False, list[str]()
        self.loaded: list[str] = []
        self.freed: list[bool] = []
        patch.setattr("orchestration.worker.worker.writing_if_free", self.writing_if_free)
        patch.setattr("orchestration.worker.reports.load.in_cuts", lambda *_: [])
        patch.setattr("orchestration.worker.worker.withdraw", lambda *_: None)
        patch.setattr("orchestration.worker.worker.answers", lambda _: True)
        self.start()

    def start(self) -> None:
        """A worker that knows nothing but what Dagster was told."""
        self.states = {
            task.job: TaskState(day=datetime.now(UTC).date(), served=True) for task in (*self.loads, self.marts)
        }
        marts = Marts(load_settings(), None, None, self.manifest, self.graph)  # type: ignore[arg-type]
        self.patch.setattr(marts, "_build_next", self.build)
        self.worker = some_worker(
            instance=self.instance,
            states=self.states,
            graph=self.graph,
            loads=self,
            marts=marts,
            newest=self.newest,
            reads=dict.fromkeys(self.graph.nodes, frozenset({"retail"})),
            sources={"retail": ["retail"]},
            all_loads=self.loads,
            checks={},
            mart_checks={},
            unless_rung=lambda work, seconds=0.0: work(),
            _telling=SimpleNamespace(tell=lambda *_: None),
        )

    @contextmanager
    def writing_if_free(self, *given: Any) -> Iterator[frozenset[str]]:
        """Notes whether it was known what is left behind when another one could write."""
        try:
            yield frozenset(given[-1])
        finally:
            self.freed.append(bool(self.behind()))

    def behind(self) -> set[str]:
        """The tables that others see as left behind."""
        keys = list(map(dg.AssetKey, self.graph.tables_of(self.retail)))
        return {".".join(key.path) for key in left_behind(self.instance, self.retail.job, keys)}

    def newest(self, tables: Sequence[tuple[str, str]]) -> dict[str, SnapshotFact]:
        """The newest snapshot of each table."""
        names = map(".".join, tables)
        return {name: SnapshotFact(self.snapshots[name], datetime.now(UTC), 1, 1) for name in names}

    def run(self, models: Sequence[str]) -> list[NodeResult]:
        """Loads the models, but for those that fail and what is made of these."""
        late = self.graph.downstream_of(self.failing)
        loaded = [model for model in models if model not in late]
        self.loaded += [self.graph.nodes[model]["name"] for model in loaded]
        for model in loaded:
            if not is_view(self.graph.nodes[model]):
                self.snapshots[".".join(table_of(self.graph.nodes[model]))] += 1
        if self.is_refused:
            raise LakehouseError("no new row gets into parsed.products, because one has id twice: 7")
        return [
            *(NodeResult(model, "success", 0.0, 0, "") for model in loaded),
            *(NodeResult(model, "error", 0.0, 0, "value too long") for model in models if model in self.failing),
        ]

    def build(self, models: Sequence[str], without: object, newest: object) -> list[NodeResult]:
        """Notes the marts that were to be built."""
        self.built += [self.graph.nodes[model]["name"] for model in models]
        return [NodeResult(model, "success", 0.0, 0, "") for model in models]

    def leave(self, job: str = "load_retail", made: Sequence[str] = (), held: Mapping[str, int] | None = None) -> None:
        """A run of the load, which has told these tables, and fails; `held` are those that it records."""
        run_id, keys = make_new_run_id(), list(map(dg.AssetKey, self.graph.tables_of(self.retail)))
        given = {tags.BEGUN: tags.pack_begun(run_id, datetime.now(UTC))}
        if held is not None:
            tables = {name: HeldTable(tries, datetime.now(UTC), None) for name, tries in held.items()}
            given[tags.HELD] = pack_state(LoadState(run_id, None, tables))
        run = self.instance.add_run(dg.DagsterRun(job, run_id, tags=given, asset_selection=frozenset(keys)))
        for key in keys:
            planned = AssetMaterializationPlannedData(key)
            type_ = dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED.value
            self.instance.report_dagster_event(DagsterEvent(type_, job, event_specific_data=planned), run_id)
        for key in keys if held is not None else [dg.AssetKey(table.split(".")) for table in made]:
            if name_of(key) not in (held or {}):
                told = StepMaterializationData(dg.AssetMaterialization(key))
                type_ = dg.DagsterEventType.ASSET_MATERIALIZATION.value
                self.instance.report_dagster_event(DagsterEvent(type_, job, event_specific_data=told), run_id)
        self.instance.report_run_failed(run)

    def cut(self, *tables: str, with_load: bool = True) -> list[str]:
        """What is built of the marts once a cut has brought rows for these tables, and it was loaded."""
        self.built.clear()
        self.loaded.clear()
        for table in tables:
            self.snapshots[f"raw_retail.{table}"] += 1
        for task in (self.retail, self.marts) if with_load else (self.marts,):
            self.worker._attend(task, self.states[task.job])
        self.worker._untold.tell()
        return self.built


@pytest.fixture
def shop(demo_tasks: tuple[dict[str, Any], tuple[Task, ...]], monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield Shop(*demo_tasks, instance, monkeypatch)


def test_marts_of_a_table_that_a_load_of_the_worker_leaves_behind_wait(shop: Shop) -> None:
    """They were built of the new cut of one table and the old one of the other, and published."""
    assert {"dim_store", "dim_product", "dim_product_history"} <= set(shop.cut("stores", "products"))
    shop.failing = {PRICES}
    for _ in range(2):
        built = shop.cut("stores", "products")
        assert "dim_store" in built and "dim_product" not in built
        assert "dim_product_history" not in built
        assert shop.freed[-2:] == [True, True], "a second worker builds none of them either"
    shop.start()
    assert "dim_product" not in shop.cut(with_load=False), "nor does one that does not take the load"
    shop.failing.clear()
    assert "dim_product" in shop.cut()
    assert not shop.behind()


def test_marts_wait_too_where_a_load_is_refused_and_says_nothing_of_its_models(shop: Shop) -> None:
    assert "dim_product" in shop.cut("stores", "products")
    shop.is_refused = True
    assert "dim_product" not in shop.cut("products")
    shop.is_refused = False
    assert "dim_product" in shop.cut()


@pytest.mark.parametrize("job", ["load_retail", FROM_THE_GRAPH])
def test_a_load_of_one_table_makes_up_for_a_run_that_was_killed(shop: Shop, job: str) -> None:
    """The load of one sale counted as one of the whole job: marts were published of a new hub and its old satellite."""
    shop.cut("stores", "products")
    shop.leave(job, made=["vault.hub_product"])
    built = shop.cut("stores")
    assert {"sat_store_details", "sat_product_price"} <= set(shop.loaded)
    assert not shop.behind() and {"dim_store", "dim_product"} <= set(built)
    shop.cut("stores")
    assert "sat_product_price" not in shop.loaded, "once"


def test_a_load_of_others_leaves_alone_what_the_job_itself_tries_again(shop: Shop) -> None:
    """It counted as loaded, for marts too, and each load of the worker would have failed with it."""
    shop.cut("stores", "products")
    shop.leave(held={"vault.sat_product_price": 1})
    built = shop.cut("stores")
    assert "sat_store_details" in shop.loaded and "sat_product_price" not in shop.loaded
    assert shop.behind() == {"vault.sat_product_price"} and "dim_store" in built and "dim_product" not in built
    assert "dim_product" in shop.cut("products") and not shop.behind()


@pytest.mark.parametrize("job", ["load_retail", FROM_THE_GRAPH])
def test_what_a_run_has_left_is_loaded_though_nothing_is_new(shop: Shop, job: str) -> None:
    """Of a run from the asset graph, marts waited for it for good."""
    shop.cut("stores", "products")
    shop.leave(job)
    shop.snapshots["vault.hub_product"] += 1
    assert "dim_product" not in shop.cut(with_load=False)
    assert shop.behind() and shop.states["load_retail"].loaded == {}
    shop.cut()
    assert not shop.behind() and "sat_product_price" in shop.loaded


def test_a_load_reads_no_more_of_dagster_where_no_run_has_failed(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.cut("stores", "products")
    read = list[str]()
    monkeypatch.setattr(shop, "behind", set)
    for name in ("get_runs", "get_run_by_id", "get_records_for_run", "get_asset_records"):
        ask = getattr(shop.instance, name)
        monkeypatch.setattr(
            shop.instance, name, lambda *a, _ask=ask, _name=name, **k: (read.append(_name), _ask(*a, **k))[1]
        )
    shop.cut("stores")
    assert Counter(read) == {"get_asset_records": len(shop.loads) - 1, "get_runs": len(shop.loads) + 1}

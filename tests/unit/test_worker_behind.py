"""A load that fails in the worker holds the marts of the tables that it has left behind, and no others."""

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest

from lakehouse.catalog.open import SnapshotFact
from lakehouse.declarations.models import is_view
from lakehouse.errors import LakehouseError
from lakehouse.settings import load_settings
from orchestration.runs.state.behind import left_behind
from orchestration.worker.budget import TestBudget
from orchestration.worker.dbt.warm_dbt import NodeResult
from orchestration.worker.marts.marts import Marts
from orchestration.worker.plan import Graph, Task, table_of
from orchestration.worker.worker import Worker, _State

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
        self.freed: list[bool] = []
        patch.setattr("orchestration.worker.worker.writing_if_free", self.writing_if_free)
        patch.setattr("orchestration.worker.worker.in_cuts", lambda *_: [])
        patch.setattr("orchestration.worker.worker.withdraw", lambda *_: None)
        patch.setattr("orchestration.worker.worker.answers", lambda _: True)
        self.start()

    def start(self) -> None:
        """A worker that knows nothing but what Dagster was told."""
        self.worker = object.__new__(Worker)
        self.states = {
            task.job: _State(day=datetime.now(UTC).date(), served=True) for task in (*self.loads, self.marts)
        }
        marts = Marts(load_settings(), None, None, self.manifest, self.graph)  # type: ignore[arg-type]
        self.patch.setattr(marts, "_build_next", self.build)
        for name, value in {
            "_graph": self.graph, "_loads": self, "_marts": marts, "_newest": self.newest, "_untold": [],
            "_reads": dict.fromkeys(self.graph.nodes, frozenset({"retail"})), "_sources": {"retail": ["retail"]},
            "_instance": self.instance,
            "_state": self.states, "_all_loads": self.loads, "_checks": {}, "_mart_checks": {}, "_tests": TestBudget(),
            "_unloaded": lambda _: set(), "_unpublished": lambda _: {}, "_connection": None,
            "_catalog": SimpleNamespace(name="lake"),
            "_telling": SimpleNamespace(tell=lambda *_: None), "_last_loads": deque[float](maxlen=2), "_away": False,
            "_settings": None, "_unless_rung": lambda work, seconds=0.0: work(),
        }.items():  # fmt: skip
            self.patch.setattr(self.worker, name, value, raising=False)

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

    def cut(self, *tables: str, with_load: bool = True) -> list[str]:
        """What is built of the marts once a cut has brought rows for these tables, and it was loaded."""
        self.built.clear()
        for table in tables:
            self.snapshots[f"raw_retail.{table}"] += 1
        for task in (self.retail, self.marts) if with_load else (self.marts,):
            self.worker._attend(task, self.states[task.job])
        self.worker._tell()
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

"""Two facts of the retail sample after a few sales: built whole, and by key (`meta.built_by`), in turn."""

import time
from collections.abc import Callable
from contextlib import closing
from typing import Any
from unittest.mock import patch

import psycopg

from benchmarks.bench import Bench, Measurement, Results
from benchmarks.probe import load_recorded, measured
from benchmarks.processes import lakehouse, servers
from benchmarks.samples import SALE, load_samples
from lakehouse.catalog.lake_catalog import LakeCatalog
from lakehouse.catalog.open import newest_data_snapshots, open_catalog
from lakehouse.declarations.dbt.manifest import load_manifest
from lakehouse.settings import Settings, load_settings
from orchestration.worker.dbt.warm_dbt import NodeResult, WarmDbt
from orchestration.worker.marts import marts
from orchestration.worker.plan import Graph, table_of

FACTS = ("model.lakehouse.fct_transactions", "model.lakehouse.fct_transaction_items")
SALES, NEW_SALES = 1_000_000, 20
FILL = """WITH sale AS (
  INSERT INTO transactions (store_id, total_amount, txn_timestamp)
  SELECT (SELECT min(store_id) FROM stores), 5, now() - (i % 365) * interval '1 day' FROM generate_series(1, {sales}) i
  RETURNING txn_id)
INSERT INTO transaction_items (txn_id, product_id, unit_price, line_total)
SELECT txn_id, (SELECT min(product_id) FROM products), 5, 5 FROM sale"""


_changes = marts.changes
KINDS: dict[str, Callable[..., Any]] = {"whole": lambda *given: (None, _changes(*given)[1]), "by key": _changes}


def marts_by_key(bench: Bench) -> Results:
    """Seconds of a build with its tests, from the look at what changed until readers have it; CPU of Trino beside."""
    load_samples()
    settings = load_settings()
    change(settings, FILL.format(sales=int(SALES * bench.scale)))
    lakehouse("run", "build_marts")
    results = {kind: Measurement("s", does=f"two facts of {SALES * bench.scale:,.0f} sales, {kind}") for kind in KINDS}
    busy = results["by key"].notes["machine"] = dict[str, float]()
    with closing(open_catalog(settings)) as catalog, load_recorded(busy):
        builder = Builder(settings, catalog)
        builder.build()
        for _ in range(bench.runs):
            for kind, found in results.items():
                change(settings, *([SALE] * NEW_SALES))
                trino = servers(settings)["trino"]
                with patch.object(marts, "changes", KINDS[kind]), measured({"trino": (trino,)}) as cost:
                    begun = time.monotonic()
                    builder.build()
                    found.add(time.monotonic() - begun, cost)
    return results


class Builder:
    """What the worker builds marts with."""

    def __init__(self, settings: Settings, catalog: LakeCatalog) -> None:
        self._dbt, manifest = WarmDbt(settings), load_manifest(settings)
        self._dbt.refresh()
        graph = Graph(manifest)
        self._catalog, self._marts = catalog, marts.Marts(settings, catalog, self._dbt, manifest, graph)
        made = {key: node["config"].get("materialized") for key, node in graph.nodes.items()}
        self._reads = [table_of(graph.nodes[key]) for key, how in made.items() if how == "append_only"]
        self._others = [key for key, how in made.items() if how == "rebuilt_table" and key not in FACTS]

    def build(self) -> None:
        """Builds, tests and publishes the facts, without the tests that read other marts, which stay as they are."""
        results: list[NodeResult] = []
        self._marts.build(FACTS, self._others, newest_data_snapshots(self._catalog, self._reads), results)
        assert not [result for result in results if result.failed], results


def change(settings: Settings, *statements: str) -> None:
    """Runs statements in the source, and brings parsed and the vault up to date."""
    owner = settings.source("retail").owner_url
    assert owner is not None
    with psycopg.connect(owner.get_secret_value()) as source:
        for statement in statements:
            source.execute(statement.encode())
    lakehouse("ingest", "retail", "--once")
    lakehouse("run", "load_retail")

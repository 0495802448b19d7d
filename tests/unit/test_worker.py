"""What the worker decides without a server: which models a change reaches, which tests run, and who serves a job."""

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from threading import Thread
from typing import Any

import dagster as dg
import psycopg
import pytest
from throwaway_postgres import throwaway_postgres

from lakehouse.catalog.open import SnapshotFact
from lakehouse.declarations import declarations_from
from lakehouse.declarations.manifest import load_manifest
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings, load_settings
from orchestration.assets.translator import MARTS, is_view, layer
from orchestration.factory import ARRIVED
from orchestration.runs.processes.presence import is_served, serve, withdraw, writing, writing_if_free
from orchestration.worker.bell import listen, wait
from orchestration.worker.budget import AGAIN_SECONDS, MOST_SECONDS, SHARE, TestBudget
from orchestration.worker.plan import Graph, Task, tasks
from orchestration.worker.reports import report_arrivals
from orchestration.worker.warm_dbt import NodeResult
from orchestration.worker.worker import Worker, _State


@pytest.fixture(scope="module")
def project(home: Path) -> tuple[dict[str, Any], tuple[Task, ...]]:
    settings = load_settings(home=home)
    manifest = load_manifest(settings)
    return manifest, tasks(declarations_from(manifest, settings.dbt_project_dir), manifest)


def models(graph: Graph, task: Task, *changed: tuple[str, str]) -> set[str]:
    return {graph.nodes[unique_id]["name"] for unique_id in graph.models_of(task, changed)}


def test_each_source_is_a_task_and_the_marts_come_last(project: tuple[dict[str, Any], tuple[Task, ...]]) -> None:
    _, found = project
    assert {task.job for task in found[:-1]} == {"load_retail", "load_bank", "load_payroll_employee"}
    assert found[-1].marts and ("vault", "hub_transaction") in found[-1].tables


def test_a_change_reaches_the_tables_downstream_and_no_others(
    project: tuple[dict[str, Any], tuple[Task, ...]],
) -> None:
    manifest, found = project
    graph, retail = Graph(manifest), found[0]
    reached = models(graph, retail, ("raw_retail", "stores"))
    assert {"parsed_retail__stores", "hub_store", "sat_store_details"} <= reached
    assert not {name for name in reached if "product" in name or name.startswith(("fct_", "dim_", "pit_"))}
    assert not models(graph, retail, ("raw_bank", "users")) & models(graph, retail, ("raw_retail", "stores"))


def test_the_views_of_each_table_are_made_once_and_again_where_that_failed(
    project: tuple[dict[str, Any], tuple[Task, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Views of the tables that changed first were made, and those of others never; one that failed neither."""
    manifest, found = project
    [retail] = [task for task in found if task.job == "load_retail"]
    snapshots, failing, ran = dict.fromkeys(retail.tables, 1), set[str](), list[set[str]]()
    worker, graph = object.__new__(Worker), Graph(manifest)
    state = _State(loaded={".".join(table): 1 for table in retail.tables})

    class Loads:
        def run(self, models: Sequence[str]) -> list[NodeResult]:
            names = {model: graph.nodes[model]["name"] for model in models}
            ran.append({name for model, name in names.items() if is_view(graph.nodes[model])})
            return [NodeResult(m, "error" if n in failing else "success", 0.0, 0, "") for m, n in names.items()]

    def newest(_: object) -> dict[str, SnapshotFact]:
        return {".".join(table): SnapshotFact(n, datetime.now(UTC), n, 1) for table, n in snapshots.items()}

    def views_made(table: str) -> set[str]:
        snapshots["raw_retail", table] += 1
        with suppress(LakehouseError):
            worker._load_alone(retail, state)
        return ran[-1]

    for name, value in {"_graph": graph, "_loads": Loads(), "_newest": newest, "_report": lambda *_: None}.items():
        monkeypatch.setattr(worker, name, value, raising=False)
    assert {"current_retail__stores", "stg_retail__stores"} <= views_made("stores")
    assert {"current_retail__products", "stg_retail__products"} <= views_made("products")
    assert not views_made("products")
    failing.add("current_retail__customers")
    assert "current_retail__customers" in views_made("customers")
    failing.clear()
    assert "current_retail__customers" in views_made("customers")
    assert not views_made("customers")


def test_views_are_left_out_because_data_does_not_change_them(
    project: tuple[dict[str, Any], tuple[Task, ...]],
) -> None:
    manifest, (retail, *_, marts) = project
    graph = Graph(manifest)
    tables = graph.models_of(retail, retail.tables)
    assert not [unique_id for unique_id in tables if is_view(graph.nodes[unique_id])]
    assert set(tables) < set(graph.models_of(retail, retail.tables, with_views=True))
    built = graph.models_of(marts, [("vault", "hub_store")])
    assert built and {layer(graph.nodes[unique_id]) for unique_id in built} == {MARTS}


def test_tests_of_a_table_are_those_of_its_views_too_but_none_that_reads_a_mart(
    project: tuple[dict[str, Any], tuple[Task, ...]],
) -> None:
    graph = Graph(project[0])
    [satellite] = [node for node in graph.nodes if node.endswith(".sat_store_details")]
    names = {graph.tests[test]["name"] for test in graph.tests_of([satellite])}
    assert [name for name in names if "sat_is_sound_sat_store_details" in name]
    assert [name for name in names if "timeline_is_sound_sat_store_details_v1" in name]
    assert not [name for name in names if "pit_is_sound" in name]


def test_tests_take_no_more_than_their_share_of_the_time() -> None:
    budget, now, ran = TestBudget(seconds=0.0), 0.0, 0.0
    while now < 3600:
        budget.changed(["slow", "slower"])
        if budget.next(now, most=2):
            budget.spent(30.0)
            now, ran = now + 30, ran + 30
        else:
            now += max(1.0, budget.wait() or 0.0)
    assert 0.5 * SHARE < ran / now <= SHARE + MOST_SECONDS / 3600


def test_a_test_keeps_its_turn_however_often_its_table_changes() -> None:
    budget = TestBudget()
    budget.changed(["first", "second"])
    budget.changed(["second", "first", "third"])
    assert budget.next(0.0, most=2) == ["first", "second"]
    assert budget.next(0.0, most=2) == ["third"] and budget.wait() is None


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    with throwaway_postgres() as url:
        yield load_settings(home=tmp_path_factory.mktemp("home"), catalog_url=url)


def test_a_worker_serves_a_job_until_its_session_ends(settings: Settings) -> None:
    """However it ends: the lock is the session's, so no timeout has to pass."""
    dsn, lake = settings.catalog_dsn(), settings.catalog_name
    with psycopg.connect(dsn, autocommit=True) as one, psycopg.connect(dsn, autocommit=True) as other:
        assert not is_served(settings, "load_shop")
        assert serve(one, lake, "load_shop") and is_served(settings, "load_shop")  # type: ignore[arg-type]
        assert not serve(other, lake, "load_shop")  # type: ignore[arg-type]
        assert not is_served(settings, "load_bank")
        withdraw(one, lake, "load_shop")  # type: ignore[arg-type]
        assert serve(other, lake, "load_shop")  # type: ignore[arg-type]
        one.execute("SELECT pg_terminate_backend(%s, 10000)", (other.info.backend_pid,))
        assert not is_served(settings, "load_shop")


def test_a_publish_wakes_the_worker(settings: Settings) -> None:
    from threading import Event

    with psycopg.connect(settings.catalog_dsn(), autocommit=True) as listener:
        listen(listener)  # type: ignore[arg-type]
        assert not wait(listener, 0.1, Event())  # type: ignore[arg-type]
        with psycopg.connect(settings.catalog_dsn(), autocommit=True) as publisher:
            publisher.execute("SELECT pg_notify('lakehouse_cuts', 'shop'), pg_notify('lakehouse_cuts', 'bank')")
        assert wait(listener, 5, Event())  # type: ignore[arg-type]
        assert not wait(listener, 0.1, Event()), "one load reads all cuts"  # type: ignore[arg-type]


def test_one_writes_at_a_time_and_a_run_that_waits_comes_before_the_worker(settings: Settings) -> None:
    """A worker that loads again and again must not keep a run waiting for ever."""
    dsn, lake = settings.catalog_dsn(), settings.catalog_name
    with psycopg.connect(dsn, autocommit=True) as one, psycopg.connect(dsn, autocommit=True) as other:
        order = []

        def run() -> None:
            with writing(other, lake):  # type: ignore[arg-type]
                order.append("run")

        with writing_if_free(one, lake) as free:  # type: ignore[arg-type]
            assert free
            thread = Thread(target=run)
            thread.start()
            while not is_waiting(settings):
                time.sleep(0.05)
            order.append("worker")
        thread.join(timeout=30)
        assert order == ["worker", "run"]
        with writing(other, lake), writing_if_free(one, lake) as free:  # type: ignore[arg-type]
            assert not free
        with writing_if_free(one, lake) as free:  # type: ignore[arg-type]
            assert free


def is_waiting(settings: Settings) -> bool:
    with psycopg.connect(settings.catalog_dsn()) as connection:
        query = "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted)"
        return connection.execute(query).fetchone() == (True,)


def test_the_tests_of_a_mart_read_also_marts_that_do_not_change(
    project: tuple[dict[str, Any], tuple[Task, ...]],
) -> None:
    """A fact without its dimension would be published: the test of both was left out."""
    manifest, (*_, marts) = project
    graph = Graph(manifest)
    built = graph.models_of(marts, marts.tables)
    both = {test: set(node["depends_on"]["nodes"]) for test, node in graph.tests.items()}
    two = next(test for test, nodes in both.items() if len(nodes & set(built)) > 1)
    one, other = sorted(both[two] & set(built))[:2]
    assert two in graph.tests_of_marts([one], ())
    assert two not in graph.tests_of_marts([one], [other])


def test_a_check_that_has_failed_runs_again_though_nothing_changes() -> None:
    """Also one that a run has failed: its marts would wait for ever."""
    budget = TestBudget()
    budget.failing(["broken"])
    assert budget.next(1.0, most=2) == [] and budget.next(AGAIN_SECONDS, most=2) == ["broken"]
    budget.spent(0.1, failed=["broken"])
    budget.failing(["broken"])
    assert budget.next(AGAIN_SECONDS + 1, most=2) == []


def test_a_table_that_is_in_the_cut_again_is_no_longer_red() -> None:
    """The check of its last run stayed red: the worker loads it, so that no run comes to evaluate it."""
    parked, other = ("raw_shop", "parked"), ("raw_shop", "other")
    with dg.DagsterInstance.ephemeral() as instance:

        def evaluations() -> list[bool]:
            key = dg.AssetCheckKey(dg.AssetKey(parked), ARRIVED)
            found = instance.event_log_storage.get_asset_check_execution_history(key, limit=9)
            return [record.status.value == "SUCCEEDED" for record in found]

        for table in (parked, other):
            passed = table == other
            evaluation = dg.AssetCheckEvaluation(asset_key=dg.AssetKey(table), check_name=ARRIVED, passed=passed)
            instance.report_runless_asset_event(evaluation)
        report_arrivals(instance, [other])
        assert evaluations() == [False]
        report_arrivals(instance, [parked, other])
        report_arrivals(instance, [parked, other])
        assert evaluations() == [True, False], "once"

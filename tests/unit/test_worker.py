"""What the worker decides without a server: which models a change reaches, which tests run, and who serves a job."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event, Thread
from typing import Any

import dagster as dg
import duckdb
import psycopg
import pytest
from throwaway_postgres import throwaway_postgres

from lakehouse.catalog.open import SnapshotFact
from lakehouse.declarations import declarations_from
from lakehouse.declarations.manifest import load_manifest
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings, load_settings
from orchestration.assets.groups import groups_read, load_groups
from orchestration.assets.translator import MARTS, is_view, layer
from orchestration.factory import ARRIVED
from orchestration.runs.processes.presence import is_served, serve, withdraw, writing, writing_if_free
from orchestration.worker.bell import Bell
from orchestration.worker.budget import AGAIN_SECONDS, MOST_SECONDS, SHARE, TestBudget
from orchestration.worker.dbt.many_tests import counts_rows, one_query
from orchestration.worker.dbt.statements import Interrupted, Statements
from orchestration.worker.dbt.warm_dbt import NodeResult, WarmDbt
from orchestration.worker.marts.marts import Marts
from orchestration.worker.plan import Graph, Task, tasks
from orchestration.worker.reports import red_tables, report_arrivals, report_tables
from orchestration.worker.telling import Telling
from orchestration.worker.worker import BUSY_SECONDS, LATEST_SECONDS, QUIET_SECONDS, Worker, _State


@pytest.fixture(scope="module")
def project(home: Path) -> tuple[dict[str, Any], tuple[Task, ...]]:
    settings = load_settings(home=home)
    manifest = load_manifest(settings)
    return manifest, tasks(declarations_from(manifest, settings.dbt_project_dir), manifest)


def models(graph: Graph, task: Task, *changed: tuple[str, str]) -> set[str]:
    return {graph.nodes[unique_id]["name"] for unique_id in graph.models_of(task, changed)}


def test_each_source_is_a_task_and_the_marts_come_last(project: tuple[dict[str, Any], tuple[Task, ...]]) -> None:
    _, found = project
    assert {task.job for task in found[:-1]} == {
        "load_retail", "load_bank", "load_payroll_employee", "load_clicks",
    }  # fmt: skip
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

    told: list[object] = []
    for name, value in {
        "_graph": graph,
        "_loads": Loads(),
        "_newest": newest,
        "_untold": told,
        "_red": lambda *_: [],
        "_reads": dict.fromkeys(graph.nodes, frozenset()),
    }.items():
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


def ring(settings: Settings) -> None:
    with psycopg.connect(settings.catalog_dsn(), autocommit=True) as publisher:
        publisher.execute("SELECT pg_notify('lakehouse_cuts', 'shop'), pg_notify('lakehouse_cuts', 'bank')")


def test_a_publish_wakes_the_worker(settings: Settings) -> None:
    with psycopg.connect(settings.catalog_dsn(), autocommit=True) as listener:
        bell = Bell(listener, Event())  # type: ignore[arg-type]
        assert not bell.wait(0.1)
        ring(settings)
        assert bell.wait(5)
        assert not bell.wait(0.1), "one load reads all cuts"
        ring(settings)
        time.sleep(0.5)
        assert bell.wait(0), "what rang while nobody waited"


def test_work_that_yields_ends_when_a_cut_changes_a_table_and_the_cut_is_loaded_next(settings: Settings) -> None:
    """A sale waited for whole-table tests that had begun just before it came."""
    begun, ended, matters = Event(), Event(), [False]

    def work() -> bool:
        begun.set()
        return ended.wait(20)

    def ring_twice() -> None:
        begun.wait(20)
        ring(settings)
        time.sleep(0.5)
        assert not ended.is_set(), "a cut that changes no table"
        matters[0] = True
        ring(settings)

    with psycopg.connect(settings.catalog_dsn(), autocommit=True) as listener:
        bell = Bell(listener, Event())  # type: ignore[arg-type]
        assert bell.during(lambda: 7, lambda: True, ended.set) == 7 and not ended.is_set()
        ringing = Thread(target=ring_twice)
        ringing.start()
        assert bell.during(work, lambda: matters[0], ended.set)
        ringing.join()
        assert bell.wait(0) and not bell.wait(0.1), "at once, and not twice"
        stop = Event()
        stop.set()
        ended.clear()
        assert Bell(listener, stop).during(work, lambda: False, ended.set), "a worker that stops waits for nothing"  # type: ignore[arg-type]


def test_what_was_cancelled_has_no_results() -> None:
    """A statement that was cancelled looks like one that finds nothing: a failing test would pass."""
    statements = Statements()
    statements.begin()
    with pytest.raises(Interrupted), statements.running():
        statements.end()
    with pytest.raises(Interrupted), statements.running():
        raise AssertionError("it must not begin")
    statements.begin()
    with statements.running():
        pass


def test_one_writes_at_a_time_and_a_run_that_waits_comes_before_the_worker(settings: Settings) -> None:
    """A worker that loads again and again must not keep a run waiting for ever."""
    dsn, lake = settings.catalog_dsn(), settings.catalog_name
    with psycopg.connect(dsn, autocommit=True) as one, psycopg.connect(dsn, autocommit=True) as other:
        order = []

        def run() -> None:
            with writing(other, lake, ["shop"]):  # type: ignore[arg-type]
                order.append("run")

        with writing_if_free(one, lake, ["shop"]) as free:  # type: ignore[arg-type]
            assert free == {"shop"}
            thread = Thread(target=run)
            thread.start()
            while not is_waiting(settings):
                time.sleep(0.05)
            order.append("worker")
        thread.join(timeout=30)
        assert order == ["worker", "run"]
        with writing(other, lake, ["shop"]), writing_if_free(one, lake, ["shop", "bank"]) as free:  # type: ignore[arg-type]
            assert free == {"bank"}, "a load of one source keeps no other waiting"
        with writing_if_free(one, lake, ["shop"]) as free:  # type: ignore[arg-type]
            assert free


def test_who_waits_for_one_of_several_sources_keeps_no_other_waiting(settings: Settings) -> None:
    """Marts of the shop and the bank waited for a long load of the bank, and loads of the shop for the marts."""
    dsn, lake, order = settings.catalog_dsn(), settings.catalog_name, []
    with psycopg.connect(dsn, autocommit=True) as one, psycopg.connect(dsn, autocommit=True) as other:

        def marts() -> None:
            with writing(other, lake, ["bank", "shop"]):  # type: ignore[arg-type]
                order.append("marts")

        for busy, free in (("bank", "shop"), ("shop", "bank")):
            with writing_if_free(one, lake, [busy]):  # type: ignore[arg-type]
                thread = Thread(target=marts)
                thread.start()
                while not is_waiting(settings):
                    time.sleep(0.05)
                with writing_if_free(one, lake, [free]) as found:  # type: ignore[arg-type]
                    assert found == {free}
                order.append(busy)
            thread.join(timeout=30)
    assert order == ["bank", "marts", "shop", "marts"]


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


def test_tests_asked_in_one_statement_are_told_apart() -> None:
    queries = {
        "it's fine": "select 1 where false -- none;",
        "two": "with t as (select 1 union all select 2) select * from t;\n",
    }
    assert dict(duckdb.execute(one_query(queries)).fetchall()) == {"it's fine": 0, "two": 2}


def test_a_test_that_does_more_than_count_rows_is_left_to_dbt(
    project: tuple[dict[str, Any], tuple[Task, ...]],
) -> None:
    counting = {node["test_metadata"]["name"]: counts_rows(node) for node in Graph(project[0]).tests.values()}
    assert counting["unique"] and counting["pit_is_sound"]
    assert not counting["keys_are_given"], "it adds up what its rows say"


def test_tests_of_a_mart_that_was_not_built_are_skipped(project: tuple[dict[str, Any], tuple[Task, ...]]) -> None:
    """They would test the copy of the former state, and pass."""
    manifest, (*_, marts) = project
    graph = Graph(manifest)
    built = Marts(load_settings(), None, WarmDbt(load_settings()), manifest, graph)  # type: ignore[arg-type]
    models = graph.models_of(marts, marts.tables)
    tests = graph.tests_of_marts(models, ())
    results = built.test(tests, [NodeResult(model, "error", 0.0, 0, "no") for model in models], {})
    assert {result.unique_id: result.status for result in results} == dict.fromkeys(tests, "skipped")


def test_marts_of_a_source_that_is_being_loaded_wait_and_no_others(
    project: tuple[dict[str, Any], tuple[Task, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest, (*_, marts) = project
    worker, built = object.__new__(Worker), list[str]()
    graph, state = Graph(manifest), _State(day=datetime.now(UTC).date())

    def build(models: Sequence[str], without: object, newest: object) -> list[NodeResult]:
        built.extend(graph.nodes[model]["name"] for model in models)
        return []

    building = Marts(load_settings(), None, None, manifest, graph)  # type: ignore[arg-type]
    monkeypatch.setattr(building, "_build_next", build)
    reads = groups_read(manifest, graph.nodes, load_groups(manifest))
    facts = {".".join(table): SnapshotFact(1, datetime.now(UTC), 1, 1) for table in marts.tables}
    for name, value in {
        "_graph": graph, "_marts": building, "_reads": reads, "_newest": lambda _: facts, "_untold": [],
        "_held": lambda _: set(), "_unloaded": lambda _: set(),
    }.items():  # fmt: skip
        monkeypatch.setattr(worker, name, value, raising=False)
    worker._load_alone(marts, state, frozenset({"bank"}))
    assert "fct_transactions" in built and "dim_account" not in built
    assert 0 < state.due - time.monotonic() <= BUSY_SECONDS
    worker._load_alone(marts, state, frozenset())
    assert "dim_account" in built and built.count("fct_transactions") == 1, "what waited, and nothing twice"


def test_marts_that_readers_see_come_before_pits_with_all_that_a_test_reads_beside_them(
    project: tuple[dict[str, Any], tuple[Task, ...]],
) -> None:
    """A sale was in its fact after all points in time were built and tested: more than half of the way."""
    graph = Graph(project[0])
    names = {graph.nodes[model]["name"] for model in graph.of_readers()}
    assert {"fct_transactions", "mart_sales_by_store_day", "dim_customer_history"} <= names
    assert "bv_transaction_reconciliation" in names, "a test compares it with a fact"
    assert not [name for name in names if name.startswith(("pit_", "bridge_", "control_"))]
    read = ["model.lakehouse.pit_store", *graph.nodes["model.lakehouse.dim_store"]["depends_on"]["nodes"]]
    node = {**graph.nodes["model.lakehouse.dim_store"], "depends_on": {"nodes": read}}
    graph.nodes["model.lakehouse.dim_store"] = node
    assert {"model.lakehouse.pit_store", "model.lakehouse.control_snap"} <= graph.of_readers(), "what it is made of"


def test_pits_wait_for_a_pause_between_cuts_and_not_for_ever(
    project: tuple[dict[str, Any], tuple[Task, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sale that came while they were built waited for them."""
    manifest, (*_, marts) = project
    worker, built, cuts = object.__new__(Worker), list[set[str]](), [1]
    graph, state = Graph(manifest), _State(day=datetime.now(UTC).date(), served=True)

    def build(models: Sequence[str], without: object, newest: object) -> list[NodeResult]:
        built.append({graph.nodes[model]["name"] for model in models})
        return [NodeResult(model, "success", 0.0, 0, "") for model in models]

    def newest(_: object) -> dict[str, SnapshotFact]:
        return {".".join(table): SnapshotFact(cuts[0], datetime.now(UTC), 1, 1) for table in marts.tables}

    def unless_rung(work: Callable[[], None]) -> None:
        if rings:
            raise Interrupted
        work()

    rings = list[bool]()
    building = Marts(load_settings(), None, None, manifest, graph)  # type: ignore[arg-type]
    monkeypatch.setattr(building, "_build_next", build)
    for name, value in {
        "_graph": graph, "_marts": building, "_newest": newest, "_untold": [], "_held": lambda _: set(),
        "_unloaded": lambda _: set(), "_reads": dict.fromkeys(graph.nodes, frozenset()),
        "_state": {marts.job: state}, "_unless_rung": unless_rung, "_telling": Telling(*[None] * 5),
    }.items():  # fmt: skip
        monkeypatch.setattr(worker, name, value, raising=False)

    def pause(seconds: float) -> None:
        """Of the share of time that PITs have used up, so much is still to come."""
        state.due, state.later_due = 0.0, time.monotonic() + seconds

    def rounds() -> list[str]:
        """Of each build since: whether it was of facts or of PITs."""
        built.clear()
        worker._load_alone(marts, state)
        return ["facts" if "fct_transactions" in names else "pits" for names in built if names]

    assert rounds() == ["facts"] and "pit_store" in {graph.nodes[model]["name"] for model in state.held}
    assert worker._dues() == [0.0] or worker._dues()[0] <= QUIET_SECONDS, "soon, unless a cut comes first"
    cuts[0] += 1
    assert rounds() == ["facts"], "a cut came first"
    waiting, loaded = len(state.held), dict(state.loaded)
    rings.append(True)
    assert rounds() == [] and len(state.held) == waiting and state.loaded == loaded, "they yield to a cut"
    rings.clear()
    pause(0.0)
    assert rounds() == ["pits"] and 0 < len(state.held) < waiting, "some of them, so that a cut waits for no others"
    pause(10.0)
    assert worker._dues()[0] > 9 and not worker._due(state) and rounds() == [], "they take their share of the time"
    cuts[0] += 1
    assert rounds() == ["facts"], "which a cut need not wait for"
    assert state.later_since is not None
    state.later_since -= LATEST_SECONDS
    cuts[0] += 1
    assert rounds() == ["facts"]
    pause(0.0)
    cuts[0] += 1
    assert rounds() == ["facts", "pits"], "they have waited long enough"
    while state.held:
        pause(0.0)
        assert rounds() == ["pits"]
    assert not worker._dues() and not worker._due(state)


def test_pits_that_one_test_reads_or_that_are_made_of_one_another_are_built_together(
    project: tuple[dict[str, Any], tuple[Task, ...]],
) -> None:
    graph = Graph(project[0])
    pits = {f"model.lakehouse.pit_{name}" for name in ("customer", "product", "store")}
    assert graph.together(pits) == {"model.lakehouse.pit_customer"}
    assert graph.together({*pits, "model.lakehouse.control_snap"}) == {*pits, "model.lakehouse.control_snap"}
    graph.tests["test.both"] = {"depends_on": {"nodes": ["model.lakehouse.pit_customer", "model.lakehouse.pit_store"]}}
    assert graph.together(pits) == {"model.lakehouse.pit_customer", "model.lakehouse.pit_store"}
    assert graph.together([]) == set()


def test_what_is_made_of_a_mart_that_was_refused_is_not_built_of_its_former_state(
    project: tuple[dict[str, Any], tuple[Task, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would count as built from rows that it does not have, and stay so when the mart is sound again."""
    manifest, (*_, marts) = project
    graph, built, results = Graph(manifest), list[set[str]](), list[NodeResult]()
    changed = {key: dict(node) for key, node in manifest["nodes"].items()}
    children = {**manifest["child_map"], "model.lakehouse.fct_transactions": ["model.lakehouse.bv_customer_value"]}
    refused = next(key for key in changed if key.startswith("test.lakehouse.unique_fct_transactions_"))

    def build(models: Sequence[str], without: object, newest: object) -> list[NodeResult]:
        built.append(set(models))
        found = [NodeResult(model, "success", 0.0, 0, "") for model in models]
        return [*found, *([NodeResult(refused, "fail", 0.0, 1, "Got 1 result")] if len(built) == 1 else [])]

    building = Marts(load_settings(), None, None, {**manifest, "child_map": children}, graph)  # type: ignore[arg-type]
    monkeypatch.setattr(building, "_build_next", build)
    building.build(graph.models_of(marts, marts.tables), (), {}, results)
    first, others = built
    assert "model.lakehouse.fct_transactions" in first
    assert "model.lakehouse.pit_transaction" in others and "model.lakehouse.bv_customer_value" not in others


def test_what_is_made_of_the_day_is_built_anew_once_a_day(project: tuple[dict[str, Any], tuple[Task, ...]]) -> None:
    """The sales after midnight were in no PIT: nothing that a sale changes is upstream of the control snapshot."""
    manifest, (load, *_, marts) = project
    worker = Worker.__new__(Worker)
    worker._graph, state = Graph(manifest), _State()
    found = {worker._graph.nodes[model]["name"] for model in worker._of_a_new_day(marts, state)}
    assert found >= {"control_snap", "pit_transaction", "bridge_sale"} and "fct_transactions" not in found
    assert not worker._of_a_new_day(load, state)
    state.day = datetime.now(UTC).date()
    assert not worker._of_a_new_day(marts, state)
    state.day -= timedelta(days=1)
    assert worker._of_a_new_day(marts, state)


def test_a_check_that_has_failed_runs_again_though_nothing_changes() -> None:
    """Also one that a run has failed: its marts would wait for ever."""
    budget = TestBudget()
    budget.failing(["broken"])
    assert budget.next(1.0, most=2) == [] and budget.next(AGAIN_SECONDS, most=2) == ["broken"]
    budget.spent(0.1, failed=["broken"])
    budget.failing(["broken"])
    assert budget.next(AGAIN_SECONDS + 1, most=2) == []


def test_a_test_that_the_project_has_no_more_is_not_run(home: Path) -> None:
    """A failed one that was mended under another name ended the worker."""
    worker = Worker.__new__(Worker)
    worker._settings, worker._tests, worker._state = load_settings(home=home), TestBudget(), {}
    worker._catalog = worker._connection = worker._dbt = worker._instance = None  # type: ignore[assignment]
    worker._tests.changed(["test.lakehouse.gone.1"])
    worker._tests.failing(["test.lakehouse.gone.2"])
    worker._read_project()
    kept = next(iter(worker._graph.tests))
    worker._tests.changed([kept])
    assert worker._tests.next(2 * AGAIN_SECONDS, most=9) == [kept]


def test_tables_that_a_failed_run_has_left_red_are_told_of_after_the_next_load(tmp_path: Path) -> None:
    """The run's tables that did not change again stayed red for ever."""
    fine, parked, quiet = ("raw_shop", "fine"), ("raw_shop", "parked"), ("raw_shop", "quiet")

    @dg.multi_asset(specs=[dg.AssetSpec(dg.AssetKey(table)) for table in (fine, parked, quiet)])
    def bring_up() -> Iterator[dg.MaterializeResult[Any]]:
        yield dg.MaterializeResult(asset_key=dg.AssetKey(fine))
        raise ValueError("the source is down")

    with dg.DagsterInstance.ephemeral() as instance:
        assert not dg.materialize([bring_up], instance=instance, raise_on_error=False).success
        absent = dg.AssetCheckEvaluation(asset_key=dg.AssetKey(parked), check_name=ARRIVED, passed=False)
        instance.report_runless_asset_event(absent)
        assert red_tables(instance, [fine, parked, quiet]) == [quiet]
        report_tables(instance, "load_shop", {quiet: SnapshotFact(1, datetime.now(UTC), 1, 1)}, {}, {})
        assert red_tables(instance, [fine, parked, quiet]) == []


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


def test_a_refresh_that_shows_more_is_news_for_the_marts_of_its_view() -> None:
    mirror, view = ("mirror_shop", "items"), ("parsed", "current_shop__items")
    task = Task("build_marts", (("parsed", "shop__items"),), marts=True, mirrors={mirror: view})
    worker, state = object.__new__(Worker), _State(loaded={"parsed.shop__items": 1})
    newest = {"parsed.shop__items": SnapshotFact(1, datetime.now(UTC), 1, 1)}
    assert worker._changed(task, state, newest) == []
    newest["mirror_shop.items"] = SnapshotFact(7, datetime.now(UTC), 0, 0)
    assert worker._changed(task, state, newest) == [view]
    state.loaded["mirror_shop.items"] = 7
    assert worker._changed(task, state, newest) == []

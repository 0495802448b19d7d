"""What the worker decides without a server: which models a change reaches, which tests run, and who serves a job."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import duckdb
import pytest
from dbt.adapters.base.impl import DEFAULT_BASE_BEHAVIOR_FLAGS

from lakehouse.catalog.open import SnapshotFact
from lakehouse.declarations.dbt.manifest import load_manifest
from lakehouse.declarations.dbt.models import is_view
from lakehouse.errors import LakehouseError
from lakehouse.metrics import REGISTRY
from lakehouse.servers.outage import expected
from lakehouse.servers.retry import Unreachable
from lakehouse.settings import load_settings
from orchestration.assets.blocking_checks import check_keys, checks_of_all
from orchestration.assets.translator import MARTS, layer
from orchestration.jobs.marts import tables_read
from orchestration.runs.arrivals import ARRIVED
from orchestration.runs.state.loaded import last_worker_load
from orchestration.runs.subset import failing_checks
from orchestration.worker.budget import AGAIN_SECONDS, MOST_SECONDS, SHARE, TestBudget
from orchestration.worker.dbt.many_tests import counts_rows, one_query, run_tests
from orchestration.worker.dbt.warm_dbt import NodeResult, WarmDbt
from orchestration.worker.lake import Lake
from orchestration.worker.plan import Graph, Task, table_of
from orchestration.worker.quiet import Quiet
from orchestration.worker.readiness import AWAY
from orchestration.worker.reports.events import (
    red_tables,
    report_arrivals,
    report_tables,
    report_tests,
)
from orchestration.worker.reports.untold import Untold
from orchestration.worker.state import BUSY_SECONDS, Load, TaskState
from orchestration.worker.untested import untested
from orchestration.worker.worker import AWAY_SECONDS, LATE_TESTS_SECONDS
from tests.unit.some_worker import some_loader, some_project, some_worker


def models(graph: Graph, task: Task, *changed: tuple[str, str]) -> set[str]:
    return {graph.nodes[unique_id]["name"] for unique_id in graph.models_of(task, changed)}


def test_each_source_is_a_task_and_the_marts_come_last(demo_tasks: tuple[dict[str, Any], tuple[Task, ...]]) -> None:
    _, found = demo_tasks
    assert {task.job for task in found[:-1]} == {
        "load_retail", "load_bank", "load_payroll_employee", "load_clicks",
    }  # fmt: skip
    assert found[-1].marts and ("vault", "hub_transaction") in found[-1].tables


def test_a_run_of_dbt_leaves_no_flags_for_the_next_one(home: Path) -> None:
    """Each run of a worker took a millisecond longer than the one before it, without end."""
    warm = WarmDbt(load_settings(home=home))
    known = list(DEFAULT_BASE_BEHAVIOR_FLAGS)
    assert warm.refresh()
    assert warm.run("compile", ["fct_transactions"])
    assert known == DEFAULT_BASE_BEHAVIOR_FLAGS


def test_a_change_reaches_the_tables_downstream_and_no_others(
    demo_tasks: tuple[dict[str, Any], tuple[Task, ...]],
) -> None:
    manifest, found = demo_tasks
    graph, retail = Graph(manifest), found[0]
    reached = models(graph, retail, ("raw_retail", "stores"))
    assert {"parsed_retail__stores", "hub_store", "sat_store_details"} <= reached
    assert not {name for name in reached if "product" in name or name.startswith(("fct_", "dim_", "pit_"))}
    assert not models(graph, retail, ("raw_bank", "users")) & models(graph, retail, ("raw_retail", "stores"))


def test_the_views_of_each_table_are_made_once_and_again_where_that_failed(
    demo_tasks: tuple[dict[str, Any], tuple[Task, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Views of the tables that changed first were made, and those of others never; one that failed neither."""
    manifest, found = demo_tasks
    [retail] = [task for task in found if task.job == "load_retail"]
    snapshots, failing, ran = dict.fromkeys(retail.tables, 1), set[str](), list[set[str]]()
    waiting = {"stg_retail__transactions": "waits"}  # until its own parsed table has the columns that are declared
    graph, state = Graph(manifest), TaskState(loaded={".".join(table): 1 for table in retail.tables})

    class Loads:
        def run(self, models: Sequence[str]) -> list[NodeResult]:
            names = {model: graph.nodes[model]["name"] for model in models}
            ran.append({name for model, name in names.items() if is_view(graph.nodes[model])})
            said = {m: ("error" if n in failing else "success", waiting.get(n, "")) for m, n in names.items()}
            return [NodeResult(m, status, 0.0, 0, message) for m, (status, message) in said.items()]

    def newest(_: object) -> dict[str, SnapshotFact]:
        return {".".join(table): SnapshotFact(n, datetime.now(UTC), n, 1) for table, n in snapshots.items()}

    def views_made(table: str) -> set[str]:
        snapshots["raw_retail", table] += 1
        with suppress(LakehouseError):
            loader.load(retail, state)
        return ran[-1]

    reads = dict.fromkeys(graph.nodes, frozenset[str]())
    loader = some_loader(graph=graph, loads=Loads(), newest=newest, reads=reads, quiet=Quiet(), untold=Untold())
    monkeypatch.setattr("orchestration.worker.loader.left_by_runs", lambda *_, **__: ([], set()))
    hub_reads = "stg_retail__transactions"  # the other view of which stores get their hub
    assert {"current_retail__stores", "stg_retail__stores", hub_reads} <= views_made("stores")
    assert views_made("stores") == {hub_reads}, "it was not made"
    waiting.clear()
    assert views_made("stores") == {hub_reads}
    assert not views_made("stores")
    assert {"current_retail__products", "stg_retail__products"} <= views_made("products")
    assert not views_made("products")
    failing.add("current_retail__customers")
    assert "current_retail__customers" in views_made("customers")
    failing.clear()
    assert "current_retail__customers" in views_made("customers")
    assert not views_made("customers")


def test_views_are_left_out_because_data_does_not_change_them(
    demo_tasks: tuple[dict[str, Any], tuple[Task, ...]],
) -> None:
    manifest, (retail, *_, marts) = demo_tasks
    graph = Graph(manifest)
    tables = graph.models_of(retail, retail.tables)
    assert not [unique_id for unique_id in tables if is_view(graph.nodes[unique_id])]
    assert set(tables) < set(graph.models_of(retail, retail.tables, with_views=True))
    built = graph.models_of(marts, [("vault", "hub_store")])
    assert built and {layer(graph.nodes[unique_id]) for unique_id in built} == {MARTS}


def test_tests_of_a_table_are_those_of_its_views_too_but_none_that_reads_a_mart(
    demo_tasks: tuple[dict[str, Any], tuple[Task, ...]],
) -> None:
    graph = Graph(demo_tasks[0])
    [satellite] = [node for node in graph.nodes if node.endswith(".sat_store_details")]
    names = {graph.tests[test]["name"] for test in graph.tests_of([satellite])}
    assert [name for name in names if "sat_is_sound_sat_store_details" in name]
    assert [name for name in names if "timeline_is_sound_sat_store_details_v1" in name]
    assert not [name for name in names if "pit_is_sound" in name]


def test_tests_take_no_more_than_their_share_of_the_time() -> None:
    budget, now, ran = TestBudget(seconds=0.0), 0.0, 0.0
    while now < 3600:
        budget.changed(["slow", "slower"], now)
        if budget.next(now, most=2):
            budget.spent(30.0)
            now, ran = now + 30, ran + 30
        else:
            now += max(1.0, budget.wait() or 0.0)
    assert 0.5 * SHARE < ran / now <= SHARE + MOST_SECONDS / 3600


def test_a_test_keeps_its_turn_however_often_its_table_changes() -> None:
    budget = TestBudget()
    budget.changed(["first", "second"], 0.0)
    budget.changed(["second", "first", "third"], 0.0)
    assert budget.next(0.0, most=2) == ["first", "second"]
    assert budget.next(0.0, most=2) == ["third"] and budget.wait() is None


def test_tests_asked_in_one_statement_are_told_apart() -> None:
    queries = {
        "it's fine": "select 1 where false -- none;",
        "two": "with t as (select 1 union all select 2) select * from t;\n",
    }
    assert dict(duckdb.execute(one_query(queries)).fetchall()) == {"it's fine": 0, "two": 2}


def test_a_test_that_does_more_than_count_rows_is_left_to_dbt(
    demo_tasks: tuple[dict[str, Any], tuple[Task, ...]],
) -> None:
    counting = {node["test_metadata"]["name"]: counts_rows(node) for node in Graph(demo_tasks[0]).tests.values()}
    assert counting["unique"] and counting["pit_is_sound"]
    assert not counting["keys_are_given"], "it adds up what its rows say"


def test_a_load_waits_for_trino_and_is_not_left_to_dagster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its jobs could not load either; the worker came back after a pause that doubled, minutes after Trino had."""
    told, there, ended = list[dict[str, int]](), [False], list[str]()
    task = Task("load_shop", (("raw_shop", "sales"),))
    state = TaskState(loaded={"raw_shop.sales": 1}, served=True)

    def load(*_: object) -> bool:
        state.loaded = {}
        worker._untold.add(lambda: told.append(state.loaded))
        raise LakehouseError("model.shop.sales: Trino does not answer")

    worker = some_worker(
        tasks=(task,),
        states={task.job: state},
        _load=load,
        _leave=lambda *_: told.append({"left": 1}),
        _session="worker/lake/1",
        _may_have_left=True,
    )
    monkeypatch.setattr("orchestration.worker.worker.answers", lambda _: there[0])
    monkeypatch.setattr("orchestration.worker.worker.end_abandoned_queries", lambda *given: ended.append(given[-1]))
    worker.load_what_is_due()
    assert told == [{}], "what was done is told, as of a load that is not whole"
    assert state.served and state.loaded == {"raw_shop.sales": 1}, "only what has changed is loaded again"
    assert worker._dues() == [AWAY_SECONDS] and worker.ready() == {task.job: AWAY}
    worker.load_what_is_due()
    assert told == [{}], "it asks Trino alone"
    there[0] = True
    worker.load_what_is_due()
    assert told == [{}, {"left": 1}, {}], "with Trino there it is a failure of the load's own"
    assert ended == ["worker/lake/1"] * 2, "what others have left at first, and its own once Trino is back"


def test_all_jobs_are_served_before_the_first_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the first was loaded, a sensor launched a run of the second, for which the worker then waited."""
    done = list[str]()
    tasks = tuple(Task(f"load_{source}", ((f"raw_{source}", "sales"),)) for source in ("bank", "shop"))

    def load(task: Task, _: object) -> bool:
        done.append(f"{task.job} is loaded")
        return False

    states = {task.job: TaskState() for task in tasks}
    worker = some_worker(tasks=tasks, states=states, has=lambda _: True, recorded=lambda _: {}, _load=load)
    monkeypatch.setattr("orchestration.worker.worker.serve", lambda *given: not done.append(f"{given[-1]} is served"))
    monkeypatch.setattr("orchestration.worker.worker.in_cuts", lambda *_: {})
    monkeypatch.setattr("orchestration.worker.worker.report_arrivals", lambda *_: None)
    worker.load_what_is_due()
    assert done == ["load_bank is served", "load_shop is served", "load_bank is loaded", "load_shop is loaded"]


def test_tests_wait_for_trino_too() -> None:
    """The worker began anew each time, and read the project again."""

    def unless_rung(work: object) -> None:
        raise Unreachable("Trino does not answer")

    worker = some_worker(graph=SimpleNamespace(tests={"one": {}}, nodes={}), _unless_rung=unless_rung)
    worker._test(["one"])
    assert worker._dues() == [AWAY_SECONDS] and list(worker._tests.due) == ["one"]


def test_a_test_that_yields_goes_on_being_due_since_its_table_changed() -> None:
    budget = TestBudget()
    budget.changed(["early"], 10.0)
    budget.changed(["late"], 50.0)
    assert budget.waited(60.0) == 50.0 and budget.next(60.0, most=1) == ["early"] and budget.waited(60.0) == 10.0
    budget.interrupted(["early"], 1.0)
    assert budget.waited(70.0) == 60.0 and list(budget.due) == ["early", "late"]
    assert budget.next(70.0, most=2, may=lambda test: test == "late") == ["late"], "the other one waits for its source"
    assert budget.wait(70.0, lambda test: False) is None and budget.wait(70.0) == 0.0


class TwoSources:
    """A worker with tests of two sources, one of which somebody else writes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ran, self.free = list[str](), {"bank"}
        now = time.monotonic()
        self.payroll = TaskState(served=True, loaded={"raw_payroll.salaries": 1})
        tests = TestBudget(at=now)
        tests.changed(["of_payroll", "of_both", "of_bank", "of_none"], now)
        read = {"of_payroll": {"payroll"}, "of_both": {"bank", "payroll"}, "of_bank": {"bank"}, "of_none": set[str]()}
        task = Task("load_payroll", (("raw_payroll", "salaries"),))
        self.worker = some_worker(
            tests=tests,
            states={"load_payroll": self.payroll, "load_bank": TaskState(served=True)},
            tasks=(task,),
            sources={"bank": ["bank"], "payroll": ["payroll"]},
            reads={"m": frozenset({"payroll"})},
            tested={test: frozenset(groups) for test, groups in read.items()},
            graph=SimpleNamespace(models_of=lambda *_: ["m"]),
            newest=lambda _: {"raw_payroll.salaries": SnapshotFact(2, datetime.now(UTC), 1, 1)},
            _is_looked_for_untested=True,
            _test=self.ran.extend,
        )
        monkeypatch.setattr(self.worker._loader, "load", lambda *_: None)
        monkeypatch.setattr("orchestration.worker.worker.writing_if_free", self.writing_if_free)

    @contextmanager
    def writing_if_free(self, *given: Any) -> Iterator[frozenset[str]]:
        yield frozenset(self.free & set(given[-1]))


def test_tests_of_a_source_that_is_being_loaded_hold_up_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """During a backfill of hours no test of any source ran, and its marts were published of a vault without tests."""
    tested = TwoSources(monkeypatch)
    worker, [task] = tested.worker, tested.worker._project.tasks
    for _ in range(2):
        assert not worker._load(task, tested.payroll), "it has news, and somebody else writes it"
        assert worker.run_tests() <= BUSY_SECONDS
    assert tested.ran == ["of_bank", "of_none"] and list(worker._tests.due) == ["of_payroll", "of_both"]
    tested.payroll.due = 0.0
    assert not worker._has_news(), "a cut of what has to wait interrupts no test"
    tested.free.add("payroll")
    assert worker._has_news() and worker._load(task, tested.payroll)
    tested.payroll.due = 0.0
    worker.run_tests()
    assert tested.ran == ["of_bank", "of_none", "of_payroll", "of_both"]


def test_it_is_told_once_that_tests_wait_for_long(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tested = TwoSources(monkeypatch)
    tested.worker._tests.due["of_payroll"] -= LATE_TESTS_SECONDS
    for _ in range(3):
        tested.worker.run_tests()
    assert [record.getMessage() for record in caplog.records] == [
        "2 tests wait, the oldest for 30 minutes; others write payroll"
    ]
    assert "lakehouse_tests_waiting_seconds 18" in REGISTRY.render()


def test_a_check_that_has_failed_runs_again_though_nothing_changes() -> None:
    """Also one that a run has failed: its marts would wait for ever."""
    budget = TestBudget()
    budget.failing(["broken"])
    assert budget.next(1.0, most=2) == [] and budget.next(AGAIN_SECONDS, most=2) == ["broken"]
    budget.spent(0.1, failed=["broken"])
    budget.failing(["broken"])
    assert budget.next(AGAIN_SECONDS + 1, most=2) == []


class OneBroken:
    """dbt with a test that does not compile: it compiles all or nothing, and runs each."""

    def compiled(self, names: Sequence[str], variables: Any) -> dict[str, str]:
        raise LakehouseError("dbt compile: Compilation Error in test broken")

    def run(self, command: str, names: Sequence[str], variables: Any) -> list[NodeResult]:
        return [NodeResult(name, "error" if name == "broken" else "pass", 0.1, 0, "") for name in names]


@pytest.mark.parametrize("is_there", [True, False])
def test_a_test_that_does_not_compile_is_told_and_holds_up_no_other(
    is_there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker began anew for ever, and neither it nor any test behind it ever ran."""
    plain = {"severity": "error"}
    tests = {name: {"name": name, "config": plain} for name in ("broken", "sound")}
    monkeypatch.setattr("orchestration.worker.dbt.many_tests.answers", lambda _: is_there)
    if is_there:
        found = run_tests(load_settings(), OneBroken(), tests, {}, {})  # type: ignore[arg-type]
        assert [(result.unique_id, result.status) for result in found] == [("broken", "error"), ("sound", "pass")]
    else:
        with pytest.raises(Unreachable):
            run_tests(load_settings(), OneBroken(), tests, {}, {})  # type: ignore[arg-type]


def test_a_test_that_the_project_has_no_more_is_not_run(home: Path) -> None:
    """A failed one that was mended under another name ended the worker."""
    worker = some_worker(_settings=load_settings(home=home), states={}, _catalog=None, _dbt=None)
    worker._tests.changed(["test.lakehouse.gone.1"], 0.0)
    worker._tests.failing(["test.lakehouse.gone.2"])
    worker._read_project()
    kept = next(iter(worker._project.graph.tests))
    worker._tests.changed([kept], 0.0)
    assert worker._tests.next(2 * AGAIN_SECONDS, most=9) == [kept]


def test_nothing_is_loaded_of_a_project_that_is_refused_and_a_worker_begins_anew_until_it_is_corrected(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asked when it had read the rest, and about marts alone: what a load multiplies was loaded."""
    manifest = load_manifest(load_settings(home=home))
    plain = {
        **next(node for node in manifest["nodes"].values() if node["name"] == "hub_store"),
        "name": "plain", "raw_code": "select 1", "depends_on": {"macros": [], "nodes": []}, "patch_path": None,
    }  # fmt: skip
    manifest["nodes"]["model.lakehouse.plain"] = plain
    worker = some_worker(_settings=load_settings(home=home), _dbt=SimpleNamespace(refresh=lambda: True))
    del worker._project
    monkeypatch.setattr("orchestration.worker.project.load_manifest", lambda _: manifest)
    monkeypatch.setattr(worker, "take_jobs", lambda: pytest.fail("it serves jobs"))
    with pytest.raises(LakehouseError, match=r"hub_store.sql: plain is append_only") as refused:
        worker.load_what_is_due()
    assert expected(refused.value) is not None and not hasattr(worker, "_project")


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
        assert red_tables(instance, [fine, parked, quiet]) == ([quiet], False)
        report_tables(instance, "load_shop", {quiet: SnapshotFact(1, datetime.now(UTC), 1, 1)}, {}, {})
        assert red_tables(instance, [fine, parked, quiet])[0] == []


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


def test_tests_that_nobody_has_run_since_their_tables_changed_are_run(
    demo_tasks: tuple[dict[str, Any], tuple[Task, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that was killed between a load and its tests had left them out for good, and so it was with new ones."""
    manifest, _ = demo_tasks
    graph, hub = Graph(manifest), "model.lakehouse.hub_store"
    checks = check_keys(manifest, graph.tests_of([hub]))
    read = {node for test in checks for node in graph.seen_through_views(graph.tests[test])}
    tables = {table_of(graph.nodes[node]) for node in read if node in graph.nodes and not is_view(graph.nodes[node])}
    facts = {".".join(table): SnapshotFact(1, datetime.now(UTC) - timedelta(hours=1), 1, 1) for table in tables}
    there = dict.fromkeys(tables, "")
    catalog: Any = SimpleNamespace(locations=lambda names: there)
    monkeypatch.setattr("lakehouse.catalog.open.newest_data_snapshots", lambda catalog, tables: facts)
    with dg.DagsterInstance.ephemeral() as instance:

        def left() -> list[str]:
            return untested(instance, catalog, graph, checks)

        assert left() == sorted(checks), "none was ever run"
        report_tests(instance, checks, [NodeResult(test, "pass", 0.0, 0, "") for test in checks])
        assert left() == []
        facts["vault.hub_store"] = SnapshotFact(2, datetime.now(UTC) + timedelta(seconds=1), 2, 1)
        assert set(graph.tests_of([hub])) >= set(left()) > set()
        report_tests(instance, checks, [NodeResult(left()[0], "warn", 0.0, 1, "Got 1 result")])
        del there["vault", "hub_store"]
        assert left() == [], "one that does not exist cannot be asked"


def test_a_test_of_several_tables_that_is_attached_to_none_is_told_where_the_worker_runs_it(
    demo_tasks: tuple[dict[str, Any], tuple[Task, ...]],
) -> None:
    """No run fails with it while the worker loads: nobody was told that it fails."""
    manifest, _ = demo_tasks
    nodes = ["model.lakehouse.hub_store", "model.lakehouse.hub_product"]
    test = {"resource_type": "test", "name": "no_store_is_a_product", "depends_on": {"nodes": nodes}, "config": {}}
    changed = {**manifest, "nodes": {**manifest["nodes"], "test.lakehouse.no_store_is_a_product": test}}
    [name, other] = ["test.lakehouse.no_store_is_a_product", next(iter(Graph(manifest).tests))]
    checks = checks_of_all(changed, [name, other])
    assert name not in check_keys(changed, [name, other]) and checks[other] == check_keys(changed, [other])[other]
    with dg.DagsterInstance.ephemeral() as instance:
        report_tests(instance, checks, [NodeResult(name, "fail", 0.0, 2, "Got 2 results, configured to fail if != 0")])
        assert failing_checks(instance, list(checks.values())) == [
            dg.AssetCheckKey(dg.AssetKey(["vault", "hub_product"]), "no_store_is_a_product")
        ]


def test_a_load_is_told_once_its_tests_are(
    demo_tasks: tuple[dict[str, Any], tuple[Task, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that was killed between the two left a mart's check as it was, and the next one had nothing to tell."""
    manifest, (*_, marts) = demo_tasks
    table = ("marts", "dim_store")
    facts = {"marts.dim_store": SnapshotFact(1, datetime.now(UTC), 1, 1)}

    def is_killed(*_: object) -> None:
        raise KeyboardInterrupt

    with dg.DagsterInstance.ephemeral() as instance:
        loader = some_loader(graph=Graph(manifest), newest=lambda _: facts, instance=instance, mart_checks={})
        monkeypatch.setattr("orchestration.worker.reports.load.in_cuts", lambda *_: [])
        given = Load(marts, ["model.lakehouse.dim_store"]), TaskState(loaded={"vault.hub_store": 1}), list[NodeResult]()
        with monkeypatch.context() as killed, pytest.raises(KeyboardInterrupt):
            killed.setattr("orchestration.worker.reports.load.report_tests", is_killed)
            loader.report(*given)
        assert last_worker_load(instance, marts.job, [dg.AssetKey(table)]) is None
        loader.report(*given)
        assert last_worker_load(instance, marts.job, [dg.AssetKey(table)]) is not None


def test_a_load_makes_the_tests_due_that_read_its_raw_tables(
    demo_tasks: tuple[dict[str, Any], tuple[Task, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a declaration demands of a raw table was tested by runs alone, and while a worker lives there are none."""
    manifest, found = demo_tasks
    [retail] = [task for task in found if task.job == "load_retail"]
    graph, tests = Graph(manifest), TestBudget()
    loader = some_loader(graph=graph, newest=lambda _: {}, tests=tests, mart_checks={})
    monkeypatch.setattr("orchestration.worker.reports.load.in_cuts", lambda *_: [])
    load = Load(retail, changed=[("raw_retail", "stores")])
    loader.report(load, TaskState(loaded={"raw_retail.stores": 1}), [])
    due = {graph.tests[test]["test_metadata"]["name"] for test in tests.due}
    assert due == {"raw_log_is_sound", "parsed_matches_raw"} and len(tests.due) == 2


def test_what_reads_a_seed_or_a_snapshot_of_dbt_is_reached_and_a_snapshot_is_left_to_runs(
    demo_tasks: tuple[dict[str, Any], tuple[Task, ...]],
) -> None:
    """A mart stayed as it was when a seed changed, and a snapshot was taken by nobody while a worker lived."""
    manifest, (*loads, marts) = demo_tasks
    [retail] = [task for task in loads if task.job == "load_retail"]
    hub, dim = "model.lakehouse.hub_store", "model.lakehouse.dim_store"

    def made(kind: str, above: list[str]) -> Graph:
        name = f"{kind}.lakehouse.extra"
        extra = {
            "unique_id": name, "resource_type": kind, "schema": "reference", "alias": "extra", "name": "extra",
            "config": {"materialized": kind}, "depends_on": {"nodes": above} if above else {},
        }  # fmt: skip
        children = {**manifest["child_map"], name: [dim]}
        children |= {node: [*children.get(node, ()), name] for node in above}
        return Graph({**manifest, "nodes": {**manifest["nodes"], name: extra}, "child_map": children})

    seeded, taken, of_readers = made("seed", []), made("snapshot", [hub]), Graph(manifest).of_readers()
    assert dim in seeded.models_of(marts, [("reference", "extra")]) and seeded.of_readers() == of_readers
    assert not seeded.made_by_dbt_alone(retail) and not seeded.made_by_dbt_alone(marts)
    assert taken.made_by_dbt_alone(retail) == ["snapshot.lakehouse.extra"] and not taken.made_by_dbt_alone(marts)


def test_a_mart_of_a_source_that_is_no_raw_table_is_built_for_its_news(
    demo_tasks: tuple[dict[str, Any], tuple[Task, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody looked at such a table: the mart was as of the last change of anything else, and while a worker lived a
    new one was not built at all.
    """
    manifest, dim = demo_tasks[0], "model.lakehouse.dim_store"
    mart, raw = manifest["nodes"][dim], "source.lakehouse.retail.stores"
    view = {**mart, "alias": "shown", "config": {"materialized": "view"}}
    view["depends_on"] = {"nodes": ["source.other.noted"]}
    meta = manifest["sources"]["source.lakehouse.meta.cuts"]
    sources = {
        "source.other.noted": meta | {"schema": "other", "identifier": "noted", "unique_id": "source.other.noted"},
        "source.other.elsewhere": meta | {"schema": "other", "identifier": "elsewhere", "database": "postgres"},
        "source.other.capitals": meta | {"schema": "other", "identifier": "Capitals"},
    }
    read = [*mart["depends_on"]["nodes"], raw, "view.shown", "source.other.elsewhere", "source.other.capitals"]
    nodes = {**manifest["nodes"], dim: {**mart, "depends_on": {"nodes": read}}, "view.shown": view}
    children = {**manifest["child_map"], "source.other.noted": ["view.shown"], "view.shown": [dim]}
    changed = {**manifest, "nodes": nodes, "sources": {**manifest["sources"], **sources}, "child_map": children}
    before = set(tables_read(manifest))
    assert set(tables_read(changed)) - before == {("other", "noted"), ("raw_retail", "stores")}
    task, graph = Task("build_marts", tables_read(changed), marts=True), Graph(changed)
    assert dim in graph.models_of(task, [("other", "noted")])

    views, there = dict[tuple[str, str], str](), dict.fromkeys(before | {("raw_retail", "stores")})
    catalog: Any = SimpleNamespace(locations=lambda _: there)
    nowhere: Any = None
    lake = Lake(nowhere, catalog, nowhere, some_project(graph=graph, raw=()))
    monkeypatch.setattr("orchestration.worker.lake.never_arrived", lambda *_: [])
    monkeypatch.setattr("lakehouse.catalog.relations.list_views", lambda _, names: views)
    assert dim in lake.without_load(task), "it is not there yet"
    views["other", "noted"] = "a view of somebody else"
    assert not lake.without_load(task)

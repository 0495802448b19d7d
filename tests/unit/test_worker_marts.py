"""Which marts the worker builds when: those of readers before the others, and none of what is not sound."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest

from lakehouse.catalog.open import SnapshotFact
from lakehouse.errors import LakehouseError
from lakehouse.settings import load_settings
from orchestration.assets.groups import groups_read, load_groups
from orchestration.sensors.new_data import INTERVAL_SECONDS
from orchestration.worker.dbt.statements import Interrupted
from orchestration.worker.dbt.warm_dbt import NodeResult, WarmDbt
from orchestration.worker.loader import FIRST_SECONDS
from orchestration.worker.marts.marts import Marts
from orchestration.worker.plan import Graph, Task, table_of
from orchestration.worker.quiet import QUIET_SECONDS, Quiet
from orchestration.worker.reports.untold import Untold
from orchestration.worker.state import BUSY_SECONDS, LATEST_SECONDS, TaskState, changed_tables, of_a_new_day
from tests.unit.some_worker import some_loader, some_worker


def test_the_tests_of_a_mart_read_also_marts_that_do_not_change(
    demo_tasks: tuple[dict[str, Any], tuple[Task, ...]],
) -> None:
    """A fact without its dimension would be published: the test of both was left out."""
    manifest, (*_, marts) = demo_tasks
    graph = Graph(manifest)
    built = graph.models_of(marts, marts.tables)
    both = {test: set(node["depends_on"]["nodes"]) for test, node in graph.tests.items()}
    two = next(test for test, nodes in both.items() if len(nodes & set(built)) > 1)
    one, other = sorted(both[two] & set(built))[:2]
    assert two in graph.tests_of_marts([one], ())
    assert two not in graph.tests_of_marts([one], [other])


def test_a_mart_is_tested_with_those_that_are_held_back_and_through_views_once_it_is_published(
    demo_tasks: tuple[dict[str, Any], tuple[Task, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fact was published with customers that its dimension, which was held back, did not have. And a test of a view
    passed for what the view showed before.
    """
    manifest = demo_tasks[0]
    nodes, children = {**manifest["nodes"]}, {**manifest["child_map"]}
    one, other = "model.lakehouse.dim_store", "model.lakehouse.dim_product"
    view = {"unique_id": "model.v", "schema": "marts", "alias": "v", "name": "v", "config": {"materialized": "view"}}
    nodes["model.v"] = {**nodes[one], **view, "depends_on": {"nodes": [one]}}
    for name, read in {"both": [one, other], "shown": ["model.v"]}.items():
        nodes[f"test.{name}"] = {"resource_type": "test", "name": name, "config": {}, "depends_on": {"nodes": read}}
    children |= {one: [*children[one], "model.v", "test.both"], "model.v": ["test.shown"]}
    changed = {**manifest, "nodes": nodes, "child_map": children}
    there, done, is_open = {table_of(nodes[other]): None}, list[tuple[str, bool, str]](), list[bool]()

    @contextmanager
    def building_next(*_: object) -> Iterator[set[tuple[str, str]]]:
        is_open.append(True)
        yield set()
        is_open.clear()

    def run_tests(
        _: object, dbt: object, tests: dict[str, Any], variables: dict[str, str], nodes: object
    ) -> list[NodeResult]:
        added = tests.keys() & {"test.both", "test.shown"}
        done.extend((test, bool(is_open), variables["LAKEHOUSE_NEXT"]) for test in added)
        return []

    module = "orchestration.worker.marts.marts"
    dbt: Any = SimpleNamespace(run=lambda _, names, variables: [NodeResult(one, "success", 0.0, 0, "") for _ in names])
    catalog: Any = SimpleNamespace(
        load_tables=lambda names: {name: there[name] for name in names if name in there},
        locations=lambda names: {name: "" for name in names if name in there},
    )
    built = Marts(load_settings(), catalog, dbt, changed, Graph(changed))
    for name, value in {
        f"{module}.building_next": building_next, f"{module}.run_tests": run_tests,
        "lakehouse.catalog.relations.list_views": lambda *_: {},
    }.items():  # fmt: skip
        monkeypatch.setattr(name, value)
    monkeypatch.setattr(built, "_views", lambda _: {})
    monkeypatch.setattr(built, "_changes", lambda *_: ({}, {}))
    monkeypatch.setattr(built, "_note", lambda *_: None)
    built._build_next([one], [other, "test.unsound"], {})
    assert done == [("test.both", True, "1"), ("test.shown", False, "")]
    done.clear()
    there.clear()
    built._build_next([one], [other], {})
    assert done == [("test.shown", False, "")], "a mart that was never built cannot be asked"


def test_tests_of_a_mart_that_was_not_built_are_skipped(demo_tasks: tuple[dict[str, Any], tuple[Task, ...]]) -> None:
    """They would test the copy of the former state, and pass."""
    manifest, (*_, marts) = demo_tasks
    graph = Graph(manifest)
    built = Marts(load_settings(), None, WarmDbt(load_settings()), manifest, graph)  # type: ignore[arg-type]
    models = graph.models_of(marts, marts.tables)
    tests = graph.tests_of_marts(models, ())
    results = built.test(tests, [NodeResult(model, "error", 0.0, 0, "no") for model in models], {})
    assert {result.unique_id: result.status for result in results} == dict.fromkeys(tests, "skipped")


def test_the_views_that_a_build_makes_are_looked_at_when_they_are_made(
    demo_tasks: tuple[dict[str, Any], tuple[Task, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mart is signed with the definition that it was built from: not with that of before its own build."""
    manifest, (*_, marts) = demo_tasks
    graph = Graph(manifest)
    monkeypatch.setattr("orchestration.worker.marts.marts.definitions", lambda _, views: dict.fromkeys(views, "[…]"))
    built = Marts(load_settings(), None, None, manifest, graph)  # type: ignore[arg-type]
    models = graph.models_of(marts, marts.tables)
    read = built._views(models)
    assert read and set(read.values()) == {"[…]"} and "vault.sat_store_details_v1" in read
    made = next(key for key, node in graph.nodes.items() if node.get("alias") == "sat_store_details_v1")
    assert built._views([*models, made]).keys() == read.keys() - {"vault.sat_store_details_v1"}


def recording(manifest: dict[str, Any], graph: Graph, built: list[str], monkeypatch: pytest.MonkeyPatch) -> Marts:
    """Builds nothing, and adds the names of what it was to build."""

    def build(models: Sequence[str], without: object, newest: object) -> list[NodeResult]:
        built.extend(graph.nodes[model]["name"] for model in models)
        return []

    building = Marts(load_settings(), None, None, manifest, graph)  # type: ignore[arg-type]
    monkeypatch.setattr(building, "_build_next", build)
    return building


def test_a_task_that_fails_on_is_left_for_longer_than_its_sensor_sleeps_whoever_works_in_between(
    demo_tasks: tuple[dict[str, Any], tuple[Task, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run tells what fails. Where somebody else writes at the next look, nothing says that it is mended."""
    (*_, marts), state = demo_tasks[1], TaskState()
    looks: Iterator[bool | LakehouseError] = iter([LakehouseError("no"), False, LakehouseError("no"), True])

    def load(*_: object) -> bool:
        if isinstance(look := next(looks), LakehouseError):
            raise look
        return look

    monkeypatch.setattr("orchestration.worker.worker.withdraw", lambda *_: None)
    worker = some_worker(_load=load, _trino_is_away=lambda: False, _telling=SimpleNamespace(tell=print))
    failures = []
    for _ in range(4):
        worker._attend(marts, state)
        failures.append(state.failures)
        assert state.due - time.monotonic() > INTERVAL_SECONDS
    assert failures == [1, 1, 2, 0]


def test_marts_of_a_source_that_is_being_loaded_wait_and_no_others(
    demo_tasks: tuple[dict[str, Any], tuple[Task, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest, (*_, marts) = demo_tasks
    built, graph, state = list[str](), Graph(manifest), TaskState(day=datetime.now(UTC).date())

    building = recording(manifest, graph, built, monkeypatch)
    reads = groups_read(manifest, graph.nodes, load_groups(manifest))
    facts = {".".join(table): SnapshotFact(1, datetime.now(UTC), 1, 1) for table in marts.tables}
    loader = some_loader(
        graph=graph,
        marts=building,
        reads=reads,
        newest=lambda _: facts,
        held=lambda _: set(),
        quiet=Quiet(),
        untold=Untold(),
        unless_rung=lambda work, seconds: work(),
    )
    loader.load(marts, state, frozenset({"bank"}))
    assert "fct_transactions" in built and "dim_account" not in built
    assert 0 < state.due - time.monotonic() <= BUSY_SECONDS
    loader.load(marts, state, frozenset())
    assert "dim_account" in built and built.count("fct_transactions") == 1, "what waited, and nothing twice"


@pytest.mark.parametrize("has_begun_anew", [False, True])
def test_marts_of_a_table_that_arrives_without_rows_are_built_as_soon_as_it_is_there(
    has_begun_anew: bool, demo_tasks: tuple[dict[str, Any], tuple[Task, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing that they read has another snapshot then: they were not built until something else changed."""
    manifest, (*_, marts) = demo_tasks
    built, absent = list[str](), {"model.lakehouse.dim_account"}
    graph, state = Graph(manifest), TaskState(day=datetime.now(UTC).date())

    building = recording(manifest, graph, built, monkeypatch)
    facts = {".".join(table): SnapshotFact(1, datetime.now(UTC), 1, 1) for table in marts.tables}
    worker = some_worker(
        graph=graph,
        marts=building,
        newest=lambda _: facts,
        held=lambda _: set(),
        without_load=lambda _: set(absent),
        reads=dict.fromkeys(graph.nodes, frozenset()),
        has=lambda _: True,
        recorded=lambda _: dict.fromkeys(facts, 1) if has_begun_anew else {},
        unless_rung=lambda work, seconds: work(),
    )
    monkeypatch.setattr("orchestration.worker.worker.serve", lambda *_: True)
    monkeypatch.setattr("orchestration.worker.worker.writing_if_free", lambda *found: nullcontext(frozenset(found[-1])))

    def attend() -> list[str]:
        built.clear()
        worker._take(marts, state)
        worker._attend(marts, state)
        return [*built]

    assert ("fct_transactions" in attend()) != has_begun_anew and "dim_account" not in built
    assert attend() == []
    absent.clear()
    assert attend() == ["dim_account"]
    assert attend() == []


def test_a_mart_that_somebody_has_replaced_is_built_again_with_what_is_made_of_it_and_once(
    demo_tasks: tuple[dict[str, Any], tuple[Task, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dbt by hand began before the last load, and set the mart back: it stayed so until the next new row."""
    manifest, (*_, marts) = demo_tasks
    built, in_place = list[str](), dict[str, SnapshotFact]()
    graph, facts = (
        Graph(manifest),
        {".".join(table): SnapshotFact(1, datetime.now(UTC), 1, 1) for table in marts.tables},
    )
    graph._children = {**graph._children, "model.lakehouse.dim_account": ["model.lakehouse.dim_user"]}
    state = TaskState(day=datetime.now(UTC).date(), loaded=dict.fromkeys(facts, 1))
    building = recording(manifest, graph, built, monkeypatch)
    worker = some_worker(
        graph=graph,
        marts=building,
        newest=lambda _: facts,
        in_place=lambda _: {**in_place},
        held=lambda _: set(),
        reads=dict.fromkeys(graph.nodes, frozenset()),
        unless_rung=lambda work, seconds: work(),
    )
    monkeypatch.setattr("orchestration.worker.worker.writing_if_free", lambda *found: nullcontext(frozenset(found[-1])))

    def attend() -> list[str]:
        built.clear()
        worker._attend(marts, state)
        return sorted(built)

    assert attend() == []
    for snapshot in (5, 6):
        in_place["marts.dim_account"] = SnapshotFact(snapshot, datetime.now(UTC), 1, 1)
        assert attend() == ["dim_account", "dim_user"]
        assert state.loaded["marts.dim_account"] == snapshot, "the next worker and the sensor do not look again"
        assert attend() == [], "one that is sound is left alone, and nothing is published"
    in_place.clear()
    assert attend() == []


def test_marts_that_readers_see_come_before_pits_with_all_that_a_test_reads_beside_them(
    demo_tasks: tuple[dict[str, Any], tuple[Task, ...]],
) -> None:
    """A sale was in its fact after all points in time were built and tested: more than half of the way."""
    graph = Graph(demo_tasks[0])
    names = {graph.nodes[model]["name"] for model in graph.of_readers()}
    assert {"fct_transactions", "mart_sales_by_store_day", "dim_customer_history"} <= names
    assert "bv_transaction_reconciliation" in names, "a test compares it with a fact"
    assert not [name for name in names if name.startswith(("pit_", "bridge_", "control_"))]
    read = ["model.lakehouse.pit_store", *graph.nodes["model.lakehouse.dim_store"]["depends_on"]["nodes"]]
    node = {**graph.nodes["model.lakehouse.dim_store"], "depends_on": {"nodes": read}}
    graph.nodes["model.lakehouse.dim_store"] = node
    assert {"model.lakehouse.pit_store", "model.lakehouse.control_snap"} <= graph.of_readers(), "what it is made of"


def test_pits_wait_for_a_pause_between_cuts_and_not_for_ever(
    demo_tasks: tuple[dict[str, Any], tuple[Task, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sale that came while they were built waited for them."""
    manifest, (*_, marts) = demo_tasks
    built, cuts = list[set[str]](), [1]
    graph, state = Graph(manifest), TaskState(day=datetime.now(UTC).date(), served=True)

    def build(models: Sequence[str], without: object, newest: object) -> list[NodeResult]:
        built.append({graph.nodes[model]["name"] for model in models})
        return [NodeResult(model, "success", 0.0, 0, "") for model in models]

    def newest(_: object) -> dict[str, SnapshotFact]:
        return {".".join(table): SnapshotFact(cuts[0], datetime.now(UTC), 1, 1) for table in marts.tables}

    def unless_rung(work: Callable[[], None], seconds: float = inf) -> None:
        patience.append(seconds)
        if rings:
            raise Interrupted
        work()

    rings, quiet, patience = list[bool](), Quiet(), list[float]()
    building = Marts(load_settings(), None, None, manifest, graph)  # type: ignore[arg-type]
    monkeypatch.setattr(building, "_build_next", build)
    worker = some_worker(
        graph=graph,
        marts=building,
        newest=newest,
        held=lambda _: set(),
        reads=dict.fromkeys(graph.nodes, frozenset()),
        states={marts.job: state},
        quiet=quiet,
        unless_rung=unless_rung,
    )

    def is_due() -> bool:
        return state.is_due_again(time.monotonic())

    def pause(seconds: float) -> None:
        """Of the share of time that PITs have used up, so much is still to come."""
        state.due, state.later_due = 0.0, time.monotonic() + seconds

    def rounds() -> list[str]:
        """Of each build since: whether it was of facts or of PITs."""
        built.clear()
        worker._loader.load(marts, state)
        return ["facts" if "fct_transactions" in names else "pits" for names in built if names]

    assert rounds() == ["facts"] and "pit_store" in {graph.nodes[model]["name"] for model in state.held}
    assert worker._dues() == [0.0] or worker._dues()[0] <= QUIET_SECONDS, "soon, unless a cut comes first"
    cuts[0] += 1
    assert rounds() == ["facts"], "a cut came first"
    waiting, loaded = len(state.held), dict(state.loaded)
    rings.append(True)
    pause(0.0)
    assert rounds() == [] and len(state.held) == waiting and state.loaded == loaded, "they yield to a cut"
    assert patience[-1] == inf
    cuts[0] += 1
    assert rounds() == [] and state.loaded == loaded and patience[-1] == FIRST_SECONDS, "so do facts, while they begin"
    assert time.monotonic() >= state.due, "they follow the load at once"
    assert rounds() == ["facts"], "and are not put off again by the next one"
    loaded = dict(state.loaded)
    cuts[0] += 1
    assert rounds() == [] and state.loaded == loaded, "of later cuts they are"
    rings.clear()
    assert rounds() == ["facts"]
    pause(0.0)
    assert rounds() == ["pits"] and 0 < len(state.held) < waiting, "some of them, so that a cut waits for no others"
    pause(10.0)
    assert worker._dues()[0] > 9 and not is_due() and rounds() == [], "they take their share of the time"
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
    assert not worker._dues() and not is_due()
    pause(0.0)
    cuts[0] += 1
    assert rounds() == ["facts"] and worker._dues()[0] <= QUIET_SECONDS, "since the last ones nothing has waited"
    quiet.loads += [time.monotonic() - 10, time.monotonic()]
    pause(0.0)
    cuts[0] += 1
    assert rounds() == ["facts"] and worker._dues()[0] > 10 and not is_due(), "cuts follow one another"
    state.later_since = time.monotonic() - LATEST_SECONDS + 5
    pause(0.0)
    cuts[0] += 1
    assert rounds() == ["facts"] and 1 < worker._dues()[0] <= 5, "but it is not put off without end"


def test_pits_that_one_test_reads_or_that_are_made_of_one_another_are_built_together(
    demo_tasks: tuple[dict[str, Any], tuple[Task, ...]],
) -> None:
    graph = Graph(demo_tasks[0])
    pits = {f"model.lakehouse.pit_{name}" for name in ("customer", "product", "store")}
    assert graph.together(pits) == {"model.lakehouse.pit_customer"}
    assert graph.together({*pits, "model.lakehouse.control_snap"}) == {*pits, "model.lakehouse.control_snap"}
    graph.tests["test.both"] = {"depends_on": {"nodes": ["model.lakehouse.pit_customer", "model.lakehouse.pit_store"]}}
    assert graph.together(pits) == {"model.lakehouse.pit_customer", "model.lakehouse.pit_store"}
    assert graph.together([]) == set()


def test_what_is_made_of_a_mart_that_was_refused_is_not_built_of_its_former_state(
    demo_tasks: tuple[dict[str, Any], tuple[Task, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would count as built from rows that it does not have, and stay so when the mart is sound again."""
    manifest, (*_, marts) = demo_tasks
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


def test_what_is_made_of_the_day_is_built_anew_once_a_day(demo_tasks: tuple[dict[str, Any], tuple[Task, ...]]) -> None:
    """The sales after midnight were in no PIT: nothing that a sale changes is upstream of the control snapshot."""
    manifest, (load, *_, marts) = demo_tasks
    graph, state, today = Graph(manifest), TaskState(), datetime.now(UTC).date()
    found = {graph.nodes[model]["name"] for model in of_a_new_day(graph, marts, state, today)}
    assert found >= {"control_snap", "pit_transaction", "bridge_sale"} and "fct_transactions" not in found
    assert not of_a_new_day(graph, load, state, today)
    state.day = today
    assert not of_a_new_day(graph, marts, state, today)
    state.day -= timedelta(days=1)
    assert of_a_new_day(graph, marts, state, today)


def test_a_refresh_that_shows_more_is_news_for_the_marts_of_its_view() -> None:
    mirror, view = ("mirror_shop", "items"), ("parsed", "current_shop__items")
    task = Task("build_marts", (("parsed", "shop__items"),), marts=True, mirrors={mirror: view})
    state = TaskState(loaded={"parsed.shop__items": 1})
    newest = {"parsed.shop__items": SnapshotFact(1, datetime.now(UTC), 1, 1)}
    assert changed_tables(task, state, newest) == []
    newest["mirror_shop.items"] = SnapshotFact(7, datetime.now(UTC), 0, 0)
    assert changed_tables(task, state, newest) == [view]
    state.loaded["mirror_shop.items"] = 7
    assert changed_tables(task, state, newest) == []

"""A run that has waited for a load builds no mart of what that load has left red or behind."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from graphlib import TopologicalSorter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest
from dagster._core.utils import make_new_run_id

from lakehouse.settings import Settings, load_settings
from orchestration.assets import next_tables
from orchestration.assets.blocking_checks import blocking_tests
from orchestration.assets.dbt_assets import DbtResults, marts_assets
from orchestration.assets.dbt_resource import dbt_resource
from orchestration.assets.translator import MARTS, layer, node_key
from orchestration.resources import Lake, TableKey
from orchestration.runner import _run
from orchestration.runs import tags
from orchestration.runs.dependencies import name_of
from orchestration.runs.processes.interrupts import Stop
from orchestration.runs.state.history import end_state_of
from orchestration.runs.state.load_state import HeldTable, LoadState, pack_state
from orchestration.runs.subset import JobSubset
from orchestration.worker.plan import Graph, Task, table_of

PRICES = dg.AssetKey(["vault", "sat_product_price"])


@dataclass
class World:
    """What happens while the run waits, and what it then does."""

    meanwhile: Callable[[], None] = lambda: None
    failing: frozenset[str] = frozenset()
    is_alone: bool = False
    built: list[str] = field(default_factory=list)
    tested: list[tuple[str, bool]] = field(default_factory=list)
    published: set[TableKey] = field(default_factory=set)


WORLD = World()


class WaitingLake(Lake):
    """Waits for a load that is under way; publishes nothing."""

    def newest_snapshots(self, tables: object) -> dict[str, Any]:
        return {}

    def unpublished_snapshots(self, tables: object) -> dict[str, Any]:
        return {}

    def never_loaded(self, tables: object, reads: object) -> list[TableKey]:
        return []

    @contextmanager
    def writing(self, groups: object) -> Iterator[None]:
        WORLD.meanwhile()
        WORLD.is_alone = True
        yield
        WORLD.is_alone = False

    @contextmanager
    def next_tables(self, tables: object) -> Iterator[set[TableKey]]:
        sound = set[TableKey]()
        yield sound
        WORLD.published = sound


class Shop:
    """The demo's marts, built by a run of their job."""

    def __init__(self, manifest: dict[str, Any], tasks: tuple[Task, ...], instance: dg.DagsterInstance) -> None:
        self.manifest, self.graph, self.instance, self.marts = manifest, Graph(manifest), instance, tasks[-1]
        self.retail = next(task for task in tasks if task.job == "load_retail")
        loads = {task.job: task.tables for task in tasks if not task.marts}
        self.settings: Settings = load_settings()
        job = dg.define_asset_job("build_marts", dg.AssetSelection.groups(MARTS))
        resources: dict[str, Any] = {"lake": WaitingLake(), "dbt": dbt_resource(self.settings)}
        assets = [marts_assets(manifest, (), loads)]
        defs = dg.Definitions(assets, jobs=[job], resources=resources, executor=dg.in_process_executor)
        self.job = defs.resolve_job_def("build_marts")

    @contextmanager
    def dbt(
        self, context: Any, dbt: Any, lake: Any, manifest: Any, command: list[str], days: Any, results: DbtResults,
        of_next: bool = False,
    ) -> Iterator[Any]:  # fmt: skip
        """Does as dbt: what is left out takes with it the tests that read it."""
        assert WORLD.is_alone
        nodes, is_build = {**manifest["nodes"]}, command[0] == "build"
        named = {*command[-1].split()} if len(command) > 1 else set()
        made = [id for id in self.selected(context) if nodes[id]["name"] not in named] if is_build else []
        out = {id for id in nodes if nodes[id]["name"] in named}
        tests = [
            test
            for test, read in next_tables.tests_reading(manifest, made if is_build else nodes.keys()).items()
            if (test not in out and out.isdisjoint(read) if is_build else test in out)
        ]
        WORLD.built += [nodes[id]["name"] for id in made]
        WORLD.tested += [(test, of_next or is_build) for test in tests]
        results.statuses |= dict.fromkeys(made, "success")
        results.statuses |= {test: "fail" if test in WORLD.failing else "pass" for test in tests}
        order = TopologicalSorter({id: nodes[id]["depends_on"]["nodes"] for id in made}).static_order()
        outputs = [dg.Output(None, node_key(nodes[id]).to_python_identifier()) for id in order if id in made]
        yield SimpleNamespace(stream=lambda: iter(outputs), target_path=Path())

    def selected(self, context: Any) -> list[str]:
        """The marts that the run is to build, with PITs and the like."""
        models = (id for id, node in self.manifest["nodes"].items() if node["resource_type"] == "model")
        return [id for id in models if node_key(self.manifest["nodes"][id]) in context.selected_asset_keys]

    def made_of(self, table: dg.AssetKey) -> set[str]:
        """The names of the marts that are made of the table."""
        models = self.graph.models_of(self.marts, [(table.path[0], table.path[1])], with_views=True)
        return {self.manifest["nodes"][model]["name"] for model in models}

    def all_marts(self) -> set[str]:
        """The names of all marts."""
        models = (node for node in self.manifest["nodes"].values() if node["resource_type"] == "model")
        return {node["name"] for node in models if layer(node) == MARTS}

    def fail_a_check(self, table: dg.AssetKey = PRICES) -> None:
        """A load ends red."""
        check = next(key for key in blocking_tests(self.manifest).values() if key.asset_key == table)
        told = dg.AssetCheckEvaluation(asset_key=table, check_name=check.name, passed=False)
        self.instance.report_runless_asset_event(told)

    def leave_behind(self) -> None:
        """A load has recorded a table that it could not load, and its run goes on."""
        run_id, keys = make_new_run_id(), list(map(dg.AssetKey, self.graph.tables_of(self.retail)))
        left = LoadState(run_id, None, {name_of(PRICES): HeldTable(1, datetime.now(UTC), None)})
        given = {tags.BEGUN: tags.pack_begun(run_id, datetime.now(UTC)), tags.HELD: pack_state(left)}
        running = dg.DagsterRunStatus.STARTED
        self.instance.add_run(
            dg.DagsterRun("load_retail", run_id, tags=given, asset_selection=frozenset(keys), status=running)
        )

    def be_killed(self) -> None:
        """A load's step is killed: its lock is free at once, and nobody has told that its run has ended."""
        run_id, keys = make_new_run_id(), list(map(dg.AssetKey, self.graph.tables_of(self.retail)))
        given, running = {tags.BEGUN: tags.pack_begun(run_id, datetime.now(UTC))}, dg.DagsterRunStatus.STARTED
        self.instance.add_run(
            dg.DagsterRun("load_retail", run_id, tags=given, asset_selection=frozenset(keys), status=running)
        )

    def run(self) -> dg.ExecuteInProcessResult:
        """One run of the job."""
        return self.job.execute_in_process(instance=self.instance, raise_on_error=False)


@pytest.fixture
def shop(demo_tasks: tuple[dict[str, Any], tuple[Task, ...]], monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    with dg.DagsterInstance.ephemeral() as instance:
        found = Shop(*demo_tasks, instance)
        monkeypatch.setattr(f"{__name__}.WORLD", World())
        monkeypatch.setattr("orchestration.assets.dbt_assets.dbt_invocation", found.dbt)
        yield found


@pytest.mark.parametrize(
    ("happens", "why"),
    [
        (Shop.fail_a_check, "of vault.sat_product_price fails"),
        (Shop.leave_behind, "vault.sat_product_price has failed 1 times in load_retail"),
    ],
)
def test_a_run_that_waited_for_a_load_builds_no_mart_of_what_it_left(
    shop: Shop, happens: Callable[[Shop], None], why: str
) -> None:
    """It had asked before the load ended, and published marts of a vault that a blocking check had just refused."""
    WORLD.meanwhile = lambda: happens(shop)
    held, ran = shop.made_of(PRICES), shop.run()
    assert ran.success and held and "dim_account" not in held
    assert set(WORLD.built) == shop.all_marts() - held
    nodes = {node["name"]: node for node in shop.manifest["nodes"].values() if node["resource_type"] == "model"}
    assert WORLD.published.isdisjoint({table_of(nodes[name]) for name in held})
    made = {event.asset_key for event in ran.all_events if event.is_step_materialization}
    keys = {node_key(nodes[name]) for name in held}
    assert made == {node_key(nodes[name]) for name in WORLD.built}
    told = [event.asset_observation_data.asset_observation for event in ran.all_events if event.is_asset_observation]
    assert {seen.asset_key for seen in told} == keys
    assert all(why in (seen.description or "") for seen in told)
    run = shop.instance.get_run_by_id(ran.run_id)
    state = end_state_of(run) if run else None
    assert state and state.tables.keys() == set(map(name_of, keys))
    assert {table.tries for table in state.tables.values()} == {0}, "a sensor builds them once nothing holds them back"


def test_where_nothing_is_left_all_marts_are_built(shop: Shop) -> None:
    assert shop.run().success and set(WORLD.built) == shop.all_marts()
    assert not [test for test, is_of_next in WORLD.tested if not is_of_next and test not in late(shop)]


def late(shop: Shop) -> set[str]:
    return set(next_tables.late_tests(shop.manifest))


def test_a_load_that_was_killed_while_the_run_waited_holds_all_that_it_was_to_load(shop: Shop) -> None:
    """Its run still counts as one under way, but who has its lock knows better."""
    WORLD.meanwhile = shop.be_killed
    assert shop.run().success
    retail = {name for table in shop.retail.tables for name in shop.made_of(dg.AssetKey(table))}
    assert set(WORLD.built) == shop.all_marts() - retail


def test_a_mart_is_tested_with_one_that_has_come_to_be_held_back_before_it_is_published(shop: Shop) -> None:
    """dbt leaves a test out with the mart that it reads."""
    named = {id: node["name"] for id, node in shop.manifest["nodes"].items() if node["name"] in shop.all_marts()}
    for table in sorted({key.asset_key for key in blocking_tests(shop.manifest).values()}):
        held = {id for id, name in named.items() if name in shop.made_of(table)}
        read = next_tables.tests_reading(shop.manifest, named.keys() - held)
        if both := {test for test, nodes in read.items() if held & set(nodes)} - late(shop):
            break
    assert both, "no test of the demo reads two marts"
    WORLD.meanwhile, WORLD.failing = (lambda: shop.fail_a_check(table)), frozenset({min(both)})
    shop.run()
    assert {(id, True) for id in both} <= set(WORLD.tested)
    refused = {table_of(shop.manifest["nodes"][id]) for id in set(read[min(both)]) - held if id in named}
    assert refused and WORLD.published and WORLD.published.isdisjoint(refused)


def test_lakehouse_run_says_what_it_left_out_though_its_run_succeeded(shop: Shop) -> None:
    WORLD.meanwhile = shop.fail_a_check
    said: list[str] = []
    outcome = _run(shop.settings, shop.job, JobSubset(), shop.instance, {}, said.append, Stop())
    assert not outcome.success and "tables were left out: marts." in (outcome.error or "")
    assert [line for line in said if "waits: check" in line]

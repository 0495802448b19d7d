"""The warm worker: after each cut it runs the models downstream of the tables that changed, and nothing else.

What it remembers only saves work. Each model decides by its own watermark what to load, so a worker that is killed, or
that loads what a job has loaded, changes nothing. First loads, and whatever fails here, are left to the Dagster jobs.
"""

import json
import logging
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import dagster as dg

from lakehouse.catalog.next_tables import building_next
from lakehouse.declarations import declarations_from
from lakehouse.declarations.manifest import load_manifest
from lakehouse.errors import LakehouseError
from lakehouse.metrics import REGISTRY, sample
from orchestration.assets.next_tables import built_whole, sound_tables
from orchestration.resources import TableKey
from orchestration.runs.examples import example_rows
from orchestration.runs.processes.presence import serve, withdraw, writing_if_free
from orchestration.runs.state.load_state import pause
from orchestration.runs.state.loaded import last_worker_load
from orchestration.runs.subset import failing_checks
from orchestration.worker.budget import TestBudget
from orchestration.worker.loads import Loads
from orchestration.worker.plan import Graph, Task, table_of, tasks
from orchestration.worker.reports import check_keys, report_arrivals, report_tables, report_tests
from orchestration.worker.warm_dbt import NodeResult, WarmDbt

if TYPE_CHECKING:
    from lakehouse.catalog.lake_catalog import LakeCatalog
    from lakehouse.catalog.open import SnapshotFact
    from lakehouse.servers.database import CatalogConnection
    from lakehouse.settings import Settings

log = logging.getLogger(__name__)
SERVES = "lakehouse_worker_serves"
TESTS_AT_ONCE = 4
LONGEST_SLEEP = 60.0
BUSY_SECONDS = 2.0
HELD_SECONDS = 30.0
BUILT_FROM = "lakehouse.built-from"  # property of a table that is built whole: see rebuilt_table.sql
SELECTED_ALONE = {"DBT_INDIRECT_SELECTION": "empty"}  # models and tests that are named, and no other tests


@dataclass
class _State:
    """What the worker knows of a task: the snapshots it has loaded, the views that it has made of the project as it is,
    the marts that wait, and its failures in a row."""

    loaded: dict[str, int] = field(default_factory=dict)
    views: set[str] = field(default_factory=set)
    served: bool = False
    held: set[str] = field(default_factory=set)
    failures: int = 0
    due: float = 0.0


class Worker:
    """Loads what is due; holds the parsed project, the catalog and the session that announces it."""

    def __init__(
        self,
        settings: "Settings",
        instance: dg.DagsterInstance,
        catalog: "LakeCatalog",
        connection: "CatalogConnection",
    ) -> None:
        self._settings, self._instance = settings, instance
        self._catalog, self._connection = catalog, connection
        self._dbt = WarmDbt(settings)
        self._tasks: tuple[Task, ...] = ()
        self._state: dict[str, _State] = {}
        self._tests = TestBudget(at=time.monotonic())

    def load_what_is_due(self) -> None:
        """One round over all tasks; waits for a run of theirs. Raises LakehouseError if the project does not parse."""
        if self._dbt.refresh():
            self._read_project()
        for task in self._tasks:
            state = self._state[task.job]
            if time.monotonic() >= state.due:
                self._attend(task, state)
        serving = (sample(SERVES, state.served, job=job) for job, state in self._state.items())
        REGISTRY.set_gauges([SERVES], serving)

    def ready(self) -> dict[str, str]:
        """Of each job, why the worker does not load what it would; empty if it does."""
        states = dict(self._state)
        return {job: "" if state.served else "it is left to Dagster" for job, state in states.items()}

    def run_tests(self) -> float:
        """Runs some of the tests whose tables have changed, within the budget; seconds until there is more to do."""
        with writing_if_free(self._connection, self._catalog.name) as free:
            tests = self._tests.next(time.monotonic(), TESTS_AT_ONCE) if free else []
            if tests:
                self._test(tests)
        dues = [state.due - time.monotonic() for state in self._state.values()]
        wait = self._tests.wait() if free else BUSY_SECONDS
        return max(0.1, min([LONGEST_SLEEP, *(due for due in dues if due > 0), *([] if wait is None else [wait])]))

    def _test(self, tests: Sequence[str]) -> None:
        begun = time.monotonic()
        results = self._with_examples(self._dbt.run("test", self._names(tests)))
        report_tests(self._instance, self._manifest, results)
        self._tests.spent(time.monotonic() - begun, [result.unique_id for result in results if result.failed])

    def _read_project(self) -> None:
        """Begins anew: models may have come that were never loaded."""
        for job in [job for job, state in self._state.items() if state.served]:
            withdraw(self._connection, self._catalog.name, job)
        self._manifest = load_manifest(self._settings)
        declared = declarations_from(self._manifest, self._settings.dbt_project_dir)
        self._graph, self._tasks = Graph(self._manifest), tasks(declared, self._manifest)
        self._loads = Loads(self._catalog, self._connection, self._dbt, self._graph)
        self._checks = check_keys(self._manifest, self._graph.tests_of(list(self._graph.nodes)))
        self._state = {task.job: _State() for task in self._tasks}

    def _attend(self, task: Task, state: _State) -> None:
        """Serves the task if its tables exist and no other worker does, and loads what has changed."""
        if not state.served:
            state.served = self._exist(task) and serve(self._connection, self._catalog.name, task.job)
            state.loaded = self._recorded(task) if state.served else {}
        if not state.served:
            return
        try:
            self._load(task, state)
            state.failures = 0
        except LakehouseError as error:
            self._leave(task, state, error)

    def _leave(self, task: Task, state: _State, error: LakehouseError) -> None:
        """Leaves the task to its Dagster job, which records the failure, and looks again after a pause."""
        state.failures += 1
        state.due = time.monotonic() + pause(state.failures).total_seconds()
        state.served = False
        withdraw(self._connection, self._catalog.name, task.job)
        REGISTRY.add("lakehouse_worker_failures_total", job=task.job)
        log.error("%s is left to Dagster: %s", task.job, error)

    def _load(self, task: Task, state: _State) -> None:
        """Loads what has changed, unless somebody else writes."""
        if not self._changed(task, state, self._newest(task.tables)) and not state.held:
            return
        with writing_if_free(self._connection, self._catalog.name) as free:
            if free:
                self._load_alone(task, state)
            else:
                state.due = time.monotonic() + BUSY_SECONDS

    def _changed(self, task: Task, state: _State, newest: "Mapping[str, SnapshotFact]") -> list[TableKey]:
        snapshots = {name: fact.snapshot_id for name, fact in newest.items()}
        return [table for table in task.tables if snapshots.get(_name(table)) != state.loaded.get(_name(table))]

    def _load_alone(self, task: Task, state: _State) -> None:
        begun, newest = time.monotonic(), self._newest(task.tables)
        changed = self._changed(task, state, newest)
        reached = state.held | set(self._graph.models_of(task, changed, with_views=True)) - state.views
        absent = self._unloaded(task)
        held = reached & self._held(task) - absent
        state.due = time.monotonic() + HELD_SECONDS if held else 0.0
        models = sorted(reached - held - absent)
        before = self._newest([table_of(self._graph.nodes[model]) for model in models])
        results: list[NodeResult] = []
        if models:
            results = self._build_next(models, held | absent, newest) if task.marts else self._loads.run(models)
        failed = [result for result in results if result.failed]
        state.loaded = {} if failed else {name: fact.snapshot_id for name, fact in newest.items()}
        state.held = held
        state.views |= self._graph.views({result.unique_id for result in results if result.status == "success"})
        self._report(task, state, models, before, results, changed)
        if failed:
            raise LakehouseError("; ".join(f"{result.unique_id}: {result.message}" for result in failed[:3]))
        if models:
            took = time.monotonic() - begun
            REGISTRY.observe("lakehouse_load_seconds", took, job=task.job)
            log.info("%s: %d tables changed, %.1f s", task.job, len(changed), took)

    def _build_next(
        self, models: Sequence[str], without: Collection[str], newest: "Mapping[str, SnapshotFact]"
    ) -> list[NodeResult]:
        """Builds marts beside the ones that readers see, tests them there, and publishes those that passed."""
        rows = {name: fact.total_rows for name, fact in newest.items()}
        built = {_name(name): table.properties.get(BUILT_FROM) for name, table in self._loads.stored(models).items()}
        variables = {
            "LAKEHOUSE_NEXT": "1", "LAKEHOUSE_TABLE_ROWS": json.dumps(rows), "LAKEHOUSE_CUTS": "{}", **SELECTED_ALONE,
            "LAKEHOUSE_BUILT_FROM": json.dumps(built),
        }  # fmt: skip
        names = self._names([*models, *self._graph.tests_of_marts(models, without)])
        with building_next(self._catalog, built_whole(self._manifest)) as sound:
            results = self._with_examples(self._dbt.run("build", names, variables))
            sound |= sound_tables(self._manifest, {result.unique_id: result.status for result in results})
        return results

    def _report(
        self,
        task: Task,
        state: _State,
        models: Sequence[str],
        before: "dict[str, SnapshotFact]",
        results: Sequence[NodeResult],
        changed: Sequence[TableKey],
    ) -> None:
        """Tells Dagster what was built and tested. Where a mart is held back, it is not the record of a load."""
        tables = [table_of(self._graph.nodes[model]) for model in models]
        after = self._newest(tables)
        built = [table for table in tables if after.get(_name(table)) != before.get(_name(table))]
        watched = [] if task.marts or not state.loaded else changed
        now = {**self._newest(watched), **after}
        facts = {table: now[_name(table)] for table in (*watched, *built) if _name(table) in now}
        seconds = {
            table_of(self._graph.nodes[r.unique_id]): r.seconds for r in results if r.unique_id in self._graph.nodes
        }
        report_tables(self._instance, task.job, facts, seconds, {} if state.held else state.loaded)
        report_arrivals(self._instance, watched)
        report_tests(self._instance, self._manifest, [r for r in results if r.unique_id in self._graph.tests])
        if not task.marts:
            ids = [model for model in models if table_of(self._graph.nodes[model]) in built]
            self._tests.changed(self._graph.tests_of(ids))

    def _with_examples(self, results: Sequence[NodeResult]) -> list[NodeResult]:
        """The results, those of failed tests with rows that they find; while the tables are there that were tested."""
        return [
            replace(r, examples=example_rows(self._settings, r.sql, self._graph.tests[r.unique_id].get("column_name")))
            if r.sql and r.unique_id in self._graph.tests
            else r
            for r in results
        ]

    def _held(self, task: Task) -> set[str]:
        """The marts downstream of a table whose blocking check fails; the check runs again, for it may be mended."""
        if not task.marts:
            return set()
        keys = failing_checks(self._instance, list(self._checks.values()))
        failing = sorted({(key.asset_key.path[0], key.asset_key.path[1]) for key in keys})
        if failing:
            log.warning("marts of %s wait: a blocking check fails", ", ".join(map(_name, failing)))
        self._tests.failing(test for test, key in self._checks.items() if key in keys)
        return set(self._graph.models_of(task, failing, with_views=True))

    def _unloaded(self, task: Task) -> set[str]:
        """The marts downstream of a table that was never loaded, such as one of a source that is not used here."""
        missing = set(task.tables) - set(self._catalog.load_tables(task.tables)) if task.marts else set()
        return set(self._graph.models_of(task, missing, with_views=True))

    def _exist(self, task: Task) -> bool:
        """Whether all tables of the task were loaded before; first loads are long and belong in a run."""
        models = set(self._graph.models_of(task, task.tables)) - self._unloaded(task)
        wanted = {table_of(self._graph.nodes[model]) for model in models}
        return bool(wanted) and len(self._catalog.load_tables(wanted)) == len(wanted)

    def _recorded(self, task: Task) -> dict[str, int]:
        models = self._graph.models_of(task, task.tables)
        keys = [dg.AssetKey(table) for table in {*task.tables, *(table_of(self._graph.nodes[m]) for m in models)}]
        load = last_worker_load(self._instance, task.job, keys)
        return load.snapshots if load else {}

    def _newest(self, tables: Sequence[TableKey]) -> "dict[str, SnapshotFact]":
        from lakehouse.catalog.open import newest_data_snapshots

        return newest_data_snapshots(self._catalog, tables)

    def _names(self, unique_ids: Sequence[str]) -> list[str]:
        nodes = {**self._graph.nodes, **self._graph.tests}
        return [nodes[unique_id]["name"] for unique_id in unique_ids]


def _name(table: TableKey) -> str:
    return ".".join(table)

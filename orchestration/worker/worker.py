"""The warm worker: after each cut it runs the models downstream of the tables that changed, and nothing else.

What it remembers only saves work. Each model decides by its own watermark what to load, so a worker that is killed, or
that loads what a job has loaded, changes nothing. First loads, and whatever fails here, are left to the Dagster jobs.
"""

import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import dagster as dg
from psycopg.rows import dict_row

from lakehouse.catalog.next_tables import building_next
from lakehouse.declarations import declarations_from
from lakehouse.declarations.manifest import load_manifest
from lakehouse.errors import LakehouseError
from orchestration.assets.dbt_assets import built_whole
from orchestration.resources import TableKey
from orchestration.runs.load_state import pause
from orchestration.runs.loaded import last_worker_load
from orchestration.runs.presence import serve, withdraw
from orchestration.runs.subset import failing_checks
from orchestration.runs.workers import is_orphan
from orchestration.worker.budget import TestBudget
from orchestration.worker.plan import Graph, Task, table_of, tasks
from orchestration.worker.reports import check_keys, report_tables, report_tests
from orchestration.worker.warm_dbt import NodeResult, WarmDbt

if TYPE_CHECKING:
    from lakehouse.catalog.lake_catalog import LakeCatalog
    from lakehouse.catalog.open import SnapshotFact
    from lakehouse.servers.database import CatalogConnection
    from lakehouse.settings import Settings

log = logging.getLogger(__name__)
CUTS = "SELECT source, epoch, cut_lsn, cut_tables AS tables FROM lakehouse.streams WHERE cut_lsn IS NOT NULL"
TESTS_AT_ONCE = 4
LONGEST_SLEEP = 60.0
BUSY_SECONDS = 2.0
HELD_SECONDS = 30.0
BY_HAND = "__ASSET_JOB"  # Dagster's name for runs of selected assets
WRITING = (dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING)


@dataclass
class _State:
    """What the worker knows of a task: the snapshots it has loaded, and its failures in a row."""

    loaded: dict[str, int] = field(default_factory=dict)
    views_checked: bool = False
    served: bool = False
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

    def _waits(self, state: _State) -> bool:
        """Whether a run writes what the worker would write: it reads the same news, and may take hours."""
        jobs = {task.job for task in self._tasks} | {BY_HAND}
        runs = self._instance.get_run_records(dg.RunsFilter(statuses=list(WRITING)))
        busy = any(record.dagster_run.job_name in jobs and not is_orphan(record.dagster_run) for record in runs)
        state.due = time.monotonic() + BUSY_SECONDS if busy else state.due
        return busy

    def run_tests(self) -> float:
        """Runs some of the tests whose tables have changed, within the budget; seconds until there is more to do."""
        tests = self._tests.next(time.monotonic(), TESTS_AT_ONCE)
        if tests:
            begun = time.monotonic()
            results = self._dbt.run("test", self._names(tests))
            report_tests(self._instance, self._manifest, results)
            self._tests.spent(time.monotonic() - begun, [result.unique_id for result in results if result.failed])
        dues = [state.due - time.monotonic() for state in self._state.values()]
        wait = self._tests.wait()
        return max(0.1, min([LONGEST_SLEEP, *(due for due in dues if due > 0), *([] if wait is None else [wait])]))

    def _read_project(self) -> None:
        self._manifest = load_manifest(self._settings)
        declared = declarations_from(self._manifest, self._settings.dbt_project_dir)
        self._graph, self._tasks = Graph(self._manifest), tasks(declared, self._manifest)
        for task in self._tasks:
            state = self._state.setdefault(task.job, _State())
            state.views_checked, state.due = False, 0.0

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
        log.error("%s is left to Dagster: %s", task.job, error)

    def _load(self, task: Task, state: _State) -> None:
        newest = self._newest(task.tables)
        snapshots = {name: fact.snapshot_id for name, fact in newest.items()}
        changed = [table for table in task.tables if snapshots.get(_name(table)) != state.loaded.get(_name(table))]
        if not changed or self._waits(state):
            return
        models = self._graph.models_of(task, changed, with_views=not state.views_checked)
        held = self._held(task)
        models = [model for model in models if model not in held | self._unloaded(task)]
        begun = time.monotonic()
        before = self._newest([table_of(self._graph.nodes[model]) for model in models])
        results = self._build_next(models, newest) if task.marts else self._run(models)
        state.loaded, state.views_checked = ({} if held else snapshots), True
        state.due = time.monotonic() + HELD_SECONDS if held else 0.0
        self._report(task, state, models, before, results, changed)
        log.info("%s: %d tables changed, %.1f s", task.job, len(changed), time.monotonic() - begun)

    def _run(self, models: Sequence[str]) -> list[NodeResult]:
        with self._connection.cursor(row_factory=dict_row) as cursor:
            found = cursor.execute(CUTS).fetchall()
        cuts = {row.pop("source"): row for row in found}
        return self._dbt.run("run", self._names(models), {"LAKEHOUSE_CUTS": json.dumps(cuts)})

    def _build_next(self, models: Sequence[str], newest: "Mapping[str, SnapshotFact]") -> list[NodeResult]:
        """Builds marts beside the ones that readers see, tests them there, and publishes those that passed."""
        rows = {name: fact.total_rows for name, fact in newest.items()}
        variables = {"LAKEHOUSE_NEXT": "1", "LAKEHOUSE_TABLE_ROWS": json.dumps(rows), "LAKEHOUSE_CUTS": "{}"}
        with building_next(self._catalog, built_whole(self._manifest)) as refused:
            results = self._dbt.run("build", self._names(models), variables)
            failed = (result.unique_id for result in results if result.failed)
            refused |= {table for unique_id in failed for table in self._graph.tables_behind(unique_id)}
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
        """Records what was built and tested; raises LakehouseError for a model or blocking test that failed."""
        tables = [table_of(self._graph.nodes[model]) for model in models]
        after = self._newest(tables)
        built = [table for table in tables if after.get(_name(table)) != before.get(_name(table))]
        failed = [result for result in results if result.failed]
        if failed:
            state.loaded = {}
        watched = [] if task.marts or failed else changed
        now = {**self._newest(watched), **after}
        facts = {table: now[_name(table)] for table in (*watched, *built) if _name(table) in now}
        seconds = {
            table_of(self._graph.nodes[r.unique_id]): r.seconds for r in results if r.unique_id in self._graph.nodes
        }
        report_tables(self._instance, task.job, facts, seconds, state.loaded)
        report_tests(self._instance, self._manifest, [r for r in results if r.unique_id in self._graph.tests])
        if failed:
            raise LakehouseError("; ".join(f"{result.unique_id}: {result.message}" for result in failed[:3]))
        if not task.marts:
            ids = [model for model in models if table_of(self._graph.nodes[model]) in built]
            self._tests.changed(self._graph.tests_of(ids))

    def _held(self, task: Task) -> set[str]:
        """The marts downstream of a table whose blocking check fails."""
        if not task.marts:
            return set()
        keys = check_keys(self._manifest, self._graph.tests_of(list(self._graph.nodes)))
        failing = {(key.asset_key.path[0], key.asset_key.path[1]) for key in failing_checks(self._instance, keys)}
        if failing:
            log.warning("marts of %s wait: a blocking check fails", ", ".join(sorted(map(_name, failing))))
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

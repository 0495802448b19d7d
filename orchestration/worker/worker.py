"""The warm worker: after each cut it runs the models downstream of the tables that changed, and nothing else.

What it remembers only saves work. Each model decides by its own watermark what to load, so a worker that is killed, or
that loads what a job has loaded, changes nothing. First loads, and whatever fails here, are left to the Dagster jobs.
"""

import logging
import time
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from math import inf
from typing import TYPE_CHECKING, TypeVar

import dagster as dg

from lakehouse.errors import LakehouseError
from lakehouse.metrics import REGISTRY, sample
from lakehouse.servers.presence import serve, withdraw, writing_if_free
from lakehouse.servers.retry import Unreachable
from lakehouse.servers.trino import answers
from lakehouse.text.log_lines import about
from orchestration.runs.arrivals import in_cuts
from orchestration.runs.processes.queries import end_abandoned_queries
from orchestration.runs.state.load_state import pause
from orchestration.worker.bell import Bell
from orchestration.worker.budget import TestBudget
from orchestration.worker.dbt.many_tests import run_tests
from orchestration.worker.dbt.statements import Interrupted
from orchestration.worker.dbt.warm_dbt import WarmDbt
from orchestration.worker.lake import Lake
from orchestration.worker.loader import Loader
from orchestration.worker.loads.loads import Loads
from orchestration.worker.marts.marts import Marts
from orchestration.worker.mirrors import Mirrors
from orchestration.worker.plan import Task
from orchestration.worker.project import read_project
from orchestration.worker.quiet import QUIET_SECONDS, Quiet
from orchestration.worker.readiness import AWAY, stuck, unready
from orchestration.worker.reports.events import report_arrivals, report_tests
from orchestration.worker.reports.telling import Telling
from orchestration.worker.reports.untold import Untold
from orchestration.worker.state import BUSY_SECONDS, TaskState, changed_tables, seconds_until_due
from orchestration.worker.untested import untested

if TYPE_CHECKING:
    from lakehouse.catalog.lake_catalog import LakeCatalog
    from lakehouse.servers.database import CatalogConnection
    from lakehouse.settings import Settings

T = TypeVar("T")
log = logging.getLogger(__name__)
SERVES = "lakehouse_worker_serves"
WAITING = "lakehouse_tests_waiting_seconds"
TESTS_AT_ONCE = 2
LATE_TESTS_SECONDS = 1800.0  # which takes a load of hours, or more tests than their share of the time is enough for
LONGEST_SLEEP = 60.0
LEFT_SECONDS = 75.0  # within which the job's sensor ticks, so that what fails on is told
AWAY_SECONDS = 2.0


class Worker:
    """Loads what is due; holds the parsed project, the catalog and the session that announces it."""

    _at: tuple[str, float] | None = None  # what it works on, and since when

    def __init__(
        self,
        settings: "Settings",
        instance: dg.DagsterInstance,
        catalog: "LakeCatalog",
        connection: "CatalogConnection",
        bell: Bell,
        session: str,
    ) -> None:
        self._settings, self._instance = settings, instance
        self._catalog, self._connection, self._bell = catalog, connection, bell
        self._session, self._may_have_left = session, True  # statements in Trino that nobody waits for
        self._dbt = WarmDbt(settings, session)
        self._state: dict[str, TaskState] = {}
        self._tests, self._is_looked_for_untested = TestBudget(at=time.monotonic()), False
        self._is_told_late = False
        self._quiet, self._away = Quiet(), False
        self._untold = Untold()

    def read_project(self) -> None:
        """Reads dbt's project where it has changed; raises LakehouseError if it does not parse or is refused."""
        if self._dbt.refresh():
            self._read_project()

    def take_jobs(self) -> None:
        """Serves all jobs that are due and whose tables exist, before the first is loaded: a sensor would launch a run
        of one that waits for the load of another.
        """
        for task in self._project.tasks:
            state = self._state[task.job]
            if time.monotonic() >= state.due:
                self._take(task, state)

    def load_what_is_due(self) -> None:
        """One round over all tasks; waits for a run of theirs. Raises LakehouseError as `read_project`."""
        self.read_project()
        self.take_jobs()
        tasks_now = () if self._trino_is_away() or self._are_left() else self._project.tasks
        try:
            for task in tasks_now:
                state = self._state[task.job]
                if state.served and time.monotonic() >= state.due and not self._away:
                    self._attend(task, state)
        finally:
            self._untold.tell()
        self._mirrors.report()
        serving = (sample(SERVES, state.served, job=job) for job, state in self._state.items())
        REGISTRY.set_gauges([SERVES], serving)

    def ready(self) -> dict[str, str]:
        """Of each job, why the worker does not load what it would; empty if it does."""
        states, now = dict(self._state), time.monotonic()
        return unready(states, AWAY if self._away else stuck(self._at, self._settings.alerts.load_seconds, now))

    def run_tests(self) -> float:
        """Runs some of the tests whose tables have changed, within the budget; seconds until there is more to do.

        Those of a source that somebody else writes wait for it, and hold up no others.
        """
        now, sources = time.monotonic(), self._project.sources
        quiet = self._quiet.left(now)
        with writing_if_free(self._connection, self._catalog.name, sources) as free:
            can = bool(free) and min(self._dues(but_busy=True), default=LONGEST_SLEEP) > QUIET_SECONDS
            if can and quiet <= 0 and not self._is_looked_for_untested and any(s.served for s in self._state.values()):
                project = self._project
                self._tests.changed(untested(self._instance, self._catalog, project.graph, project.checks), now)
                self._is_looked_for_untested = True
            may = partial(self._project.reads_only, groups=free)
            tests = self._tests.next(now, TESTS_AT_ONCE, may) if can and quiet <= 0 else []
            if tests:
                self._test(tests)
        wait = self._tests.wait(now, may)
        if can and wait == 0 and quiet > 0:
            self._quiet.put_off(now)
        self._tell_waiting(sources.keys() - free)
        rest = [max(wait, quiet)] if wait is not None else []
        busy = [BUSY_SECONDS] if len(free) < len(sources) else []
        return max(0.1, min([LONGEST_SLEEP, *self._dues(), *rest, *busy]))

    def _tell_waiting(self, busy: AbstractSet[str]) -> None:
        """How long the oldest test has been due, once in the log if that is long."""
        waited = self._tests.waited(time.monotonic())
        REGISTRY.set_gauges([WAITING], [sample(WAITING, waited)])
        if waited >= LATE_TESTS_SECONDS and not self._is_told_late:
            sources = sorted(source for group in busy for source in self._project.sources[group])
            others = f"; others write {', '.join(sources)}" if sources else ""
            log.warning("%d tests wait, the oldest for %.0f minutes%s", len(self._tests.due), waited / 60, others)
        self._is_told_late = waited >= LATE_TESTS_SECONDS

    def _dues(self, but_busy: bool = False) -> list[float]:
        """In how many seconds each task that waits is due, or each but those that wait for somebody else to write."""
        if self._away:
            return [AWAY_SECONDS]
        left = [0.0 for job, state in self._state.items() if state.served and self._telling.told[job].is_left]
        states = (state for state in self._state.values() if not (but_busy and state.busy))
        return left + seconds_until_due(states, time.monotonic())

    def _test(self, tests: Sequence[str]) -> None:
        """Runs these tests; they yield to a cut, but not without end."""
        begun, graph = time.monotonic(), self._project.graph
        nodes = {test: graph.tests[test] for test in tests}
        ask = partial(run_tests, self._settings, self._dbt, nodes, {"LAKEHOUSE_CUTS": "{}"}, graph.nodes)
        self._at = "tests", begun
        try:
            results = self._unless_rung(ask) if begun < self._quiet.yields_until else ask()
        except (Interrupted, Unreachable) as error:
            self._away = isinstance(error, Unreachable)
            self._quiet.put_off(begun)
            self._tests.interrupted(tests, time.monotonic() - begun)
            return
        finally:
            self._at = None
        self._quiet.end()
        report_tests(self._instance, self._project.checks, results)
        self._tests.spent(time.monotonic() - begun, [result.unique_id for result in results if result.failed])

    def _unless_rung(self, work: Callable[[], T], seconds: float = inf) -> T:
        """The result of work; raises Interrupted if a cut comes within so many seconds that changes a table."""
        self._dbt.statements.begin()
        try:
            return self._bell.during(work, self._has_news, self._dbt.statements.end, seconds)
        finally:
            self._dbt.statements.begin()

    def _has_news(self) -> bool:
        """Whether a load is due; the marts that it changes come after it."""
        loads = [(task, self._state[task.job]) for task in self._project.tasks if not task.marts]
        due = [(task, state) for task, state in loads if state.served and state.due <= time.monotonic()]
        newest = self._lake.newest([table for task, _ in due for table in task.watched])
        return any(changed_tables(task, state, newest) and self._is_free(task) for task, state in due)

    def _is_free(self, task: Task) -> bool:
        """Whether nobody else writes what the task does; else a cut of it has to wait in any case."""
        groups = self._project.groups_of(task)
        with writing_if_free(self._connection, self._catalog.name, groups) as free:
            return bool(free) or not groups

    def _read_project(self) -> None:
        """Begins anew: models may have come that were never loaded."""
        project = self._project = read_project(self._settings)
        graph = project.graph
        self._mirrors = Mirrors(self._instance, self._catalog, project.mirrored)
        self._lake = Lake(self._instance, self._catalog, self._connection, project)
        self._telling = Telling(
            self._settings, self._instance, self._catalog, self._connection, graph, project.checks.values()
        )
        self._tests.forget(graph.tests.keys())
        self._is_looked_for_untested = False
        for task in project.tasks:
            if snapshots := graph.made_by_dbt_alone(task):
                log.warning("%s is left to Dagster: it takes dbt's snapshot %s", task.job, snapshots[0])
        for job in [job for job, state in self._state.items() if state.served]:  # until they are taken again, at once
            withdraw(self._connection, self._catalog.name, job)
        self._state = {task.job: TaskState() for task in project.tasks}
        self._loader = Loader(
            instance=self._instance,
            connection=self._connection,
            project=project,
            lake=self._lake,
            loads=Loads(self._settings, self._catalog, self._connection, self._dbt, graph),
            marts=Marts(self._settings, self._catalog, self._dbt, project.manifest, graph),
            states=self._state,
            tests=self._tests,
            quiet=self._quiet,
            untold=self._untold,
            unless_rung=self._unless_rung,
        )

    def _take(self, task: Task, state: TaskState) -> None:
        """Serves the task if its tables exist and no other worker does."""
        if state.served or not (self._lake.has(task) and serve(self._connection, self._catalog.name, task.job)):
            return
        state.served = True
        state.loaded = self._lake.recorded(task)
        state.absent |= self._lake.without_load(task)
        if not task.marts:  # one that was killed may have loaded it, and not told
            report_arrivals(self._instance, in_cuts(self._connection, task.tables))

    def _attend(self, task: Task, state: TaskState) -> None:
        """Loads what has changed; what is logged meanwhile, and when Dagster is told of it, says of which job."""
        with about(job=task.job, **({"source": task.source} if task.source else {})):
            self._attend_to(task, state)

    def _attend_to(self, task: Task, state: TaskState) -> None:
        was, self._at = state.loaded, (task.job, time.monotonic())
        try:
            if self._load(task, state):  # else it is at the next one, and nothing says that this one is mended
                self._untold.add(partial(self._telling.tell, task, state.loaded, state.held))
                state.failures = 0
        except LakehouseError as error:
            self._away = self._may_have_left = True
            if self._trino_is_away():
                log.warning("%s waits: %s", task.job, AWAY)
                self._untold.add(partial(setattr, state, "loaded", was))  # once Dagster was told what was done
            else:
                self._leave(task, state, error)
        finally:
            self._at = None

    def _trino_is_away(self) -> bool:
        """Whether Trino was found not to answer, and still does not: then no job of Dagster's could load either."""
        self._away = self._away and not answers(self._settings)
        return self._away

    def _are_left(self) -> bool:
        """Ends statements in Trino that nobody waits for: a build that a killed worker has begun would be published as
        one of ours. Whether Trino went away meanwhile. Raises LakehouseError if one does not end."""
        if self._may_have_left:
            try:
                end_abandoned_queries(self._settings, self._instance, self._session)
                self._may_have_left = False
            except Unreachable:
                self._away = True
        return self._may_have_left

    def _leave(self, task: Task, state: TaskState, error: LakehouseError) -> None:
        """Leaves the task to its Dagster job, which records the failure, and looks again after a pause."""
        state.failures += 1
        state.due = time.monotonic() + max(LEFT_SECONDS, pause(state.failures).total_seconds())
        state.served = False
        withdraw(self._connection, self._catalog.name, task.job)
        REGISTRY.add("lakehouse_worker_failures_total", job=task.job)
        log.error("%s is left to Dagster: %s", task.job, error)

    def _load(self, task: Task, state: TaskState) -> bool:
        """Loads what has changed; of marts those that are made of no group of sources which somebody else writes.

        Whether all that has changed is loaded.
        """
        state.busy = False
        if not self._loader.has_work(task, state):
            return True
        groups = self._project.groups_of(task)
        with writing_if_free(self._connection, self._catalog.name, groups) as free:
            if free or not groups:
                try:
                    self._loader.load(task, state, groups.keys() - free)
                except LakehouseError:
                    self._untold.tell()  # before anybody can build marts of what was left behind
                    raise
                return bool(state.loaded)
        state.due, state.busy = time.monotonic() + BUSY_SECONDS, True
        return False

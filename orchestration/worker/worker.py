"""The warm worker: after each cut it runs the models downstream of the tables that changed, and nothing else.

What it remembers only saves work. Each model decides by its own watermark what to load, so a worker that is killed, or
that loads what a job has loaded, changes nothing. First loads, and whatever fails here, are left to the Dagster jobs.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from functools import partial
from math import inf
from typing import TYPE_CHECKING, TypeVar

import dagster as dg

from lakehouse.declarations import declarations_from
from lakehouse.declarations.dbt.manifest import load_manifest
from lakehouse.errors import LakehouseError
from lakehouse.metrics import REGISTRY, sample
from lakehouse.servers.presence import serve, withdraw, writing_if_free
from lakehouse.servers.retry import Unreachable
from lakehouse.servers.trino import answers
from lakehouse.text.log_lines import about, as_here
from orchestration.assets.blocking_checks import blocking_tests, check_keys
from orchestration.assets.groups import groups_read, load_groups, sources_of
from orchestration.assets.wrong_models import refuse_wrong_models
from orchestration.resources import TableKey
from orchestration.runs.arrivals import in_cuts, never_arrived, not_there, raw_read
from orchestration.runs.processes.queries import end_abandoned_queries
from orchestration.runs.state.behind import find_behind, runs_from_the_graph
from orchestration.runs.state.load_state import pause
from orchestration.runs.state.loaded import last_worker_load
from orchestration.runs.subset import failing_checks
from orchestration.worker.bell import Bell
from orchestration.worker.budget import TestBudget
from orchestration.worker.dbt.many_tests import run_tests
from orchestration.worker.dbt.statements import Interrupted
from orchestration.worker.dbt.warm_dbt import NodeResult, WarmDbt
from orchestration.worker.left import left_by_runs, left_red
from orchestration.worker.loads.loads import Loads
from orchestration.worker.marts.marts import Marts
from orchestration.worker.mirrors import Mirrors
from orchestration.worker.plan import Graph, Task, all_loads, table_of, tasks
from orchestration.worker.reports import (
    days_left_failed,
    report_arrivals,
    report_tables,
    report_tests,
)
from orchestration.worker.telling import Telling
from orchestration.worker.untested import untested

if TYPE_CHECKING:
    from lakehouse.catalog.lake_catalog import LakeCatalog
    from lakehouse.catalog.open import SnapshotFact
    from lakehouse.servers.database import CatalogConnection
    from lakehouse.settings import Settings

T = TypeVar("T")
log = logging.getLogger(__name__)
SERVES = "lakehouse_worker_serves"
WAITING = "lakehouse_tests_waiting_seconds"
TESTS_AT_ONCE = 2
LATEST_TESTS_SECONDS = 60.0  # for which tests may yield to cuts
LATE_TESTS_SECONDS = 1800.0  # which takes a load of hours, or more tests than their share of the time is enough for
LONGEST_SLEEP = 60.0
BUSY_SECONDS = 2.0
HELD_SECONDS = 30.0
LEFT_SECONDS = 75.0  # within which the job's sensor ticks, so that what fails on is told
AWAY_SECONDS = 2.0
AWAY = "Trino does not answer"
NOT_MADE = ("refuses", "waits")  # what `view.sql` says of views of a table that never arrived, or lacks columns yet
QUIET_SECONDS = 2.0  # without a cut, after which begins what nobody waits for
LONG_QUIET_SECONDS = 20.0  # the same while loads follow one another: it would be broken off, and all of it done again
FOLLOWING_SECONDS = 60.0  # from a load to the next one that follows it
LATEST_SECONDS = 180.0  # for which marts that no reader sees may wait while cuts come without a pause
LATER_SHARE = 0.25  # of the time, which building them may take
FIRST_SECONDS = 2.5  # within which marts of readers yield to a cut, once: less than half of what they take


@dataclass
class _State:
    """What the worker knows of a task: the snapshots it has loaded, on which day, the views that it has made
    of the project as it is, the marts that wait, which of them only for a pause, since when and until when, whether
    those of readers have yielded to a cut, the marts of tables that were never loaded, its failures in a row, when to
    look again, and whether that is because somebody else writes."""

    loaded: dict[str, int] = field(default_factory=dict)
    day: date | None = None
    views: set[str] = field(default_factory=set)
    served: bool = False
    held: set[str] = field(default_factory=set)
    later: set[str] = field(default_factory=set)
    later_since: float | None = None
    later_due: float = 0.0
    has_yielded: bool = False
    absent: set[str] = field(default_factory=set)
    failures: int = 0
    due: float = 0.0
    busy: bool = False


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
        self._tasks: tuple[Task, ...] = ()
        self._state: dict[str, _State] = {}
        self._tests, self._is_looked_for_untested = TestBudget(at=time.monotonic()), False
        self._is_told_late = False
        self._quiet_from, self._yield_until, self._away = 0.0, float("inf"), False
        self._last_loads = deque[float](maxlen=2)
        self._untold: list[Callable[[], None]] = []  # what Dagster is told once the marts are there too

    def read_project(self) -> None:
        """Reads dbt's project where it has changed; raises LakehouseError if it does not parse or is refused."""
        if self._dbt.refresh():
            self._read_project()

    def take_jobs(self) -> None:
        """Serves all jobs that are due and whose tables exist, before the first is loaded: a sensor would launch a run
        of one that waits for the load of another.
        """
        for task in self._tasks:
            state = self._state[task.job]
            if time.monotonic() >= state.due:
                self._take(task, state)

    def load_what_is_due(self) -> None:
        """One round over all tasks; waits for a run of theirs. Raises LakehouseError as `read_project`."""
        self.read_project()
        self.take_jobs()
        tasks_now = () if self._trino_is_away() or self._are_left() else self._tasks
        try:
            for task in tasks_now:
                state = self._state[task.job]
                if state.served and time.monotonic() >= state.due and not self._away:
                    self._attend(task, state)
        finally:
            self._tell()
        self._mirrors.report()
        serving = (sample(SERVES, state.served, job=job) for job, state in self._state.items())
        REGISTRY.set_gauges([SERVES], serving)

    def ready(self) -> dict[str, str]:
        """Of each job, why the worker does not load what it would; empty if it does. It loads one after the other."""
        states, serving = dict(self._state), AWAY if self._away else self._stuck()
        return {job: serving if state.served else "it is left to Dagster" for job, state in states.items()}

    def _stuck(self) -> str:
        """What has kept it for longer than published rows may wait for a load."""
        if (at := self._at) is None or time.monotonic() - at[1] <= self._settings.alerts.load_seconds:
            return ""
        return f"the worker has been at {at[0]} for {(time.monotonic() - at[1]) / 60:,.0f} minutes"

    def run_tests(self) -> float:
        """Runs some of the tests whose tables have changed, within the budget; seconds until there is more to do.

        Those of a source that somebody else writes wait for it, and hold up no others.
        """
        now = time.monotonic()
        quiet = self._quiet_from - now if now < self._yield_until else 0.0
        with writing_if_free(self._connection, self._catalog.name, self._sources) as free:
            can = bool(free) and min(self._dues(but_busy=True), default=LONGEST_SLEEP) > QUIET_SECONDS
            if can and quiet <= 0 and not self._is_looked_for_untested and any(s.served for s in self._state.values()):
                self._tests.changed(untested(self._instance, self._catalog, self._graph, self._checks), now)
                self._is_looked_for_untested = True
            may = partial(self._reads_only, groups=free)
            tests = self._tests.next(now, TESTS_AT_ONCE, may) if can and quiet <= 0 else []
            if tests:
                self._test(tests)
        wait = self._tests.wait(now, may)
        if can and wait == 0 and quiet > 0:
            self._yield_until = min(self._yield_until, now + LATEST_TESTS_SECONDS)
        self._tell_waiting(self._sources.keys() - free)
        rest = [max(wait, quiet)] if wait is not None else []
        busy = [BUSY_SECONDS] if len(free) < len(self._sources) else []
        return max(0.1, min([LONGEST_SLEEP, *self._dues(), *rest, *busy]))

    def _reads_only(self, test: str, groups: AbstractSet[str]) -> bool:
        """Whether the test reads nothing but what these groups of sources are loaded into."""
        return self._tested[test] <= groups

    def _tell_waiting(self, busy: AbstractSet[str]) -> None:
        """How long the oldest test has been due, once in the log if that is long."""
        waited = self._tests.waited(time.monotonic())
        REGISTRY.set_gauges([WAITING], [sample(WAITING, waited)])
        if waited >= LATE_TESTS_SECONDS and not self._is_told_late:
            sources = sorted(source for group in busy for source in self._sources[group])
            others = f"; others write {', '.join(sources)}" if sources else ""
            log.warning("%d tests wait, the oldest for %.0f minutes%s", len(self._tests.due), waited / 60, others)
        self._is_told_late = waited >= LATE_TESTS_SECONDS

    def _dues(self, but_busy: bool = False) -> list[float]:
        """In how many seconds each task that waits is due, or each but those that wait for somebody else to write."""
        if self._away:
            return [AWAY_SECONDS]
        now, states = time.monotonic(), [s for s in self._state.values() if not (but_busy and s.busy)]
        dues = [max(s.due, s.later_due if s.held <= s.later else 0.0) if s.served and s.held else s.due for s in states]
        held = [bool(s.served and s.held) for s in states]
        left = [0.0 for job, state in self._state.items() if state.served and self._telling.told[job].is_left]
        return left + [max(0.0, due - now) for due, waits in zip(dues, held, strict=True) if waits or due > now]

    def _test(self, tests: Sequence[str]) -> None:
        """Runs these tests; they yield to a cut, but not without end."""
        begun = time.monotonic()
        nodes = {test: self._graph.tests[test] for test in tests}
        ask = partial(run_tests, self._settings, self._dbt, nodes, {"LAKEHOUSE_CUTS": "{}"}, self._graph.nodes)
        self._at = "tests", begun
        try:
            results = self._unless_rung(ask) if begun < self._yield_until else ask()
        except (Interrupted, Unreachable) as error:
            self._away = isinstance(error, Unreachable)
            self._yield_until = min(self._yield_until, begun + LATEST_TESTS_SECONDS)
            self._tests.interrupted(tests, time.monotonic() - begun)
            return
        finally:
            self._at = None
        self._yield_until = float("inf")
        report_tests(self._instance, self._checks, results)
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
        loads = [(task, self._state[task.job]) for task in self._tasks if not task.marts]
        due = [(task, state) for task, state in loads if state.served and state.due <= time.monotonic()]
        newest = self._newest([table for task, _ in due for table in task.watched])
        return any(self._changed(task, state, newest) and self._is_free(task) for task, state in due)

    def _groups(self, task: Task) -> Mapping[str, Sequence[str]]:
        """The groups whose tables a task loads, or makes marts of, with their sources."""
        reads = map(self._reads.__getitem__, self._graph.models_of(task, task.tables))
        return {group: self._sources[group] for group in frozenset[str]().union(*reads)}

    def _is_free(self, task: Task) -> bool:
        """Whether nobody else writes what the task does; else a cut of it has to wait in any case."""
        groups = self._groups(task)
        with writing_if_free(self._connection, self._catalog.name, groups) as free:
            return bool(free) or not groups

    def _read_project(self) -> None:
        """Begins anew: models may have come that were never loaded."""
        self._manifest = load_manifest(self._settings)
        refuse_wrong_models(self._manifest, self._settings.dbt_project_dir)
        declared = declarations_from(self._manifest, self._settings.dbt_project_dir).among(self._settings.sources)
        self._graph, self._tasks = Graph(self._manifest), tasks(declared, self._manifest)
        self._all_loads = all_loads(declared)
        self._raw = raw_read(declared, self._manifest)
        mirrored = [table.mirror_identifier for source in declared.sources for table in source.mirrored]
        self._mirrors = Mirrors(self._instance, self._catalog, mirrored)
        self._loads = Loads(self._settings, self._catalog, self._connection, self._dbt, self._graph)
        self._marts = Marts(self._settings, self._catalog, self._dbt, self._manifest, self._graph)
        groups = load_groups(self._manifest)
        self._sources = sources_of(self._manifest, groups)
        self._reads = groups_read(self._manifest, self._graph.nodes, groups)
        self._tested = groups_read(self._manifest, self._graph.tests, groups)
        self._checks = blocking_tests(self._manifest)
        self._mart_checks = check_keys(self._manifest, self._graph.tests)
        self._telling = Telling(
            self._settings, self._instance, self._catalog, self._connection, self._graph, self._checks.values()
        )
        self._tests.forget(self._graph.tests.keys())
        self._is_looked_for_untested = False
        for task in self._tasks:
            if snapshots := self._graph.made_by_dbt_alone(task):
                log.warning("%s is left to Dagster: it takes dbt's snapshot %s", task.job, snapshots[0])
        for job in [job for job, state in self._state.items() if state.served]:  # until they are taken again, at once
            withdraw(self._connection, self._catalog.name, job)
        self._state = {task.job: _State() for task in self._tasks}

    def _take(self, task: Task, state: _State) -> None:
        """Serves the task if its tables exist and no other worker does."""
        if state.served or not (self._exist(task) and serve(self._connection, self._catalog.name, task.job)):
            return
        state.served = True
        state.loaded = self._recorded(task)
        state.absent |= self._unloaded(task)
        if not task.marts:  # one that was killed may have loaded it, and not told
            report_arrivals(self._instance, in_cuts(self._connection, task.tables))

    def _attend(self, task: Task, state: _State) -> None:
        """Loads what has changed; what is logged meanwhile, and when Dagster is told of it, says of which job."""
        with about(job=task.job, **({"source": task.source} if task.source else {})):
            self._attend_to(task, state)

    def _attend_to(self, task: Task, state: _State) -> None:
        was, self._at = state.loaded, (task.job, time.monotonic())
        try:
            if self._load(task, state):  # else it is at the next one, and nothing says that this one is mended
                self._untold.append(as_here(partial(self._telling.tell, task, state.loaded, state.held)))
                state.failures = 0
        except LakehouseError as error:
            self._away = self._may_have_left = True
            if self._trino_is_away():
                log.warning("%s waits: %s", task.job, AWAY)
                self._untold.append(partial(setattr, state, "loaded", was))  # once Dagster was told what was done
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

    def _leave(self, task: Task, state: _State, error: LakehouseError) -> None:
        """Leaves the task to its Dagster job, which records the failure, and looks again after a pause."""
        state.failures += 1
        state.due = time.monotonic() + max(LEFT_SECONDS, pause(state.failures).total_seconds())
        state.served = False
        withdraw(self._connection, self._catalog.name, task.job)
        REGISTRY.add("lakehouse_worker_failures_total", job=task.job)
        log.error("%s is left to Dagster: %s", task.job, error)

    def _load(self, task: Task, state: _State) -> bool:
        """Loads what has changed; of marts those that are made of no group of sources which somebody else writes.

        Whether all that has changed is loaded.
        """
        state.busy = False
        changed = self._changed(task, state, self._newest(task.watched) | self._unpublished(task))
        if not (changed or self._due(state) or self._of_a_new_day(task, state) or self._arrived(task, state)):
            return True
        groups = self._groups(task)
        with writing_if_free(self._connection, self._catalog.name, groups) as free:
            if free or not groups:
                try:
                    self._load_alone(task, state, groups.keys() - free)
                except LakehouseError:
                    self._tell()  # before anybody can build marts of what was left behind
                    raise
                return bool(state.loaded)
        state.due, state.busy = time.monotonic() + BUSY_SECONDS, True
        return False

    def _tell(self) -> None:
        """Tells Dagster what was done."""
        while self._untold:
            self._untold.pop(0)()

    def _due(self, state: _State) -> bool:
        """Whether marts that wait are to be looked at again, though nothing has changed."""
        return not state.held <= state.later or bool(state.held and time.monotonic() >= state.later_due)

    def _arrived(self, task: Task, state: _State) -> set[str]:
        """The marts of tables that have arrived since the last load: one without rows makes no snapshot downstream."""
        return state.absent - self._unloaded(task) if state.absent else set()

    def _changed(self, task: Task, state: _State, newest: "Mapping[str, SnapshotFact]") -> list[TableKey]:
        """The tables with news, of a mirror the view that reads it, and the marts that somebody has replaced."""
        snapshots = {name: fact.snapshot_id for name, fact in newest.items()}
        news = [table for table in task.watched if snapshots.get(_name(table)) != state.loaded.get(_name(table))]
        replaced = {name: table for table in task.built if (name := _name(table)) in snapshots}
        marts = [table for name, table in replaced.items() if snapshots[name] != state.loaded.get(name)]
        return [*(task.mirrors.get(table, table) for table in news), *marts]

    def _of_a_new_day(self, task: Task, state: _State) -> set[str]:
        """The marts that may have other SQL since midnight, which is UTC's. dbt leaves alone those that have not."""
        return set(self._graph.models_of_days(task)) if task.marts and state.day != datetime.now(UTC).date() else set()

    def _load_alone(self, task: Task, state: _State, busy: AbstractSet[str] = frozenset()) -> None:
        begun, at, newest = time.monotonic(), datetime.now(UTC), self._newest(task.watched)
        seen = newest | self._unpublished(task)
        changed = self._changed(task, state, seen)
        red, left = list[TableKey](), set[str]()
        if not task.marts:
            red, left = left_by_runs(self._instance, self._graph, task, is_last=bool(state.loaded))
        reached = state.held | set(self._graph.models_of(task, changed, with_views=True)) - state.views | left
        reached |= set() if task.marts else self._graph.views_read(reached) - state.views
        reached |= self._of_a_new_day(task, state)
        absent = self._unloaded(task)
        reached |= state.absent - absent
        waiting = {model for model in reached if self._reads[model] & busy}
        held = reached & (self._held(task) | waiting) - absent
        state.due = time.monotonic() + (BUSY_SECONDS if waiting else HELD_SECONDS) if held else 0.0
        state.busy = bool(waiting)
        later = self._later(task, state, reached - held - absent)
        models = sorted(reached - held - absent - later)
        before = self._newest([table_of(self._graph.nodes[model]) for model in models])
        results, was = list[NodeResult](), state.loaded
        state.loaded = {}  # until all is there; what a server that went away has interrupted is told nevertheless
        report = partial(self._report, task, state, models, before, results, changed, red, left)
        self._untold.append(as_here(report))
        try:
            self._run(task, state, models, held | absent | later, newest, results)
        except Interrupted:
            state.loaded = was
            if self._marts.first.isdisjoint(models):
                state.due = time.monotonic() + QUIET_SECONDS
                state.later_due = time.monotonic() + (time.monotonic() - begun) * (1 / LATER_SHARE - 1)
            else:
                state.due, state.has_yielded = 0.0, True
            return
        state.has_yielded = False
        failed = [result for result in results if result.failed]
        state.loaded = {} if failed else {name: fact.snapshot_id for name, fact in seen.items()}
        state.day, state.absent = (None, state.absent) if failed else (at.date(), absent)
        state.held, state.later = (held, set()) if failed else (held | later, later)
        if not later:
            state.later_since = None
        if models and not task.marts:
            self._last_loads.append(begun)
        if later and not failed:
            state.due = time.monotonic() + QUIET_SECONDS
        if later and changed:
            latest = (state.later_since or begun) + LATEST_SECONDS
            state.later_due = max(state.later_due, min(time.monotonic() + self._quiet_seconds(), latest))
        made = {result.unique_id for result in results if result.status == "success" and result.message not in NOT_MADE}
        state.views |= self._graph.views(made)
        if failed:
            raise LakehouseError("; ".join(f"{result.unique_id}: {result.message}" for result in failed[:3]))
        if models:
            took = time.monotonic() - begun
            self._quiet_from = time.monotonic() + self._quiet_seconds()
            if task.marts and not self._marts.first.issuperset(models):
                state.later_due = time.monotonic() + took * (1 / LATER_SHARE - 1)
            REGISTRY.observe("lakehouse_load_seconds", took, job=task.job)
            log.info("%s: %d tables changed, %.1f s", task.job, len(changed), took)

    def _quiet_seconds(self) -> float:
        """How long no cut is to come before what nobody waits for begins."""
        follows = len(self._last_loads) == 2 and self._last_loads[1] - self._last_loads[0] < FOLLOWING_SECONDS
        return LONG_QUIET_SECONDS if follows else QUIET_SECONDS

    def _run(
        self,
        task: Task,
        state: _State,
        models: Sequence[str],
        without: AbstractSet[str],
        newest: "Mapping[str, SnapshotFact]",
        results: list[NodeResult],
    ) -> None:
        """Runs the models. Marts that no reader sees yield to a cut, until they have waited for long; the others once,
        while most of the work is still to come: a sale that came then waited for the marts of the one before.
        """
        if not task.marts:
            results += self._loads.run(models) if models else []
            return
        build = partial(self._marts.build, models, without, newest, results)
        first = self._marts.first.intersection(models)
        waited = time.monotonic() - state.later_since if state.later_since else LATEST_SECONDS
        if models and not first and waited < LATEST_SECONDS:
            self._unless_rung(build)
        elif first and first.issuperset(models) and not state.has_yielded:
            self._unless_rung(build, FIRST_SECONDS)
        else:
            build()

    def _later(self, task: Task, state: _State, models: AbstractSet[str]) -> set[str]:
        """Those of the models that wait for a round of their own, before which a new cut is loaded: PITs and the like.

        A few of them come at a time, so that a cut never waits for all, and take no more than their share of the time.
        They wait for a pause between cuts, but not without end.
        """
        first = self._marts.first & models if task.marts else models
        later, now = set(models) - first, time.monotonic()
        state.later_since = (state.later_since or now) if later else None
        if state.later_since is None or now < state.later_due or (first and now - state.later_since < LATEST_SECONDS):
            return later
        return later - self._graph.together(later)

    def _report(
        self,
        task: Task,
        state: _State,
        models: Sequence[str],
        before: "dict[str, SnapshotFact]",
        results: Sequence[NodeResult],
        changed: Sequence[TableKey],
        red: Sequence[TableKey] = (),
        to_make: AbstractSet[str] = frozenset(),
    ) -> None:
        """Tells Dagster what was built and tested. Where a mart is held back, it is not the record of a load.

        The record of a load comes last: nobody asks again for what is told before it.
        """
        tables = [table_of(self._graph.nodes[model]) for model in models]
        after = self._newest(tables)
        built = [table for table in tables if after.get(_name(table)) != before.get(_name(table))]
        watched, loaded = [] if task.marts else changed, {r.unique_id for r in results if r.status == "success"}
        left = [] if task.marts or state.loaded else [model for model in models if model not in loaded]
        done = {table_of(self._graph.nodes[model]) for model in loaded if model in self._graph.nodes}
        raw = set() if task.marts or not state.loaded else set(task.tables)
        red = left_red(self._instance, self._graph, task)[0] if task.marts else red  # nobody waits for it here
        green = [table for table in red if table in done | raw]
        now = {**self._newest([*watched, *green]), **after}
        facts: dict[TableKey, SnapshotFact | None] = {
            table: now[_name(table)] for table in (*watched, *green, *built) if _name(table) in now
        }
        made = sorted(table_of(self._graph.nodes[model]) for model in to_make & loaded)
        facts |= {table: now.get(_name(table)) for table in made}  # also a view, which has no snapshot
        seconds = {
            table_of(self._graph.nodes[r.unique_id]): r.seconds for r in results if r.unique_id in self._graph.nodes
        }
        by_day = () if task.marts else {table for table in facts if table not in task.tables}
        failed_days = {} if task.marts else days_left_failed(self._instance, green)
        recorded = {} if state.held else state.loaded
        behind = [_name(table_of(self._graph.nodes[model])) for model in left]
        report_tests(self._instance, self._mart_checks, [r for r in results if r.unique_id in self._graph.tests])
        report_tables(self._instance, task.job, facts, seconds, recorded, by_day, failed_days, behind)
        report_arrivals(self._instance, in_cuts(self._connection, watched))
        if not task.marts:
            ids = [model for model in models if table_of(self._graph.nodes[model]) in built]
            ids += self._graph.ids_of(watched) if state.loaded else []
            self._tests.changed(self._graph.tests_of(ids), time.monotonic())

    def _held(self, task: Task) -> set[str]:
        """The marts downstream of a table that a load has left behind, or whose blocking test fails.

        The test runs again, for the table may be mended.
        """
        if not task.marts:
            return set()
        keys = failing_checks(self._instance, list(self._checks.values()))
        failing = sorted({(key.asset_key.path[0], key.asset_key.path[1]) for key in keys})
        if failing:
            log.warning("marts of %s wait: a blocking check fails", ", ".join(map(_name, failing)))
        self._tests.failing(test for test, key in self._checks.items() if key in keys)
        behind = self._left_behind()
        if whys := sorted(set(behind.values())):
            log.warning("marts wait: %s%s", whys[0], f", and {len(whys) - 1} more" if len(whys) > 1 else "")
        return set(self._graph.models_of(task, [*failing, *behind], with_views=True))

    def _left_behind(self) -> dict[TableKey, str]:
        """The tables that loads have left behind, whoever has loaded them; marts are written alone, so none goes on.

        What a run has left that has ended, and nobody tries again, the worker loads in its next round.
        """
        found, graph = dict[TableKey, str](), runs_from_the_graph(self._instance)
        for load in self._all_loads:
            keys, state = list(map(dg.AssetKey, self._graph.tables_of(load))), self._state.get(load.job)
            is_last = state is not None and bool(state.loaded)
            ask = partial(find_behind, self._instance, load.job, keys, graph, alone=True, is_last=is_last)
            if (behind := ask()) and self._untold:
                self._tell()
                behind = ask()
            found |= {(key.path[0], key.path[1]): left.why for key, left in behind.items()}
            runs = [left.run for left in behind.values() if left.run is not None and not left.is_retried]
            if state is not None and any(run.is_finished for run in runs):
                state.loaded = {}
        return found

    def _unloaded(self, task: Task) -> set[str]:
        """The marts downstream of a table that was never loaded, such as one of a source that is not used here, or one
        that was parked before it has arrived.
        """
        if not task.marts:
            return set()
        missing = not_there(self._catalog, task.tables) + never_arrived(self._connection, self._catalog, self._raw)
        return set(self._graph.models_of(task, missing, with_views=True))

    def _exist(self, task: Task) -> bool:
        """Whether all tables of the task were loaded before; first loads are long and belong in a run. So does what
        takes snapshots of dbt."""
        models = set(self._graph.models_of(task, task.tables)) - self._unloaded(task)
        wanted = {table_of(self._graph.nodes[model]) for model in models}
        is_alone = bool(self._graph.made_by_dbt_alone(task))
        return bool(wanted) and not is_alone and len(self._catalog.locations(wanted)) == len(wanted)

    def _recorded(self, task: Task) -> dict[str, int]:
        load = last_worker_load(self._instance, task.job, map(dg.AssetKey, self._graph.tables_of(task)))
        return load.snapshots if load else {}

    def _newest(self, tables: Sequence[TableKey]) -> "dict[str, SnapshotFact]":
        from lakehouse.catalog.open import newest_data_snapshots

        return newest_data_snapshots(self._catalog, tables)

    def _unpublished(self, task: Task) -> "dict[str, SnapshotFact]":
        """The marts that somebody has written in place, as a dbt by hand does. One that is sound is left alone."""
        from lakehouse.catalog.open import unpublished_snapshots

        return unpublished_snapshots(self._catalog, task.built) if task.built else {}


def _name(table: TableKey) -> str:
    return ".".join(table)

"""One load of a task: what it is made of, its models run, and Dagster told of it."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Protocol

import dagster as dg

from lakehouse.errors import LakehouseError
from lakehouse.metrics import REGISTRY
from orchestration.resources import TableKey
from orchestration.worker.budget import TestBudget
from orchestration.worker.dbt.statements import Interrupted
from orchestration.worker.dbt.warm_dbt import NodeResult
from orchestration.worker.held import failing_tests, left_behind
from orchestration.worker.lake import Lake
from orchestration.worker.loads.loads import Loads
from orchestration.worker.marts.marts import Marts
from orchestration.worker.plan import Task, table_of
from orchestration.worker.project import Project
from orchestration.worker.quiet import Quiet
from orchestration.worker.reports.left import left_by_runs
from orchestration.worker.reports.load import report_load
from orchestration.worker.reports.untold import Untold
from orchestration.worker.state import (
    BUSY_SECONDS,
    FOR_SHARE,
    LATEST_SECONDS,
    Load,
    TaskState,
    changed_tables,
    left_for_later,
    of_a_new_day,
)

if TYPE_CHECKING:
    from lakehouse.servers.database import CatalogConnection

log = logging.getLogger(__name__)
HELD_SECONDS = 30.0
NOT_MADE = ("refuses", "waits")  # what `view.sql` says of views of a table that never arrived, or lacks columns yet
FIRST_SECONDS = 2.5  # within which marts of readers yield to a cut, once: less than half of what they take


class UnlessRung(Protocol):
    """Does the work; raises Interrupted if a cut comes within so many seconds that changes a table."""

    def __call__(self, work: Callable[[], None], seconds: float = ...) -> None: ...


@dataclass
class Loader:
    """What loads of a project as it is are made with."""

    instance: dg.DagsterInstance
    connection: "CatalogConnection"
    project: Project
    lake: Lake
    loads: Loads
    marts: Marts
    states: Mapping[str, TaskState]
    tests: TestBudget
    quiet: Quiet
    untold: Untold
    unless_rung: UnlessRung

    def has_work(self, task: Task, state: TaskState) -> bool:
        """Whether there is news, marts are to be looked at again or are of a new day, or a table has arrived: one
        without rows makes no snapshot downstream."""
        changed = changed_tables(task, state, self.lake.newest(task.watched) | self.lake.in_place(task))
        if changed or state.is_due_again(time.monotonic()) or self._of_a_new_day(task, state):
            return True
        return bool(state.absent and state.absent - self.lake.without_load(task))

    def load(self, task: Task, state: TaskState, busy: AbstractSet[str] = frozenset()) -> None:
        """Loads what has changed, without marts that are held or made of the `busy` groups of sources.

        Raises LakehouseError with what has failed.
        """
        load = self._begin(task, state, busy)
        results, was = list[NodeResult](), state.loaded
        state.loaded = {}  # until all is there; what a server that went away has interrupted is told nevertheless
        self.untold.add(partial(self.report, load, state, results))
        try:
            self._run(load, state, results)
        except Interrupted:
            state.loaded = was
            state.yielded(load, not self.marts.first.isdisjoint(load.models), time.monotonic())
            return
        if load.models and not task.marts:
            self.quiet.loads.append(load.begun)
        failed = [result for result in results if result.failed]
        state.ended(load, not failed, self.quiet, time.monotonic())
        made = {result.unique_id for result in results if result.status == "success" and result.message not in NOT_MADE}
        state.views |= self.project.graph.views(made)
        if failed:
            raise LakehouseError("; ".join(f"{result.unique_id}: {result.message}" for result in failed[:3]))
        if load.models:
            self._note_time(load, state)

    def report(self, load: Load, state: TaskState, results: Sequence[NodeResult]) -> None:
        """Tells Dagster of the load, and makes the tests due that read what it has changed."""
        changed = report_load(self.instance, self.connection, self.lake, self.project, load, state, results)
        if not load.task.marts:
            self.tests.changed(self.project.graph.tests_of(changed), time.monotonic())

    def _begin(self, task: Task, state: TaskState, busy: AbstractSet[str]) -> Load:
        begun, day, newest = time.monotonic(), datetime.now(UTC).date(), self.lake.newest(task.watched)
        graph, reads, seen = self.project.graph, self.project.reads, newest | self.lake.in_place(task)
        changed = changed_tables(task, state, seen)
        red, left = list[TableKey](), set[str]()
        if not task.marts:
            red, left = left_by_runs(self.instance, graph, task, is_last=bool(state.loaded))
        reached = state.held | set(graph.models_of(task, changed, with_views=True)) - state.views | left
        reached |= set() if task.marts else graph.views_read(reached) - state.views
        reached |= self._of_a_new_day(task, state)
        absent = self.lake.without_load(task)
        reached |= state.absent - absent
        waiting = {model for model in reached if reads[model] & busy}
        held = reached & (self._held(task) | waiting) - absent
        state.due = time.monotonic() + (BUSY_SECONDS if waiting else HELD_SECONDS) if held else 0.0
        state.busy = bool(waiting)
        readers = self.marts.first if task.marts else frozenset[str]()
        later = left_for_later(graph, readers, task, state, reached - held - absent, time.monotonic())
        models = sorted(reached - held - absent - later)
        before = self.lake.newest([table_of(graph.nodes[model]) for model in models])
        return Load(task, models, changed, newest, seen, before, absent, held, later, red, left, begun, day)

    def _of_a_new_day(self, task: Task, state: TaskState) -> set[str]:
        return of_a_new_day(self.project.graph, task, state, datetime.now(UTC).date())

    def _held(self, task: Task) -> set[str]:
        """The marts downstream of a table that a load has left behind, or whose blocking test fails.

        The test runs again, for the table may be mended.
        """
        if not task.marts:
            return set()
        graph, failing = self.project.graph, failing_tests(self.instance, self.project.checks)
        self.tests.failing(failing)
        behind = left_behind(self.instance, graph, self.project.all_loads, self.states, self.untold.tell)
        return set(graph.models_of(task, [*sorted(set(failing.values())), *behind], with_views=True))

    def _run(self, load: Load, state: TaskState, results: list[NodeResult]) -> None:
        """Runs the models. Marts that no reader sees yield to a cut, until they have waited for long; the others once,
        while most of the work is still to come: a sale that came then waited for the marts of the one before.
        """
        if not load.task.marts:
            results += self.loads.run(load.models) if load.models else []
            return
        build = partial(self.marts.build, load.models, load.left_out, load.newest, results)
        first = self.marts.first.intersection(load.models)
        waited = time.monotonic() - state.later_since if state.later_since else LATEST_SECONDS
        if load.models and not first and waited < LATEST_SECONDS:
            self.unless_rung(build)
        elif first and first.issuperset(load.models) and not state.has_yielded:
            self.unless_rung(build, FIRST_SECONDS)
        else:
            build()

    def _note_time(self, load: Load, state: TaskState) -> None:
        """What it took, and from when on what nobody waits for may begin."""
        took = time.monotonic() - load.begun
        self.quiet.begins = time.monotonic() + self.quiet.seconds()
        if load.task.marts and not self.marts.first.issuperset(load.models):
            state.later_due = time.monotonic() + took * FOR_SHARE
        REGISTRY.observe("lakehouse_load_seconds", took, job=load.task.job)
        log.info("%s: %d tables changed, %.1f s", load.task.job, len(load.changed), took)

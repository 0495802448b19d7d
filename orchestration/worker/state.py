"""What a worker knows of a task, and what follows: what has news, which models wait, and when it looks again. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import date
from typing import TYPE_CHECKING

from orchestration.resources import TableKey
from orchestration.worker.plan import Graph, Task
from orchestration.worker.quiet import QUIET_SECONDS, Quiet

if TYPE_CHECKING:
    from lakehouse.catalog.open import SnapshotFact

BUSY_SECONDS = 2.0  # until it looks again at what somebody else writes
LATEST_SECONDS = 180.0  # for which marts that no reader sees may wait while cuts come without a pause
LATER_SHARE = 0.25  # of the time, which building them may take
FOR_SHARE = 1 / LATER_SHARE - 1  # how many times as long as they took they wait, to take no more of it


@dataclass
class TaskState:
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

    def is_due_again(self, now: float) -> bool:
        """Whether marts that wait are to be looked at again, though nothing has changed."""
        return not self.held <= self.later or bool(self.held and now >= self.later_due)

    def yielded(self, load: "Load", has_readers: bool, now: float) -> None:
        """A cut has interrupted the load, which has marts that readers see or none: of the latter only a share of the
        time is used, the others follow the cut at once."""
        if has_readers:
            self.due, self.has_yielded = 0.0, True
        else:
            self.due = now + QUIET_SECONDS
            self.later_due = now + (now - load.begun) * FOR_SHARE

    def ended(self, load: "Load", is_whole: bool, quiet: Quiet, now: float) -> None:
        """The load has ended, with or without failures."""
        self.has_yielded = False
        if is_whole:
            self.loaded = {name: fact.snapshot_id for name, fact in load.seen.items()}
            self.day, self.absent = load.day, load.absent
            self.held, self.later = load.held | load.later, load.later
        else:
            self.loaded, self.day, self.held, self.later = {}, None, load.held, set()
        if not load.later:
            self.later_since = None
            return
        if is_whole:
            self.due = now + QUIET_SECONDS
        if load.changed:
            latest = (self.later_since or load.begun) + LATEST_SECONDS
            self.later_due = max(self.later_due, min(now + quiet.seconds(), latest))


@dataclass(frozen=True)
class Load:
    """One load of a task, as it begins: the models, the tables that have changed, the newest snapshots of what the task
    watches, also with marts that somebody has written in place (`seen`), those of the models themselves, the models
    that are left out and why, the tables that a run has left failed and the models that it was to make, when it began
    and on which day."""

    task: Task
    models: Sequence[str] = ()
    changed: Sequence[TableKey] = ()
    newest: Mapping[str, "SnapshotFact"] = field(default_factory=dict)
    seen: Mapping[str, "SnapshotFact"] = field(default_factory=dict)
    before: Mapping[str, "SnapshotFact"] = field(default_factory=dict)
    absent: set[str] = field(default_factory=set)
    held: set[str] = field(default_factory=set)
    later: set[str] = field(default_factory=set)
    red: Sequence[TableKey] = ()
    to_make: AbstractSet[str] = frozenset()
    begun: float = 0.0
    day: date = date.min

    @property
    def left_out(self) -> set[str]:
        """The models that it does not make."""
        return self.held | self.absent | self.later


def changed_tables(task: Task, state: TaskState, newest: Mapping[str, "SnapshotFact"]) -> list[TableKey]:
    """The tables with news, of a mirror the view that reads it, and the marts that somebody has replaced."""
    snapshots = {name: fact.snapshot_id for name, fact in newest.items()}
    news = [table for table in task.watched if snapshots.get(name_of(table)) != state.loaded.get(name_of(table))]
    replaced = {name: table for table in task.built if (name := name_of(table)) in snapshots}
    marts = [table for name, table in replaced.items() if snapshots[name] != state.loaded.get(name)]
    return [*(task.mirrors.get(table, table) for table in news), *marts]


def of_a_new_day(graph: Graph, task: Task, state: TaskState, today: date) -> set[str]:
    """The marts that may have other SQL since midnight, which is UTC's. dbt leaves alone those that have not."""
    return set(graph.models_of_days(task)) if task.marts and state.day != today else set()


def left_for_later(
    graph: Graph, readers: AbstractSet[str], task: Task, state: TaskState, models: AbstractSet[str], now: float
) -> set[str]:
    """Those of the models that wait for a round of their own, before which a new cut is loaded: PITs and the like,
    which no `readers` see.

    A few of them come at a time, so that a cut never waits for all, and take no more than their share of the time.
    They wait for a pause between cuts, but not without end.
    """
    first = readers & models if task.marts else models
    later = set(models - first)
    state.later_since = (state.later_since or now) if later else None
    if state.later_since is None or now < state.later_due or (first and now - state.later_since < LATEST_SECONDS):
        return later
    return later - graph.together(later)


def seconds_until_due(states: Iterable[TaskState], now: float) -> list[float]:
    """In how many seconds each task that waits is due."""
    found = []
    for state in states:
        waits = bool(state.served and state.held)
        due = max(state.due, state.later_due if state.held <= state.later else 0.0) if waits else state.due
        if waits or due > now:
            found.append(max(0.0, due - now))
    return found


def name_of(table: TableKey) -> str:
    """The name of a table as snapshots are kept by."""
    return ".".join(table)

"""Tables whose marts a worker does not build: a load has left them behind, or their blocking test fails."""

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial

import dagster as dg

from orchestration.resources import TableKey
from orchestration.runs.state.behind import find_behind, runs_from_the_graph
from orchestration.runs.subset import failing_checks
from orchestration.worker.plan import Graph, Task
from orchestration.worker.state import TaskState, name_of

log = logging.getLogger(__name__)


def failing_tests(instance: dg.DagsterInstance, checks: Mapping[str, dg.AssetCheckKey]) -> dict[str, TableKey]:
    """The blocking tests that fail, each with its table."""
    keys = failing_checks(instance, list(checks.values()))
    found: dict[str, TableKey] = {
        test: (key.asset_key.path[0], key.asset_key.path[1]) for test, key in checks.items() if key in keys
    }
    if failing := sorted(set(found.values())):
        log.warning("marts of %s wait: a blocking check fails", ", ".join(map(name_of, failing)))
    return found


def left_behind(
    instance: dg.DagsterInstance,
    graph: Graph,
    loads: Iterable[Task],
    states: Mapping[str, TaskState],
    tell: Callable[[], bool],
) -> dict[TableKey, str]:
    """The tables that loads have left behind, whoever has loaded them; marts are written alone, so none goes on.

    `tell` tells Dagster what the worker has done, if it has not; then it is asked again. What a run has left that has
    ended, and nobody tries again, the worker loads in its next round.
    """
    found, runs_graph = dict[TableKey, str](), runs_from_the_graph(instance)
    for load in loads:
        keys, state = list(map(dg.AssetKey, graph.tables_of(load))), states.get(load.job)
        is_last = state is not None and bool(state.loaded)
        ask = partial(find_behind, instance, load.job, keys, runs_graph, alone=True, is_last=is_last)
        if (behind := ask()) and tell():
            behind = ask()
        found |= {(key.path[0], key.path[1]): left.why for key, left in behind.items()}
        runs = [left.run for left in behind.values() if left.run is not None and not left.is_retried]
        if state is not None and any(run.is_finished for run in runs):
            state.loaded = {}
    if whys := sorted(set(found.values())):
        log.warning("marts wait: %s%s", whys[0], f", and {len(whys) - 1} more" if len(whys) > 1 else "")
    return found

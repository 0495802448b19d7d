"""What runs of Dagster have left of a task: tables that the UI shows as failed, and models that nobody has made."""

from collections.abc import Iterable
from functools import partial

import dagster as dg

from orchestration.resources import TableKey
from orchestration.runs.state.behind import find_behind, runs_from_the_graph
from orchestration.worker.plan import Graph, Task, table_of
from orchestration.worker.reports.events import red_tables


def left_red(instance: dg.DagsterInstance, graph: Graph, task: Task) -> tuple[list[TableKey], bool]:
    """The task's tables that a run has left failed in the UI, and whether the last run of each has succeeded."""
    models = graph.models_of(task, task.tables)
    own = [] if task.marts else task.tables
    return red_tables(instance, [*own, *(table_of(graph.nodes[model]) for model in models)])


def left_by_runs(
    instance: dg.DagsterInstance, graph: Graph, task: Task, is_last: bool
) -> tuple[list[TableKey], set[str]]:
    """The tables of a load that a run has left failed in the UI, and the models that it was to make and has not.

    Without them the load would be one of what has changed, and not of the job. Those that the job itself tries again,
    after a pause, are not among the models, nor is what is made of them. `is_last` as in `find_behind`.
    """
    red, is_made = left_red(instance, graph, task)
    if is_made:
        return red, set()
    keys = list(map(dg.AssetKey, graph.tables_of(task)))
    behind = find_behind(instance, task.job, keys, runs_from_the_graph(instance), alone=True, is_last=is_last)
    left = [*(set(red) - set(task.tables)), *_tables(behind)]
    rest = _tables(key for key, found in behind.items() if found.is_retried)
    downstream = partial(graph.models_of, task, with_views=True)
    return red, set(downstream(left)) - set(downstream(rest))


def _tables(keys: Iterable[dg.AssetKey]) -> list[TableKey]:
    return [(key.path[0], key.path[1]) for key in keys]

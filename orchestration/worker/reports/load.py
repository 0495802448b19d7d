"""Tells Dagster what a load of the worker has built and tested."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import dagster as dg

from orchestration.resources import TableKey
from orchestration.runs.arrivals import in_cuts
from orchestration.worker.lake import Lake
from orchestration.worker.plan import table_of
from orchestration.worker.project import Project
from orchestration.worker.reports.events import days_left_failed, report_arrivals, report_tables, report_tests
from orchestration.worker.reports.left import left_red
from orchestration.worker.state import Load, TaskState, name_of

if TYPE_CHECKING:
    from lakehouse.catalog.open import SnapshotFact
    from lakehouse.servers.database import CatalogConnection
    from orchestration.worker.dbt.warm_dbt import NodeResult


def report_load(
    instance: dg.DagsterInstance,
    connection: "CatalogConnection",
    lake: Lake,
    project: Project,
    load: Load,
    state: TaskState,
    results: Sequence["NodeResult"],
) -> list[str]:
    """Tells what was built and tested; the nodes that have changed. Where a mart is held back, it is not the record of
    a load.

    The record of a load comes last: nobody asks again for what is told before it.
    """
    task, graph = load.task, project.graph
    tables = [table_of(graph.nodes[model]) for model in load.models]
    after = lake.newest(tables)
    built = [table for table in tables if after.get(name_of(table)) != load.before.get(name_of(table))]
    watched, loaded = [] if task.marts else load.changed, {r.unique_id for r in results if r.status == "success"}
    left = [] if task.marts or state.loaded else [model for model in load.models if model not in loaded]
    done = {table_of(graph.nodes[model]) for model in loaded if model in graph.nodes}
    raw = set() if task.marts or not state.loaded else set(task.tables)
    red = left_red(instance, graph, task)[0] if task.marts else load.red  # nobody waits for it here
    green = [table for table in red if table in done | raw]
    now = {**lake.newest([*watched, *green]), **after}
    facts: dict[TableKey, SnapshotFact | None] = {
        table: now[name_of(table)] for table in (*watched, *green, *built) if name_of(table) in now
    }
    made = sorted(table_of(graph.nodes[model]) for model in load.to_make & loaded)
    facts |= {table: now.get(name_of(table)) for table in made}  # also a view, which has no snapshot
    seconds = {table_of(graph.nodes[r.unique_id]): r.seconds for r in results if r.unique_id in graph.nodes}
    by_day = () if task.marts else {table for table in facts if table not in task.tables}
    failed_days = {} if task.marts else days_left_failed(instance, green)
    recorded = {} if state.held else state.loaded
    behind = [name_of(table_of(graph.nodes[model])) for model in left]
    report_tests(instance, project.mart_checks, [r for r in results if r.unique_id in graph.tests])
    report_tables(instance, task.job, facts, seconds, recorded, by_day, failed_days, behind)
    report_arrivals(instance, in_cuts(connection, watched))
    changed = [model for model in load.models if table_of(graph.nodes[model]) in built]
    return [*changed, *(graph.ids_of(watched) if state.loaded else [])]

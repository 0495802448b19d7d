"""What the lake has of a worker's tasks: newest snapshots, and whether their tables were ever loaded."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import dagster as dg

from orchestration.resources import TableKey
from orchestration.runs.arrivals import never_arrived, not_there
from orchestration.runs.state.loaded import last_worker_load
from orchestration.worker.plan import Task, table_of
from orchestration.worker.project import Project

if TYPE_CHECKING:
    from lakehouse.catalog.lake_catalog import LakeCatalog
    from lakehouse.catalog.open import SnapshotFact
    from lakehouse.servers.database import CatalogConnection


class Lake:
    """The lake by its catalog, and what Dagster was told of it."""

    def __init__(
        self,
        instance: dg.DagsterInstance,
        catalog: "LakeCatalog",
        connection: "CatalogConnection",
        project: Project,
    ) -> None:
        self._instance, self._catalog, self._connection, self._project = instance, catalog, connection, project

    def newest(self, tables: Sequence[TableKey]) -> "dict[str, SnapshotFact]":
        """The newest snapshot of each table that changes its rows."""
        from lakehouse.catalog.open import newest_data_snapshots

        return newest_data_snapshots(self._catalog, tables)

    def in_place(self, task: Task) -> "dict[str, SnapshotFact]":
        """The marts that somebody has written in place, as a dbt by hand does. One that is sound is left alone."""
        from lakehouse.catalog.open import unpublished_snapshots

        return unpublished_snapshots(self._catalog, task.built) if task.built else {}

    def without_load(self, task: Task) -> set[str]:
        """The marts downstream of a table that was never loaded, such as one of a source that is not used here, or one
        that was parked before it has arrived.
        """
        if not task.marts:
            return set()
        missing = not_there(self._catalog, task.tables)
        missing += never_arrived(self._connection, self._catalog, self._project.raw)
        return set(self._project.graph.models_of(task, missing, with_views=True))

    def has(self, task: Task) -> bool:
        """Whether all tables of the task were loaded before; first loads are long and belong in a run. So does what
        takes snapshots of dbt."""
        graph = self._project.graph
        models = set(graph.models_of(task, task.tables)) - self.without_load(task)
        wanted = {table_of(graph.nodes[model]) for model in models}
        is_alone = bool(graph.made_by_dbt_alone(task))
        return bool(wanted) and not is_alone and len(self._catalog.locations(wanted)) == len(wanted)

    def recorded(self, task: Task) -> dict[str, int]:
        """The snapshots that a worker has last told Dagster it has loaded."""
        load = last_worker_load(self._instance, task.job, map(dg.AssetKey, self._project.graph.tables_of(task)))
        return load.snapshots if load else {}

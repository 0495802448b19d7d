"""Tells Dagster what no load reports: what a worker before this one could not tell, and days without rows."""

import logging
import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING

import dagster as dg

from lakehouse.servers.outage import expected
from orchestration.resources import TableKey
from orchestration.runs.arrivals import in_cuts
from orchestration.runs.partitions import daily_partitions
from orchestration.runs.state.behind import left_behind
from orchestration.runs.subset import failing_checks
from orchestration.worker.plan import Graph, Task, table_of
from orchestration.worker.reports.events import report_days, report_tables, told_snapshots

if TYPE_CHECKING:
    from lakehouse.catalog.lake_catalog import LakeCatalog
    from lakehouse.servers.database import CatalogConnection
    from lakehouse.settings import Settings

log = logging.getLogger(__name__)
DAYS_SECONDS = 60.0  # after which the source is asked again how far it is read
AWAY_SECONDS = 600.0  # the same of one that does not answer
TELL_SECONDS = 2.0  # for which telling of days may keep a cut waiting


@dataclass
class Told:
    """Of a task: whether all that was there before is told, the day up to which partitions are, when to look for more,
    whether some are left, and of which tables up to which day: to ask Dagster for those of a table takes 8 ms."""

    caught_up: bool = False
    until: date | None = None
    due: float = 0.0
    is_left: bool = False
    left: Sequence[TableKey] = ()
    left_until: date | None = None


class Telling:
    """Tells it in the quiet after a load; `told` has what was told of each job."""

    def __init__(
        self,
        settings: "Settings",
        instance: dg.DagsterInstance,
        catalog: "LakeCatalog",
        connection: "CatalogConnection",
        graph: Graph,
        checks: Collection[dg.AssetCheckKey],
    ) -> None:
        self._settings, self._instance, self._catalog = settings, instance, catalog
        self._connection, self._graph, self._checks = connection, graph, checks
        self.told: defaultdict[str, Told] = defaultdict(Told)

    def tell(self, task: Task, loaded: Mapping[str, int], held: Collection[str]) -> None:
        """What is left of a task whose load has these snapshots, and has held back these models."""
        told = self.told[task.job]
        if not told.caught_up:
            self._tell_the_rest(task, loaded, held)
            told.caught_up = True
        if not task.marts:
            self._tell_days(task, loaded, told)

    def _tell_the_rest(self, task: Task, loaded: Mapping[str, int], held: Collection[str]) -> None:
        """What is there and Dagster does not know, as the worker before was killed, or could not tell it."""
        from lakehouse.catalog.open import newest_data_snapshots

        models = set(self._graph.models_of(task, task.tables)) - set(held)
        tables = sorted({table_of(self._graph.nodes[model]) for model in models})
        told, newest = told_snapshots(self._instance, tables), newest_data_snapshots(self._catalog, tables)
        failing = {tuple(key.asset_key.path) for key in failing_checks(self._instance, list(self._checks))}
        failing |= self._behind(task, tables)
        there = {table: fact for table in tables if (fact := newest.get(".".join(table))) and table not in failing}
        untold = {table: fact for table, fact in there.items() if told.get(table) != str(fact.snapshot_id)}
        report_tables(self._instance, task.job, untold, {}, {} if held else loaded, () if task.marts else untold)

    def _tell_days(self, task: Task, loaded: Mapping[str, int], told: Told) -> None:
        """At midnight, which is UTC's, and at first: the partitions of the days in which nothing came, up to the one
        until which the source is read. Of many, some at a time: a cut may come."""
        from lakehouse.catalog.open import newest_data_snapshots

        now = time.monotonic()
        if told.until == datetime.now(UTC).date() or now < told.due:
            return
        told.due, told.is_left = now + DAYS_SECONDS, False
        until = self._read_until(task, told)
        if until is None or until == told.until:
            return
        tables = told.left
        if not tables or told.left_until != until:
            models = self._graph.models_of(task, task.tables, with_views=True)
            tables = [table_of(self._graph.nodes[model]) for model in models]
        newest = newest_data_snapshots(self._catalog, tables)
        behind = self._behind(task, tables) | self._made_of_absent(task)
        keys = daily_partitions(self._settings.dagster.first_day).get_partition_keys()
        days, facts = (
            [key for key in keys if key <= until.isoformat()],
            {t: newest.get(".".join(t)) for t in tables if t not in behind},
        )
        left = report_days(self._instance, task.job, facts, days, loaded, time.monotonic() + TELL_SECONDS)
        told.left_until, told.is_left = until, bool(left)
        told.left = [*left, *(table for table in tables if table in behind)] if left else ()
        if told.is_left:
            told.due = 0.0
        else:
            told.until = until

    def _behind(self, task: Task, tables: Collection[TableKey]) -> set[tuple[str, ...]]:
        """Those of the tables that the job has left behind: to tell of one would say that it was loaded."""
        behind = {} if task.marts else left_behind(self._instance, task.job, list(map(dg.AssetKey, tables)))
        return {tuple(key.path) for key in behind}

    def _made_of_absent(self, task: Task) -> set[tuple[str, ...]]:
        """What is made of raw tables that are in no cut, as parked ones: rows of the day may be missing there."""
        absent = set(task.tables) - set(in_cuts(self._connection, task.tables))
        models = self._graph.models_of(task, absent, with_views=True) if absent else []
        return {table_of(self._graph.nodes[model]) for model in models}

    def _read_until(self, task: Task, told: Told) -> date | None:
        """The day until which raw has what the source has; None if that cannot be known now."""
        from ingestion import source_status

        try:
            lag = source_status(self._settings, task.source).lag_seconds
        except Exception as error:
            text = expected(error)
            if text is None:
                raise
            log.warning("%s: days are told once the source can be asked: %s", task.job, text.splitlines()[0])
            told.due = time.monotonic() + AWAY_SECONDS  # to ask may take long
            return None
        return (datetime.now(UTC) - timedelta(seconds=lag)).date()

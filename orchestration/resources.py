"""Resources: all access of Dagster's code to the catalog, the sources and Spark. Tests replace one object.

Methods import pyiceberg, pyspark and drivers locally: at module level they would slow each load of the code location
by seconds.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import dagster as dg
from dagster_pyspark import LazyPySparkResource

from lakehouse.catalog.pins import lacking
from lakehouse.declarations import Declarations, load_declarations
from lakehouse.declarations.checks.jobs import MARTS
from lakehouse.declarations.dbt.manifest import load_manifest
from lakehouse.declarations.dbt.models import is_view, table_of_model
from lakehouse.declarations.dbt.project import project_maintenance
from lakehouse.servers.database import connect_catalog
from lakehouse.servers.presence import Groups, is_served, writing
from lakehouse.servers.worker_sessions import Worker, is_restless, state_of
from lakehouse.settings import Settings, load_settings
from orchestration.runs.arrivals import Read, never_arrived, not_there
from orchestration.runs.code import code_version
from orchestration.runs.processes.workers import sign
from orchestration.runs.step_processes import is_step_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from erasure.proof import Search
    from ingestion import SourceReport, SourceStatus
    from ingestion.mirrors.refresh import RefreshReport
    from ingestion.verify import TableComparison
    from lakehouse.catalog.open import SnapshotFact
    from maintenance.inventory.outcome import Outcome
    from maintenance.inventory.pins import Pin
    from maintenance.runner.result import Result

TableKey = tuple[str, str]


class PinnedCut(NamedTuple):
    """What became of a pin: the tables that it did not keep already, what is not in it, and how far it reaches, by
    source."""

    made: "Sequence[Pin]"
    missing: tuple[str, ...]
    reach: Mapping[str, str]


IN_MEMORY = dg.IOManagerDefinition(lambda _: dg.InMemoryIOManager(), config_schema={})
"""Passes step outputs in memory; Dagster's default I/O manager writes pickles to a path that run config can set."""


def without_config(make: Callable[[], Any]) -> dg.ResourceDefinition:
    """A resource that run config cannot change; `make` creates it for each run."""
    return dg.ResourceDefinition(lambda _: make(), config_schema={})


class LakeSpark(LazyPySparkResource):
    """dagster-pyspark's lazy session, created by lakehouse.servers.spark.

    Spark's properties contain passwords, and the UI shows resource config to everybody.
    """

    spark_config: dict[str, str] = {}  # noqa: RUF012  (a pydantic field, not a class variable)

    def _init_session(self) -> None:
        if self._spark_session is None:
            from lakehouse.servers.spark import spark_session

            self._spark_session: SparkSession = spark_session(load_settings(), "dagster")


class Lake(dg.ConfigurableResource):
    """Ingestion, catalog and maintenance. Settings are read at each use: ports may change while a server runs."""

    def setup_for_execution(self, context: dg.InitResourceContext) -> None:
        """Signs the run with this process, so that the run can be failed if the process dies; a step's does not."""
        if context.run is not None and context.instance is not None and not is_step_of(context.run.run_id):
            sign(context.instance, context.run.run_id)

    def settings(self) -> Settings:
        """The current settings."""
        return load_settings()

    def code_version(self) -> str:
        """A hash of the code that a run launched now works with."""
        return code_version(self.settings())

    def declarations(self) -> Declarations:
        """The current declarations."""
        return load_declarations(self.settings())

    def bring_up(self, source: str) -> "SourceReport":
        """Runs a cycle up to the source's current WAL end, or waits for the follower that holds the lease."""
        from ingestion import bring_up

        return bring_up(self.settings(), self.declarations(), source)

    def bring_up_within(self, source: str, seconds: float) -> "SourceReport":
        """The same, which waits for the follower no longer than that."""
        from ingestion import bring_up

        settings = self.settings()
        limits = settings.ingestion
        waits = limits.model_copy(update={"wait_seconds": min(seconds, limits.wait_seconds)})
        return bring_up(settings.model_copy(update={"ingestion": waits}), self.declarations(), source)

    def reconcile(self, source: str, tables: Sequence[str], spark: LazyPySparkResource) -> "list[TableComparison]":
        """Compares raw tables with their source tables at one consistent point."""
        from ingestion.verify import reconcile_raw

        wanted = [f"{source}.{table}" for table in tables]
        return list(reconcile_raw(self.settings(), self.declarations(), wanted, spark=spark.spark_session))

    def refresh_mirrors(self, source: str, spark: LazyPySparkResource) -> "RefreshReport":
        """Brings the mirrors of a source to its newest cut."""
        from ingestion import refresh_mirrors

        return refresh_mirrors(self.settings(), self.declarations(), source, spark.spark_session)

    def pin_cut(self, name: str, moment: datetime, until: datetime) -> PinnedCut:
        """Keeps the newest cut until the moment, with mirrors and marts: what is not kept already.

        A pin that was begun for this moment, as its end tells, is completed with its own cut, also where there is a
        newer one by now. Raises LakehouseError if the name pins something else.
        """
        from lakehouse_serve.past.moments import Moment
        from lakehouse_serve.past.states import reach, together
        from maintenance.inventory.pins import complete_states, cut_of
        from maintenance.inventory.session import Session

        settings = self.settings()
        with closing(Session(settings)) as session:
            asked = Moment(at=moment)
            state = together(settings, asked, self.declarations().sources, cut_of(session, name, until))
            made = complete_states(session, name, state.to_pin, until)
            return PinnedCut(made, state.missing, reach(state, asked))

    def lacking(self, pin: str, moment: datetime) -> list[str]:
        """Mirrors of raw tables that the pin of a moment keeps, and marts of then, which it lacks."""
        from lakehouse.catalog.open import open_catalog

        settings, declared = self.settings(), self.declarations()
        models = (n for n in load_manifest(settings)["nodes"].values() if n["resource_type"] == "model")
        marts = [table_of_model(node) for node in models if node["schema"] == MARTS and not is_view(node)]
        mirrors = {table.identifier: table.mirror_identifier for s in declared.sources for table in s.mirrored}
        with closing(open_catalog(settings)) as catalog:
            return lacking(catalog, pin, moment, mirrors, marts)

    def verify_erasures(self, source: str, table: str) -> "Search":
        """Scans every object of all tables that held erased subjects of this table."""
        from erasure.run import verify

        settings = self.settings()
        return verify(settings, load_manifest(settings), self.declarations().source(source).table(table))

    def source_status(self, source: str) -> "SourceStatus":
        """Follower, slot and position, without Spark."""
        from ingestion import source_status

        return source_status(self.settings(), source)

    def newest_snapshots(self, tables: Iterable[TableKey]) -> dict[str, "SnapshotFact"]:
        """The newest data snapshot of each table that has one, by `namespace.table`."""
        from lakehouse.catalog.open import newest_data_snapshots, open_catalog

        with closing(open_catalog(self.settings())) as catalog:
            return newest_data_snapshots(catalog, list(tables))

    def unpublished_snapshots(self, tables: Collection[TableKey]) -> dict[str, "SnapshotFact"]:
        """Of tables that are built whole, the newest data snapshot of each that somebody has written in place."""
        from lakehouse.catalog.open import open_catalog, unpublished_snapshots

        with closing(open_catalog(self.settings())) as catalog:
            return unpublished_snapshots(catalog, tables)

    def rows_since(self, tables: "Mapping[TableKey, int | None]") -> dict[TableKey, dict[str, int]]:
        """Rows by operation that were published in each raw table since a snapshot, where that can be told."""
        from lakehouse.catalog.open import open_catalog, rows_since

        with closing(open_catalog(self.settings())) as catalog:
            return rows_since(catalog, tables)

    def worker(self) -> Worker:
        """What became of the last worker."""
        return state_of(self.settings())

    def is_served(self, job: str) -> bool:
        """Whether a living worker loads what the job would load."""
        return is_served(self.settings(), job)

    def is_restless(self) -> bool:
        """Whether the worker ends so often that nobody can wait for it."""
        return is_restless(self.settings())

    def never_loaded(self, tables: Collection[TableKey], reads: Sequence[Read]) -> list[TableKey]:
        """The tables among these that do not exist, and the raw tables among `reads` that have never arrived."""
        from lakehouse.catalog.open import open_catalog

        settings = self.settings()
        with closing(open_catalog(settings)) as catalog, closing(connect_catalog(settings)) as connection:
            return not_there(catalog, tables) + never_arrived(connection, catalog, reads)

    @contextmanager
    def next_tables(self, tables: Mapping[TableKey, Mapping[str, str]]) -> "Iterator[set[TableKey]]":
        """Builds tables beside those that readers see, and publishes at the end those that the block puts into the set.

        Nothing is published if the block raises. Raises LakehouseError if one was changed by another writer.
        """
        from lakehouse.catalog.open import open_catalog
        from lakehouse.catalog.writing.next_tables import building_next

        with closing(open_catalog(self.settings())) as catalog, building_next(catalog, tables) as sound:
            yield sound

    @contextmanager
    def writing(self, groups: Groups) -> Iterator[None]:
        """Keeps every other load of these groups of sources out, and their marts; waits for those that run."""
        settings, say = self.settings(), dg.get_dagster_logger().info
        with closing(connect_catalog(settings)) as connection, writing(connection, settings.catalog_name, groups, say):
            yield

    def maintain(
        self,
        action: str,
        tables: Sequence[str],
        group: str | None,
        spark: LazyPySparkResource,
        report: Callable[["Outcome"], None],
    ) -> "Result":
        """Runs one maintenance action on the declared tables; the first table that needs Spark starts it."""
        from maintenance.inventory.session import Session
        from maintenance.runner.run import run

        with closing(Session(self.settings(), start_spark=lambda: spark.spark_session)) as session:
            return run(session, [action], tables, group, report)

    def max_failed_share(self) -> float:
        """The declared share of failed tables above which a run fails."""
        return project_maintenance(self.settings().dbt_project_dir).max_failed_share

    def table_health(self) -> list[dict[str, Any]]:
        """Health and due actions of each maintained table, by decreasing expected gain."""
        from maintenance.inventory.session import Session
        from maintenance.planning.survey import survey

        with closing(Session(self.settings(), dry_run=True)) as session:
            return list(survey(session).as_dict()["tables"])

"""What Dagster's code asks of the outside world, as resources: a test replaces one object.

Methods import what they need: pyiceberg, pyspark and drivers at module level would cost every load of the code
location seconds.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

import dagster as dg
from dagster_pyspark import LazyPySparkResource

from lakehouse.declarations import Declarations, load_declarations
from lakehouse.declarations.manifest import load_manifest
from lakehouse.declarations.project import project_maintenance
from lakehouse.settings import Settings, load_settings
from orchestration.runs.workers import sign

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from erasure.proof import Look
    from ingestion import SourceReport, SourceStatus
    from ingestion.verify import TableComparison
    from lakehouse.catalog.open import SnapshotFact
    from maintenance.inventory.outcome import Outcome
    from maintenance.runner.result import Result

TableKey = tuple[str, str]

IN_MEMORY = dg.IOManagerDefinition(lambda _: dg.InMemoryIOManager(), config_schema={})
"""What goes from step to step stays in the process; Dagster's default would write pickles where a run says."""


def fixed(make: Callable[[], Any]) -> dg.ResourceDefinition:
    """A resource that no run can configure: made anew for each, with what our code gives it."""
    return dg.ResourceDefinition(lambda _: make(), config_schema={})


class LakeSpark(LazyPySparkResource):
    """dagster-pyspark's lazy session, made by lakehouse.servers.spark.

    Its properties hold passwords, which must not become resource config: the UI shows that to everybody.
    """

    spark_config: dict[str, str] = {}  # noqa: RUF012  (a pydantic field, not a class variable)

    def _init_session(self) -> None:
        if self._spark_session is None:
            from lakehouse.servers.spark import spark_session

            self._spark_session: SparkSession = spark_session(load_settings(), "dagster")


class Lake(dg.ConfigurableResource):
    """Ingestion, the catalog and the settings, read anew at each use: ports may change while a server runs."""

    def setup_for_execution(self, context: dg.InitResourceContext) -> None:
        """Once per run: signs it, so that its end is noticed even if nobody reports it."""
        if context.run is not None and context.instance is not None:
            sign(context.instance, context.run.run_id)

    def settings(self) -> Settings:
        """All settings as they are now."""
        return load_settings()

    def declarations(self) -> Declarations:
        """All declarations as they are now."""
        return load_declarations(self.settings())

    def bring_up(self, source: str) -> "SourceReport":
        """Runs a cycle up to the source's present end, or waits for the follower that holds its lease."""
        from ingestion import bring_up

        return bring_up(self.settings(), self.declarations(), source)

    def reconcile(self, source: str, tables: Sequence[str], spark: LazyPySparkResource) -> "list[TableComparison]":
        """Compares raw tables of a source with it, at one consistent point; reads the source."""
        from ingestion.verify import reconcile_raw

        wanted = [f"{source}.{table}" for table in tables]
        return list(reconcile_raw(self.settings(), self.declarations(), wanted, session=spark.spark_session))

    def verify_erasures(self, source: str, table: str) -> "Look":
        """Looks for erased subjects of a table, in every object of all tables that held them."""
        from erasure.run import verify

        settings = self.settings()
        return verify(settings, load_manifest(settings), self.declarations().source(source).table(table))

    def source_status(self, source: str) -> "SourceStatus":
        """Follower, slot and position; no Spark."""
        from ingestion import source_status

        return source_status(self.settings(), source)

    def newest_snapshots(self, tables: Iterable[TableKey]) -> dict[str, "SnapshotFact"]:
        """The newest data snapshot of each table that has one, by `namespace.table`."""
        from lakehouse.catalog.open import newest_data_snapshot, open_catalog

        with closing(open_catalog(self.settings())) as catalog:
            facts = {".".join(table): newest_data_snapshot(catalog, *table) for table in tables}
        return {table: fact for table, fact in facts.items() if fact is not None}

    def absent(self, tables: Iterable[TableKey]) -> list[TableKey]:
        """Those of the tables that were never made."""
        from lakehouse.catalog.open import load_table, open_catalog

        with closing(open_catalog(self.settings())) as catalog:
            return [table for table in tables if load_table(catalog, *table) is None]

    def maintain(
        self,
        action: str,
        tables: Sequence[str],
        group: str | None,
        spark: LazyPySparkResource,
        report: Callable[["Outcome"], None],
    ) -> "Result":
        """One maintenance action over the declared tables; Spark is started by the first table that needs it."""
        from maintenance.inventory.session import Session
        from maintenance.runner.run import run

        with closing(Session(self.settings(), start_spark=lambda: spark.spark_session)) as session:
            return run(session, [action], tables, group, report)

    def max_failed_share(self) -> float:
        """The declared share of failed tables above which a maintenance run fails."""
        return project_maintenance(self.settings().dbt_project_dir).max_failed_share

    def table_health(self) -> list[dict[str, Any]]:
        """How each maintained table is, and what is due: a line per table, those with the most to gain first."""
        from maintenance.inventory.session import Session
        from maintenance.planning.survey import survey

        with closing(Session(self.settings(), dry_run=True)) as session:
            return list(survey(session).as_dict()["tables"])

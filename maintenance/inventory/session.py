"""The connections that the actions of a run share, each opened at its first use.

Spark takes seconds to start, so a run that does not need it never starts it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar, cast

from lakehouse.catalog.file_io import open_io
from lakehouse.catalog.open import load_table, open_catalog
from lakehouse.catalog.relations import LISTED
from lakehouse.errors import LakehouseError
from lakehouse.servers.database import CatalogConnection, unreachable
from lakehouse.servers.outage import UP
from lakehouse.servers.spark import spark_session
from lakehouse.servers.trino import answering, query
from lakehouse.settings import Settings
from lakehouse.text.sql import spark_ident
from maintenance.inventory.cuts import snapshots_of_cuts
from maintenance.inventory.lake import Lake, read_lake
from maintenance.inventory.outcome import TableName, one_line

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.io.pyarrow import PyArrowFileIO
    from pyiceberg.table import Table
    from pyspark.sql import SparkSession

T = TypeVar("T")
FEW_FILES = 20_000
DATA = sys.maxsize  # for work on data: the session as it is configured
# Measured: on a small table a procedure's cost is mostly planning, compiling and scheduling; these save a third.
LEAN = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.leafNodeDefaultParallelism": "1",
}


class Session:
    """Catalog, object store, Spark and Trino of one maintenance run; safe to use from several threads."""

    def __init__(
        self, settings: Settings, dry_run: bool = False, start_spark: Callable[[], SparkSession] | None = None
    ) -> None:
        """`start_spark` returns the Spark session at its first use, such as Dagster's; by default the process's."""
        self.settings = settings
        self._start_spark = start_spark or (lambda: spark_session(settings, "lakehouse-maintenance"))
        self.dry_run = dry_run
        self.locks: dict[TableName, CatalogConnection] = {}  # by table that is locked, the connection that holds it
        self._shared: dict[str, Any] = {}
        self._lock = threading.RLock()

    @property
    def catalog(self) -> SqlCatalog:
        """The Iceberg catalog."""
        return self.once("catalog", lambda: _open_catalog(self.settings))

    @property
    def now(self) -> datetime:
        """When the run first asked for the time, by the clock of the catalog's database: a machine whose clock is ahead
        would delete for good what is new, and end pins."""
        return self.once("now", lambda: _clock(self.catalog))

    @property
    def io(self) -> PyArrowFileIO:
        """The object store."""
        return open_io(self.settings)

    def check(self) -> None:
        """Raises LakehouseError if the catalog or the object store does not answer."""
        scheme, authority, path = self.io.parse_location(self.settings.warehouse, self.io.properties)
        _ = self.catalog
        try:
            self.io.fs_by_scheme(scheme, authority).get_file_info(path.strip("/"))
        except OSError as error:
            store = f"object store {self.settings.s3.endpoint or 'AWS'}"
            remedy = f"check LAKEHOUSE_S3__ENDPOINT and its keys, {UP}"
            raise LakehouseError(f"{store}: {one_line(error)}; {remedy}") from None

    def load(self, name: TableName) -> Table | None:
        """The table's current state; None if it is not in the lake."""
        return load_table(self.catalog, *name)

    def lake(self) -> Lake:
        """All objects and tables, listed once; `forget_lake` makes the next call list them again."""
        return self.once("lake", lambda: read_lake(self.catalog, self.io, self.settings.warehouse))

    def forget_lake(self) -> None:
        """Drops the listing and what was derived from it, because an action may have changed the lake."""
        with self._lock:
            for part in [name for name in self._shared if name.startswith("lake")]:
                del self._shared[part]

    def refresh(self, name: TableName) -> None:
        """Reloads the table in the listing. Objects were listed before, which is the safe order."""
        if (lake := self._shared.get("lake")) is not None and (table := self.load(name)) is not None:
            lake.refresh(name, table)

    def ago(self, hours: float) -> datetime:
        """The time `hours` before `now`."""
        return self.now - timedelta(hours=hours)

    def snapshots_of_cuts(self, table: TableName, hours: float, *, of_now: bool = True) -> frozenset[int]:
        """Snapshots of a raw table or a mirror in the cuts that were the newest at some moment of the last `hours`.

        Without `of_now` those of the run's first look, which is enough where nothing is removed by them.
        """
        prefix, _, source = table.namespace.partition("_")
        layer = next((known for known in LISTED if known == prefix), None)
        if layer is None:
            return frozenset()
        since = self.ago(hours)
        name = f"cuts:{table.namespace}:{hours}"
        before = self.once(name, lambda: snapshots_of_cuts(self.catalog, source, since, layer))
        if not of_now:
            return before.get(table, frozenset())
        meanwhile = snapshots_of_cuts(self.catalog, source, self.now, layer)  # published during the run
        return before.get(table, frozenset()) | meanwhile.get(table, frozenset())

    def spark(self, files: int) -> SparkSession:
        """The Spark session, started at the first call; a lean one if only few `files` are planned over."""
        base = self.once("spark", self._start_spark)
        return base if files > FEW_FILES else self.once("lean_spark", lambda: _lean(base, self.settings))

    def call(self, procedure: str, arguments: str, files: int) -> list[Any]:
        """Runs an Iceberg procedure in the session for this number of files; see `spark`."""
        statement = f"CALL {spark_ident(self.settings.catalog_name)}.system.{procedure}({arguments})"
        return self.spark(files).sql(statement).collect()

    def trino(self, statement: str) -> list[list[Any]]:
        """Runs one statement in Trino; raises LakehouseError when Trino cannot be reached."""
        with answering(self.settings):
            return query(self.settings, statement)

    def close(self) -> None:
        """Closes the catalog; the Spark session belongs to the process and stays."""
        if catalog := self._shared.pop("catalog", None):
            catalog.close()

    def once(self, name: str, make: Callable[[], T]) -> T:
        if name not in self._shared:  # checked first without the lock: no thread waits for another's Spark
            with self._lock:
                if name not in self._shared:
                    self._shared[name] = make()
        return cast(T, self._shared[name])


def _clock(catalog: SqlCatalog) -> datetime:
    from sqlalchemy import func, select

    with catalog.engine.connect() as connection:
        moment: datetime = connection.execute(select(func.clock_timestamp())).scalar_one()
    return moment.astimezone(UTC)


def _open_catalog(settings: Settings) -> SqlCatalog:
    from sqlalchemy.exc import OperationalError

    catalog = open_catalog(settings)
    try:
        catalog.engine.connect().close()
    except OperationalError as error:
        raise unreachable(error.orig) from None
    return catalog


def _lean(base: SparkSession, settings: Settings) -> SparkSession:
    session = base.newSession()
    # Loads the catalog now: from a worker thread Iceberg's Java API would not find its classes.
    session.sql(f"SET CATALOG {spark_ident(settings.catalog_name)}")
    for key, value in LEAN.items():
        session.conf.set(key, value)
    return session

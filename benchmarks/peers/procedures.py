"""Other engines' table maintenance: the procedures of Spark and Trino."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from lakehouse.servers.trino import query
from lakehouse.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Actions = Iterator[tuple[str, Callable[[], object]]]


def spark_procedures(session: SparkSession, catalog: str, table: str) -> Actions:
    """Spark's procedures with their defaults: snapshots expire after five days, orphans after three."""
    procedures = {
        "rewrite_data_files": "",
        "rewrite_manifests": "",
        "expire_snapshots": "",
        "remove_orphan_files": ", prefix_listing => true",  # the default listing needs Hadoop's S3 client
    }
    for name, arguments in procedures.items():
        statement = f"CALL {catalog}.system.{name}(table => '{table}'{arguments})"
        yield name, partial(_collect, session, statement)


def trino_procedures(settings: Settings, table: str, snapshot_days: int, orphan_days: int) -> Actions:
    """Trino's procedures with this retention; the default is seven days for both."""
    yield "optimize", partial(query, settings, f"ALTER TABLE {table} EXECUTE optimize")
    for name, days in (("expire_snapshots", snapshot_days), ("remove_orphan_files", orphan_days)):
        yield name, partial(query, settings, f"ALTER TABLE {table} EXECUTE {name}(retention_threshold => '{days}d')")


def _collect(session: SparkSession, statement: str) -> None:
    session.sql(statement).collect()

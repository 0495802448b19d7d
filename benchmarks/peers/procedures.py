"""What others call on a table every night: Spark's procedures and Trino's, each with its name."""

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
    """With their defaults: snapshots older than five days go, orphans older than three."""
    procedures = {
        "rewrite_data_files": "",
        "rewrite_manifests": "",
        "expire_snapshots": "",
        "remove_orphan_files": ", prefix_listing => true",  # its other way of listing needs Hadoop's S3 client
    }
    for name, arguments in procedures.items():
        statement = f"CALL {catalog}.system.{name}(table => '{table}'{arguments})"
        yield name, partial(_collect, session, statement)


def trino_procedures(settings: Settings, table: str, snapshot_days: int, orphan_days: int) -> Actions:
    """With the retention given; by default Trino keeps seven days of both."""
    yield "optimize", partial(query, settings, f"ALTER TABLE {table} EXECUTE optimize")
    for name, days in (("expire_snapshots", snapshot_days), ("remove_orphan_files", orphan_days)):
        yield name, partial(query, settings, f"ALTER TABLE {table} EXECUTE {name}(retention_threshold => '{days}d')")


def _collect(session: SparkSession, statement: str) -> None:
    session.sql(statement).collect()

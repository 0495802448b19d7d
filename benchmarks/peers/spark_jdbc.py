"""Copies a table to Iceberg with Spark's JDBC source, in one partition per core."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from benchmarks.workloads import SOURCE
from lakehouse.settings import Settings
from lakehouse.text.urls import parse_url

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DOES = "reads the table in partitions by id and writes Iceberg; no metadata columns, no tie to the stream"


def copy_table(settings: Settings, session: SparkSession, table: str, rows: int) -> None:
    """Replaces `meta.bench_copy` with a copy of the table."""
    url = parse_url(settings.source(SOURCE).url.get_secret_value())
    options = {
        "url": url.jdbc(), "user": url.user, "password": url.password, "dbtable": f"public.{table}",
        "driver": "org.postgresql.Driver", "fetchsize": "10000", "partitionColumn": "id", "lowerBound": "1",
        "upperBound": str(rows), "numPartitions": str(os.cpu_count()),
    }  # fmt: skip
    frame = session.read.format("jdbc").options(**options).load()
    frame.writeTo(f"{settings.catalog_name}.meta.bench_copy").using("iceberg").createOrReplace()

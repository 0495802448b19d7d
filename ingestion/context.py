"""What the steps of a cycle share: the writer of one source, and its plans for Spark tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import psycopg
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from ingestion import state
from ingestion.describe import TableFacts
from ingestion.lease import Lease
from ingestion.publish import TableAppend
from ingestion.raw_tables import lake_name, source_type
from ingestion.rows import TableTarget, TargetColumn
from ingestion.source import source_url
from ingestion.writer import Written, staged_prefix, writable_metadata
from lakehouse.catalog import file_io_properties
from lakehouse.declarations import RawTable, Source
from lakehouse.settings import IngestionSettings, Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Connection = psycopg.Connection[Any]
RowCounts = dict[str, dict[str, int]]


@dataclass(frozen=True)
class Writer:
    """Everything a cycle works with; holds the lease of its source."""

    settings: Settings
    catalog: SqlCatalog
    session: SparkSession
    lease: Lease
    source: Source

    @property
    def name(self) -> str:
        """The source's name."""
        return self.source.name

    @property
    def limits(self) -> IngestionSettings:
        """Sizes and times of ingestion."""
        return self.settings.ingestion

    @property
    def slot(self) -> str:
        """Name of the replication slot."""
        return self.settings.source(self.name).slot or f"lakehouse_{self.name}"

    @property
    def publication(self) -> str:
        """Name of the publication."""
        return self.settings.source(self.name).publication

    @property
    def task_settings(self) -> dict[str, Any]:
        """What every task needs to reach source and warehouse. Holds secrets."""
        return {
            "source": self.name,
            "url": source_url(self.settings.source(self.name)),
            "io_properties": file_io_properties(self.settings),
            "batch_bytes": self.limits.batch_bytes,
            "file_bytes": self.limits.file_bytes,
        }


@dataclass(frozen=True)
class Cycle:
    """The identity of one publish: its id, the incarnation of the source, and the catalog's time at its start."""

    id: str
    epoch: int
    ingested_at: datetime


def target(table: RawTable, iceberg: Table, facts: TableFacts, cycle: Cycle, from_lsn: int) -> TableTarget:
    """How a task writes one raw table; rows of transactions below `from_lsn` are there already."""
    columns = tuple(
        TargetColumn(
            source_name=column.name,
            lake_name=lake_name(table, column.name),
            type=source_type(column),
            stream_oid=column.stream_oid,
            stream_typmod=column.stream_typmod,
            mask=table.raw.mask.get(column.name),
        )
        for column in facts.columns
    )
    return TableTarget(
        name=table.name,
        relation=table.relation,
        metadata_json=writable_metadata(iceberg.metadata, cycle.id),
        columns=columns,
        excluded=frozenset(table.raw.exclude),
        key=table.key,
        policy=table.raw.on_unrepresentable,
        from_lsn=from_lsn,
        epoch=cycle.epoch,
        ingested_at=cycle.ingested_at,
    )


def register(states: Connection, writer: Writer, cycle: Cycle, tables: Iterable[Table]) -> None:
    """Names the prefixes the cycle is about to write."""
    prefixes = [staged_prefix(table.location(), cycle.id) for table in tables]
    state.register_staged(states, cycle.id, writer.name, prefixes)


def append_of(writer: Writer, cycle: Cycle, written: Written) -> TableAppend:
    """The files of one table, with the counts that its snapshot's summary carries."""
    counted = {f"lakehouse.rows.{op}": str(count) for op, count in sorted(written.operations.items())}
    odd = {f"lakehouse.unrepresentable.{column}": str(n) for column, n in sorted(written.unrepresentable.items())}
    summary = {"lakehouse.cycle": cycle.id, **counted, **odd}
    return TableAppend(written.name, (f"raw_{writer.name}", written.name), written.files, summary)


def merge(parts: Iterable[Written]) -> dict[str, Written]:
    """The parts of each table as one."""
    merged: dict[str, Written] = {}
    for part in parts:
        seen = merged.get(part.name, Written(part.name, (), {}, {}))
        merged[part.name] = Written(
            part.name,
            seen.files + part.files,
            dict(Counter(seen.operations) + Counter(part.operations)),
            dict(Counter(seen.unrepresentable) + Counter(part.unrepresentable)),
        )
    return merged

"""What the steps of a cycle share: the session of one source, and its plans for Spark tasks."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from threading import Event
from typing import TYPE_CHECKING, Any

from pyiceberg.expressions import BooleanExpression
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from ingestion.pipeline.held import Held
from ingestion.schema.declared_columns import may_share_keys
from ingestion.schema.facts import TableFacts
from ingestion.schema.positions import Position
from ingestion.sink.irregular import ROWS
from ingestion.sink.meta_tables import ensure_meta
from ingestion.sink.publication import Publication, TableAppend
from ingestion.sink.raw_tables import keyed_as_declared
from ingestion.sink.rows import TableTarget
from ingestion.sink.writer import Written, staged_prefix, writable_metadata
from ingestion.sources.base import Source
from ingestion.sources.kinds import source_of
from ingestion.state import lease as leases
from ingestion.state import store
from ingestion.state.claims import Turn
from ingestion.state.lease import Lease
from ingestion.state.transitions import Mover
from lakehouse.catalog.lake_catalog import LakeCatalog
from lakehouse.catalog.open import file_io_properties
from lakehouse.declarations import RawTable
from lakehouse.declarations import Source as Declared
from lakehouse.servers.database import CatalogConnection
from lakehouse.settings import IngestionSettings, Settings
from lakehouse.text.log_lines import about

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RowCounts = dict[str, dict[str, int]]


@dataclass(frozen=True)
class Session:
    """Everything a cycle works with; holds the lease of its source.

    `live` are the cycles now at work, `described` new tables as they were last inspected (`survey`), `passed` those
    that could not be loaded because the stream had passed their point; the next time the stream stands still while they
    are `registering`. Once `stop` is set, what can go on later is left for later. `origin` is the source itself;
    without it, one that waits for others' work as long as a command that is to end. `held` is what a follower has read
    and not published; None where every read is published. `turn` is what one that shares the source reads now.
    """

    settings: Settings
    catalog: LakeCatalog
    spark: SparkSession
    lease: Lease
    source: Declared
    live: set[str] = field(default_factory=set)
    described: dict[str, tuple[str, TableFacts]] = field(default_factory=dict)
    passed: set[str] = field(default_factory=set)
    registering: Event = field(default_factory=Event)
    stop: Event = field(default_factory=Event)
    origin: Source | None = None
    held: Held | None = None
    turn: Turn | None = None

    @property
    def name(self) -> str:
        """The source's name."""
        return self.source.name

    @property
    def limits(self) -> IngestionSettings:
        """Sizes and times of ingestion."""
        return self.settings.ingestion

    @property
    def upstream(self) -> Source:
        """The source itself."""
        return self.origin or source_of(self.settings, self.name, self.limits.wait_seconds, self.stop)

    def reached(self, stream: store.Stream) -> Position:
        """Up to where the stream has been read, published or held."""
        ahead = self.held.ahead if self.held else None
        reached: Position = stream.position if ahead is None else stream.position.join(ahead)
        return reached

    @property
    def reads(self) -> int:
        """How many reads have been held."""
        return self.held.reads if self.held else 0

    def flush_is_due(self, stream: store.Stream) -> bool:
        """Whether something is held that has to be published."""
        return self.held is not None and self.held.is_due(stream)

    def forget_held(self) -> None:
        """What is held is not published, but read again."""
        if self.held is not None and (cycle_id := self.held.clear()):
            self.live.discard(cycle_id)

    @property
    def task_settings(self) -> dict[str, Any]:
        """What every task needs to reach the warehouse. Holds secrets."""
        return {
            "source": self.name,
            "io_properties": file_io_properties(self.settings),
            "file_bytes": self.limits.file_bytes,
        }


@dataclass(frozen=True)
class Cycle:
    """The identity of one publish: its id, the incarnation of the source, and the catalog's time at its start.

    Rows carry that time, and a later cycle's is later, whatever the clock says.
    """

    id: str
    epoch: int
    ingested_at: datetime


def target(
    table: RawTable,
    iceberg: Table,
    facts: TableFacts,
    cycle: Cycle,
    from_lsn: int,
    versions: tuple[TableFacts, ...] = (),
    seen: TableFacts | None = None,
    *,
    is_there: bool = True,
) -> TableTarget:
    """How a task writes one raw table; records of transactions below `from_lsn` are accounted for already."""
    return TableTarget(
        source=table.source,
        name=table.name,
        metadata_json=writable_metadata(iceberg, cycle.id),
        columns=facts.columns,
        versions=versions or (facts,),
        excluded=frozenset(table.raw.exclude),
        mask=dict(table.raw.mask),
        key=table.key,
        policy=table.raw.on_unrepresentable,
        from_lsn=from_lsn,
        epoch=cycle.epoch,
        ingested_at=cycle.ingested_at,
        shares_keys=may_share_keys(table, versions or (facts,)),
        updates=table.raw.changes == "all",
        seen=seen,
        is_there=is_there,
    )


@contextmanager
def begin_cycle(
    session: Session, states: CatalogConnection, epoch: int, cycle_id: str | None = None
) -> Iterator[Cycle]:
    """A new cycle, or a further read of the one whose reads are held. Its staged prefixes are spared until the `with`
    block ends, and longer while they are held."""
    held = session.held.ingested_at if session.held else None
    at = session.turn.at if session.turn else store.ingestion_clock(states, session.name, held)
    cycle = Cycle(cycle_id or uuid.uuid4().hex, epoch, at)
    session.live.add(cycle.id)
    try:
        with about(cycle=cycle.id):
            yield cycle
    finally:
        if session.held is None or session.held.cycle_id != cycle.id:
            session.live.discard(cycle.id)


def settle(session: Session, states: CatalogConnection, position: store.TablePosition, by: Mover) -> None:
    """Changes where a table stands without a publish; raises LeaseLost."""
    with states.transaction():
        leases.check(states, session.lease, session.limits.lease_seconds)
        store.put_position(states, session.name, position, by)
        store.revise(states, session.name)


def register(states: CatalogConnection, session: Session, cycle: Cycle, tables: Iterable[Table]) -> None:
    """Names the prefixes the cycle is about to write."""
    prefixes = [staged_prefix(table.location(), cycle.id) for table in tables]
    writer = session.lease.source if session.lease.group else ""
    store.register_staged(states, cycle.id, session.name, prefixes, session.live, writer)


def meta_metadata(session: Session, states: CatalogConnection, cycle: Cycle, *names: str) -> dict[str, str]:
    """What tasks need to write `meta` tables, whose prefixes are registered too."""
    tables = {name: ensure_meta(session.catalog, name) for name in names}
    register(states, session, cycle, tables.values())
    return {name: writable_metadata(table, cycle.id) for name, table in tables.items()}


def publication_of(session: Session, cycle: Cycle, appends: Iterable[TableAppend]) -> Publication:
    """What publishes the files of a cycle, and does nothing more: `replace` says what else."""
    return Publication(cycle.id, session.name, cycle.epoch, tuple(appends), cycle.ingested_at)


def append_of(session: Session, cycle: Cycle, written: Written) -> TableAppend:
    """The files of one table, with the counts that its snapshot's summary carries."""
    counted = {f"{ROWS}{op}": str(count) for op, count in sorted(written.operations.items())}
    replaced = {f"lakehouse.unrepresentable.{column}": str(n) for column, n in sorted(written.unrepresentable.items())}
    summary = {"lakehouse.cycle": cycle.id, **counted, **replaced}
    keyed = keyed_as_declared(session.source.table(written.name))
    return TableAppend((f"raw_{session.name}", written.name), written.files, summary, properties=keyed)


def appends_of(session: Session, cycle: Cycle, parts: Sequence[Written]) -> list[TableAppend]:
    """The files of several tables, and those of `meta.unrepresentable` that go with them."""
    replaced = tuple(file for part in parts for file in part.unrepresentable_files)
    return [append_of(session, cycle, part) for part in parts] + meta_appends(
        session, cycle, {"unrepresentable": replaced} if replaced else {}
    )


def meta_appends(
    session: Session,
    cycle: Cycle,
    files: Mapping[str, tuple[DataFile, ...]],
    leaving: Mapping[str, BooleanExpression] | None = None,
) -> list[TableAppend]:
    """The files of `meta` tables, and the rows that are `leaving` them."""
    leaving = leaving or {}
    summary = {"lakehouse.cycle": cycle.id, "lakehouse.source": session.name}
    return [
        TableAppend(("meta", name), files.get(name, ()), summary, leaving.get(name))
        for name in sorted(files.keys() | leaving.keys())
    ]


def total_rows(rows: RowCounts) -> int:
    """Rows of all tables and operations."""
    return sum(sum(operations.values()) for operations in rows.values())


def add_counts(left: RowCounts, right: RowCounts) -> RowCounts:
    """Sums rows by table and operation."""
    return {
        table: dict(Counter(left.get(table, {})) + Counter(right.get(table, {})))
        for table in left.keys() | right.keys()
    }

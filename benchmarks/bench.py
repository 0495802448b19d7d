"""The environment of all scenarios: a running stack, test tables, a warm Spark session, and measurements."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import psutil
import psycopg

from benchmarks.probe import Cost, measured, this_process
from benchmarks.workloads import SOURCE, create, declared, verify
from ingestion import bring_up, follow_sources
from ingestion.sources.postgres.setup import prepare
from ingestion.state import store
from lakehouse.declarations import Declarations
from lakehouse.servers.spark import spark_session
from lakehouse.settings import Settings
from lakehouse_stack.control.start_stop import running
from lakehouse_stack.home.config import SERVERS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass
class Measurement:
    """The runs of one contender in one unit, with CPU seconds per run and side, and notes.

    `plots` maps titles of the form `y by x` to points.
    """

    unit: str
    runs: list[float] = field(default_factory=list)
    cpu: list[dict[str, float]] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)
    plots: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    does: str = ""

    def add(self, value: float, cost: Cost | None = None) -> None:
        """Records one run."""
        self.runs.append(value)
        if cost is not None:
            self.cpu.append({name: round(seconds, 2) for name, seconds in cost.cpu.items()})

    def as_json(self) -> dict[str, Any]:
        """Runs, median and spread (the range in per cent of the median)."""
        middle = statistics.median(self.runs)
        spread = 100 * (max(self.runs) - min(self.runs)) / middle if middle else 0.0
        return {
            "unit": self.unit, "does": self.does, "runs": [_short(v) for v in self.runs], "median": _short(middle),
            "spread_percent": round(spread, 1), "cpu_seconds": self.cpu, "plots": self.plots, **self.notes,
        }  # fmt: skip


CAUGHT_UP = "SELECT lsn >= %s AND cut_tables @> %s FROM lakehouse.streams WHERE source = %s"
Results = dict[str, Measurement]


@dataclass
class Bench:
    """`scale` reduces the work (docs/benchmarks.md shows 1.0); `runs` is the number of runs per contender."""

    settings: Settings
    runs: int
    scale: float

    def rows(self, full: int) -> int:
        """The number of rows at this scale."""
        return max(1000, int(full * self.scale))

    @property
    def session(self) -> SparkSession:
        """The warm Spark session."""
        return spark_session(self.settings, "lakehouse-bench")

    @property
    def owner_url(self) -> str:
        """The libpq URL of the tables' owner."""
        owner = self.settings.source(SOURCE).owner_url
        assert owner is not None
        return owner.get_secret_value()

    @contextmanager
    def tables(
        self, *names: str, first_rows: tuple[str, ...] = ()
    ) -> Iterator[tuple[psycopg.Connection, Declarations]]:
        """Creates tables in the source and prepares them for ingestion; drops them at the end."""
        declarations = declared(dict.fromkeys(names, ("id",)))
        with psycopg.connect(self.owner_url, autocommit=True) as connection:
            try:
                for name in names:
                    connection.execute(create(name))
                for statement in first_rows:
                    connection.execute(statement)
                prepare(self.settings, declarations.sources[0])
                yield connection, declarations
            finally:
                for name in names:
                    connection.execute(f"DROP TABLE IF EXISTS {name}")

    def bring_up(self, declarations: Declarations) -> None:
        """Ingests everything that is committed in the source."""
        bring_up(self.settings, declarations, SOURCE, self.session)

    def verify(self, connection: psycopg.Connection, declarations: Declarations) -> None:
        """Raises LakehouseError if the lake differs from the source."""
        verify(self.settings, connection, *(table.name for table in declarations.sources[0].tables))

    @contextmanager
    def cost(
        self, *ingestion: psutil.Process, excluded: tuple[psutil.Process, ...] = (), memory: bool = False
    ) -> Iterator[Cost]:
        """Measures the block: CPU of source, object store and ingestion, and on request ingestion's memory.

        Ingestion is this process by default, without the stack's servers (its children too) and those `excluded`.
        """
        servers = {name: server for name in SERVERS if (server := running(self.settings, name))}
        trees = {
            "source": (servers["sources"],),
            "ingestion": ingestion or (this_process(),),
            "store": (servers["s3"],),
        }
        with measured(trees, excluded=(*servers.values(), *excluded), memory_of="ingestion" if memory else "") as cost:
            yield cost

    @contextmanager
    def following(self, declarations: Declarations) -> Iterator[None]:
        """Runs a follower; enters the block when it has caught up."""
        with follower(self.settings, declarations):
            self.wait_for_follower(declarations)
            yield

    def wait_for_follower(self, declarations: Declarations) -> None:
        """Waits until a cut of all tables contains everything that is committed."""
        names = [table.name for table in declarations.sources[0].tables]
        with psycopg.connect(self.owner_url, autocommit=True) as connection:
            row = connection.execute("SELECT (pg_current_wal_flush_lsn() - '0/0')::bigint").fetchone()
        assert row is not None
        with store.connect_catalog(self.settings) as states:
            store.ensure_state(states)
            while states.execute(CAUGHT_UP, (row[0], names, SOURCE)).fetchone() != (True,):
                time.sleep(0.02)


@contextmanager
def follower(settings: Settings, declarations: Declarations) -> Iterator[None]:
    """Follows the declared sources during the block, as `lakehouse ingest --follow` does."""
    stop = threading.Event()
    arguments = (settings, declarations, [source.name for source in declarations.sources], stop)
    thread = threading.Thread(target=follow_sources, args=arguments, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _short(value: float) -> float:
    return round(value) if abs(value) >= 100 else round(value, 3)

"""Rows that were published and that nothing loads, whatever the reason: a worker that hangs keeps the sensors away.

Metadata only: a load leaves a snapshot in the parsed table, which is younger than those of raw that it has read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from lakehouse.catalog.open import ROWS, history, total
from lakehouse.servers.database import connect_catalog
from lakehouse.settings import Settings
from lakehouse_watch.alerts import Occasion
from lakehouse_watch.probes.limits import Loaded, declared_loads
from lakehouse_watch.probes.reading import Reading

if TYPE_CHECKING:
    from pyiceberg.table import Table

TRUNCATES = f"{ROWS}t"  # of an empty table they leave nothing in parsed
CUTS = "SELECT source, cut_tables FROM lakehouse.streams WHERE cut_lsn IS NOT NULL"


def read_loads(settings: Settings) -> Reading:
    """Sources with rows that wait longer than they may; nothing of tables that were never loaded, or are in no cut."""
    from lakehouse.catalog.derived import derived
    from lakehouse.catalog.open import open_catalog

    with connect_catalog(settings) as connection:
        cuts: dict[str, list[str]] = dict(connection.execute(CUTS).fetchall())
    loads = [load for load in declared_loads(settings) if load.raw[1] in cuts.get(load.source, ())]
    with closing(open_catalog(settings)) as catalog:
        arrivals = derived(catalog, [name for load in loads for name in (load.raw, load.parsed)], arrivals_of)
    waiting = {load: since for load in loads if (since := waiting_since(arrivals, load)) is not None}
    return Reading(tuple(judge(waiting, settings.alerts.load_seconds, datetime.now(UTC))))


class Arrival(NamedTuple):
    """A snapshot that added something: when, in milliseconds, and whether that were rows."""

    at: int
    has_rows: bool


def arrivals_of(table: Table) -> tuple[Arrival, ...]:
    """Those of a table, newest first; a compaction, which leaves the rows as they are, is none."""
    return tuple(
        Arrival(s.timestamp_ms, total(s, "added-records") > total(s, TRUNCATES))
        for s in history(table.metadata)
        if s.summary is not None and s.summary.operation.value in ("append", "overwrite")
    )


def waiting_since(arrivals: Mapping[tuple[str, str], Sequence[Arrival]], load: Loaded) -> datetime | None:
    """When the oldest rows were published that the parsed table has not been loaded with; None if it has all."""
    raw, parsed = arrivals.get(load.raw), arrivals.get(load.parsed)
    if raw is None or not parsed:
        return None
    late = [arrival.at for arrival in raw if arrival.at > parsed[0].at and arrival.has_rows]
    return datetime.fromtimestamp(min(late) / 1000, tz=UTC) if late else None


def judge(waiting: Mapping[Loaded, datetime], usual: float, now: datetime) -> Iterator[Occasion]:
    """One for each source with rows that wait too long."""
    late = {load: since for load, since in waiting.items() if (now - since).total_seconds() > _limit(load, usual)}
    for source in sorted({load.source for load in late}):
        mine = {load: since for load, since in late.items() if load.source == source}
        minutes = (now - min(mine.values())).total_seconds() / 60
        yield Occasion(
            f"freshness/{source}",
            f"rows of {_names([load.raw[1] for load in mine])} of {source} were published {minutes:,.0f} minutes ago,"
            " and nothing has loaded them",
            "see what `lakehouse worker` logs and whether it hangs: end it, and sensors start runs; without a worker,"
            " see that Dagster's daemon runs and that the sensors are on", source=source,
        )  # fmt: skip


def _limit(load: Loaded, usual: float) -> float:
    limits = [*([usual] if load.by_sensor else []), *([load.declared] if load.declared is not None else [])]
    return min(limits, default=float("inf"))


def _names(tables: Sequence[str]) -> str:
    names = sorted(tables)
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")

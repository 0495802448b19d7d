"""Rows that were published and that nothing loads, whatever the reason: a worker that hangs keeps the sensors away.

Metadata only: a load leaves a snapshot in the parsed table, which is younger than those of raw that it has read. So are
some that it has not, of rows that were published while it ran. Where a source is quiet since, the bounds of the columns
tell: a row of parsed has the moment at which its row of raw was published.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from lakehouse.catalog.open import ERASURE, ROWS, history, total
from lakehouse.servers.database import connect_catalog
from lakehouse.settings import Settings
from lakehouse_watch.alerts import Occasion
from lakehouse_watch.probes.limits import Loaded, declared_loads
from lakehouse_watch.probes.reading import Reading

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table

    from lakehouse.catalog.lake_catalog import LakeCatalog

TRUNCATES = f"{ROWS}t"  # of an empty table they leave nothing in parsed
LOOKED_AT = 50  # tables at once of which bounds are read
FIRST_SECONDS = 12 * 3600.0  # for which a first load may be seen to lack: raw may have had rows long before
SECONDS = 10.0  # for bounds in one look: they are kept, so the next look goes on from there
CUTS = "SELECT source, cut_tables FROM lakehouse.streams WHERE cut_lsn IS NOT NULL"


def read_loads(settings: Settings) -> Reading:
    """Sources with rows that wait longer than they may; nothing of tables that are in no cut."""
    from lakehouse.catalog.derived import derived
    from lakehouse.catalog.open import open_catalog

    with connect_catalog(settings) as connection:
        cuts: dict[str, list[str]] = dict(connection.execute(CUTS).fetchall())
    loads = [load for load in declared_loads(settings) if load.raw[1] in cuts.get(load.source, ())]
    usual, now = settings.alerts.load_seconds, datetime.now(UTC)
    with closing(open_catalog(settings)) as catalog:
        arrivals = derived(catalog, [name for load in loads for name in (load.raw, load.parsed)], arrivals_of)
        waiting = {load: since for load in loads if (since := waiting_since(arrivals, load)) is not None}
        quiet = [load for load in loads if load not in waiting and is_quiet(arrivals, load, usual, now)]
        waiting |= passed_over(catalog, quiet)
        first = never_loaded(catalog, [load for load in loads if awaits_first(arrivals, load)])
    return Reading(tuple(judge({**waiting, **first}, usual, now, first.keys())))


class Arrival(NamedTuple):
    """A snapshot that is no rewrite: when, in milliseconds, and whether it brought rows, or truncates alone."""

    at: int
    has_rows: bool
    only_truncates: bool


def arrivals_of(table: Table) -> tuple[Arrival, ...]:
    """Those of a table, newest first; a compaction or an erasure, which brings no row, is none."""
    return tuple(
        Arrival(s.timestamp_ms, added > truncates, added == truncates > 0)
        for s in history(table.metadata)
        if s.summary is not None
        and s.summary.operation.value in ("append", "overwrite")
        and ERASURE not in s.summary.additional_properties
        for added, truncates in [(total(s, "added-records"), total(s, TRUNCATES))]
    )


def waiting_since(arrivals: Mapping[tuple[str, str], Sequence[Arrival]], load: Loaded) -> datetime | None:
    """When the oldest rows were published after the parsed table was last loaded; None if none were."""
    raw, parsed = arrivals.get(load.raw), arrivals.get(load.parsed)
    if raw is None or not parsed:
        return None
    late = [arrival.at for arrival in raw if arrival.at > parsed[0].at and arrival.has_rows]
    return datetime.fromtimestamp(min(late) / 1000, tz=UTC) if late else None


def awaits_first(arrivals: Mapping[tuple[str, str], Sequence[Arrival]], load: Loaded) -> bool:
    """Whether there is no parsed table; one whose snapshots are all of erasures and compactions was loaded before."""
    return bool(arrivals.get(load.raw)) and load.parsed not in arrivals


def is_quiet(arrivals: Mapping[tuple[str, str], Sequence[Arrival]], load: Loaded, usual: float, now: datetime) -> bool:
    """Whether no rows have come for so long that any which were not loaded are to be told."""
    raw = arrivals.get(load.raw)
    if raw is None or load.parsed not in arrivals:
        return False
    newest = next((arrival for arrival in raw if arrival.has_rows or arrival.only_truncates), None)
    return newest is None or (newest.has_rows and now.timestamp() - newest.at / 1000 > _limit(load, usual))


def passed_over(catalog: LakeCatalog, quiet: Sequence[Loaded]) -> dict[Loaded, datetime]:
    """When the newest rows of raw were published, of the tables whose parsed table lacks them."""
    from lakehouse.catalog.derived import derived

    found, begun = {}, time.monotonic()
    for at in range(0, len(quiet), LOOKED_AT):
        if time.monotonic() - begun > SECONDS:
            break
        some = quiet[at : at + LOOKED_AT]
        published = derived(catalog, [load.raw for load in some], published_until)
        loaded = derived(catalog, [load.parsed for load in some], loaded_until)
        for load in some:
            newest, known = published.get(load.raw), loaded.get(load.parsed)
            if newest is not None and known is not None and newest > known:
                found[load] = datetime.fromtimestamp(newest / 1000, tz=UTC)
    return found


def never_loaded(catalog: LakeCatalog, loads: Sequence[Loaded]) -> dict[Loaded, datetime]:
    """When the oldest rows of raw were published, of tables whose first load never began, or never ended."""
    from lakehouse.catalog.derived import derived

    published = derived(catalog, [load.raw for load in loads], published_since) if loads else {}
    known = {load: published.get(load.raw) for load in loads}
    return {load: datetime.fromtimestamp(at / 1000, tz=UTC) for load, at in known.items() if at is not None}


def published_since(raw: Table) -> int | None:
    """When the oldest row came that is no truncate, in milliseconds; None where a file does not tell. Snapshots do not:
    those of a busy table are kept for minutes."""
    bounds = _bounds(raw, "_ingested_at", lambda file: file.lower_bounds)
    return min(bounds) if bounds else None


def published_until(raw: Table) -> int | None:
    """When the newest row came that is no truncate, in milliseconds; None where a file does not tell."""
    return _newest(raw, "_ingested_at")


def loaded_until(parsed: Table) -> int | None:
    """The same of the rows of raw that it was loaded with."""
    return _newest(parsed, "_loaded_at")


def _newest(table: Table, column: str) -> int | None:
    bounds = _bounds(table, column, lambda file: file.upper_bounds)
    return max(bounds) if bounds else None


def _bounds(table: Table, column: str, of: Callable[[DataFile], Mapping[int, bytes] | None]) -> list[int]:
    """A bound of a column of moments in each file, in milliseconds; none where a file does not tell."""
    from pyiceberg.conversions import from_bytes
    from pyiceberg.manifest import ManifestContent
    from pyiceberg.types import TimestamptzType

    snapshot, schema = table.current_snapshot(), table.schema()
    if snapshot is None or column not in schema.column_names:
        return []
    field, bounds = schema.find_field(column).field_id, list[bytes | None]()
    for manifest in snapshot.manifests(table.io):
        if manifest.content == ManifestContent.DATA:
            files = (entry.data_file for entry in manifest.fetch_manifest_entry(table.io))
            bounds += [(of(file) or {}).get(field) for file in files if not _only_truncates(file, schema)]
    known = [bound for bound in bounds if bound is not None]
    return [int(from_bytes(TimestamptzType(), b)) // 1000 for b in known] if len(known) == len(bounds) else []


def _only_truncates(file: DataFile, schema: Schema) -> bool:
    if "_op" not in schema.column_names or not file.lower_bounds or not file.upper_bounds:
        return False
    op = schema.find_field("_op").field_id
    return file.lower_bounds.get(op) == file.upper_bounds.get(op) == b"t"


def judge(
    waiting: Mapping[Loaded, datetime], usual: float, now: datetime, first: Collection[Loaded] = ()
) -> Iterator[Occasion]:
    """One for each source with rows that wait too long. Where they wait for the `first` load of their tables alone, it
    is told once it has been seen for hours: such a load is long, and a model may be younger than the rows."""
    late = {load: since for load, since in waiting.items() if (now - since).total_seconds() > _limit(load, usual)}
    for source in sorted({load.source for load in late}):
        mine = {load: since for load, since in late.items() if load.source == source}
        loaded = {load: since for load, since in mine.items() if load not in first}
        patience, mine = (0.0, loaded) if loaded else (FIRST_SECONDS, mine)
        minutes = (now - min(mine.values())).total_seconds() / 60
        yield Occasion(
            f"freshness/{source}",
            f"rows of {_names([load.raw[1] for load in mine])} of {source} were published {minutes:,.0f} minutes ago,"
            " and nothing has loaded them",
            "see what `lakehouse worker` logs and whether it hangs: end it, and sensors start runs; without a worker,"
            " see that Dagster's daemon runs and that the sensors are on", source=source, patience=patience,
        )  # fmt: skip


def _limit(load: Loaded, usual: float) -> float:
    limits = [*([usual] if load.by_sensor else []), *([load.declared] if load.declared is not None else [])]
    return min(limits, default=float("inf"))


def _names(tables: Sequence[str]) -> str:
    names = sorted(tables)
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")

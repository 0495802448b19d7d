"""What the page asks: the watch's probes, the catalog's database for cycles, and Trino, as a reader, for charts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import wait
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from typing import Any, LiteralString

import psycopg
import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from lakehouse.errors import LakehouseError
from lakehouse.servers.database import connect_catalog
from lakehouse.settings import Settings
from lakehouse.text.shown import shortened
from lakehouse_page.contents import AsideTable, Chart, Contents, LastCut, Noted, Number, contents
from lakehouse_page.questions import WITHIN, Question, shown
from lakehouse_watch.asking import Asking
from lakehouse_watch.probes.sources import what_to_do

FILE = "dashboard.yml"
MINUTES = 60
BARS = 30
SECONDS = 10.0  # for all charts together
CUTS = 10
CYCLES = 500  # of a source that are looked at; few publish without a cut, such as parts of a first load
LAST_CYCLES: LiteralString = """
SELECT stream.source, stream.kind, cycle.published_at, cycle.cut_lsn, cycle.rows FROM lakehouse.streams AS stream
CROSS JOIN LATERAL (
  SELECT published_at, cut_lsn, rows FROM lakehouse.cycles
  WHERE source = stream.source ORDER BY published_at DESC LIMIT %s) AS cycle
ORDER BY stream.source, cycle.published_at DESC
"""
ROWS_OF_MINUTES: LiteralString = """
SELECT source, greatest(0, floor(extract(epoch FROM clock_timestamp() - published_at) / 60))::int,
  CASE WHEN bool_and(rows IS NOT NULL) THEN sum(rows)::bigint END
FROM lakehouse.streams
CROSS JOIN LATERAL (
  SELECT published_at, rows FROM lakehouse.cycles
  WHERE cycles.source = streams.source
    AND published_at > clock_timestamp() - %(minutes)s * interval '1 minute') AS cycle
WHERE rows IS NULL OR rows > 0
GROUP BY 1, 2
"""
SOURCES: LiteralString = """
SELECT stream.source,
  EXISTS (
    SELECT FROM lakehouse.leases
    WHERE source = stream.source AND mode = 'follow' AND expires_at > clock_timestamp()),
  extract(epoch FROM clock_timestamp() - cut_at)::float8,
  coalesce((
    SELECT string_agg(tables || ' ' || state, ', ' ORDER BY state) FROM (
      SELECT state, count(*) AS tables FROM lakehouse.positions
      WHERE source = stream.source GROUP BY state) AS by_state), '')
FROM lakehouse.streams AS stream
"""
ASIDE: LiteralString = """
SELECT source, "table", state, reason FROM lakehouse.positions
WHERE state <> 'streaming' AND reason IS NOT NULL ORDER BY source, "table"
"""
Cycle = tuple[str, str, datetime, int | None, int | None]


class DeclaredChart(BaseModel):
    """A chart of `dashboard.yml`: a query whose first column names a bar, and whose second says how long it is."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    title: str
    sql: str


class Dashboard(BaseModel):
    """The whole of `dashboard.yml`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    charts: tuple[DeclaredChart, ...] = ()
    questions: tuple[Question, ...] = ()

    @model_validator(mode="after")
    def _each_has_a_place(self) -> Dashboard:
        slugs = Counter(question.slug for question in self.questions)
        if again := [slug for slug, count in slugs.items() if count > 1 or not slug]:
            raise ValueError(f"questions: two have the address {again[0]!r}, or one has none: change a title")
        return self


def ask(settings: Settings, asking: Asking) -> Contents:
    """The page of this moment; what cannot be read is among the occasions, or said by its chart. `asking` knows which
    charts are still being asked since the last time."""
    from lakehouse_watch.watch import new_watch

    watch = new_watch(settings)
    occasions = watch.peek()
    samples = [sample for reading in watch.readings.values() if reading for sample in reading.samples]
    now = datetime.now(UTC)
    try:
        declared, trouble = read_dashboard(settings), []
    except LakehouseError as error:
        declared, trouble = Dashboard(), [Chart(FILE, trouble=str(error))]
    charts = [*trouble, *answered(settings, declared.charts, asking)]
    known, sees_runs = from_catalog(settings), settings.dagster.storage_url is not None
    unread = {probe.source for probe in watch.probes if probe.source and watch.readings.get(probe.name) is None}
    noted = {source: said for source, said in known.noted.items() if source in unread}
    aside = [replace(table, reason=watch.hide(table.reason)) for table in known.aside]
    return contents(
        occasions, samples, known.rows, charts, now, declared.questions, known.cuts, sees_runs, noted, aside
    )


def read_dashboard(settings: Settings) -> Dashboard:
    """The project's charts; raises LakehouseError for a mistake in the file."""
    file = settings.project_dir / FILE
    try:
        return Dashboard.model_validate(yaml.safe_load(file.read_text()) or {}) if file.exists() else Dashboard()
    except yaml.YAMLError as error:
        raise LakehouseError(f"{file}: {shortened(' '.join(str(error).split()), 300)}") from None
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)
        said = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in found]
        raise LakehouseError(f"{file}: {shortened('; '.join(said), 300)}") from None


@dataclass(frozen=True)
class FromCatalog:
    """What the catalog's database has: rows per minute of each source, if it answers; the newest cuts; the sources;
    the tables in no cut."""

    rows: dict[str, list[int] | None] | None = None
    cuts: Sequence[LastCut] = ()
    noted: Mapping[str, Noted] = field(default_factory=dict)
    aside: Sequence[AsideTable] = ()


def from_catalog(settings: Settings) -> FromCatalog:
    """Empty while the catalog's database does not answer."""
    try:
        with connect_catalog(settings) as connection:
            minutes = connection.execute(ROWS_OF_MINUTES, {"minutes": MINUTES}).fetchall()
            cycles = connection.execute(LAST_CYCLES, (CYCLES,)).fetchall()
            noted = {source: Noted(*said) for source, *said in connection.execute(SOURCES).fetchall()}
            aside = connection.execute(ASIDE).fetchall()
    except (LakehouseError, psycopg.Error):
        return FromCatalog()
    return FromCatalog(rows_per_minute(minutes), last_cuts(cycles), noted, aside_tables(aside))


def aside_tables(found: Iterable[tuple[str, str, str, str]]) -> list[AsideTable]:
    """With what to do; of source, table, state, reason."""
    return [AsideTable(*each, what_to_do(f"{each[0]}.{each[1]}", each[2])) for each in found]


def rows_per_minute(minutes: Iterable[tuple[str, int, int | None]]) -> dict[str, list[int] | None]:
    """Rows that each source has published in each of the last minutes, oldest first; of source, minutes ago, rows.

    None where that is not known of a minute: an earlier release was at work then.
    """
    found: dict[str, list[int] | None] = {}
    for source, ago, rows in minutes:
        counted = found.setdefault(source, [0] * MINUTES)
        if counted is None or rows is None:
            found[source] = None
        else:
            counted[-1 - min(ago, MINUTES - 1)] += rows
    return found


def last_cuts(cycles: Iterable[Cycle]) -> list[LastCut]:
    """The newest cuts, each with the rows that came since the one before; a source's cycles are newest first.

    What was published without a cut, as a first load is, belongs to the next one. A release before 0.2.0 did not note
    how many they were.
    """
    cuts: dict[str, list[tuple[LastCut, list[int | None]]]] = {}
    for source, kind, at, lsn, rows in cycles:
        mine = cuts.setdefault(source, [])
        if lsn is not None:
            mine.append((LastCut(source, at.astimezone(UTC), _position(kind, lsn), None), []))
        if mine:
            mine[-1][1].append(rows)
    newest = sorted((made for mine in cuts.values() for made in mine), key=lambda made: made[0].at, reverse=True)
    return [replace(cut, rows=None if None in came else sum(filter(None, came))) for cut, came in newest[:CUTS]]


def _position(kind: str, lsn: int) -> str:
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}" if kind == "postgres" else str(lsn)


def answered(settings: Settings, charts: Sequence[DeclaredChart], asking: Asking) -> Iterator[Chart]:
    """The charts with their answers, within some seconds altogether: a Trino that hangs keeps nobody from the page.

    One whose answer comes later has it the next time, when it is asked anew for the time after that.
    """
    keys = [f"{number} {chart.title}" for number, chart in enumerate(charts)]
    late = {key: answer for key in keys if (answer := asking.late(key)) is not None}
    asked = {key: asking.begin(key, partial(_chart, settings, chart)) for key, chart in zip(keys, charts, strict=True)}
    wait([answer for key, answer in asked.items() if key not in late], SECONDS)
    for key, chart in zip(keys, charts, strict=True):
        later = Chart(chart.title, trouble="Trino has not answered yet: its answer comes with a later look")
        yield late.get(key) or asking.late(key) or later


def _chart(settings: Settings, chart: DeclaredChart) -> Chart:
    from trino.exceptions import TrinoQueryError

    from lakehouse.servers.trino import answering, query

    try:
        with answering(settings):
            rows = query(settings, chart.sql, role="reader", session=WITHIN)
        return Chart(chart.title, bars_of(rows[:BARS]), rest=len(rows[BARS:]))
    except (LakehouseError, TrinoQueryError, ValueError, TypeError) as error:
        said = error.message if isinstance(error, TrinoQueryError) else str(error)
        return Chart(chart.title, trouble=shortened(" ".join(said.split()), 300))


def bars_of(rows: Sequence[Sequence[Any]]) -> list[tuple[str, Number | None]]:
    """The bars of a chart, with the numbers as Trino has them; raises ValueError or TypeError for what is none."""
    return [(shown(label), _number(value)) for label, value, *_ in rows]


def _number(value: Any) -> Number | None:
    return value if value is None or isinstance(value, int | float | Decimal) else float(value)

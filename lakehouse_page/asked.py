"""What the page asks: the watch's probes, the catalog for rows per minute, and Trino, as a reader, for charts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, LiteralString, NamedTuple

import psycopg
import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from lakehouse.errors import LakehouseError
from lakehouse.servers.database import connect_catalog
from lakehouse.servers.outage import expected
from lakehouse.settings import Settings
from lakehouse_page.contents import Chart, Contents, LastCut, Number, contents
from lakehouse_page.questions import Question, shown

if TYPE_CHECKING:
    from pyiceberg.table import Table

FILE = "dashboard.yml"
MINUTES = 60
BARS = 30
CUTS = 10
CYCLES = 500  # of a source that are looked at; few publish without a cut, such as parts of a first load
LAST_CYCLES: LiteralString = """
SELECT stream.source, stream.kind, cycle.cycle_id, cycle.published_at, cycle.cut_lsn FROM lakehouse.streams AS stream
CROSS JOIN LATERAL (
  SELECT cycle_id, published_at, cut_lsn FROM lakehouse.cycles
  WHERE source = stream.source ORDER BY published_at DESC LIMIT %s) AS cycle
ORDER BY stream.source, cycle.published_at DESC
"""
Cycle = tuple[str, str, str, datetime, int | None]
Name = tuple[str, str]


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


def ask(settings: Settings) -> Contents:
    """The page of this moment; what cannot be read is among the occasions, or said by its chart."""
    from lakehouse_watch.watch import new_watch

    watch = new_watch(settings)
    occasions = watch.peek()
    samples = [sample for reading in watch.readings.values() if reading for sample in reading.samples]
    now = datetime.now(UTC)
    try:
        declared, trouble = read_dashboard(settings), []
    except LakehouseError as error:
        declared, trouble = Dashboard(), [Chart(FILE, trouble=str(error))]
    charts = [*trouble, *(_chart(settings, chart) for chart in declared.charts)]
    published = _published(settings)
    rows = None if published is None else rows_per_minute(published, now)
    cuts, sees_runs = _last_cuts(settings, published), settings.dagster.storage_url is not None
    unread = [probe.source for probe in watch.probes if probe.source and watch.readings.get(probe.name) is None]
    return contents(occasions, samples, rows, charts, now, declared.questions, cuts, sees_runs, unread)


def read_dashboard(settings: Settings) -> Dashboard:
    """The project's charts; raises LakehouseError for a mistake in the file."""
    file = settings.project_dir / FILE
    try:
        return Dashboard.model_validate(yaml.safe_load(file.read_text()) or {}) if file.exists() else Dashboard()
    except yaml.YAMLError as error:
        raise LakehouseError(f"{file}: {' '.join(str(error).split())[:300]}") from None
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)
        said = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in found]
        raise LakehouseError(f"{file}: {'; '.join(said)[:300]}") from None


class Published(NamedTuple):
    """What a cycle of ingestion published in a raw table: when, in milliseconds, and how many rows."""

    at: int
    rows: int
    cycle: str


def published_in(table: Table) -> tuple[Published, ...]:
    """What was published in a raw table, newest first."""
    from lakehouse.catalog.open import ROWS, history

    found = []
    for snapshot in history(table.metadata):
        said = snapshot.summary.additional_properties if snapshot.summary else {}
        rows = sum(int(value) for key, value in said.items() if key.startswith(ROWS))
        found.append(Published(snapshot.timestamp_ms, rows, said.get("lakehouse.cycle", "")))
    return tuple(found)


def rows_per_minute(published: Mapping[Name, Iterable[Published]], now: datetime) -> dict[str, list[int]]:
    """Rows that each source has published in each of the last minutes, oldest first."""
    found: dict[str, Counter[int]] = {}
    for (namespace, _), of_table in published.items():
        minutes = found.setdefault(namespace.removeprefix("raw_"), Counter())
        for each in of_table:
            ago = int((now - datetime.fromtimestamp(each.at / 1000, UTC)) / timedelta(minutes=1))
            if ago >= MINUTES:
                break
            minutes[max(0, ago)] += each.rows
    return {source: [minutes[ago] for ago in reversed(range(MINUTES))] for source, minutes in found.items()}


def _published(settings: Settings) -> dict[Name, tuple[Published, ...]] | None:
    """Of all raw tables; None while the catalog or the object store cannot be read."""
    from lakehouse.catalog.derived import derived
    from lakehouse.catalog.open import open_catalog
    from lakehouse.catalog.relations import list_relations

    try:
        with closing(open_catalog(settings)) as catalog:
            names = [(r.name.namespace, r.name.name) for r in list_relations(catalog) if r.kind == "table"]
            return derived(catalog, [name for name in names if name[0].startswith("raw_")], published_in)
    except Exception as error:
        if expected(error) is None:
            raise
        return None


def _last_cuts(settings: Settings, published: Mapping[Name, Iterable[Published]] | None) -> list[LastCut]:
    """The newest cuts of all sources; none while the catalog's database does not answer."""
    try:
        with connect_catalog(settings) as connection:
            return last_cuts(connection.execute(LAST_CYCLES, (CYCLES,)).fetchall(), published)
    except (LakehouseError, psycopg.Error):
        return []


def last_cuts(cycles: Iterable[Cycle], published: Mapping[Name, Iterable[Published]] | None) -> list[LastCut]:
    """The newest cuts, each with the rows that came since the one before, if `published` says so; a source's cycles are
    newest first.

    What was published without a cut, as a first load is, belongs to the next one.
    """
    rows: dict[str, Counter[Name]] = {}
    for name, of_table in (published or {}).items():
        for each in of_table:
            rows.setdefault(each.cycle, Counter())[name] += each.rows
    cuts: dict[str, list[tuple[LastCut, Counter[Name]]]] = {}
    for source, kind, cycle, at, lsn in cycles:
        mine = cuts.setdefault(source, [])
        if lsn is not None:
            mine.append((LastCut(source, at.astimezone(UTC), _position(kind, lsn), None, None), Counter()))
        if mine:
            mine[-1][1].update(rows.get(cycle, {}))
    newest = sorted((made for mine in cuts.values() for made in mine), key=lambda made: made[0].at, reverse=True)
    if published is None:
        return [cut for cut, _ in newest[:CUTS]]
    return [replace(cut, rows=came.total(), tables=sum(map(bool, came.values()))) for cut, came in newest[:CUTS]]


def _position(kind: str, lsn: int) -> str:
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}" if kind == "postgres" else str(lsn)


def _chart(settings: Settings, chart: DeclaredChart) -> Chart:
    from trino.exceptions import TrinoQueryError

    from lakehouse.servers.trino import answering, query

    try:
        with answering(settings):
            return Chart(chart.title, bars_of(query(settings, chart.sql, role="reader")))
    except (LakehouseError, TrinoQueryError, ValueError, TypeError) as error:
        said = error.message if isinstance(error, TrinoQueryError) else str(error)
        return Chart(chart.title, trouble=" ".join(said.split())[:300])


def bars_of(rows: Sequence[Sequence[Any]]) -> list[tuple[str, Number | None]]:
    """The bars of a chart, with the numbers as Trino has them; raises ValueError or TypeError for what is none."""
    return [(shown(label), _number(value)) for label, value, *_ in rows[:BARS]]


def _number(value: Any) -> Number | None:
    return value if value is None or isinstance(value, int | float | Decimal) else float(value)

"""What the page asks: the watch's probes, the catalog for rows per minute, and Trino, as a reader, for charts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from lakehouse.errors import LakehouseError
from lakehouse.servers.outage import expected
from lakehouse.settings import Settings
from lakehouse_page.contents import Chart, Contents, contents
from lakehouse_page.questions import Question

if TYPE_CHECKING:
    from pyiceberg.table.snapshots import Snapshot

FILE = "dashboard.yml"
MINUTES = 60
BARS = 30


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
    return contents(occasions, samples, _rows(settings, now), charts, now, declared.questions)


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


def _rows(settings: Settings, now: datetime) -> dict[str, list[int]]:
    """Rows that each source has published in each of the last minutes, oldest first."""
    from lakehouse.catalog.open import history, open_catalog
    from lakehouse.catalog.relations import list_relations

    try:
        with closing(open_catalog(settings)) as catalog:
            names = [(r.name.namespace, r.name.name) for r in list_relations(catalog) if r.kind == "table"]
            tables = catalog.load_tables([name for name in names if name[0].startswith("raw_")])
    except Exception as error:
        if expected(error) is None:
            raise
        return {}
    found: dict[str, Counter[int]] = {}
    for (namespace, _), table in tables.items():
        found.setdefault(namespace.removeprefix("raw_"), Counter()).update(_by_minute(history(table.metadata), now))
    return {source: [minutes[ago] for ago in reversed(range(MINUTES))] for source, minutes in found.items()}


def _by_minute(snapshots: Iterable[Snapshot], now: datetime) -> Counter[int]:
    """Rows by how many minutes ago they were published; snapshots are newest first."""
    from lakehouse.catalog.open import ROWS

    found = Counter[int]()
    for snapshot in snapshots:
        ago = int((now - datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC)) / timedelta(minutes=1))
        if ago >= MINUTES:
            break
        said = snapshot.summary.additional_properties if snapshot.summary else {}
        found[max(0, ago)] += sum(int(value) for key, value in said.items() if key.startswith(ROWS))
    return found


def _chart(settings: Settings, chart: DeclaredChart) -> Chart:
    from trino.exceptions import TrinoQueryError

    from lakehouse.servers.trino import answering, query

    try:
        with answering(settings):
            return Chart(chart.title, _bars(query(settings, chart.sql, role="reader")))
    except (LakehouseError, TrinoQueryError, ValueError, TypeError, IndexError) as error:
        said = error.message if isinstance(error, TrinoQueryError) else str(error)
        return Chart(chart.title, trouble=" ".join(said.split())[:300])


def _bars(rows: Sequence[Sequence[Any]]) -> list[tuple[str, float]]:
    return [(str(row[0]), float(row[1] or 0)) for row in rows[:BARS]]

"""`lakehouse samples`: creates the sample tables in the source databases."""

from dataclasses import asdict
from typing import Annotated

import typer

from lakehouse.errors import LakehouseError
from lakehouse.settings import load_settings
from lakehouse.text.shown import say, say_json
from lakehouse_samples.clicks import workload as clicks
from lakehouse_samples.database import owner_url
from lakehouse_samples.loading import SAMPLES, LoadReport, load


def load_samples(
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            help=f"Which samples: {', '.join(SAMPLES)}, or {clicks.SOURCE} of a stack with Kafka; "
            "default: all of this stack."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Load the sample databases as the owner of their tables, and the sample topic; existing ones are not changed."""
    settings = load_settings()
    wanted = sources or [*SAMPLES, *([clicks.SOURCE] if clicks.SOURCE in settings.sources else [])]
    if unknown := sorted(set(wanted) - {*SAMPLES, clicks.SOURCE}):
        raise LakehouseError(f"there is no sample {unknown[0]!r}: choose from {', '.join((*SAMPLES, clicks.SOURCE))}")
    urls = {source: owner_url(settings, source) for source in wanted if source in SAMPLES}
    reports: list[LoadReport | clicks.LoadReport] = [load(url, source) for source, url in urls.items()]
    if clicks.SOURCE in wanted:
        reports.append(clicks.load(settings))
    if as_json:
        say_json([asdict(report) for report in reports])
        return
    for report in reports:
        say(_line(report))


def _line(report: LoadReport | clicks.LoadReport) -> str:
    counts = ", ".join(f"{table} {rows:,}" for table, rows in report.rows.items())
    return f"{report.source}: {'loaded' if report.loaded else 'already there'} ({counts})"

"""`lakehouse prepare` and `lakehouse ingest`."""

import json
import logging
import signal
import sys
import threading
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from lakehouse.declarations import Declarations, load_declarations
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings, load_settings

Sources = Annotated[list[str] | None, typer.Argument(help="sources; all declared ones when left out")]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON for machines")]


def prepare(sources: Sources = None) -> None:
    """Set a source up: publication and rights, run as the owner where its URL is known, printed otherwise."""
    from ingestion.setup import prepare as prepare_source

    settings = load_settings()
    declarations = load_declarations(settings)
    for name in _chosen(settings, declarations, sources):
        statements, done = prepare_source(settings, declarations.source(name))
        print(f"-- source {name}: " + ("run as the owner" if done else "run these as the tables' owner"))
        for statement in statements:
            print(f"{statement};")


def ingest(
    sources: Sources = None,
    once: Annotated[bool, typer.Option("--once", help="bring the sources up to now, then end")] = False,
    follow: Annotated[bool, typer.Option("--follow", help="keep following until stopped")] = False,
    as_json: AsJson = False,
) -> None:
    """Bring committed changes into the raw layer."""
    if once == follow:
        raise typer.BadParameter("give either --once or --follow")
    settings = load_settings()
    declarations = load_declarations(settings)
    names = _chosen(settings, declarations, sources)
    if follow:
        _follow(settings, declarations, names)
    else:
        _once(settings, declarations, names, as_json)


def _once(settings: Settings, declarations: Declarations, names: list[str], as_json: bool) -> None:
    from ingestion import bring_up

    reports: list[dict[str, Any]] = []
    failures: list[LakehouseError] = []
    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        for name in names:
            task = progress.add_task(f"ingesting {name}")
            try:
                reports.append(asdict(bring_up(settings, declarations, name)))
            except LakehouseError as error:
                failures.append(error)
            progress.remove_task(task)
    if as_json:
        print(json.dumps(reports, default=str))
    else:
        for report in reports:
            _print_report(report)
    if failures:
        raise LakehouseError("; ".join(str(failure) for failure in failures))


def _print_report(report: dict[str, Any]) -> None:
    from ingestion.source import lsn_text

    print(f"{report['source']}: cut {lsn_text(report['cut_lsn'])} at {report['cut_at']:%Y-%m-%d %H:%M:%S %Z}")
    for table in report["tables"]:
        new = ", ".join(f"{op} {count:,}" for op, count in sorted(table["rows"].items())) or "nothing new"
        print(f"  {table['name']:<24} {table['total_rows']:>12,} rows   {new}")


def _follow(settings: Settings, declarations: Declarations, names: list[str]) -> None:
    from ingestion import follow_sources

    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    for chatty in ("py4j", "pyiceberg"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    follow_sources(settings, declarations, names, stop)


def _chosen(settings: Settings, declarations: Declarations, sources: list[str] | None) -> list[str]:
    names = [declarations.source(name).name for name in sources] if sources else [s.name for s in declarations.sources]
    for name in names:
        settings.source(name)
    if not names:
        raise LakehouseError("no source is declared: add one below dbt_project/models/sources/")
    return names

"""`lakehouse samples`: creates the sample tables in the source databases."""

from dataclasses import asdict
from enum import StrEnum
from typing import Annotated

import typer

from lakehouse.errors import LakehouseError
from lakehouse.files.atomic import write_atomically
from lakehouse.servers.embedded import refuse_namesake
from lakehouse.servers.kafka import client_properties
from lakehouse.settings import Settings, load_settings
from lakehouse.text.shown import say, say_json, waiting
from lakehouse_cli.source.scaffold import write_models
from lakehouse_samples.bank import debezium
from lakehouse_samples.clicks import workload as clicks
from lakehouse_samples.database import owner_url
from lakehouse_samples.loading import SAMPLES, LoadReport, load


class Through(StrEnum):
    """By what a sample comes to the lake, instead of by its slot."""

    debezium = "debezium"


def load_samples(
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            help=f"Which samples: {', '.join(SAMPLES)}, or {clicks.SOURCE} of a stack with Kafka; "
            "default: all of this stack."
        ),
    ] = None,
    through: Annotated[
        Through | None,
        typer.Option(
            help="Of `bank`: also have the connector of a stack with Kafka write its changes to topics, and declare "
            "these as the source `bank_topics`."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Load the sample databases as the owner of their tables, and the sample topic; existing ones are not changed."""
    settings = load_settings()
    if through is not None and (sources != ["bank"] or as_json):
        raise typer.BadParameter("--through debezium is for `bank` alone, and without --json")
    connect_url = _connect_url(settings) if through is not None else ""
    wanted = sources or [*SAMPLES, *([clicks.SOURCE] if clicks.SOURCE in settings.sources else [])]
    if unknown := sorted(set(wanted) - {*SAMPLES, clicks.SOURCE}):
        raise LakehouseError(f"there is no sample {unknown[0]!r}: choose from {', '.join((*SAMPLES, clicks.SOURCE))}")
    urls = {source: owner_url(settings, source) for source in wanted if source in SAMPLES}
    reports: list[LoadReport] = [load(url, source) for source, url in urls.items()]
    if clicks.SOURCE in wanted:
        reports.append(clicks.load(settings))
    if as_json:
        say_json([asdict(report) for report in reports])
        return
    for report in reports:
        say(_line(report))
    if through is not None:
        _through_debezium(settings, connect_url, urls["bank"])


def _connect_url(settings: Settings) -> str:
    from lakehouse_stack.control.inspect import connect_address
    from lakehouse_stack.home.config import SAMPLE_CONNECTOR

    found = connect_address(settings)
    if found is None or SAMPLE_CONNECTOR not in settings.sources:
        raise LakehouseError("Debezium runs in the Kafka Connect of the stack: run `lakehouse up --with kafka` first")
    refuse_namesake(settings, SAMPLE_CONNECTOR)
    return found


def _through_debezium(settings: Settings, connect_url: str, owner_url: str) -> None:
    from lakehouse_stack.home.config import SAMPLE_CONNECTOR as NAME
    from scaffold import declared_alone

    of = settings.debezium(NAME)
    file = settings.dbt_project_dir / "models" / "sources" / f"{NAME}.yml"
    with waiting("asking dbt for the declarations"):
        is_declared = NAME in {source.name for source in declared_alone(settings).sources}
        if not is_declared and file.exists():
            raise LakehouseError(f"{file}: does not declare the source {NAME}, and would be overwritten: rename it")
        new = {} if is_declared else {file: debezium.declaration(NAME, NAME)}
        declared = declared_alone(settings, new)
    debezium.publish(owner_url, settings.source("bank").url.get_secret_value(), NAME)
    debezium.make_topics(client_properties(of), NAME)
    with waiting("starting the connector"):
        is_new = debezium.connect(
            connect_url, owner_url, settings.source("bank").url.get_secret_value(), NAME, publication=NAME
        )
    say(f"connector {NAME}: {'streams' if is_new else 'was already there, and streams'}")
    for path, text in new.items():
        write_atomically(path, text)
        say(f"new     {path.relative_to(settings.dbt_project_dir)}")
    write_models(settings, declared, [NAME])
    say(f"then: `lakehouse simulate bank`, `lakehouse ingest --once {NAME}`, `lakehouse run load_{NAME}`")


def _line(report: LoadReport) -> str:
    counts = ", ".join(f"{table} {rows:,}" for table, rows in report.rows.items())
    return f"{report.source}: {'loaded' if report.loaded else 'already there'} ({counts})"

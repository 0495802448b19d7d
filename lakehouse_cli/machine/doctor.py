"""`lakehouse doctor`: everything that has to be right, a line each, with the remedy of what is not.

It decides nothing by itself: `prepare --check`, `upgrade --check`, `watch --once` and the clients of servers do.
"""

import platform
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple
from urllib.parse import urlsplit

import typer

from lakehouse.declarations import Declarations, load_declarations
from lakehouse.declarations.access.model_policies import policies_of
from lakehouse.declarations.checks.unread import unread_tables
from lakehouse.declarations.dbt.manifest import load_manifest
from lakehouse.declarations.dbt.project import project_pins
from lakehouse.errors import LakehouseError
from lakehouse.extras import installed, missing_extra
from lakehouse.migrations import refuse_former_state
from lakehouse.servers.embedded import is_sample
from lakehouse.servers.java import java_version, spark_java_home
from lakehouse.servers.logins import Role
from lakehouse.servers.outage import expected
from lakehouse.settings import Settings, load_settings
from lakehouse.text.shown import say, say_json

if TYPE_CHECKING:
    from ingestion.sources.postgres.setup import Server
    from lakehouse_watch.probes.reading import Probe

State = Literal["ok", "warning", "error"]
SAID = (("refused", "error"), ("parked", "error"), ("slot", "error"))  # what `prepare --check` says of a source as well


class Line(NamedTuple):
    """What was found of one thing; an error says its remedy in `remedy`, or at its end."""

    about: str
    state: State
    says: str
    remedy: str = ""


def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Check this machine, the servers, the sources and the pipeline, and name the remedy of what is wrong.

    Changes nothing in the lake and its sources. Exits 1 if there is an error; warnings alone are none.
    """
    from lakehouse_watch.targets.text import hider

    settings = load_settings()
    hidden, found = hider(settings), []
    for line in examine(settings):
        shown = line._replace(says=hidden(line.says), remedy=hidden(line.remedy))
        found.append(shown)
        if not as_json:
            text = ": ".join(filter(None, (shown.says, shown.remedy)))
            say(f"{shown.state:<8}{shown.about:<16}{text}", flush=True)
    if as_json:
        say_json([line._asdict() for line in found], indent=2)
    if any(line.state == "error" for line in found):
        raise typer.Exit(1)


def examine(settings: Settings) -> Iterator[Line]:
    """Every line; what needs the catalog is left out where there is none, or its state is of another release."""
    for about, look in (("python", _python), ("java", _java), ("ports", _ports)):
        yield from _looked(about, partial(look, settings))
    catalog = _looked("catalog", partial(_catalog, settings))
    yield from catalog
    answers = all(line.state != "error" for line in catalog)
    refused = _looked("release", partial(_state, settings)) if answers else []
    if answers:
        yield from refused or _looked("release", partial(_release, settings))
        store = _looked("object store", partial(_object_store, settings))
        yield from store
        if all(line.state != "error" for line in store):
            yield from _looked("warehouse", partial(_warehouse, settings))
        yield from _looked("trino", partial(_trino, settings))
    declared: list[Declarations] = []
    yield from _looked("declarations", partial(_declarations, settings, declared))
    said: set[Server] = set()
    for source in declared[0].sources if declared else ():
        yield from _looked(source.name, partial(_source, settings, declared[0], source.name, said))
    named = {source.name for source in declared[0].sources} if declared else set(settings.sources)
    unused = {name for name in settings.sources if name not in named and is_sample(settings, name)}
    yield from _watched(settings, answers and not refused, unused)


def _looked(about: str, look: Callable[[], Iterable[Line]]) -> list[Line]:
    """What was found, or why nothing could be."""
    try:
        return list(look())
    except Exception as error:
        return [Line(about, "error", missing_extra(error) or expected(error) or f"{type(error).__name__}: {error}")]


def _python(settings: Settings) -> Iterator[Line]:
    extras = ", ".join(installed()) or "none"
    python = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    yield Line("python", "ok", f"{python}; extras: {extras}")


def _java(settings: Settings) -> Iterator[Line]:
    home = spark_java_home(settings)
    yield Line("java", "ok", f"{java_version(home)} for Spark, in {home}")


def _ports(settings: Settings) -> Iterator[Line]:
    """Those that are set; `up` replaces one that it has chosen."""
    from lakehouse_stack.control.inspect import inspect
    from lakehouse_stack.home.config import SERVERS, stack_settings
    from lakehouse_stack.home.ports import plan_ports

    fixed = {name: port for name, port in stack_settings().fixed_ports().items() if name in SERVERS}
    ours = {server.name: server.port for server in inspect(settings) if server.pid and server.port}
    plan_ports(fixed, {}, fixed, ours)
    yield Line("ports", "ok", "those that are set are free, or ours" if fixed else "none is set: `up` chooses")


def _catalog(settings: Settings) -> Iterator[Line]:
    from lakehouse.servers.database import connect_catalog

    with connect_catalog(settings) as connection:
        server = connection.info
        yield Line("catalog", "ok", f"Postgres {server.server_version // 10_000} at {server.host}:{server.port}")


def _state(settings: Settings) -> Iterable[Line]:
    refuse_former_state(settings)
    return ()


def _release(settings: Settings) -> Iterator[Line]:
    from lakehouse_cli.machine.upgrade import planned

    lines = planned(settings)
    for line in lines:
        yield Line("release", "warning", line, "`lakehouse upgrade`")
    if not lines:
        yield Line("release", "ok", "what is stored is of this release")


def _object_store(settings: Settings) -> Iterator[Line]:
    from pyiceberg.io import load_file_io

    from lakehouse.catalog.open import file_io_properties

    place = urlsplit(settings.warehouse)
    bucket = f"{place.scheme}://{place.netloc}" if place.netloc else settings.warehouse
    if load_file_io(file_io_properties(settings), bucket).new_input(bucket).exists():
        yield Line("object store", "ok", f"{bucket} answers")
    else:
        yield Line("object store", "error", f"{bucket} does not exist", "create it, or correct LAKEHOUSE_WAREHOUSE")


def _warehouse(settings: Settings) -> Iterator[Line]:
    """Whether a backup would have the files of all tables."""
    from contextlib import closing

    from maintenance.inventory.lake import list_relations
    from maintenance.inventory.outside import outside
    from maintenance.inventory.session import Session

    with closing(Session(settings)) as session:
        relations = list_relations(session.catalog)
        found = list(outside(session.catalog, session.io, settings.warehouse, relations))
    if not found:
        yield Line("warehouse", "ok", f"{settings.warehouse} is above all {len(relations)} tables and views")
        return
    yield Line(
        "warehouse",
        "warning",
        f"{found[0].name} has files in {found[0].place}, outside of {settings.warehouse}"
        + (f", as have {len(found) - 1} more" if len(found) > 1 else "")
        + ": `lakehouse backup` would lack them and refuses",
        "set LAKEHOUSE_WAREHOUSE to a folder above both, or build the table anew in the warehouse",
    )


def _trino(settings: Settings) -> Iterator[Line]:
    from lakehouse.servers.trino import answering, query

    asked: list[Role] = ["writer"]
    try:
        settings.trino.login("reader")
        asked.append("reader")
    except LakehouseError as error:  # nothing that loads needs it
        yield Line("trino", "warning", str(error))
    with answering(settings):
        for role in asked:
            query(settings, "SELECT 1", role=role)
    yield Line("trino", "ok", f"{settings.trino.host}:{settings.trino.port} answers {' and '.join(asked)}")


def _declarations(settings: Settings, declared: list[Declarations]) -> Iterator[Line]:
    declarations = load_declarations(settings)
    declared.append(declarations)
    _check_models(settings, declarations)
    tables = sum(len(source.tables) for source in declarations.sources)
    if not tables:
        yield Line("declarations", "warning", "there are none", "`lakehouse scaffold SOURCE` proposes them")
        return
    yield Line("declarations", "ok", f"{_counted(tables, 'table')} of {_counted(len(declarations.sources), 'source')}")


def _check_models(settings: Settings, declarations: Declarations) -> None:
    """Raises LakehouseError for what `maintain`, the worker or Dagster would refuse once they read the project."""
    from maintenance.inventory.declared import maintained_tables

    manifest, project_dir = load_manifest(settings), settings.dbt_project_dir
    policies_of(manifest, project_dir)
    unread_tables(manifest, declarations, project_dir)
    maintained_tables(manifest, project_dir)
    project_pins(project_dir)
    if "orchestration" in installed():
        from orchestration.assets.policies import refuse_wrong_policies
        from orchestration.assets.wrong_models import refuse_wrong_models

        refuse_wrong_models(manifest, project_dir)
        refuse_wrong_policies(manifest, project_dir)


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _source(settings: Settings, declarations: Declarations, name: str, said: "set[Server]") -> Iterator[Line]:
    from ingestion.sources.kinds import check_source
    from ingestion.sources.postgres.setup import once

    found = list(once(settings, check_source(settings, declarations.source(name)), said))
    for finding in found:
        about = f"{name}.{finding.table}" if finding.table else name
        remedy = f"`lakehouse prepare {name}`" if finding.weight == "prepare" else finding.remedy
        yield Line(about, "error" if finding.weight == "in the way" else "warning", finding.says, remedy)
    if not found:
        yield Line(name, "ok", "prepared, nothing is in the way")


def _watched(settings: Settings, catalog_answers: bool, unused: Collection[str]) -> Iterator[Line]:
    """What the watch sees: servers, disk, followers, lag, parked tables, backups, Dagster; not of `unused` sources."""
    from lakehouse_watch.watch import declared_probes

    for probe in declared_probes(settings):
        if probe.name.removeprefix("source ") in unused:
            continue
        if catalog_answers or not probe.needs_catalog:
            yield from _looked(probe.name, partial(_seen, probe))


def _seen(probe: "Probe") -> Iterator[Line]:
    found = [occasion for occasion in probe.read().occasions if (occasion.kind, occasion.severity) not in SAID]
    for occasion in found:
        yield Line(probe.name, occasion.severity, occasion.summary, occasion.to_do)
    if not found:
        yield Line(probe.name, "ok", "nothing needs attention")

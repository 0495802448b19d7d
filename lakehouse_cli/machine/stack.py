"""`lakehouse up|down|status|env`: the servers of this machine."""

import shlex
import subprocess
import sys
import time
from dataclasses import asdict
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn

from lakehouse.declarations.dbt.manifest import dbt_environment
from lakehouse.declarations.dbt.yaml_files import declared_sources
from lakehouse.errors import LakehouseError
from lakehouse.extras import need
from lakehouse.files.logs import rotate_all
from lakehouse.servers.embedded import is_sample
from lakehouse.settings import ENDPOINTS_FILE, Settings, SourceSettings, check_project, load_settings
from lakehouse.settings.places import HOME, named_project
from lakehouse.text.shown import cell, console, say, say_json, table
from lakehouse_cli.alone import servers_unused
from lakehouse_cli.machine.clients import client_text
from lakehouse_cli.slots_left import out_of_reach, slots_left, wal_kept

if TYPE_CHECKING:
    from rich.console import Console

    from ingestion.state.refreshes import Refreshes
    from lakehouse.servers.exports import Export

KEEP_SECONDS = 2.0


class With(StrEnum):
    """What the stack may have beside its own servers."""

    kafka = "kafka"


Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def up(
    keep: Annotated[
        bool, typer.Option("--keep", help="Stay, and start again what ends otherwise than by `lakehouse down`.")
    ] = False,
    also: Annotated[
        With | None,
        typer.Option("--with", help="Start a Kafka broker, and Kafka Connect with Debezium, as well, until `down`."),
    ] = None,
) -> None:
    """Start Postgres, S3, Trino and the catalog service, unless they run already; download them first if needed."""
    from lakehouse_stack.control.start_stop import ended

    if not keep or also:
        _start(with_kafka=also is With.kafka)
    settings = load_settings()
    while keep:
        if gone := ended(settings):
            say(f"{', '.join(gone)} ended: starting the stack again", flush=True)
            # in a process of its own: what it starts must not end with this one
            subprocess.run([sys.executable, "-m", "lakehouse_cli.main", "up"], check=False)
        rotate_all(settings.home / "logs")
        time.sleep(KEEP_SECONDS)


def _start(*, with_kafka: bool) -> None:
    from lakehouse_stack.control.start_stop import up as stack_up
    from lakehouse_stack.home.config import stack_settings
    from lakehouse_stack.servers.postgres_versions import lost_clusters

    need("embedded")
    settings, begun = load_settings(), time.monotonic()
    if settings.home == named_project() / HOME and not (settings.home / "data").exists():
        check_project(settings.project_dir)  # a home would be made wherever somebody happened to be
    _refuse_beside_own_lake(settings)
    for name, folder in lost_clusters(settings, stack_settings()).items():
        say(
            f"{name}: {folder} is gone, and an empty one is made. If it is on a volume that is not mounted: "
            "`lakehouse down`, mount it, `lakehouse up`. If it is lost, a backup brings back the catalog: "
            "`lakehouse restore-backup`",
            error=True,
        )
    out = console()
    download = _DownloadBar(out)
    try:
        stack_up(settings, report=lambda *what: _tell(out, *what), progress=download, with_kafka=with_kafka)
    finally:
        download.close()
    settings = load_settings()
    out.print(f"stack is up after {time.monotonic() - begun:.1f} s; home {settings.home}", soft_wrap=True)


def _refuse_beside_own_lake(settings: Settings) -> None:
    """A first `up` would fill what the settings leave unset with addresses and keys of a lake of its own."""
    if (settings.home / ENDPOINTS_FILE).exists():
        return
    own = {
        "LAKEHOUSE_CATALOG_URL": settings.catalog_url is not None,
        "LAKEHOUSE_S3__ENDPOINT": settings.s3.endpoint is not None,
        "LAKEHOUSE_WAREHOUSE": "warehouse" in settings.model_fields_set
        and urlsplit(settings.warehouse)[:2] != urlsplit(Settings.model_fields["warehouse"].default)[:2],
    }
    if named := [name for name, is_set in own.items() if is_set]:
        raise LakehouseError(
            f"{', '.join(named)}: the settings name a lake of your own, and `up` starts another one. "
            "`python -m lakehouse_stack jars` downloads what Spark needs; for the embedded stack, unset these settings"
        )


def down() -> None:
    """Stop every server of this home; the data is kept.

    End `lakehouse dev`, followers and the worker first, or it refuses.
    """
    from lakehouse_stack.control.start_stop import down as stack_down

    settings = load_settings()
    with servers_unused(settings):
        left = slots_left(settings) or {}
        stopped = stack_down(settings)
    say(f"stopped {', '.join(stopped)}" if stopped else f"nothing was running in {settings.home}")
    for source, slot in left.items():
        if source in settings.databases:
            say(f"{source}: slot {slot} {wal_kept(settings, source, slot)}; `lakehouse remove {source}` drops it")
    for line in out_of_reach(settings, left):
        say(line)


def status(as_json: Json = False) -> None:
    """Show each server, the lag of each source, mirrors that wait, and second catalogs; exits 1 if a server is down."""
    from lakehouse_cli.machine.lag import lag_reasons, lag_table, source_lags
    from lakehouse_stack.control.inspect import inspect

    settings = load_settings()
    servers, lags = inspect(settings), source_lags(settings)
    if as_json:
        named = [{**asdict(s), "log": str(s.log)} for s in servers]
        exports = [asdict(export) for export in _exports(settings)]
        mirrors = [asdict(at) for at in _mirrors(settings)]
        found = {"servers": named, "sources": lags, "worker_alive": _has_worker(settings), "exports": exports}
        found |= {"mirrors": mirrors}
        say_json(found, indent=2)
    else:
        rows = [
            (
                s.name, "healthy" if s.healthy else "unhealthy" if s.pid else "down", _text(s.pid),
                _text(s.port), _duration(s.uptime_seconds), s.log,
            )
            for s in servers
        ]  # fmt: skip
        out = console(width=None if sys.stdout.isatty() else 200)
        if servers:
            out.print(table(("server", "state", "pid", "port", "up for", "log"), rows))
        for s in servers:
            if s.pid and not s.healthy:
                _below(out, f"{s.name}: {s.trouble}")
        if servers and lags:
            out.print()
        if lags:
            out.print(lag_table(lags))
            for reason in lag_reasons(lags):
                _below(out, reason)
            out.print("worker: alive" if _has_worker(settings) else "worker: none; sensors load new data")
        for at in _mirrors(settings):
            if says := said_of_mirrors(at):
                _below(out, f"mirrors: {says}")
        for export in _exports(settings):
            _below(out, f"export: {said_of(export)}")
    if not all(s.healthy for s in servers):
        raise typer.Exit(1)


def _below(out: "Console", line: str) -> None:
    """A line of its own below a table, however long: in a column, a terminal would break it every few letters."""
    out.print(cell(line), soft_wrap=True)


def _has_worker(settings: Settings) -> bool:
    from lakehouse.servers.worker_sessions import is_there

    try:
        return is_there(settings)
    except LakehouseError:
        return False


def _exports(settings: Settings) -> tuple["Export", ...]:
    """None where the catalog does not answer, as when the stack is down."""
    from lakehouse.servers.exports import followed

    try:
        return followed(settings)
    except LakehouseError:
        return ()


def _mirrors(settings: Settings) -> list["Refreshes"]:
    """Of each source whose mirrors were refreshed; none where the catalog does not answer."""
    from ingestion.state.refreshes import mirror_refreshes

    try:
        return [at for _, at in mirror_refreshes(settings).values() if at.begun_seconds is not None]
    except LakehouseError:
        return []


def said_of_mirrors(at: "Refreshes") -> str:
    """What is to be said of a source's mirrors, for people; empty where the last refresh was done, or goes on."""
    found = [f"{name} stays as it was: {why}" for name, (_, why) in sorted(at.aside.items())]
    if at.said is not None:
        behind = f"{at.behind_seconds:,.0f} s behind" if at.behind_seconds else "at the newest cut"
        found.insert(0, f"{behind}, and the last refresh was not done: {at.said}")
    return f"{at.source}, {'; '.join(found)}" if found else ""


def said_of(export: "Export") -> str:
    """How a second catalog stands, for people."""
    state = f"as of {export.stale_seconds:,.0f} s ago" if export.done_at else "never brought up to date"
    return f"{export.target}, {state}{f': {export.error}' if export.error else ''}"


def env(
    as_json: Json = False,
    client: Annotated[
        str | None,
        typer.Option(
            "--for",
            help="Print what to paste into clickhouse, duckdb, pyiceberg, spark or trino, or how to run dbt by hand.",
        ),
    ] = None,
) -> None:
    """Print how to connect to everything; `eval "$(lakehouse env)"` sets it in a shell."""
    if client == "dbt":
        for variable, text in by_hand(load_settings()).items():
            _export(variable, text)
        return
    if client is not None:
        print(client_text(load_settings(), client), end="")  # noqa: T201 (a client takes it to the letter)
        return
    values = environment(load_settings())
    if as_json:
        say_json(values, indent=2)
        return
    for name, value in values.items():
        if isinstance(value, dict):
            for key, url in value.items():
                _export(f"{name}_{key}".upper(), url)
        else:
            _export(name.upper(), value)


def by_hand(settings: Settings) -> dict[str, str]:
    """The variables with which dbt, started by hand, works on the project as our commands do."""
    folder = str(settings.dbt_project_dir)
    return {**dbt_environment(settings), "DBT_PROJECT_DIR": folder, "DBT_PROFILES_DIR": folder}


def _export(name: str, value: object) -> None:
    print(f"export {name}={shlex.quote(str(value))}")  # noqa: T201 (a shell takes it to the letter)


def environment(settings: Settings) -> dict[str, Any]:
    """Addresses and credentials by name, of what is set; raises LakehouseError where there is no catalog yet.

    A source's is the one that ingestion has; of a sample, which is the embedded stack's, the owner's.
    """
    from orchestration.web.login import login_url

    keys = {"s3_access_key": settings.s3.access_key, "s3_secret_key": settings.s3.secret_key}
    trino = settings.trino
    keys |= {
        "trino_password": trino.password,
        "trino_reader_password": trino.reader_password,
        "trino_privacy_password": trino.privacy_password,
    }
    unused = _unused_samples(settings)
    urls = {
        name: (source.owner_url if is_sample(settings, name) else None) or source.url
        for name, source in settings.databases.items() if name not in unused
    }  # fmt: skip
    values = {
        "sources": {name: url.get_secret_value() for name, url in urls.items()},
        "catalog_url": settings.catalog_dsn(),
        "trino_host": trino.host,
        "trino_port": trino.port,
        "trino_catalog": trino.catalog,
        "trino_http_scheme": trino.http_scheme,
        "trino_ca": None if trino.ca is None else str(trino.ca),
        "trino_user": trino.user,
        "trino_reader_user": trino.reader_user,
        "trino_privacy_user": trino.privacy_user,
        "rest_uri": settings.serve.address(),
        "rest_warehouse": settings.catalog_name,
        "rest_client_id": trino.reader_user,
        "rest_client_secret": trino.reader_password.get_secret_value() if trino.reader_password else None,
        "s3_endpoint": settings.s3.endpoint,
        "s3_region": settings.s3.region,
        **{name: key.get_secret_value() for name, key in keys.items() if key is not None},
        "warehouse": settings.warehouse,
        "dagster_url": f"http://{settings.dagster.host}:{settings.dagster.port}",
        "dagster_login": login_url(settings),
        "dagster_home": str(settings.dagster_home),
        **_metrics_addresses(settings),
        **_kafka_addresses(settings),
    }
    return {name: value for name, value in values.items() if value is not None}


def _unused_samples(settings: Settings) -> set[str]:
    """The samples that the project does not declare: the embedded stack serves them to every project."""
    declared = declared_sources(settings.dbt_project_dir)
    undeclared = set() if declared is None else settings.databases.keys() - declared
    return {name for name in undeclared if is_sample(settings, name)}


def _metrics_addresses(settings: Settings) -> dict[str, str]:
    metrics = settings.metrics
    ports = {"follower": metrics.follower_port, "watch": metrics.watch_port, "worker": metrics.worker_port}
    return {f"{name}_metrics": f"http://{metrics.host}:{port}/metrics" for name, port in ports.items() if port}


def _kafka_addresses(settings: Settings) -> dict[str, Any]:
    """The brokers of each source in Kafka, and the Connect of the stack while it runs."""
    from lakehouse_stack.control.inspect import connect_address

    brokers = {
        name: of.bootstrap_servers for name, of in settings.sources.items() if not isinstance(of, SourceSettings)
    }
    return {"brokers": brokers or None, "connect_url": connect_address(settings)}


class _DownloadBar:
    """Shows the download: a bar on a terminal, one line per stage elsewhere."""

    def __init__(self, console: "Console") -> None:
        self.console = console
        self.bar: Progress | None = None
        self.task: TaskID | None = None
        self.stage = ""

    def __call__(self, stage: str, done: int, total: int) -> None:
        if not self.console.is_terminal:
            if stage != self.stage:
                self.console.print(f"{stage} ({total >> 20} MB)" if total and not done else stage)
        elif self.bar is None:
            self.bar = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                DownloadColumn(),
                TransferSpeedColumn(),
                console=self.console,
            )
            self.task = self.bar.add_task(stage, total=total or None)
            self.bar.start()
        elif self.task is not None:
            self.bar.update(self.task, description=stage, completed=done, total=total or None)
        self.stage = stage

    def close(self) -> None:
        """Leaves the terminal as it was."""
        if self.bar is not None:
            self.bar.stop()


def _tell(console: "Console", server: str, what: str, seconds: float) -> None:
    if what != "starting" or console.is_terminal:
        console.print(f"  {server:<8} {what} {'' if what == 'starting' else f'({seconds:.1f} s)'}".rstrip())


def _text(value: int | None) -> str:
    return "-" if value is None else str(value)


def _duration(seconds: int | None) -> str:
    if seconds is None:
        return "-"
    hours, rest = divmod(seconds, 3600)
    return f"{hours}h{rest // 60:02}m" if hours else f"{rest // 60}m{rest % 60:02}s"

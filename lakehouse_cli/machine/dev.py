"""`lakehouse dev`: the stack, the followers, the worker, and Dagster with its UI, in the foreground."""

import socket
import sys
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from lakehouse.declarations.dbt.changes import changes_of
from lakehouse.errors import LakehouseError
from lakehouse.extras import need
from lakehouse.files.private_files import privately
from lakehouse.settings import Settings, config_file, load_settings
from lakehouse.text.shown import say
from lakehouse_cli.alone import alone
from lakehouse_cli.machine.code_servers import code_servers, reload_of
from lakehouse_cli.machine.foreground import Command, keep_running
from lakehouse_page.page import PATH
from lakehouse_stack.home.instance import ensure_instance
from orchestration.web.login import login_url


def dev(
    stack: Annotated[bool, typer.Option(help="Start the servers of this machine first.")] = True,
    ingest: Annotated[bool, typer.Option(help="Ingest the sources continuously.")] = True,
    worker: Annotated[bool, typer.Option(help="Load each cut within seconds, without a Dagster run.")] = True,
) -> None:
    """Run ingestion, the worker, the Dagster UI and its daemon until Ctrl-C; the stack keeps running.

    Whatever ends meanwhile is started again, the stack's servers too.
    """
    need("orchestration")
    if stack:
        from lakehouse_cli.machine.stack import up

        up()
    settings = load_settings()
    ensure_instance(settings)
    with alone(settings):
        _check_port(settings)
        login = login_url(settings)
        say(f"Dagster UI: {login}  (logs a browser in; Ctrl-C ends)", flush=True)
        say(f"The lake at a glance: {login.partition('/login')[0]}{PATH}  (once logged in)", flush=True)
        environment = {
            "DAGSTER_HOME": str(settings.dagster_home),
            "LAKEHOUSE_HOME": str(settings.home),
            "LAKEHOUSE_CACHE": str(settings.cache),
            "LAKEHOUSE_PROJECT_DIR": str(settings.project_dir),
            **({"LAKEHOUSE_CONFIG": str(config_file())} if config_file().exists() else {}),
            "PYTHONUNBUFFERED": "1",
        }
        with (
            privately(),
            TemporaryDirectory(prefix="lakehouse-dev-") as folder,
        ):  # code servers obey who may write there
            children = commands(settings, Path(folder), stack, ingest, worker)
            cancel = partial(_cancel_runs, settings, Path(folder))
            keep_running(children, cwd=settings.project_dir, env=environment, before_end=cancel)
        say("ended; the stack keeps running: `lakehouse down` stops it")


def _cancel_runs(settings: Settings, folder: Path) -> None:
    """Cancels the runs of this `lakehouse dev`: an interrupt that nobody announces is told as a failure."""
    from orchestration.runs.processes.cancel import cancel_runs_of

    try:
        for run in cancel_runs_of(settings.dagster_home, folder):
            say(f"{run} is canceled, as this ends", flush=True)
    except Exception as error:  # the end goes on, whatever Dagster's database says
        say(f"runs were not canceled, and will be told as failed: {error}", error=True, flush=True)


def commands(settings: Settings, folder: Path, stack: bool, ingest: bool, worker: bool) -> list[Command]:
    """The children: Dagster's code server, what reloads it when the project changes, web server and daemon, the watch,
    the stack's keeper, follower, worker, and the export if there is a second catalog.

    Sockets and what only `lakehouse dev` needs are in `folder`.
    """
    bin_dir, logs = Path(sys.executable).parent, settings.home / "logs"
    servers, file = code_servers(settings.project_dir / "workspace.yaml", folder, logs / "dagster-code.log")
    sockets = [Path(server.argv[server.argv.index("--socket") + 1]) for server in servers]
    workspace = ["--workspace", str(file)]
    web = ["--host", settings.dagster.host, "--port", str(settings.dagster.port)]

    def ours(name: str, *arguments: str) -> Command:
        return Command(name, [str(bin_dir / "lakehouse"), *arguments], logs / f"{name}.log")

    def of_dagster(name: str, argv: list[str]) -> Command:
        """One that asks the code servers at once, and prints a page for each that does not listen yet."""
        return Command(name, argv, logs / f"dagster-{name}.log", after=sockets, ends_noisily=True)

    return [
        *servers,
        *(reload_of(server, changes_of(settings), sockets) for server in servers),
        of_dagster("webserver", [sys.executable, "-m", "orchestration.web", *workspace, *web]),
        of_dagster("daemon", [sys.executable, "-m", "orchestration.daemon", *workspace]),
        ours("watch", "watch"),
        *([ours("stack", "up", "--keep")] if stack else []),
        *([ours("ingest", "ingest", "--follow")] if ingest else []),
        *([ours("worker", "worker")] if worker else []),
        *([ours("export", "export", "--follow")] if settings.export.url else []),
    ]


def _check_port(settings: Settings) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((settings.dagster.host, settings.dagster.port))
        except OSError as error:
            raise LakehouseError(
                f"{settings.dagster.host}:{settings.dagster.port}: {error.strerror}; "
                "set LAKEHOUSE_DAGSTER__PORT to a free port"
            ) from None

"""The commands of `lakehouse`: mounts the one that was typed and turns errors into one line."""

import importlib
import logging
import sys
import traceback
from collections.abc import Iterable
from typing import Annotated, Any

import typer

from lakehouse.text.shown import LineFormatter, say

app = typer.Typer(
    help="An Apache Iceberg lakehouse from Postgres: every change exactly once, in consistent cuts.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

# Command → module and function; a sub-command group is a module's `app`. Loaded lazily: `--help` of one command
# should not import Spark for another.
COMMANDS: dict[str, tuple[str, str]] = {
    "init": ("lakehouse_cli.machine.init", "init"),
    "up": ("lakehouse_cli.machine.stack", "up"),
    "down": ("lakehouse_cli.machine.stack", "down"),
    "status": ("lakehouse_cli.machine.stack", "status"),
    "doctor": ("lakehouse_cli.machine.doctor", "doctor"),
    "env": ("lakehouse_cli.machine.stack", "env"),
    "uninstall": ("lakehouse_cli.source.uninstall", "uninstall"),
    "completion": ("lakehouse_cli.completion", "completion"),
    "samples": ("lakehouse_cli.source.samples", "load_samples"),
    "simulate": ("lakehouse_cli.source.simulate", "app"),
    "prepare": ("lakehouse_cli.source.ingest", "prepare"),
    "add": ("lakehouse_cli.source.add", "add"),
    "remove": ("lakehouse_cli.source.remove", "remove"),
    "ingest": ("lakehouse_cli.source.ingest", "ingest"),
    "mirror": ("lakehouse_cli.lake.mirror", "mirror"),
    "run": ("lakehouse_cli.lake.run", "run"),
    "rehash": ("lakehouse_cli.lake.rehash", "rehash"),
    "scaffold": ("lakehouse_cli.source.scaffold", "scaffold"),
    "maintain": ("lakehouse_cli.lake.maintain", "app"),
    "reconcile": ("lakehouse_cli.source.reconcile", "reconcile"),
    "erase": ("lakehouse_cli.lake.erase", "erase"),
    "upgrade": ("lakehouse_cli.machine.upgrade", "upgrade"),
    "backup": ("lakehouse_cli.lake.backup", "backup"),
    "restore-backup": ("lakehouse_cli.lake.backup", "restore_backup"),
    "pin": ("lakehouse_cli.lake.pin", "pin"),
    "sql": ("lakehouse_cli.lake.sql", "sql"),
    "serve": ("lakehouse_cli.lake.serve", "serve"),
    "export": ("lakehouse_cli.lake.export", "export"),
    "user": ("lakehouse_cli.machine.user", "app"),
    "show": ("lakehouse_cli.lake.show", "show"),
    "demo": ("lakehouse_cli.machine.demo", "demo"),
    "worker": ("lakehouse_cli.lake.worker", "worker"),
    "dev": ("lakehouse_cli.machine.dev", "dev"),
    "watch": ("lakehouse_cli.lake.watch", "watch"),
}


def _mount(name: str) -> None:
    module, attribute = COMMANDS[name]
    target: Any = getattr(importlib.import_module(module), attribute)
    if isinstance(target, typer.Typer):
        app.add_typer(target, name=name)
    else:
        app.command(name)(target)


def command_line(names: Iterable[str] = COMMANDS) -> typer.Typer:
    """The command line with these commands."""
    for name in names:
        _mount(name)
    app.callback()(_root)
    return app


def run_command() -> None:
    """Runs the command line."""
    wanted = next((arg for arg in sys.argv[1:] if not arg.startswith("-")), None)
    alone = sys.argv[1:] == ["--version"]
    command_line([] if alone else [wanted] if wanted in COMMANDS else COMMANDS)
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(LineFormatter())
    app()


def complain(error: Exception) -> None:
    """One line on stderr for a LakehouseError and for a server that went away; a traceback for what nobody foresaw."""
    from lakehouse.extras import missing_extra
    from lakehouse.servers.outage import expected

    known = missing_extra(error) or expected(error)
    text = f"error: {known}" if known else "".join(traceback.format_exception(error)).rstrip()
    for line in text.split("\n"):
        say(line, error=True)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        say(f"lakehouse {version('lakehouse')}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Print the release and exit.")
    ] = False,
) -> None:
    """An Apache Iceberg lakehouse from Postgres: every change exactly once, in consistent cuts."""

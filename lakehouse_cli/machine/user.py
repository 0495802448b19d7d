"""`lakehouse user add|remove|list`: who may log in to Trino, and in which role."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from lakehouse.errors import LakehouseError
from lakehouse.servers.logins import add_login, read_logins, remove_login
from lakehouse.settings import load_settings
from lakehouse.text.shown import console, say, table

app = typer.Typer(no_args_is_help=True, help="Logins to Trino: readers, with or without personal data.")


@app.command()
def add(
    name: Annotated[str, typer.Argument(help="the login's name")],
    role: Annotated[Literal["reader", "privacy"], typer.Option(help="`privacy` also sees personal data")] = "reader",
) -> None:
    """Add a login and print its password, which is not stored; an existing login gets a new password and role."""
    say(add_login(_folder(), name, role))


@app.command()
def remove(name: Annotated[str, typer.Argument(help="the login's name")]) -> None:
    """Remove a login. Its running queries continue."""
    remove_login(_folder(), name)
    say(f"removed {name}")


@app.command("list")
def list_() -> None:
    """Show the logins and their roles."""
    rows = [(name, login.role) for name, login in sorted(read_logins(_folder()).items())]
    console().print(table(("login", "role"), rows))


def _folder() -> Path:
    folder = load_settings().trino.access
    if folder is None:
        raise LakehouseError(
            "this Trino manages its own logins: add users there, "
            "or run `lakehouse up` for the embedded one, or set LAKEHOUSE_TRINO__ACCESS"
        )
    return folder

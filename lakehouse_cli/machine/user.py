"""`lakehouse user add|change|remove|list`: who may log in to Trino and the catalog service, and what they read."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from lakehouse.declarations.access.rules import namespaces_read
from lakehouse.errors import LakehouseError
from lakehouse.servers.logins import Namespaces, add_login, change_login, read_logins, remove_login
from lakehouse.settings import load_settings
from lakehouse.text.shown import print_table, say
from lakehouse.text.spelling import close

app = typer.Typer(no_args_is_help=True, help="Logins to Trino: readers, with or without personal data.")
Reading = Literal["reader", "privacy"]
Name = Annotated[str, typer.Argument(help="the login's name")]


@app.command()
def add(
    name: Name,
    role: Annotated[Reading, typer.Option(help="`privacy` also sees personal data")] = "reader",
    namespace: Annotated[
        list[str] | None, typer.Option(help="read this namespace alone, such as marts; repeatable.  [default: all]")
    ] = None,
) -> None:
    """Add a login and print its password, which is not stored; an existing login gets a new password and role.

    An existing login keeps its namespaces where none are given.
    """
    folder = _folder()
    say(add_login(folder, name, role, namespace or ()))
    kept = read_logins(folder)[name].namespaces
    if kept and not namespace:
        all_of_them = f"`lakehouse user change {name} --all-namespaces` opens the others"
        say(f"{name} still reads {_said(kept)} alone: {all_of_them}", error=True)
    _warn(folder, name)


@app.command()
def change(
    name: Name,
    role: Annotated[Reading | None, typer.Option(help="`privacy` also sees personal data")] = None,
    namespace: Annotated[
        list[str] | None, typer.Option(help="read this namespace alone, in place of those before; repeatable")
    ] = None,
    all_namespaces: Annotated[bool, typer.Option("--all-namespaces", help="read every namespace")] = False,
) -> None:
    """Change what a login reads. Its password stays; what it runs in Trino continues."""
    if not (role or namespace or all_namespaces):
        raise LakehouseError("nothing to change: give --role, --namespace or --all-namespaces")
    if namespace and all_namespaces:
        raise LakehouseError("give --namespace or --all-namespaces, not both")
    folder = _folder()
    change_login(folder, name, role, namespace or (), all_namespaces)
    login = read_logins(folder)[name]
    say(f"{name}: {login.role}, {_said(login.namespaces)}")
    _warn(folder, name)


@app.command()
def remove(name: Name) -> None:
    """Remove a login. Its running queries continue."""
    remove_login(_folder(), name)
    say(f"removed {name}")


@app.command("list")
def list_() -> None:
    """Show the logins, their roles and the namespaces that they read."""
    logins = sorted(read_logins(_folder()).items())
    rows = [(name, login.role, _said(login.namespaces)) for name, login in logins]
    print_table(("login", "role", "namespaces"), rows)


def _said(namespaces: Namespaces) -> str:
    return "all namespaces" if namespaces is None else ", ".join(sorted(namespaces))


def _warn(folder: Path, name: str) -> None:
    """Tells of namespaces in which the login reads nothing: a namespace may come later, and a typo never comes."""
    login = read_logins(folder)[name]
    known = namespaces_read(folder, login.role)
    for namespace in sorted((login.namespaces or frozenset()) - known):
        near = close(namespace, known, 0.6)
        hint = f"did you mean {near}?" if near else f"it reads {', '.join(sorted(known)) or 'nothing yet'}"
        say(f"warning: the role {login.role} reads nothing in {namespace} now: {hint}", error=True)


def _folder() -> Path:
    folder = load_settings().trino.access
    if folder is None:
        raise LakehouseError(
            "this Trino manages its own logins: add users there, "
            "or run `lakehouse up` for the embedded one, or set LAKEHOUSE_TRINO__ACCESS"
        )
    return folder

"""Changes a file of declarations: the difference is shown, agreed to, and written unless it would be refused."""

import difflib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer
from rich.text import Text

from lakehouse.errors import LakehouseError
from lakehouse.files.atomic import write_atomically
from lakehouse.settings import Settings
from lakehouse.text.shown import console, visible, waiting

if TYPE_CHECKING:
    from lakehouse.declarations import Declarations
    from scaffold import SourceFile

COLOURS = {"+": "green", "-": "red", "@": "cyan"}


def show_change(settings: Settings, file: "SourceFile", after: str) -> None:
    """Prints what would change; in colours on a terminal."""
    out = console()
    for line in difference(str(file.path.relative_to(settings.dbt_project_dir)), file.text, after):
        out.print(Text(visible(line), style=COLOURS.get(line[:1], "")), soft_wrap=True)


def agreed(yes: bool) -> None:
    """Asks a person; without a terminal nobody is asked."""
    if sys.stdin.isatty() and not yes:
        typer.confirm("Do it?", abort=True)


def refuse_changed(file: "SourceFile") -> None:
    """Raises LakehouseError where somebody has changed the file since it was read."""
    if not file.path.exists() or file.path.read_text() != file.text:
        raise LakehouseError(f"{file.path} was changed meanwhile: run this again")


def accepted(settings: Settings, file: "SourceFile", after: str | None) -> "Declarations":
    """The declarations as they would be with the change, or without the file (None).

    Raises LakehouseError if they would be refused.
    """
    from scaffold import declared_alone

    try:
        with waiting("asking dbt for the declarations with this change"):
            return declared_alone(settings, {file.path: after})
    except LakehouseError as error:
        raise LakehouseError(f"nothing was written, as the declarations would be refused: {error}") from None


def write_change(file: "SourceFile", after: str) -> None:
    """Writes it; raises LakehouseError where the file was changed since it was read."""
    refuse_changed(file)
    write_atomically(file.path, after)


def difference(name: str, before: str, after: str) -> Iterator[str]:
    """The lines of a unified diff."""
    return difflib.unified_diff(
        before.splitlines(), after.splitlines(), f"{name} (now)", f"{name} (then)", n=2, lineterm=""
    )

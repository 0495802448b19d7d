"""Changes a file of declarations: the difference is shown, agreed to, written, and taken back if it is refused."""

import difflib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.text import Text

from lakehouse.errors import LakehouseError
from lakehouse.files.atomic import write_atomically
from lakehouse.settings import Settings
from lakehouse.text.shown import console, visible

if TYPE_CHECKING:
    from lakehouse.declarations import Declarations

COLOURS = {"+": "green", "-": "red", "@": "cyan"}


def show_change(settings: Settings, file: Path, after: str) -> None:
    """Prints what would change; in colours on a terminal."""
    out = console()
    for line in difference(str(file.relative_to(settings.dbt_project_dir)), file.read_text(), after):
        out.print(Text(visible(line), style=COLOURS.get(line[:1], "")), soft_wrap=True)


def agreed(yes: bool) -> None:
    """Asks a person; without a terminal nobody is asked."""
    if sys.stdin.isatty() and not yes:
        typer.confirm("Do it?", abort=True)


def write_change(settings: Settings, file: Path, after: str) -> "Declarations":
    """The declarations with the change; raises LakehouseError, with the file as it was, if they are refused."""
    from scaffold import declared_alone

    before = file.read_text()
    write_atomically(file, after)
    try:
        return declared_alone(settings)
    except LakehouseError as error:
        write_atomically(file, before)
        raise LakehouseError(f"nothing was written, as the declarations would be refused: {error}") from None


def difference(name: str, before: str, after: str) -> Iterator[str]:
    """The lines of a unified diff."""
    return difflib.unified_diff(
        before.splitlines(), after.splitlines(), f"{name} (now)", f"{name} (then)", n=2, lineterm=""
    )

"""`python -m maintenance`."""

import sys

import typer

from lakehouse.errors import LakehouseError
from maintenance.command import maintain

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
app.command()(maintain)

if __name__ == "__main__":
    try:
        app()
    except LakehouseError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)

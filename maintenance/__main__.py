"""`python -m maintenance`."""

import sys

from lakehouse.errors import LakehouseError
from lakehouse.text.shown import say
from maintenance.command.maintain import app

if __name__ == "__main__":
    try:
        app()
    except LakehouseError as error:
        for line in f"error: {error}".split("\n"):
            say(line, error=True)
        sys.exit(1)

"""`python -m maintenance`."""

import sys

from lakehouse.errors import LakehouseError
from maintenance.command import app

if __name__ == "__main__":
    try:
        app()
    except LakehouseError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)

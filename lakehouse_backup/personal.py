"""What readers may not see: columns of the lake that were personal once, and are declared no more.

No declaration has them, only the folder of Trino's rules. A home that is set up anew would show them to readers.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from lakehouse.declarations import load_declarations
from lakehouse.declarations.access import REMEMBERED, read_remembered, write_remembered
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings


def save_personal(settings: Settings, folder: Path) -> None:
    """Adds them to the backup, where this home has rules."""
    if settings.trino.access is not None:
        write_remembered(folder / REMEMBERED, read_remembered(settings.trino.access / REMEMBERED))


def load_personal(settings: Settings, folder: Path) -> None:
    """Hides what was hidden when the backup was made, besides what is hidden now; rules follow if the project can be
    read, else when its declarations are read next."""
    access = settings.trino.access
    if access is None:
        return
    here, saved = read_remembered(access / REMEMBERED), read_remembered(folder / REMEMBERED)
    both = {table: here.get(table, frozenset()) | saved.get(table, frozenset()) for table in {*here, *saved}}
    if both != here:
        write_remembered(access / REMEMBERED, both)
        with suppress(LakehouseError):
            load_declarations(settings)

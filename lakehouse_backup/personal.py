"""What readers may not see: columns of the lake that were personal once, and are declared no more, and what was made of
them.

No declaration has them, only the folder of Trino's rules. A home that is set up anew would show them to readers.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from lakehouse.declarations import load_declarations
from lakehouse.declarations.access.rules import ABOVE, REMEMBERED, read_remembered, write_remembered
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings


def save_personal(settings: Settings, folder: Path) -> None:
    """Adds them to the backup, where this home has rules."""
    if settings.trino.access is not None:
        for name in (REMEMBERED, ABOVE):
            write_remembered(folder / name, read_remembered(settings.trino.access / name))


def load_personal(settings: Settings, folder: Path) -> None:
    """Hides what was hidden when the backup was made, besides what is hidden now; rules follow if the project can be
    read, else when its declarations are read next."""
    access = settings.trino.access
    if access is None:
        return
    changed = [_add(access / name, folder / name) for name in (REMEMBERED, ABOVE)]
    if any(changed):
        with suppress(LakehouseError):
            load_declarations(settings)


def _add(file: Path, saved: Path) -> bool:
    """Whether that changed it."""
    here, there = read_remembered(file), read_remembered(saved)
    both = {name: here.get(name, frozenset()) | there.get(name, frozenset()) for name in {*here, *there}}
    if both != here:
        write_remembered(file, both)
    return both != here

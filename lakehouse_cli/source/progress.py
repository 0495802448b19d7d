"""A line per source on a terminal while it is ingested: how far, rows a second, time left."""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

import psycopg
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings

if TYPE_CHECKING:
    from rich.console import Console

LOOK_SECONDS = 1.0
Show = Callable[[str], AbstractContextManager[None]]


@contextmanager
def shown(settings: Settings, console: "Console") -> Iterator[Show]:
    """Gives a function that shows one source while its `with` block runs; nothing where there is no terminal."""
    said, paced = (TextColumn(f"{{task.{part}}}", markup=False) for part in ("description", "fields[pace]"))
    columns = (SpinnerColumn(), said, BarColumn(), paced, TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:

        @contextmanager
        def show(source: str) -> Iterator[None]:
            task, stop = progress.add_task(f"ingesting {source}", total=None, pace=""), threading.Event()
            if console.is_terminal:
                threading.Thread(target=_look, args=(settings, source, progress, task, stop), daemon=True).start()
            try:
                yield
            finally:
                stop.set()
                progress.remove_task(task)

        yield show


def pace(rows_per_second: float, seconds_left: float | None) -> str:
    """Rows a second and time left, as far as they are known."""
    if seconds_left is None:
        return ""
    minutes, seconds = divmod(round(seconds_left), 60)
    return f"{rows_per_second:,.0f} rows/s, {minutes}:{seconds:02d} left"


def _look(settings: Settings, source: str, progress: Progress, task: TaskID, stop: threading.Event) -> None:
    from ingestion.state import progress as kept
    from ingestion.state.store import connect_catalog

    while not stop.wait(LOOK_SECONDS):
        try:
            with connect_catalog(settings) as connection:
                at = kept.read(connection, source)
        except (LakehouseError, psycopg.Error):
            continue  # the work itself will say what is wrong
        if at is None:
            continue
        described = f"ingesting {source}: {at.phase}, {at.rows:,} rows"
        paced = pace(at.rows_per_second, at.seconds_left)
        progress.update(task, description=described, total=at.total, completed=at.done, pace=paced)

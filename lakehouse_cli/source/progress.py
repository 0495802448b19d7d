"""What is done for a source while it is ingested: on a terminal a line with how far, rows a second and time left, else
a line on stderr when it takes long and whenever it goes on to something else.
"""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING

import psycopg
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings
from lakehouse.text.shown import say

if TYPE_CHECKING:
    from rich.console import Console

    from ingestion.state.progress import Progress as Kept

LOOK_SECONDS = 1.0
QUIET_SECONDS = 10.0  # between looks where there is no terminal: most work is done before the first
AGAIN_SECONDS = 60.0  # after which the same work is told of again
Show = Callable[[str], AbstractContextManager[None]]


@contextmanager
def shown(settings: Settings, console: "Console") -> Iterator[Show]:
    """Gives a function that shows one source while its `with` block runs."""
    said, paced = (TextColumn(f"{{task.{part}}}", markup=False) for part in ("description", "fields[pace]"))
    columns = (SpinnerColumn(), said, BarColumn(), paced, TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:

        @contextmanager
        def show(source: str) -> Iterator[None]:
            task, stop = progress.add_task(f"ingesting {source}", total=None, pace=""), threading.Event()
            follow = partial(_show, progress, task) if console.is_terminal else _tell
            threading.Thread(target=follow, args=(settings, source, stop), daemon=True).start()
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


def doing(at: "Kept | None", holder: str | None, compared: int) -> str:
    """In words: `at` is the long work under way, `holder` another writer that has the source, `compared` how many
    tables are compared with it. Empty if nothing is known."""
    if holder is not None:
        return f"waiting for its writer {holder}"
    if at is not None:
        return f"{at.phase}, {at.rows:,} rows"
    return f"comparing tables with the source, {compared:,} left" if compared else ""


def _now(settings: Settings, source: str) -> tuple["Kept | None", str]:
    """The long work under way, if there is some, and what is done in words. Raises where the catalog does not tell."""
    from ingestion.state import lease, progress
    from ingestion.state.store import connect_catalog

    with connect_catalog(settings) as connection:
        at, held = progress.read(connection, source), lease.holder_of(connection, source)
        compared = progress.compared(connection, source)
    is_mine = held is None or held[0].startswith(f"{socket.gethostname()}:{os.getpid()}:")
    return at, doing(at, None if held is None or is_mine else held[0], compared)


def _show(progress: Progress, task: TaskID, settings: Settings, source: str, stop: threading.Event) -> None:
    while not stop.wait(LOOK_SECONDS):
        try:
            at, what = _now(settings, source)
        except (LakehouseError, psycopg.Error):
            continue  # the work itself will say what is wrong
        progress.update(task, description=f"ingesting {source}{': ' if what else ''}{what}")
        if at is not None:
            progress.update(task, total=at.total, completed=at.done, pace=pace(at.rows_per_second, at.seconds_left))


def _tell(settings: Settings, source: str, stop: threading.Event) -> None:
    told, told_at, begun = None, 0.0, time.monotonic()
    while not stop.wait(QUIET_SECONDS):
        try:
            at, what = _now(settings, source)
        except (LakehouseError, psycopg.Error):
            continue
        kind, now = what.partition(",")[0], time.monotonic()
        if kind != told or now - told_at >= AGAIN_SECONDS:
            far = pace(at.rows_per_second, at.seconds_left) if at is not None else f"for {now - begun:,.0f} s"
            parts = (f"ingesting {source}{': ' if what else ''}{what}", far)
            say(", ".join(filter(None, parts)), error=True, flush=True)
            told, told_at = kind, now

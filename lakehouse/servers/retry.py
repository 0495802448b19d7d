"""How long to retry when a server does not answer."""

import time
from collections.abc import Callable
from typing import TypeVar

import psycopg

from lakehouse.errors import LakehouseError

T = TypeVar("T")
PATIENCE_SECONDS = 120.0
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0


def until_answered(action: Callable[[], T], what: str, patience: float = PATIENCE_SECONDS) -> T:
    """Runs `action` again while the database is unreachable, with growing pauses; `action` must be safe to repeat.

    Raises LakehouseError when `patience` seconds have passed without an answer. Other errors pass through.
    """
    deadline, pause = time.monotonic() + patience, FIRST_PAUSE_SECONDS
    while True:
        try:
            return action()
        except (psycopg.OperationalError, psycopg.InterfaceError, Unreachable) as error:
            if time.monotonic() + pause > deadline:
                reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
                raise LakehouseError(
                    f"{what}: no answer for {patience:.0f} s ({reason}); it resumes at the next run"
                ) from error
            time.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)


class Unreachable(LakehouseError):
    """A server does not answer; a later try may succeed."""

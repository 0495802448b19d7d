"""Waits for the next cut: publishes notify a channel of the catalog database in their own transaction."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from math import inf
from threading import Event
from typing import TypeVar

from lakehouse.servers.database import CUTS_CHANNEL, CatalogConnection
from lakehouse.text.log_lines import as_here

POLL_SECONDS = 5.0  # how long a stop may go unnoticed
LISTEN_SECONDS = 0.1  # how long the end of work may go unnoticed during which a bell is heard
T = TypeVar("T")


class Bell:
    """Rings with each cut. What rang while nobody waited is heard by the next wait."""

    def __init__(self, connection: CatalogConnection, stop: Event) -> None:
        connection.execute(f"LISTEN {CUTS_CHANNEL}")
        self._connection, self._stop, self._rang = connection, stop, False

    def wait(self, seconds: float) -> bool:
        """Sleeps until a cut was published; False after so many seconds, or when the worker is to stop.

        Raises psycopg.OperationalError when the connection is gone.
        """
        rang = self._rang or self._hear(seconds)
        self._rang = False
        return rang

    def during(
        self, work: Callable[[], T], matters: Callable[[], bool], interrupt: Callable[[], None], seconds: float = inf
    ) -> T:
        """The result of `work`, which is done by a thread.

        Once a bell rings within so many seconds that `matters`, or the worker is to stop, `interrupt` is called until
        the work has ended. What rings later is heard by the next wait.
        """
        until = time.monotonic() + seconds
        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(as_here(work))
            try:
                while not done.done() and not self._stop.is_set():
                    if time.monotonic() >= until:
                        wait([done], LISTEN_SECONDS)
                    elif self._hear(LISTEN_SECONDS) and matters():
                        self._rang = True
                        break
            finally:
                while not done.done():
                    interrupt()
                    time.sleep(LISTEN_SECONDS)
            return done.result()

    def _hear(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while not self._stop.is_set():
            left = max(0.0, until - time.monotonic())
            if list(self._connection.notifies(timeout=min(left, POLL_SECONDS), stop_after=1)):
                list(self._connection.notifies(timeout=0))  # one load reads them all
                return True
            if not left:
                break
        return False

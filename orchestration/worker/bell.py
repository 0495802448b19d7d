"""Waits for the next cut: publishes notify a channel of the catalog database in their own transaction."""

import time
from threading import Event

from lakehouse.servers.database import CUTS_CHANNEL, CatalogConnection

POLL_SECONDS = 5.0  # how long a stop may go unnoticed


def listen(connection: CatalogConnection) -> None:
    """From here on, `wait` hears of each cut on this connection."""
    connection.execute(f"LISTEN {CUTS_CHANNEL}")


def wait(connection: CatalogConnection, seconds: float, stop: Event) -> bool:
    """Sleeps until a cut was published; False after so many seconds, or when the worker is to stop.

    Raises psycopg.OperationalError when the connection is gone.
    """
    until = time.monotonic() + seconds
    while not stop.is_set() and (left := until - time.monotonic()) > 0:
        if list(connection.notifies(timeout=min(left, POLL_SECONDS), stop_after=1)):
            list(connection.notifies(timeout=0))  # one load reads them all
            return True
    return False

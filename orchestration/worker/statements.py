"""Statements of this process that another thread can end: what nobody waits for yields to a new cut."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from threading import Event
from typing import TYPE_CHECKING, Any

from lakehouse.servers.trino import connect

if TYPE_CHECKING:
    from trino.dbapi import Cursor

    from lakehouse.settings import Settings


class Interrupted(Exception):
    """The work has ended without a result, because a cut came."""


class Statements:
    """What the worker and dbt in its process ask of Trino."""

    def __init__(self) -> None:
        self._ending, self._asked = Event(), set["Cursor"]()

    def begin(self) -> None:
        """From here on statements run again."""
        self._ending.clear()

    def end(self) -> None:
        """Cancels all statements; from here on none begins. Called again until the work has noticed."""
        from dbt.adapters.contracts.connection import ConnectionState
        from dbt.adapters.factory import FACTORY
        from trino.exceptions import Error, HttpError

        self._ending.set()
        managers = [adapter.connections for adapter in list(FACTORY.adapters.values())]
        connections = [found for manager in managers for found in list(manager.thread_connections.values())]
        handles = [found.handle for found in connections if found.state == ConnectionState.OPEN]
        for asked in [*self._asked.copy(), *handles]:
            with suppress(Error, HttpError, OSError):  # a server that went away runs nothing
                asked.cancel()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Around whatever asks Trino. Raises Interrupted if it is not to begin, or if its results may be incomplete:
        a statement that was cancelled can look like one without rows.
        """
        self._check()
        try:
            yield
        finally:
            self._check()

    def ask(self, settings: "Settings", sql: str, session: Mapping[str, str]) -> Sequence[Sequence[Any]]:
        """All rows of one statement."""
        cursor = connect(settings, session=session).cursor()
        self._asked.add(cursor)
        try:
            with self.running():
                cursor.execute(sql)
                return cursor.fetchall()
        finally:
            self._asked.discard(cursor)

    def _check(self) -> None:
        if self._ending.is_set():
            raise Interrupted

"""Two maintenance runs do not work on one table at once; nor does one on a mirror during its refresh."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lakehouse.servers.table_locks import Held, locked
from maintenance.inventory.outcome import TableName
from maintenance.inventory.session import Session

__all__ = ["Held", "exclusive"]

REFRESH_SECONDS = 120.0  # a refresh of mirrors ends by then, or the step is left to the next run


@contextmanager
def exclusive(session: Session, table: TableName) -> Iterator[None]:
    """Locks the table during the block; raises Held if another run has locked it.

    Raises LakehouseError when the catalog database cannot be reached.
    """
    patience = REFRESH_SECONDS if table.namespace.startswith("mirror_") else 0.0
    with locked(session.settings, [table], "maintenance", patience) as connection:
        session.locks[table] = connection
        try:
            yield
        finally:
            del session.locks[table]

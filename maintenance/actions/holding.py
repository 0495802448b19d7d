"""Makes ingestion keep the snapshots since a rewrite started; see `lakehouse.catalog.writing.rewriting`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from lakehouse.catalog.writing.commit import until_committed
from lakehouse.catalog.writing.rewriting import REWRITING, rewriting
from maintenance.inventory.outcome import TableName
from maintenance.inventory.session import Session

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.update import TableUpdate

SLOWEST_BYTES_A_SECOND, SLOWEST_SECONDS = 3_000_000, 600  # a call that is slower loses the snapshots since it began


def hold(session: Session, table: TableName, size: int) -> None:
    """Makes ingestion keep all snapshots from now on, for the time that a rewrite of `size` bytes may take."""
    from pyiceberg.table.update import SetPropertiesUpdate

    until = time.time() + SLOWEST_SECONDS + size / SLOWEST_BYTES_A_SECOND

    def change(loaded: Table) -> tuple[TableUpdate, ...]:
        return (SetPropertiesUpdate(updates=rewriting(loaded.metadata, int(until * 1000))),)

    if _is_published(table):
        until_committed(session.catalog, table, change)


def let_go(session: Session, table: TableName) -> None:
    """Ends the hold, also one of a killed run."""
    from pyiceberg.table.update import RemovePropertiesUpdate

    def change(loaded: Table) -> tuple[TableUpdate, ...]:
        return (RemovePropertiesUpdate(removals=[REWRITING]),) if REWRITING in loaded.properties else ()

    if _is_published(table):
        until_committed(session.catalog, table, change)


def _is_published(table: TableName) -> bool:
    """Whether ingestion may write the table; it limits the snapshots of its tables."""
    return table.namespace == "meta" or table.namespace.startswith("raw_")

"""Keeps the snapshots since a rewrite began, for as long as it may take; see `lakehouse.catalog.rewriting`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from lakehouse.catalog.commit import until_committed
from lakehouse.catalog.rewriting import REWRITING, rewriting
from maintenance.inventory.outcome import TableName
from maintenance.inventory.session import Session

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.update import TableUpdate

SLOWEST_BYTES_A_SECOND, SLOWEST_SECONDS = 3_000_000, 600  # a call that is slower loses the snapshots since it began


def hold(session: Session, table: TableName, size: int) -> None:
    """Has ingestion keep all snapshots from now on, for as long as it may take to rewrite so many bytes."""
    from pyiceberg.table.update import SetPropertiesUpdate

    until = time.time() + SLOWEST_SECONDS + size / SLOWEST_BYTES_A_SECOND

    def change(loaded: Table) -> TableUpdate:
        return SetPropertiesUpdate(updates=rewriting(loaded.metadata, int(until * 1000)))

    if _is_published(table):
        until_committed(session.catalog, table, change)


def let_go(session: Session, table: TableName) -> None:
    """Ends that, also what a killed run left."""
    from pyiceberg.table.update import RemovePropertiesUpdate

    def change(loaded: Table) -> TableUpdate | None:
        return RemovePropertiesUpdate(removals=[REWRITING]) if REWRITING in loaded.properties else None

    if _is_published(table):
        until_committed(session.catalog, table, change)


def _is_published(table: TableName) -> bool:
    """Whether ingestion may write the table; it bounds the snapshots of those that it does."""
    return table.namespace == "meta" or table.namespace.startswith("raw_")

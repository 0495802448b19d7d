"""Tables whose writers replace their newest file by one with more rows, until it is full or old.

Maintenance leaves such files alone: its rewrite would be in vain, because the writer replaces the file meanwhile. It
waits for longer than a writer goes on, so that the two meet only where one stands still in between; then the later
commit is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

GROWS = timedelta(minutes=2)  # how old the oldest row of a file is at most that is replaced
LEFT_ALONE = 2 * GROWS
MOMENT: Mapping[tuple[str, ...], str] = {("meta", "cuts"): "published_at"}  # when a row was written


def grows(table: Table) -> bool:
    """Whether writers replace the newest files of the table."""
    return table.name() in MOMENT


def may_grow(table: Table, file: DataFile, now: datetime) -> bool:
    """Whether its writer may still replace a file."""
    from pyiceberg.conversions import from_bytes
    from pyiceberg.types import TimestamptzType

    if not grows(table):
        return False
    column = table.schema().find_field(MOMENT[table.name()])
    least = (file.lower_bounds or {}).get(column.field_id)
    return least is not None and int(from_bytes(TimestamptzType(), least)) >= _micros(now - LEFT_ALONE)


def settled(table: Table, now: datetime) -> str:
    """A condition in Spark's SQL that some rows of each file meet which is not replaced any more; empty for all."""
    if not grows(table):
        return ""
    return f"{MOMENT[table.name()]} < TIMESTAMP '{(now - LEFT_ALONE).astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC'"


def _micros(moment: datetime) -> int:
    return int(moment.timestamp() * 1_000_000)

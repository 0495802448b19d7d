"""How far long work of a source has come: a row that each publish of it updates, for whoever looks.

Ranges of a snapshot, or bytes of WAL of a backlog that takes several publishes; nothing is written for less.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from psycopg.rows import class_row

from lakehouse.servers.database import CatalogConnection

Phase = Literal["snapshot", "changes"]


@dataclass(frozen=True)
class Progress:
    """`done` of `total` are heap ranges in the phase `snapshot`, bytes of WAL in `changes`; `rows` have landed."""

    phase: Phase
    done: int
    total: int
    rows: int
    began_at: datetime
    updated_at: datetime

    @property
    def rows_per_second(self) -> float:
        """Over all publishes so far; 0 before the first."""
        seconds = (self.updated_at - self.began_at).total_seconds()
        return self.rows / seconds if self.done and seconds else 0.0

    @property
    def seconds_left(self) -> float | None:
        """At the pace so far; None before the first publish."""
        seconds = (self.updated_at - self.began_at).total_seconds()
        return seconds * (self.total - self.done) / self.done if self.done else None


def begin(connection: CatalogConnection, source: str, phase: Phase, total: int) -> None:
    """Long work begins; replaces what another writer may have left when it was killed."""
    connection.execute(
        "INSERT INTO lakehouse.progress VALUES (%s, %s, 0, %s, 0, clock_timestamp(), clock_timestamp())"
        " ON CONFLICT (source) DO UPDATE SET phase = excluded.phase, done = 0, total = excluded.total, rows = 0,"
        " began_at = excluded.began_at, updated_at = excluded.updated_at",
        (source, phase, total),
    )


def advance(connection: CatalogConnection, source: str, done: int, rows: int) -> None:
    """So much more is done; the work is forgotten when all of it is."""
    connection.execute(
        "UPDATE lakehouse.progress SET done = done + %s, rows = rows + %s, updated_at = clock_timestamp()"
        " WHERE source = %s",
        (done, rows, source),
    )
    connection.execute("DELETE FROM lakehouse.progress WHERE source = %s AND done >= total", (source,))


def compared(connection: CatalogConnection, source: str) -> int:
    """How many tables wait to be compared with the source, as after a restore, or are being compared."""
    query = "SELECT count(*) FROM lakehouse.positions WHERE source = %s AND state = 'stale'"
    row = connection.execute(query, (source,)).fetchone()
    return row[0] if row else 0


def read(connection: CatalogConnection, source: str) -> Progress | None:
    """The long work under way, or None."""
    with connection.cursor(row_factory=class_row(Progress)) as cursor:
        return cursor.execute(
            "SELECT phase, done, total, rows, began_at, updated_at FROM lakehouse.progress WHERE source = %s", (source,)
        ).fetchone()

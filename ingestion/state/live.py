"""The live states of a source: what was read and is not published, where the catalog service finds it.

They stay when a follower is killed. The next one reads again from the published position, and shows and publishes
nothing before it has read as far as they do: a reader never goes back.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ingestion.state import store, stored
from lakehouse.servers.database import CatalogConnection


@dataclass(frozen=True)
class LiveTable:
    """The next metadata of one table, made from the metadata at `base_location`."""

    namespace: str
    table: str
    base_location: str
    base_snapshot: int | None
    metadata_location: str


@dataclass(frozen=True)
class Shown:
    """How far the live states of a source go, which all of them do alike, and since when."""

    position: Any
    at: datetime


def show(connection: CatalogConnection, source: str, position: Any, tables: Sequence[LiveTable]) -> None:
    """Replaces the live states of a source, inside the transaction that checks the lease."""
    connection.execute("UPDATE lakehouse.live SET metadata_location = NULL WHERE source = %s", (source,))
    with connection.cursor() as cursor:
        cursor.executemany(
            'INSERT INTO lakehouse.live (source, "table", namespace, base_location, base_snapshot, metadata_location,'
            " position) VALUES (%s, %s, %s, %s, %s, %s, %s) ON CONFLICT (source, \"table\") DO UPDATE SET"
            " namespace = excluded.namespace, base_location = excluded.base_location,"
            " base_snapshot = excluded.base_snapshot, metadata_location = excluded.metadata_location,"
            " position = excluded.position, at = excluded.at",
            [
                (source, t.table, t.namespace, t.base_location, t.base_snapshot, t.metadata_location, position.text)
                for t in tables
            ],
        )  # fmt: skip


def end(connection: CatalogConnection, source: str, *, lists: bool) -> None:
    """The rows of its live states are published. Their namespace stays listed where they `lists` further ones."""
    if lists:
        connection.execute("UPDATE lakehouse.live SET metadata_location = NULL WHERE source = %s", (source,))
    else:
        forget(connection, source)
    connection.execute(
        "UPDATE lakehouse.streams SET flush_asked_at = NULL WHERE source = %s AND flush_asked_at IS NOT NULL", (source,)
    )


def forget(connection: CatalogConnection, source: str) -> None:
    """Forgets live states that can be published no more."""
    connection.execute("DELETE FROM lakehouse.live WHERE source = %s", (source,))


def shown(connection: CatalogConnection, source: str) -> Shown | None:
    """How far the live states go that are not published; None where there are none."""
    rows = connection.execute(
        "SELECT position, at FROM lakehouse.live WHERE source = %s AND metadata_location IS NOT NULL", (source,)
    ).fetchall()
    if not rows:
        return None
    kind = store.kind_of(connection, source)
    positions = [stored.POSITIONS[kind].parse(text) for text, _ in rows]
    furthest = positions[0]
    for position in positions[1:]:
        furthest = furthest.join(position)
    return Shown(furthest, max(at for _, at in rows))


def ask_for_flush(connection: CatalogConnection, source: str) -> None:
    """Asks the follower to publish what it has read."""
    connection.execute(
        "UPDATE lakehouse.streams SET flush_asked_at = clock_timestamp() WHERE source = %s AND flush_asked_at IS NULL",
        (source,),
    )

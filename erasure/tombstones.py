"""What was erased, remembered where a restore of one thing does not take it away.

A tombstone holds table, key, time and person, and nothing personal. It stands in three places: a table of the catalog
database, an object of the warehouse, a file of the home. A restore brings one of them back to an older state, or all
that one backup holds; what any of them still knows counts, and each reading writes it to the others again.

The catalog also keeps `condemned`: files that an erasure is about to cut off. They are written down before the last
snapshot that names them goes, so that an erasure that was killed in between can be finished.
"""

from __future__ import annotations

import getpass
import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from lakehouse.errors import LakehouseError
from lakehouse.files.private_files import private_dir, write_private
from lakehouse.files.stored import known_fields
from lakehouse.servers.database import CatalogConnection
from maintenance.inventory.lake import list_objects

if TYPE_CHECKING:
    from pyiceberg.io.pyarrow import PyArrowFileIO

    from lakehouse.settings import Settings

FOLDER = "erasures"


@dataclass(frozen=True)
class Tombstone:
    """One erasure: `key` by column, as the source spells columns and values. `done_at` is when it was first proved."""

    source: str
    table: str
    key: dict[str, str]
    asked_at: str
    asked_by: str
    done_at: str | None = None

    @property
    def id(self) -> str:
        """The same for the same subject."""
        return hashlib.sha256(json.dumps([self.source, self.table, sorted(self.key.items())]).encode()).hexdigest()[:32]

    def __str__(self) -> str:
        return f"{self.source}.{self.table} " + " ".join(f"{name}={value}" for name, value in self.key.items())


def tombstone(source: str, table: str, key: dict[str, str]) -> Tombstone:
    """A new one, of this moment and this user."""
    return Tombstone(source, table, key, datetime.now(UTC).isoformat(timespec="seconds"), getpass.getuser())


def keep(settings: Settings, io: PyArrowFileIO, states: CatalogConnection, stones: Iterable[Tombstone]) -> None:
    """Writes tombstones to all three places; raises LakehouseError where one cannot be written."""
    for stone in stones:
        text = json.dumps(asdict(stone), sort_keys=True)
        states.execute(
            "INSERT INTO lakehouse.erasures VALUES (%s, %s)"
            " ON CONFLICT (id) DO UPDATE SET tombstone = excluded.tombstone",
            (stone.id, text),
        )
        try:
            with io.new_output(_object(settings, stone)).create(overwrite=True) as stream:
                stream.write(text.encode())
            folder = settings.home / FOLDER
            private_dir(folder)
            write_private(folder / f"{stone.id}.json", text)
        except OSError as error:
            raise LakehouseError(f"tombstone of {stone}: {error}; nothing was erased without one") from None


def read(settings: Settings, io: PyArrowFileIO, states: CatalogConnection) -> tuple[Tombstone, ...]:
    """All tombstones that any of the places knows, oldest first; places that lack some have them afterwards."""
    places = [
        [json.dumps(row[0]) for row in states.execute("SELECT tombstone FROM lakehouse.erasures").fetchall()],
        [_content(io, stored.path) for stored in list_objects(io, f"{settings.warehouse.rstrip('/')}/{FOLDER}")],
        [path.read_text() for path in sorted((settings.home / FOLDER).glob("*.json"))],
    ]
    known = [
        {stone.id: stone for stone in (Tombstone(**known_fields(Tombstone, json.loads(text))) for text in texts)}
        for texts in places
    ]
    found: dict[str, Tombstone] = {}
    for place in known:
        for stone in place.values():
            if stone.id not in found or found[stone.id].done_at is None:
                found[stone.id] = stone
    keep(settings, io, states, [stone for stone in found.values() if any(p.get(stone.id) != stone for p in known)])
    return tuple(sorted(found.values(), key=lambda stone: (stone.asked_at, stone.id)))


def remove(settings: Settings, io: PyArrowFileIO, states: CatalogConnection, stone: Tombstone) -> None:
    """Forgets an erasure in all three places; raises LakehouseError where one cannot be written."""
    states.execute("DELETE FROM lakehouse.erasures WHERE id = %s", (stone.id,))
    try:
        io.delete(_object(settings, stone))
        (settings.home / FOLDER / f"{stone.id}.json").unlink(missing_ok=True)
    except OSError as error:
        raise LakehouseError(f"tombstone of {stone}: {error}; it is there still: run this again") from None


def condemn(states: CatalogConnection, table: tuple[str, str], paths: Iterable[str]) -> None:
    """Writes down files that are about to be cut off."""
    with states.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO lakehouse.condemned VALUES (%s, %s, %s) ON CONFLICT DO NOTHING",
            [(*table, path) for path in paths],
        )


def condemned(states: CatalogConnection, table: tuple[str, str]) -> set[str]:
    """The files of a table that an erasure has cut off, or was about to, and has not deleted."""
    rows = states.execute('SELECT path FROM lakehouse.condemned WHERE namespace = %s AND "table" = %s', table)
    return {row[0] for row in rows.fetchall()}


def executed(states: CatalogConnection, table: tuple[str, str]) -> None:
    """Forgets the condemned files of a table: those that nothing refers to are gone, the others never were cut off."""
    states.execute('DELETE FROM lakehouse.condemned WHERE namespace = %s AND "table" = %s', table)


def _object(settings: Settings, stone: Tombstone) -> str:
    return f"{settings.warehouse.rstrip('/')}/{FOLDER}/{stone.id}.json"


def _content(io: PyArrowFileIO, path: str) -> str:
    with io.new_input(path).open() as stream:
        return stream.read().decode()

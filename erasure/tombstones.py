"""Records of erasures that survive a restore.

A tombstone contains table, key, time and who asked, and no personal data. It has three copies: in the catalog database,
in the warehouse and in the home. A restore may return one of these stores to an older state, so each read merges the
copies and writes them back.

The table `condemned` of the catalog lists the files that an erasure will delete. It is written before the last snapshot
that names them expires, so that the next run can finish after a kill.
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
    """One erasure: `key` has the source's column names and texts. `done_at` is the time of the first proof."""

    source: str
    table: str
    key: dict[str, str]
    asked_at: str
    asked_by: str
    done_at: str | None = None

    @property
    def id(self) -> str:
        """A digest of table and key."""
        return hashlib.sha256(json.dumps([self.source, self.table, sorted(self.key.items())]).encode()).hexdigest()[:32]

    def __str__(self) -> str:
        return f"{self.source}.{self.table} " + " ".join(f"{name}={value}" for name, value in self.key.items())


def tombstone(source: str, table: str, key: dict[str, str]) -> Tombstone:
    """A new tombstone of the current time and user."""
    return Tombstone(source, table, key, datetime.now(UTC).isoformat(timespec="seconds"), getpass.getuser())


def keep(settings: Settings, io: PyArrowFileIO, states: CatalogConnection, stones: Iterable[Tombstone]) -> None:
    """Writes tombstones to all three stores; raises LakehouseError if one cannot be written."""
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
            raise LakehouseError(f"tombstone of {stone}: {error}; nothing is erased without a tombstone") from None


def read(settings: Settings, io: PyArrowFileIO, states: CatalogConnection) -> tuple[Tombstone, ...]:
    """All tombstones of the three stores, oldest first; writes those that a store lacks."""
    stored_texts = [
        [json.dumps(row[0]) for row in states.execute("SELECT tombstone FROM lakehouse.erasures").fetchall()],
        [_content(io, stored.path) for stored in list_objects(io, f"{settings.warehouse.rstrip('/')}/{FOLDER}")],
        [path.read_text() for path in sorted((settings.home / FOLDER).glob("*.json"))],
    ]
    known = [
        {stone.id: stone for stone in (Tombstone(**known_fields(Tombstone, json.loads(text))) for text in texts)}
        for texts in stored_texts
    ]
    found: dict[str, Tombstone] = {}
    for copies in known:
        for stone in copies.values():
            if stone.id not in found or found[stone.id].done_at is None:
                found[stone.id] = stone
    keep(settings, io, states, [stone for stone in found.values() if any(p.get(stone.id) != stone for p in known)])
    return tuple(sorted(found.values(), key=lambda stone: (stone.asked_at, stone.id)))


def remove(settings: Settings, io: PyArrowFileIO, states: CatalogConnection, stone: Tombstone) -> None:
    """Deletes a tombstone from all three stores; raises LakehouseError if one cannot be written."""
    states.execute("DELETE FROM lakehouse.erasures WHERE id = %s", (stone.id,))
    try:
        io.delete(_object(settings, stone))
        (settings.home / FOLDER / f"{stone.id}.json").unlink(missing_ok=True)
    except OSError as error:
        raise LakehouseError(f"tombstone of {stone}: {error}; it still exists: run this again") from None


def record_files_to_delete(states: CatalogConnection, table: tuple[str, str], paths: Iterable[str]) -> None:
    """Records files that are about to lose their last reference."""
    with states.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO lakehouse.condemned VALUES (%s, %s, %s) ON CONFLICT DO NOTHING",
            [(*table, path) for path in paths],
        )


def files_to_delete(states: CatalogConnection, table: tuple[str, str]) -> set[str]:
    """The recorded files of a table that are not deleted yet."""
    rows = states.execute('SELECT path FROM lakehouse.condemned WHERE namespace = %s AND "table" = %s', table)
    return {row[0] for row in rows.fetchall()}


def forget_files_to_delete(states: CatalogConnection, table: tuple[str, str]) -> None:
    """Removes the records of a table: its unreferenced files are deleted, the others are still in use."""
    states.execute('DELETE FROM lakehouse.condemned WHERE namespace = %s AND "table" = %s', table)


def _object(settings: Settings, stone: Tombstone) -> str:
    return f"{settings.warehouse.rstrip('/')}/{FOLDER}/{stone.id}.json"


def _content(io: PyArrowFileIO, path: str) -> str:
    with io.new_input(path).open() as stream:
        return stream.read().decode()

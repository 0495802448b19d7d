"""Records of erasures that survive a restore.

A tombstone contains table, key and its other spellings, time and who asked, and no personal data. It has three copies:
in the catalog database, in the warehouse and in the home. A restore may return one of these stores to an older state,
so each read merges the copies and writes them back. So an ended tombstone is marked and not deleted: the mark wins over
the copies that other homes hold, and only a later erasure of the same person, which has a higher number, wins over it.

The table `condemned` of the catalog lists the files that an erasure will delete. It is written before the last snapshot
that names them expires, so that the next run can finish after a kill.
"""

from __future__ import annotations

import getpass
import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from lakehouse.catalog.locations import one_spelling
from lakehouse.catalog.objects import list_objects
from lakehouse.errors import LakehouseError
from lakehouse.files.private_files import private_dir, write_private
from lakehouse.files.stored import known_fields
from lakehouse.servers.database import CatalogConnection

if TYPE_CHECKING:
    from pyiceberg.io.pyarrow import PyArrowFileIO

    from lakehouse.settings import Settings

FOLDER = "erasures"
_RANK = """(coalesce(({0}->>'ends_before')::int, 0), {0}->>'ended_at' IS NOT NULL, {0}->>'done_at' IS NOT NULL,
  {0}->>'spellings' IS NOT NULL)"""
KEEP = (
    "INSERT INTO lakehouse.erasures AS kept VALUES (%s, %s) ON CONFLICT (id) DO UPDATE SET tombstone ="
    f" excluded.tombstone WHERE {_RANK.format('kept.tombstone')} <= {_RANK.format('excluded.tombstone')}"
)  # as Tombstone.rank: another home may have ended it since it was read here


@dataclass(frozen=True)
class Tombstone:
    """One erasure: `key` has the source's column names and texts. `done_at` is the time of the first proof, `ended_at`
    of its end; `ends_before` counts the ends of earlier erasures of the same subject. `spellings` are the keys of other
    texts that the database called equal at the erasure; None where that is not remembered."""

    source: str
    table: str
    key: dict[str, str]
    asked_at: str
    asked_by: str
    done_at: str | None = None
    ended_at: str | None = None
    ends_before: int = 0
    spellings: tuple[dict[str, str], ...] | None = None

    @property
    def rank(self) -> tuple[int, bool, bool, bool]:
        """Of two copies the one with the higher rank is the newer one; clocks of different machines do not count."""
        return self.ends_before, self.ended_at is not None, self.done_at is not None, self.spellings is not None

    @property
    def id(self) -> str:
        """A digest of table and key."""
        return hashlib.sha256(json.dumps([self.source, self.table, sorted(self.key.items())]).encode()).hexdigest()[:32]

    def __str__(self) -> str:
        return f"{self.source}.{self.table} " + " ".join(f"{name}={value}" for name, value in self.key.items())


def tombstone(source: str, table: str, key: dict[str, str]) -> Tombstone:
    """A new tombstone of the current time and user."""
    return Tombstone(source, table, key, datetime.now(UTC).isoformat(timespec="seconds"), getpass.getuser())


def add(
    settings: Settings, io: PyArrowFileIO, states: CatalogConnection, stones: Iterable[Tombstone]
) -> tuple[Tombstone, ...]:
    """Writes new tombstones, each above the ended one of its subject, and returns them; raises LakehouseError."""
    ended = {stone.id: stone for stone in _merged(settings, io, states) if stone.ended_at is not None}
    added = tuple(
        replace(stone, ends_before=ended[stone.id].ends_before + 1) if stone.id in ended else stone for stone in stones
    )
    keep(settings, io, states, added)
    return added


def keep(settings: Settings, io: PyArrowFileIO, states: CatalogConnection, stones: Iterable[Tombstone]) -> None:
    """Writes tombstones to all three stores, the catalog first; one that the catalog knows more newly is written as it
    is there. Raises LakehouseError if one cannot be written."""
    for given in stones:
        states.execute(KEEP, (given.id, _text(given)))
        row = states.execute("SELECT tombstone FROM lakehouse.erasures WHERE id = %s", (given.id,)).fetchone()
        stone = _parsed(json.dumps(row[0])) if row else given
        try:
            with io.new_output(_object(settings, stone)).create(overwrite=True) as stream:
                stream.write(_text(stone).encode())
            folder = settings.home / FOLDER
            private_dir(folder)
            write_private(folder / f"{stone.id}.json", _text(stone))
        except OSError as error:
            raise LakehouseError(f"tombstone of {stone}: {error}; run this again") from None


def read(settings: Settings, io: PyArrowFileIO, states: CatalogConnection) -> tuple[Tombstone, ...]:
    """The tombstones of the three stores that are not ended, oldest first; writes those that a store lacks."""
    return tuple(stone for stone in _merged(settings, io, states) if stone.ended_at is None)


def end(settings: Settings, io: PyArrowFileIO, states: CatalogConnection, stone: Tombstone) -> None:
    """Marks a tombstone as ended in all three stores; raises LakehouseError if one cannot be written.

    The mark in the catalog, which comes first, ends it; after a kill the next read writes the others.
    """
    keep(settings, io, states, [replace(stone, ended_at=datetime.now(UTC).isoformat(timespec="seconds"))])


def _merged(settings: Settings, io: PyArrowFileIO, states: CatalogConnection) -> tuple[Tombstone, ...]:
    stored_texts = [
        [json.dumps(row[0]) for row in states.execute("SELECT tombstone FROM lakehouse.erasures").fetchall()],
        [_content(io, stored.path) for stored in list_objects(io, f"{settings.warehouse.rstrip('/')}/{FOLDER}")],
        [path.read_text() for path in sorted((settings.home / FOLDER).glob("*.json"))],
    ]
    known = [{stone.id: stone for stone in map(_parsed, texts)} for texts in stored_texts]
    found: dict[str, Tombstone] = {}
    for copies in known:
        for stone in copies.values():
            if stone.id not in found or found[stone.id].rank < stone.rank:
                found[stone.id] = stone
            elif found[stone.id].rank == stone.rank:
                found[stone.id] = _united(found[stone.id], stone)
    keep(settings, io, states, [stone for stone in found.values() if any(p.get(stone.id) != stone for p in known)])
    return tuple(sorted(found.values(), key=lambda stone: (stone.asked_at, stone.id)))


def _united(stone: Tombstone, other: Tombstone) -> Tombstone:
    """One of two copies, neither of which is newer, with the spellings of both: each was found by some erasure."""
    own = stone.spellings or ()
    more = tuple(key for key in other.spellings or () if key not in own)
    return replace(stone, spellings=(*own, *more)) if more else stone


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
    return {one_spelling(row[0]) for row in rows.fetchall()}


def forget_files_to_delete(states: CatalogConnection, table: tuple[str, str]) -> None:
    """Removes the records of a table: its unreferenced files are deleted, the others are still in use."""
    states.execute('DELETE FROM lakehouse.condemned WHERE namespace = %s AND "table" = %s', table)


def _text(stone: Tombstone) -> str:
    return json.dumps(asdict(stone), sort_keys=True)


def _parsed(text: str) -> Tombstone:
    known = known_fields(Tombstone, json.loads(text))
    spellings = known.get("spellings")
    return Tombstone(**{**known, "spellings": None if spellings is None else tuple(spellings)})


def _object(settings: Settings, stone: Tombstone) -> str:
    return f"{settings.warehouse.rstrip('/')}/{FOLDER}/{stone.id}.json"


def _content(io: PyArrowFileIO, path: str) -> str:
    with io.new_input(path).open() as stream:
        return stream.read().decode()

"""A backup and a restore from beginning to end.

The database first, the objects second: files are written before the catalog names them, and deleted only when they have
been out of use for `keep_removed_hours`, so that every file of the dump's tables is there for that time. An erasure, or
whoever drops a table, deletes at once: where an object goes before it was copied, both are done again.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ingestion.sources.postgres.connection import connect_source, read_slot
from ingestion.state import lease, store
from lakehouse.errors import LakehouseError
from lakehouse.files.private_files import privately
from lakehouse.migrations import newer_state, newest_version
from lakehouse.settings import Settings
from lakehouse_backup.dump import dump_catalog, load_catalog, stamp_of
from lakehouse_backup.forward import Forward, roll_forward
from lakehouse_backup.objects import Saved, load_objects, save_objects
from maintenance.inventory.lake import list_objects, list_relations
from maintenance.inventory.session import Session

DUMP, OBJECTS, ABOUT, LOCK = "catalog.dump", "warehouse", "backup.json", "backup.lock"
TRIES = 3
Say = Callable[[str], None]


@dataclass(frozen=True)
class Backup:
    """What was written: how many tables the catalog names, objects and bytes copied by this run."""

    tables: int
    objects: int
    bytes: int


@dataclass(frozen=True)
class Restored:
    """When the backup was made, objects written back to the warehouse, and how far the catalog was rolled forward."""

    made_at: datetime
    objects: int
    forward: Forward


def make_backup(settings: Settings, folder: Path, catalog_only: bool = False, say: Say = lambda step: None) -> Backup:
    """Writes a backup, or brings one up to date: objects that are there are not copied again. Raises LakehouseError."""
    if folder.resolve().is_relative_to(settings.home / "data"):
        raise LakehouseError(f"{folder} is among the lake's own data and would be lost with it: name another folder")
    with closing(Session(settings)) as session:
        session.check()  # before a folder is made or a former backup touched
        with written_alone(folder):
            fresh = folder / f"{DUMP}.new"
            made_at, backup = _consistent(settings, session, folder, fresh, catalog_only, say)
            fresh.replace(folder / DUMP)  # the former dump counts until the objects of this one are there
            about = {"made_at": made_at.isoformat(), "warehouse": settings.warehouse, "catalog_only": catalog_only}
            (folder / ABOUT).write_text(json.dumps(about) + "\n")
    return backup


def _consistent(
    settings: Settings, session: Session, folder: Path, fresh: Path, catalog_only: bool, say: Say
) -> tuple[datetime, Backup]:
    """A dump, and copies of all objects that were there when it was made; raises LakehouseError where some are not."""
    objects = size = 0
    saved = Saved()
    for _ in range(TRIES):
        known = () if catalog_only else list_objects(session.io, settings.warehouse)
        made_at = datetime.now(UTC)
        say("dumping the catalog")
        dump_catalog(settings, fresh)
        tables = len(list_relations(session.catalog))
        if not catalog_only:
            saved = save_objects(session.io, settings.warehouse, folder / OBJECTS, known, say)
        objects, size = objects + saved.objects, size + saved.bytes
        if not saved.gone:
            return made_at, Backup(tables, objects, size)
    fresh.unlink()
    raise LakehouseError(
        f"{len(saved.gone)} objects went before they were copied, first {saved.gone[0]}: an erasure, maintenance or a "
        "load is at work; run this again when it has ended. The folder's former backup is as it was"
    )


@contextmanager
def written_alone(folder: Path) -> Iterator[None]:
    """The folder, made where it is missing, with no other backup writing to it; raises LakehouseError.

    What is written there, only its owner may read.
    """
    try:
        with privately():
            folder.mkdir(parents=True, exist_ok=True)
            with (folder / LOCK).open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                yield
    except BlockingIOError:
        raise LakehouseError(f"another backup is writing to {folder}: wait for it, or name another folder") from None
    except OSError as error:
        if error.strerror is None:  # the object store's, not the folder's
            raise
        raise LakehouseError(f"{folder}: {error.strerror}; name a folder that can be written") from None


def restore_backup(settings: Settings, folder: Path, warehouse: bool = False, say: Say = lambda step: None) -> Restored:
    """Restores the catalog and rolls it forward to what the warehouse holds.

    With `warehouse`, that was lost too: objects that it lacks are written back first. Raises LakehouseError, with
    nothing changed, where a follower is at work or the folder holds no backup of this lake.
    """
    about = _about(settings, folder)
    if warehouse and about["catalog_only"]:
        raise LakehouseError(f"{folder} was made with --catalog-only: it holds no objects to write back")
    with store.connect_catalog(settings) as states:
        lease.refuse_writers(states)  # what is published during a restore would be lost
    with closing(Session(settings)) as session:
        session.check()
        written = load_objects(session.io, settings.warehouse, folder / OBJECTS, say) if warehouse else (0, 0)
    say("restoring the catalog")
    load_catalog(settings, folder / DUMP)
    with store.connect_catalog(settings) as states:
        store.ensure_state(states)  # the dump may be of an earlier release
    forward = roll_forward(settings, lambda source: _slot(settings, source), not warehouse, say)
    return Restored(datetime.fromisoformat(about["made_at"]), written[0], forward)


def _about(settings: Settings, folder: Path) -> dict[str, Any]:
    try:
        about: dict[str, Any] = json.loads((folder / ABOUT).read_text())
    except (OSError, ValueError):
        raise LakehouseError(f"{folder} holds no backup: name a folder that `lakehouse backup` has made") from None
    if about["warehouse"].rstrip("/") != settings.warehouse.rstrip("/"):
        raise LakehouseError(
            f"{folder} is of the warehouse {about['warehouse']}, not {settings.warehouse}: "
            "metadata names its files in full"
        )
    version, release = stamp_of(folder / DUMP)
    if version > newest_version():
        raise newer_state(f"{folder} holds state", version, release)
    return about


def _slot(settings: Settings, source: str) -> int | None:
    """How far the source's slot was consumed; None where it cannot be asked."""
    try:
        with connect_source(settings, source) as connection:
            slot = read_slot(connection, _slot_name(settings, source))
    except LakehouseError:
        return None
    return slot.confirmed_lsn if slot else None


def _slot_name(settings: Settings, source: str) -> str:
    return settings.source(source).slot or f"lakehouse_{source}"

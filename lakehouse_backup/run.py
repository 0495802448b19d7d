"""Runs a backup and a restore.

A backup dumps the database first and copies the objects second. Files are written before the catalog refers to them and
deleted `keep_removed_hours` after they fall out of use, so the files of the dumped tables exist for that long. An
erasure or a dropped table deletes files at once: if an object disappears before it is copied, both steps are repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Any

from ingestion.schema.positions import Lsn
from ingestion.sources.postgres.connection import connect_source, read_slot
from ingestion.state import store
from lakehouse.catalog.objects import list_objects
from lakehouse.catalog.relations import Relation
from lakehouse.errors import LakehouseError
from lakehouse.migrations import newer_state, newest_version
from lakehouse.settings import Settings
from lakehouse_backup.dump import dump_catalog, load_catalog, state_version
from lakehouse_backup.folder import (
    DUMP,
    OBJECTS,
    cluster_of,
    locked_folder,
    noting_restored,
    put_dump,
    read_facts,
    refuse_another,
    refuse_other_lake,
    unchanged_folder,
)
from lakehouse_backup.objects import Saved, load_objects, save_objects
from lakehouse_backup.personal import load_personal, save_personal
from lakehouse_backup.roll_forward import RollForward, roll_forward
from lakehouse_backup.writers import NOBODY_WRITES, forget_processes, holding_off, let_in, refuse_at_work
from maintenance.inventory.lake import list_relations
from maintenance.inventory.outside import outside
from maintenance.inventory.session import Session

TRIES = 3
Say = Callable[[str], None]


class Warehouse(Enum):
    """What became of the warehouse when the catalog was lost, by the option that says so.

    KEPT: nothing. RESTORED: it came back by other means, maybe as of an earlier time. LOST: the backup's objects are to
    be written back.
    """

    KEPT = "--warehouse-kept"
    RESTORED = "--warehouse-restored"
    LOST = "--warehouse"


@dataclass(frozen=True)
class Backup:
    """The number of tables in the catalog, and of objects and bytes copied by this run."""

    tables: int
    objects: int
    bytes: int


@dataclass(frozen=True)
class Restored:
    """The time of the backup, the number of objects written back, and the result of rolling forward."""

    made_at: datetime
    objects: int
    forward: RollForward


def make_backup(settings: Settings, folder: Path, catalog_only: bool = False, say: Say = lambda step: None) -> Backup:
    """Writes or updates a backup; objects in the folder are not copied again.

    Raises LakehouseError, also where the folder has a backup of another catalog, such as the one that was lost.
    """
    data = settings.home / "data"
    if any(folder.resolve().is_relative_to(each.resolve()) for each in (data, *data.glob("*"))):  # may be links
        raise LakehouseError(f"{folder} is among the lake's own data and would be lost with it: name another folder")
    with closing(Session(settings)) as session:
        session.check()  # before the folder is created or a previous backup changed
        with locked_folder(folder):
            fresh = folder / f"{DUMP}.new"
            try:
                made_at, backup = _consistent_backup(settings, session, folder, fresh, catalog_only, say)
                save_personal(settings, folder)
                facts = {
                    "made_at": made_at.isoformat(),
                    "warehouse": settings.warehouse,
                    "catalog_only": catalog_only,
                    "cluster": _cluster(settings),
                }
                put_dump(folder, fresh, facts)  # the previous dump stays valid until all objects are copied
            finally:
                fresh.unlink(missing_ok=True)
            _record(settings, made_at, folder, catalog_only)
    return backup


def _cluster(settings: Settings) -> str | None:
    with store.connect_catalog(settings) as states:
        return cluster_of(states)


def _record(settings: Settings, made_at: datetime, folder: Path, catalog_only: bool) -> None:
    """Notes the backup in the state, so that somebody is told when the last one is too old."""
    with store.connect_catalog(settings) as states:
        store.ensure_state(states)
        states.execute(
            "INSERT INTO lakehouse.backups (made_at, folder, catalog_only) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING",
            (made_at, str(folder), catalog_only),
        )
        states.execute("DELETE FROM lakehouse.backups WHERE made_at < %s - interval '1 year'", (made_at,))


def _consistent_backup(
    settings: Settings, session: Session, folder: Path, fresh: Path, catalog_only: bool, say: Say
) -> tuple[datetime, Backup]:
    """Dumps the catalog and copies all objects it refers to; raises LakehouseError if some could not be copied."""
    objects = size = 0
    saved = Saved()
    for _ in range(TRIES):
        known = () if catalog_only else list_objects(session.io, settings.warehouse)
        made_at = datetime.now(UTC)
        say("dumping the catalog")
        dump_catalog(settings, fresh)
        refuse_another(folder / DUMP, fresh)
        relations = list_relations(session.catalog)
        if not catalog_only:
            _refuse_outside(settings, session, relations)
            saved = save_objects(session.io, settings.warehouse, folder / OBJECTS, known, say)
        objects, size = objects + saved.objects, size + saved.bytes
        if not saved.gone:
            return made_at, Backup(len(relations), objects, size)
    raise LakehouseError(
        f"{len(saved.gone)} objects were deleted before they were copied, first {saved.gone[0]}: an erasure, "
        "maintenance or a load is running; run this again when it has ended. The folder's previous backup is unchanged"
    )


def _refuse_outside(settings: Settings, session: Session, relations: Iterable[Relation]) -> None:
    """Raises LakehouseError where objects of a table would not be copied."""
    for name, place in outside(session.catalog, session.io, settings.warehouse, relations):
        raise LakehouseError(
            f"{name} has files in {place}, outside of the warehouse {settings.warehouse}, which would be in no backup: "
            "set LAKEHOUSE_WAREHOUSE to a folder above both, or build the table anew in the warehouse, or add "
            "--catalog-only and back up all objects by other means. The folder's previous backup is unchanged"
        )


def restore_backup(
    settings: Settings,
    folder: Path,
    warehouse: Warehouse | None = None,
    say: Say = lambda step: None,
    replace_other_lake: bool = False,
) -> Restored:
    """Restores the catalog and rolls it forward to the newest cut in the warehouse.

    If the warehouse was LOST, missing objects are written back first. Raises LakehouseError, before any change, if a
    follower or a worker is running, a backup writes to the folder, or the folder contains no backup of this lake, or
    one without objects and nobody says whether the warehouse was KEPT or RESTORED; otherwise it is taken as KEPT. So it
    does, unless `replace_other_lake`, if the catalog has tables of another lake than the backup's.
    Until a restore has ended nobody ingests.
    """
    with unchanged_folder(folder):  # a backup in between would be of what is being replaced
        about = _about(settings, folder)
        if about["catalog_only"] and warehouse not in (Warehouse.KEPT, Warehouse.RESTORED):
            raise LakehouseError(
                f"{folder} was made with --catalog-only and holds no objects: add {Warehouse.KEPT.value} if the "
                f"warehouse has lost nothing, or {Warehouse.RESTORED.value} once it is back from a copy, which may be "
                "older"
            )
        refuse_at_work(settings)
        if not replace_other_lake:
            refuse_other_lake(settings, folder, about.get("cluster"))
        with closing(Session(settings)) as session:
            session.check()
            is_lost = warehouse is Warehouse.LOST
            written = load_objects(session.io, settings.warehouse, folder / OBJECTS, say) if is_lost else (0, 0)
        load_personal(settings, folder)  # before there is a table that a reader could ask for
        say("restoring the catalog")
        refuse_at_work(settings)  # objects may have taken hours
        last = holding_off(settings.sources) + noting_restored(about.get("cluster"))
        load_catalog(settings, folder / DUMP, first=NOBODY_WRITES, last=last)
        with store.connect_catalog(settings) as states:
            store.ensure_state(states)  # the dump may be from an earlier release
            forget_processes(states)
        is_complete = warehouse in (None, Warehouse.KEPT)
        forward = roll_forward(settings, lambda source: _slot(settings, source), is_complete, say)
        with store.connect_catalog(settings) as states:
            let_in(states)
        return Restored(datetime.fromisoformat(about["made_at"]), written[0], forward)


def _about(settings: Settings, folder: Path) -> dict[str, Any]:
    about = read_facts(folder)
    if about["warehouse"].rstrip("/") != settings.warehouse.rstrip("/"):
        raise LakehouseError(
            f"{folder} is of the warehouse {about['warehouse']}, not {settings.warehouse}: "
            "metadata names its files in full"
        )
    version, release = state_version(folder / DUMP)
    if version > newest_version():
        raise newer_state(f"{folder} holds state", version, release)
    return about


def _slot(settings: Settings, source: str) -> Lsn | None:
    """The confirmed position of the source's slot; None if it cannot be read."""
    try:
        with connect_source(settings, source) as connection:
            slot = read_slot(connection, _slot_name(settings, source))
    except LakehouseError:
        return None
    return Lsn(slot.confirmed_lsn) if slot else None


def _slot_name(settings: Settings, source: str) -> str:
    return settings.source(source).slot or f"lakehouse_{source}"

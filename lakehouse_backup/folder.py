"""The folder of a backup: who may write to it, and what no later backup may replace."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from lakehouse.errors import LakehouseError
from lakehouse.files.private_files import privately
from lakehouse.servers.outage import is_full, no_room
from lakehouse_backup.dump import count_relations, state_began

DUMP, OBJECTS, ABOUT, LOCK = "catalog.dump", "warehouse", "backup.json", "backup.lock"
FORMER = f"{DUMP}.before"
"""The dump of the backup before, whose objects the folder still has."""


def refuse_another(former: Path, fresh: Path) -> None:
    """Raises LakehouseError where the fresh dump would replace that of another catalog, or of one that has lost all
    its tables: a catalog that was lost and set up anew is backed up by cron before anybody restores it."""
    if not former.exists() or (count := count_relations(former)) == 0:
        return
    began, now = state_began(former), state_began(fresh)
    if count_relations(fresh) and (began is None or began == now):
        return
    raise LakehouseError(
        f"{former.parent} has a backup with {count} tables and views of "
        f"{'another catalog' if began != now else 'this catalog, which has none now'}, and it stays: check "
        f"LAKEHOUSE_CATALOG_URL; if the catalog was lost, run `lakehouse restore-backup {former.parent}`; else name "
        "another folder"
    )


def keep_former(folder: Path) -> None:
    """Copies the dump that is about to be replaced: a link is not known to every disk that people back up to."""
    if (dump := folder / DUMP).exists():
        part = folder / f"{FORMER}.part"
        try:
            shutil.copyfile(dump, part)
            part.replace(folder / FORMER)
        finally:
            part.unlink(missing_ok=True)


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Creates and locks the folder against other backups and restores; raises LakehouseError.

    Only the owner can read what is written there.
    """
    try:
        with privately():
            folder.mkdir(parents=True, exist_ok=True)
            with (folder / LOCK).open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                yield
    except BlockingIOError:
        raise _busy(folder) from None
    except OSError as error:
        if error.strerror is None:  # raised by the object store, not the folder
            raise
        if is_full(error.strerror):
            raise no_room(folder) from None
        raise LakehouseError(f"{folder}: {error.strerror}; name a folder that can be written") from None


@contextmanager
def unchanged_folder(folder: Path) -> Iterator[None]:
    """Keeps backups from writing to the folder, which may be one that can only be read; raises LakehouseError."""
    with ExitStack() as held:
        with suppress(OSError):  # where there is none, no backup has written
            lock = held.enter_context((folder / LOCK).open())
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                raise _busy(folder) from None
        yield


def _busy(folder: Path) -> LakehouseError:
    return LakehouseError(f"a backup or a restore is at work in {folder}: wait for it, or name another folder")

"""The folder of a backup: who may write to it, what no later backup may replace, and what it may not replace."""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, LiteralString

import psycopg

from ingestion.state import store
from lakehouse.errors import LakehouseError
from lakehouse.files.atomic import write_atomically
from lakehouse.files.private_files import privately
from lakehouse.migrations import known_steps
from lakehouse.servers.database import CatalogConnection
from lakehouse.servers.outage import is_full, no_room
from lakehouse.settings import Settings
from lakehouse.text.sql import literal
from lakehouse.text.urls import parse_url
from lakehouse_backup.dump import ICEBERG, STATE, count_relations, state_began

DUMP, OBJECTS, ABOUT, LOCK = "catalog.dump", "warehouse", "backup.json", "backup.lock"
REPLACE = "--replace-other-lake"
BEGAN: LiteralString = "SELECT applied_at FROM lakehouse.schema_version ORDER BY version LIMIT 1"
"""When the state in the catalog was made: `state_began` of a dump."""
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


def refuse_other_lake(settings: Settings, folder: Path, cluster: str | None) -> None:
    """Raises LakehouseError where a restore would replace the tables of another lake than the backup's: the text of the
    warehouse is the same in every embedded stack. Of what lake a dump of 0.1.0 is is not known.

    `cluster`: where the catalog was that was backed up, as `cluster_of` has it. One that was restored elsewhere, such
    as production's in a test environment, began at the same time and is another lake all the same; what was restored
    here from there goes on here.
    """
    began = state_began(folder / DUMP)
    with store.connect_catalog(settings) as states:
        count = _value(states, ICEBERG[0], "SELECT count(*) FROM iceberg_tables")
        now = _value(states, f"{STATE}.schema_version", BEGAN)
        here = cluster_of(states)
        came = _value(states, f"{STATE}.restored", "SELECT array_agg(cluster) FROM lakehouse.restored") or []
    is_elsewhere = None not in (cluster, here) and cluster not in (here, *came)
    if not count or (began in (None, now) and not is_elsewhere):
        return
    url = parse_url(settings.catalog_dsn())
    other = "another lake" if began not in (None, now) else "another database"
    raise LakehouseError(
        f"the catalog {url.database} at {url.host}:{url.port} has {count} tables and views of {other} than "
        f"{folder}, and they stay: check LAKEHOUSE_CATALOG_URL and the folder; add {REPLACE} if they are to be lost"
    )


def cluster_of(states: CatalogConnection) -> str | None:
    """The database cluster and the database of the catalog; None where the role may not ask."""
    try:
        with states.transaction():
            query = "SELECT (SELECT system_identifier FROM pg_control_system()) || ' ' || current_database()"
            row = states.execute(query).fetchone()
    except psycopg.errors.InsufficientPrivilege:
        return None
    return str(row[0]) if row else None


def noting_restored(cluster: str | None) -> str:
    """The statements that note, with the load of a dump, from where it came; the dump may be of an earlier release."""
    if cluster is None:
        return ""
    table = next(step.sql.decode() for step in known_steps() if step.name == "restored")
    return f"{table}INSERT INTO lakehouse.restored (cluster) VALUES ({literal(cluster)}) ON CONFLICT DO NOTHING;\n"


def _value(states: CatalogConnection, table: str, query: LiteralString) -> Any:
    """What the query of a table answers; None without the table or a row."""
    if states.execute("SELECT to_regclass(%s)", (table,)).fetchone() == (None,):
        return None
    row = states.execute(query).fetchone()
    return row[0] if row else None


def _keep_former(folder: Path) -> None:
    """Copies the dump that is about to be replaced: a link is not known to every disk that people back up to."""
    if (dump := folder / DUMP).exists():
        part = folder / f"{FORMER}.part"
        try:
            shutil.copyfile(dump, part)
            part.replace(folder / FORMER)
        finally:
            part.unlink(missing_ok=True)


def put_dump(folder: Path, fresh: Path, facts: dict[str, Any]) -> None:
    """Puts a fresh dump in the place of the former one, with its facts.

    They are written first, beside those of the former dump: whoever is killed in between leaves both right.
    """
    former = None
    with suppress(LakehouseError):
        former = {**read_facts(folder), "dump": _digest(folder / DUMP)}
    _keep_former(folder)
    write_atomically(folder / ABOUT, json.dumps({**facts, "dump": _digest(fresh), "before": former}) + "\n")
    fresh.replace(folder / DUMP)


def read_facts(folder: Path) -> dict[str, Any]:
    """What is written of the folder's dump; raises LakehouseError where there is none, or it is another one.

    The dump before is one that is written of: it may have been renamed back.
    """
    try:
        facts: dict[str, Any] = json.loads((folder / ABOUT).read_text())
        dump = _digest(folder / DUMP)
    except (OSError, ValueError):
        raise LakehouseError(f"{folder} contains no backup: name a folder written by `lakehouse backup`") from None
    before = facts.pop("before", None)
    if facts.get("dump", dump) == dump:  # an earlier release wrote of the dump that is there
        return facts
    if before and before["dump"] == dump:
        return dict(before)
    raise LakehouseError(
        f"{folder / DUMP} is none of the dumps that {ABOUT} is about: copy both anew from one backup, or rename "
        f"{FORMER} to {DUMP}"
    )


def _digest(dump: Path) -> str:
    with dump.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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

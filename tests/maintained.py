"""Small tables and policies to maintain, for tests of maintenance against the stack."""

import uuid
from datetime import datetime

import pyarrow as pa

from lakehouse.catalog.objects import list_objects
from lakehouse.declarations.policies import MaintenancePolicy
from maintenance.inventory.outcome import TableName
from maintenance.inventory.session import Session

SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.date32()), ("note", pa.string())])
DAYS = [datetime(2024, 1, day).date() for day in (1, 2)]


def policy(**parts: object) -> MaintenancePolicy:
    """A policy for one session: what is removed need not stay restorable."""
    return MaintenancePolicy.model_validate({"schedule_group": "nightly", "keep_removed_hours": 0, **parts})


COMPACT = policy(compact={"target_file_size_mb": 128, "min_input_files": 5})
EXPIRE_NOW = policy(expire_snapshots={"older_than_hours": 0, "retain_last": 1, "keep_metadata_files": 20})
ORPHANS_NOW = policy(remove_orphan_files={"older_than_hours": 0})


def make_table(session: Session, namespace: str, appends: int) -> TableName:
    """A new table of small appends."""
    name = TableName(namespace, f"t{uuid.uuid4().hex[:8]}")
    session.catalog.create_table(name, SCHEMA)
    append(session, name, times=appends)
    return name


def append(session: Session, name: TableName, times: int = 1) -> None:
    loaded = session.catalog.load_table(name)
    for number in range(times):
        rows = [{"id": number, "day": day, "note": f"{number} {day}"} for day in DAYS]
        loaded.append(pa.Table.from_pylist(rows, SCHEMA))


def rows(session: Session, name: TableName) -> list[dict[str, object]]:
    found = session.catalog.load_table(name).scan().to_arrow().to_pylist()
    return sorted(found, key=lambda row: (row["id"], row["day"], row["note"]))


def paths(session: Session, name: TableName) -> set[str]:
    return {stored.path for stored in list_objects(session.io, session.catalog.load_table(name).location())}


def plant(session: Session, path: str) -> str:
    with session.io.new_output(path).create(overwrite=True) as stream:
        stream.write(b"planted")
    return path


def look_again(session: Session) -> Session:
    """A session whose clock is now: an age limit of 0 hours means "before the session began"."""
    return Session(session.settings, session.dry_run)

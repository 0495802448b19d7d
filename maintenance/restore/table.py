"""Restores a table: `lakehouse maintain restore`.

Only metadata is copied. The state is found in the table's metadata or in an earlier metadata file. Its data files are
still stored, because expiry and orphan removal only record them (`lakehouse.removed_files`) and delete them later.

By default the state is registered as a new table `<table>__as_of_<yyyymmddhhmmss>`. It has its own location and
manifests and `gc.enabled = false`, so that `DROP TABLE` deletes only those. In place, the state becomes the table's
newest: its snapshot is added to the metadata again and main points to it. Later snapshots stay and can be restored too.
The properties of its loads are removed, because these loads are undone: the next load reads everything again and adds
what is missing. So is what a mart was built from: the next build makes it anew. A property tells when it was
(`PUT_BACK`), because the log of snapshots ends with the next replacement. A raw table is not restored in place: its
position is past that state, so the changes in between would never be read again.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from lakehouse.catalog.loads.remembered import LOADED
from lakehouse.catalog.locations import one_spelling
from lakehouse.catalog.objects import list_objects
from lakehouse.catalog.open import MIRROR_POSITION, MIRROR_STATE, PUT_BACK, total
from lakehouse.catalog.private_pyiceberg import copied_to, stage, write_metadata
from lakehouse.catalog.relations import directory
from lakehouse.catalog.writing.commit import swap
from lakehouse.catalog.writing.next_tables import BUILT_FROM
from lakehouse.errors import LakehouseError
from maintenance.inventory import removed
from maintenance.inventory.in_use import RESTORED_FROM
from maintenance.inventory.outcome import TableName
from maintenance.inventory.reachable import files_of
from maintenance.inventory.session import Session
from maintenance.restore.moments import Moment, find

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

RESTORED_AS_OF = "lakehouse.restored-as-of"
OF_NOW = (LOADED, BUILT_FROM, MIRROR_POSITION, MIRROR_STATE)  # what properties begin with that tell the newest state
NAME = "restore"


@dataclass(frozen=True)
class Restored:
    """The restored table, its snapshot, the snapshot's commit time and number of rows.

    It has not `changed` where it was in that state already.
    """

    table: TableName
    snapshot_id: int
    committed_at: datetime
    rows: int
    changed: bool = True

    def __str__(self) -> str:
        already = "" if self.changed else " is in that state already; nothing changed"
        of = f"as of {self.committed_at:%Y-%m-%d %H:%M:%S} UTC, the commit before"
        return f"{self.table}{already}: {self.rows:,} rows, {of}"

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "table": str(self.table),
            "snapshot_id": str(self.snapshot_id),
            "committed_at": self.committed_at.isoformat(),
            "rows": self.rows,
            "changed": self.changed,
        }


def restore(session: Session, table: TableName, as_of: datetime, in_place: bool = False) -> Restored:
    """Restores the table's state at a time; raises LakehouseError if that is not possible."""
    loaded = session.load(table)
    if loaded is None:
        raise LakehouseError(f"{table}: there is no such table in the lake; `lakehouse show` lists them")
    if in_place:
        _refuse_raw(session, table)
    moment = find(session.io, loaded, as_of, _known(session, table))
    _check_whole(session, loaded, moment)
    if in_place:
        return _result(table, moment, _put_back(session, table, loaded, moment))
    name = TableName(table.namespace, f"{table.name}__as_of_{as_of.astimezone(UTC):%Y%m%d%H%M%S}")
    if session.load(name) is not None:
        raise LakehouseError(f"{name} already exists: drop it first, or read it")
    _register(session, table, name, moment, as_of)
    return _result(name, moment)


def _known(session: Session, table: TableName) -> set[str]:
    """Metadata files that were current once, as expiry and orphan removal recorded them."""
    with removed.catalog_database(session.settings) as connection:
        return {file.metadata_location for file in removed.recorded(connection, table).values()}


def _refuse_raw(session: Session, table: TableName) -> None:
    """Raises LakehouseError for a table that ingestion writes to."""
    source = table.namespace.removeprefix("raw_")
    with removed.catalog_database(session.settings) as connection:
        known = connection.execute(
            'SELECT 1 FROM lakehouse.positions WHERE source = %s AND "table" = %s', (source, table.name)
        ).fetchone()
    if (source != table.namespace and known) or table.namespace == "meta":
        raise LakehouseError(
            f"{table}: ingestion would not read the changes since then again: restore it as a copy "
            f"(without --in-place), or repair it with `lakehouse reconcile --repair`"
        )


def _check_whole(session: Session, table: Table, moment: Moment) -> None:
    """Raises LakehouseError if files of that state are already deleted."""
    there = {one_spelling(stored.path) for stored in list_objects(session.io, table.location())}
    below = directory(table.location())
    try:
        needed = files_of(moment.table, [moment.snapshot])
    except FileNotFoundError as error:
        raise LakehouseError(
            f"{'.'.join(table.name())}: {error.args[-1]} of that state is already deleted; name a later time"
        ) from None
    missing = [path for path in needed if path.startswith(below) and path not in there]
    if missing:
        raise LakehouseError(
            f"{'.'.join(table.name())}: {len(missing)} of {len(needed)} files of that state are already deleted, "
            f"first {missing[0]}: removed files are kept for keep_removed_hours; name a later time"
        )


def _result(name: TableName, moment: Moment, changed: bool = True) -> Restored:
    rows = total(moment.snapshot, "total-records")
    return Restored(name, moment.snapshot.snapshot_id, moment.committed_at, rows, changed)


def _put_back(session: Session, table: TableName, loaded: Table, moment: Moment) -> bool:
    """Makes it the newest state; False if it is already."""
    from pyiceberg.exceptions import CommitFailedException
    from pyiceberg.table.update import SetSnapshotRefUpdate

    now, then = loaded.metadata, moment.table.metadata
    if now.current_snapshot_id == moment.snapshot.snapshot_id:
        return False
    if not any(s.snapshot_id == moment.snapshot.snapshot_id for s in now.snapshots):
        update = {"snapshots": [*now.snapshots, moment.snapshot.model_copy(update={"parent_snapshot_id": None})]}
        now = now.model_copy(update=update)
    now = _put_back_now(_with_definitions(now, then, moment.snapshot), moment.snapshot)
    base = type(loaded)(loaded.name(), now, loaded.metadata_location, loaded.io, loaded.catalog)
    pointer = SetSnapshotRefUpdate.model_validate(
        {"ref-name": "main", "type": "branch", "snapshot-id": moment.snapshot.snapshot_id}
    )
    staged = stage(session.catalog, base, [pointer])
    try:
        swap(session.catalog, table, loaded.metadata_location, staged.metadata_location)
    except CommitFailedException as error:
        raise LakehouseError(f"{table}: {error}; nothing was restored, run it again") from None
    return True


def _with_definitions(now: TableMetadata, then: TableMetadata, snapshot: Snapshot) -> TableMetadata:
    """Metadata with all schemas, partition specs and sort orders of then and now; the snapshot's schema is current."""
    schemas = {schema.schema_id: schema for schema in (*then.schemas, *now.schemas)}
    specs = {spec.spec_id: spec for spec in (*then.partition_specs, *now.partition_specs)}
    orders = {order.order_id: order for order in (*then.sort_orders, *now.sort_orders)}
    return now.model_copy(
        update={
            "schemas": list(schemas.values()),
            "partition_specs": list(specs.values()),
            "sort_orders": list(orders.values()),
            "current_schema_id": now.current_schema_id if snapshot.schema_id is None else snapshot.schema_id,
            "last_column_id": max(now.last_column_id, then.last_column_id),
        }
    )


def _put_back_now(now: TableMetadata, snapshot: Snapshot) -> TableMetadata:
    """Metadata without what was noted of the state that it no longer has, and with the restore."""
    properties = {key: value for key, value in now.properties.items() if not key.startswith(OF_NOW)}
    at = f"{PUT_BACK}{int(datetime.now(UTC).timestamp() * 1000)}"
    return now.model_copy(update={"properties": {**properties, at: str(snapshot.snapshot_id)}})


def _register(session: Session, table: TableName, name: TableName, moment: Moment, as_of: datetime) -> None:
    from pyiceberg.table.refs import SnapshotRef

    then, io = moment.table.metadata, moment.table.io
    location = f"{then.location.rstrip('/')}__as_of_{as_of.astimezone(UTC):%Y%m%d%H%M%S}"
    snapshot = _own_manifests(moment, location)
    properties = {key: value for key, value in then.properties.items() if not key.startswith(("write.", *OF_NOW))}
    metadata = _with_definitions(then, then, snapshot).model_copy(
        update={
            "table_uuid": uuid.uuid4(),
            "location": location,
            "snapshots": [snapshot],
            "snapshot_log": [],
            "metadata_log": [],
            "refs": {"main": SnapshotRef.model_validate({"snapshot-id": snapshot.snapshot_id, "type": "branch"})},
            "current_snapshot_id": snapshot.snapshot_id,
            "statistics": [],
            "partition_statistics": [],
            "properties": {
                **properties,
                "gc.enabled": "false",
                RESTORED_FROM: str(table),
                RESTORED_AS_OF: as_of.isoformat(),
            },
        }
    )
    path = f"{location}/metadata/00000-{uuid.uuid4()}.metadata.json"
    write_metadata(metadata, io, path)
    session.catalog.register_table(name, path)


def _own_manifests(moment: Moment, location: str) -> Snapshot:
    """The snapshot with copies of its manifests, because dropping a table deletes its manifests."""
    from pyiceberg.manifest import write_manifest_list

    io, snapshot = moment.table.io, moment.snapshot
    copied = []
    for manifest in snapshot.manifests(io):
        path = f"{location}/metadata/{manifest.manifest_path.rpartition('/')[2]}"
        with io.new_input(manifest.manifest_path).open() as source, io.new_output(path).create() as target:
            target.write(source.read())
        copied.append(copied_to(manifest, path))
    path = f"{location}/metadata/snap-{snapshot.snapshot_id}-{uuid.uuid4()}.avro"
    version = moment.table.metadata.format_version
    sequence = snapshot.sequence_number
    with write_manifest_list(version, io.new_output(path), snapshot.snapshot_id, None, sequence, "deflate") as lists:
        lists.add_manifests(copied)
    return snapshot.model_copy(update={"manifest_list": path, "parent_snapshot_id": None})

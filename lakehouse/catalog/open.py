"""The Iceberg catalog: rows of a Postgres database, reached through PyIceberg.

This module alone knows that the catalog is a JDBC catalog, so that a REST catalog can follow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from lakehouse.catalog import S3_CA, STORE_FOLDER
from lakehouse.settings import Settings
from lakehouse.text.urls import parse_url

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

    from lakehouse.catalog.lake_catalog import LakeCatalog

# SQLSTATEs of a server that stops: the statement was not carried out, so Iceberg's JDBC catalogs may send it again
LOST_CONNECTION = ("57P01", "57P02", "57P03")
_CHANGED = ("added-records", "deleted-records", "added-delete-files")
# Of a mirror: its snapshot of the last refresh that brought the fresh view past what it cannot follow, as a truncate
PASSED = "lakehouse.passed"
MIRROR_POSITION = "lakehouse.position"  # of a mirror, for readers: <epoch>:<position>
MIRROR_STATE = "lakehouse.mirror"  # the same and more, for the next refresh
# Of a table, with the time in milliseconds: its snapshot of before to which it was restored then
PUT_BACK = "lakehouse.put-back."
# Of a table, with a snapshot: when it was published, in milliseconds, if that was later than it was made
PUBLISHED = "lakehouse.published."
ERASURE = "lakehouse.erasure"  # in the summary of a snapshot in which the rows are as before, without a subject's data
ROWS = "lakehouse.rows."  # in the summary of a raw table's snapshot, with the operation: the rows of a cycle
DATA_OPERATIONS = frozenset({"append", "overwrite", "delete"})


@dataclass(frozen=True)
class SnapshotFact:
    """What a snapshot's summary says: no file is read for it."""

    snapshot_id: int
    committed_at: datetime
    total_rows: int
    added_rows: int


def open_catalog(settings: Settings) -> LakeCatalog:
    """The catalog; connects to its database at once. The caller closes it."""
    from lakehouse.catalog.lake_catalog import LakeCatalog

    return LakeCatalog(
        settings.catalog_name,
        **{
            "uri": parse_url(settings.catalog_dsn()).sqlalchemy(),
            "warehouse": settings.warehouse,
            "init_catalog_tables": "false",
            "pool_pre_ping": "true",
            **file_io_properties(settings),
        },
    )


def file_io_properties(settings: Settings) -> dict[str, str]:
    """PyIceberg FileIO properties for the warehouse; holds secrets."""
    properties = {
        "py-io-impl": "lakehouse.catalog.private_pyiceberg.LakeFileIO",
        "s3.region": settings.s3.region,
        "s3.force-virtual-addressing": str(not settings.s3.path_style).lower(),
    }
    if settings.s3.endpoint:
        properties["s3.endpoint"] = settings.s3.endpoint
    if settings.s3.folder:
        properties[STORE_FOLDER] = str(settings.s3.folder)
    if settings.s3.ca:
        properties[S3_CA] = str(settings.s3.ca)
    if settings.s3.access_key and settings.s3.secret_key:
        properties["s3.access-key-id"] = settings.s3.access_key.get_secret_value()
        properties["s3.secret-access-key"] = settings.s3.secret_key.get_secret_value()
    return properties


def load_table(catalog: SqlCatalog, namespace: str, name: str) -> Table | None:
    """The table, or None if it does not exist."""
    from pyiceberg.exceptions import NoSuchTableError

    try:
        return catalog.load_table((namespace, name))
    except NoSuchTableError:
        return None


def newest_data_snapshot(catalog: SqlCatalog, namespace: str, name: str) -> SnapshotFact | None:
    """The newest snapshot that changed data; None when the table is missing or empty.

    A `replace` (compaction) holds the same rows in other files and is passed over.
    """
    table = load_table(catalog, namespace, name)
    return newest_of(table) if table else None


def newest_data_snapshots(catalog: LakeCatalog, tables: Collection[tuple[str, str]]) -> dict[str, SnapshotFact]:
    """The same of several tables, by `namespace.table`, for one question to the database; without missing ones.

    Of a mirror it is the last refresh that has `PASSED`; others change nothing that readers of its fresh view see.
    """
    from lakehouse.catalog.derived import derived

    mirrors = [table for table in tables if table[0].startswith("mirror_")]
    facts = derived(catalog, [table for table in tables if table not in mirrors], newest_of)
    facts |= derived(catalog, mirrors, passed_of)
    return {".".join(name): fact for name, fact in facts.items() if fact is not None}


def unpublished_snapshots(catalog: LakeCatalog, tables: Collection[tuple[str, str]]) -> dict[str, SnapshotFact]:
    """Of tables that are built beside the ones that readers see, those whose newest data was written in place.

    A replacement wins over whatever was published while it was made, as one of a dbt that was begun by hand.
    """
    from lakehouse.catalog.derived import derived

    return {".".join(name): fact for name, fact in derived(catalog, tables, unpublished_of).items() if fact}


def unpublished_of(table: Table) -> SnapshotFact | None:
    """The newest snapshot that changed data, unless it was `PUBLISHED`."""
    newest = newest_of(table)
    return newest if newest and f"{PUBLISHED}{newest.snapshot_id}" not in table.properties else None


def passed_of(mirror: Table) -> SnapshotFact | None:
    """The mirror's snapshot that came with the last refresh that has `PASSED`; None where none has."""
    passed = mirror.properties.get(PASSED)
    return SnapshotFact(int(passed), datetime.fromtimestamp(0, UTC), 0, 0) if passed else None


def total(snapshot: Snapshot | None, key: str) -> int:
    """A number of the snapshot's summary; 0 without a snapshot, or if the writer omitted it."""
    summary = snapshot.summary if snapshot else None
    return int(summary.additional_properties.get(key, 0)) if summary else 0


def history(metadata: TableMetadata, snapshot_id: int | None = None) -> Iterator[Snapshot]:
    """A snapshot, the current one by default, and its ancestors, newest first, as far as they are kept."""
    known = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}  # there may be 70,000
    following = metadata.current_snapshot_id if snapshot_id is None else snapshot_id
    while following is not None and (snapshot := known.get(following)) is not None:
        yield snapshot
        following = snapshot.parent_snapshot_id


def history_since(metadata: TableMetadata, since: int | None, snapshot_id: int | None = None) -> list[Snapshot] | None:
    """A snapshot, the current one by default, and its ancestors after another one, or from the beginning.

    None if it does not descend from that one, or if some between them are expired; that one itself may be.
    """
    found, reached = [], metadata.current_snapshot_id if snapshot_id is None else snapshot_id
    for snapshot in history(metadata, snapshot_id):
        if snapshot.snapshot_id == since:
            break
        found.append(snapshot)
        reached = snapshot.parent_snapshot_id
    return found if reached == since else None


def rows_since(
    catalog: LakeCatalog, tables: Mapping[tuple[str, str], int | None]
) -> dict[tuple[str, str], dict[str, int]]:
    """Rows by operation that ingestion has published in each raw table since a snapshot, or since the beginning.

    Without tables that do not descend from that snapshot, or whose snapshots since then are expired in part.
    """
    found = {name: _published(table, tables[name]) for name, table in catalog.load_tables(list(tables)).items()}
    return {name: rows for name, rows in found.items() if rows is not None}


def _published(table: Table, since: int | None) -> dict[str, int] | None:
    snapshots = history_since(table.metadata, since)
    if snapshots is None:
        return None
    rows = Counter[str]()
    for snapshot in snapshots:
        summary = snapshot.summary.additional_properties if snapshot.summary else {}
        rows.update({key.removeprefix(ROWS): int(value) for key, value in summary.items() if key.startswith(ROWS)})
    return dict(rows)


def newest_of(table: Table) -> SnapshotFact | None:
    """The newest snapshot of a table that changed data; None when it is empty.

    One without rows lets in what came before it (a cut has the table again), and is told with the newest rows.
    """
    newest = next(filter(changes_data, history(table.metadata)), None)
    if newest is None:
        return None
    return _fact(newest, next(filter(changes_rows, history(table.metadata)), newest))


def changes_data(snapshot: Snapshot) -> bool:
    """Whether rows came or went with it, rather than into other files."""
    return snapshot.summary is None or snapshot.summary.operation.value in DATA_OPERATIONS


def changes_rows(snapshot: Snapshot) -> bool:
    """Whether it `changes_data` and has rows: one that only lets a table into the cuts has none."""
    return changes_data(snapshot) and (snapshot.summary is None or any(total(snapshot, key) for key in _CHANGED))


def is_unchanged(metadata: TableMetadata, since: int | None) -> bool:
    """Whether no row has come to a table, or gone, since a snapshot: a compaction, and a cut that has the table again,
    make snapshots too."""
    for snapshot in history(metadata):
        if snapshot.snapshot_id == since:
            return True
        if changes_rows(snapshot):
            return False
    return False


def _fact(snapshot: Snapshot, with_rows: Snapshot) -> SnapshotFact:
    return SnapshotFact(
        snapshot_id=snapshot.snapshot_id,
        committed_at=datetime.fromtimestamp(snapshot.timestamp_ms / 1000, tz=UTC),
        total_rows=total(snapshot, "total-records") - total(snapshot, "total-position-deletes"),
        added_rows=total(with_rows, "added-records"),
    )

"""Publishes a cycle: all tables it touched, its cut and its positions, in one catalog transaction.

PyIceberg stages each table's next metadata file; nothing is visible yet. Then one SQL transaction checks the lease
and swaps the metadata pointers, in sorted order so that two publishes cannot deadlock. A conflict (a compaction
committed first) rolls all of it back, and everything is staged again on the new state.
"""

import time
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import ExpireSnapshots

from ingestion.sink import merging
from ingestion.sink.cuts import CUTS, CUTS_SCHEMA, Grown, append_of, grow, remember
from ingestion.sink.irregular import irregular
from ingestion.sink.merging import Merged
from ingestion.sink.publication import Publication, TableAppend
from ingestion.state import lease as leases
from ingestion.state import store
from ingestion.state.lease import Lease
from lakehouse.catalog.lake_catalog import LakeCatalog
from lakehouse.catalog.objects import sync_objects
from lakehouse.catalog.open import load_table, total
from lakehouse.catalog.private_pyiceberg import Staging
from lakehouse.catalog.statistics import carry
from lakehouse.catalog.views.current_views import view_of
from lakehouse.catalog.views.regular import next_tag
from lakehouse.catalog.views.view_versions import Followed, followed
from lakehouse.catalog.writing.commit import move_pointer, pointers
from lakehouse.catalog.writing.evolving import complete
from lakehouse.catalog.writing.manifests import GrowingAppend, TieredAppend
from lakehouse.catalog.writing.rewriting import needed_since
from lakehouse.errors import LakehouseError
from lakehouse.metrics import REGISTRY
from lakehouse.servers.database import CatalogConnection
from lakehouse.servers.retry import until_answered
from lakehouse.settings import Settings

TABLE_PROPERTIES = {
    "format-version": "2",
    "write.parquet.compression-codec": "zstd",
    "write.metadata.previous-versions-max": "20",
    "write.metadata.compression-codec": "gzip",
    "write.metadata.delete-after-commit.enabled": "false",  # a backup of the catalog may point to one
    "commit.retry.num-retries": "20",
}
STAGING_THREADS = 4
MAX_CONFLICTS = 50


@dataclass
class _Begun:
    """An append that has its snapshot's id but is not written yet; whether it `is_regular` matters of raw tables.

    `merge` merges earlier files behind it, where that is due.
    """

    table: Table
    append: TableAppend
    transaction: Staging
    update: TieredAppend
    is_regular: bool | None = None
    merge: Callable[[], Merged | None] = lambda: None


@dataclass(frozen=True)
class Staged:
    """A table's next metadata file, to which it does not point yet, and what a raw table's publish remembers."""

    identifier: tuple[str, str]
    old_location: str
    new_location: str
    remember: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class _All:
    """What a publish has staged; `cut` is the file with its cut.

    `irregular` are the tables that get what the short text of a fresh view cannot follow. `views` are those of all
    tables that get rows.
    """

    tables: list[Staged]
    irregular: tuple[str, ...]
    views: Followed
    cut: tuple[Grown, GrowingAppend] | None


class Outdated(Exception):
    """Positions were changed after the publish was planned: it has to be planned again."""


class _Conflict(Exception):
    """Another commit moved a table's metadata pointer between staging and publishing."""


def ensure_table(catalog: SqlCatalog, identifier: tuple[str, str], create: Callable[[], Table]) -> Table:
    """The table, made by `create` when it is missing."""
    table = load_table(catalog, *identifier)
    if table is None:
        catalog.create_namespace_if_not_exists(identifier[0])
        create()
        table = catalog.load_table(identifier)
    return table


def ensure_cuts(catalog: SqlCatalog) -> Table:
    """`meta.cuts`, created when it is missing; one of an earlier release gets the columns that it lacks."""
    table = ensure_table(
        catalog,
        CUTS,
        lambda: catalog.create_table_if_not_exists(CUTS, CUTS_SCHEMA, properties=TABLE_PROPERTIES),
    )
    return complete(catalog, table, CUTS_SCHEMA)


def publish(settings: Settings, catalog: LakeCatalog, lease: Lease, publication: Publication) -> None:
    """Makes a cycle visible, all of it or nothing.

    Raises LeaseLost when another writer took the source over, Outdated when its plan no longer holds.
    """
    for _ in range(MAX_CONFLICTS):
        all_staged = _stage_all(settings, catalog, publication)
        sync_objects(catalog.file_io)  # the source forgets what is in them
        try:
            _swap(settings, catalog.name, lease, publication, all_staged)
        except _Conflict:
            REGISTRY.add("lakehouse_conflicts_total", source=publication.source)
            continue
        for table in all_staged.tables:
            table.remember()
        if all_staged.cut is not None:
            remember(*all_staged.cut)
        return
    raise LakehouseError(
        f"source {publication.source!r}: {MAX_CONFLICTS} commits of other writers in a row; nothing was lost"
    )


def _stage_all(settings: Settings, catalog: LakeCatalog, publication: Publication) -> _All:
    """Stages all tables and the cut at once: most of it is waiting for the object store."""
    tables = catalog.load_tables([append.identifier for append in publication.appends])
    known = {identifier: table.metadata for identifier, table in tables.items()}
    cut = publication.cut if publication.advance_to is not None else None  # rows of a repair come late
    found = irregular(publication.source, publication.appends, cut, known)
    begun = [_begin(tables[append.identifier], append) for append in publication.appends]
    raw = [item for item in begun if item.append.identifier[0] == f"raw_{publication.source}"]
    due = merging.due(item.table for item in raw if _may_merge(item))
    for item in raw:
        item.is_regular = item.append.identifier[1] not in found
        if files := due.get(item.append.identifier):
            item.merge = partial(merging.merge, item.table, item.transaction, publication.cycle_id, files)
    with ThreadPoolExecutor(STAGING_THREADS) as pool:
        most = settings.ingestion.max_snapshots
        staged = [pool.submit(_stage, catalog, item, most) for item in begun]
        views = followed(catalog, catalog.file_io, _brought(publication.source, raw), pool)
        if not publication.cut:
            return _All([item.result() for item in staged], found, views(), None)
        table, grown, update = _stage_cut(settings, catalog, publication, begun)
        return _All([*(item.result() for item in staged), table], found, views(), (grown, update))


def _brought(source: str, raw: Iterable[_Begun]) -> dict[tuple[str, str], bool]:
    """The current views of the raw tables that get rows, and whether these are regular."""
    getting = (item for item in raw if item.append.data_files or not item.is_regular)
    return {view_of(source, item.append.identifier[1]): bool(item.is_regular) for item in getting}


def stage_append(catalog: LakeCatalog, append: TableAppend, max_snapshots: int) -> Staged:
    """Stages an append to one table; older snapshots than that many go with it."""
    return _stage(catalog, _begin(catalog.load_table(append.identifier), append), max_snapshots)


def _may_merge(begun: _Begun) -> bool:
    """Whether its earlier files may be replaced: they have all their rows, and nobody rewrites the table."""
    is_whole = begun.append.only_adds and not total(begun.table.current_snapshot(), "total-delete-files")
    return is_whole and needed_since(begun.table.metadata, time.time_ns() // 1_000_000) is None


def _begin(table: Table, append: TableAppend) -> _Begun:
    """Only the snapshot's id, unless there are rows to delete."""
    transaction = Staging(table)
    if append.properties:
        transaction.set_properties(dict(append.properties))
    if append.delete is not None:
        transaction.delete(append.delete, snapshot_properties=append.summary)
    update = TieredAppend(Operation.APPEND, transaction, table.io, snapshot_properties=append.summary)
    return _Begun(table, append, transaction, update)


def _stage(catalog: LakeCatalog, begun: _Begun, max_snapshots: int) -> Staged:
    table, identifier, transaction = begun.table, begun.append.identifier, begun.transaction
    with begun.update as update:
        for file in begun.append.data_files:
            update.append_data_file(file)
    merged = begun.merge()
    if begun.is_regular is not None:
        newest = merged.snapshot_id if merged else begun.update.snapshot_id
        transaction.apply(next_tag(table.metadata, newest, begun.is_regular))
    drop_surplus(transaction, table.metadata, max_snapshots)
    staged = transaction.stage(catalog, table)
    catalog.remember(identifier, staged.metadata_location, staged.metadata)
    return Staged(identifier, table.metadata_location, staged.metadata_location, _memory(begun, merged))


def _memory(begun: _Begun, merged: Merged | None) -> Callable[[], None]:
    """What is to be done once the publish has landed, so that a later one merges its files."""
    if begun.is_regular is None:
        return lambda: None
    if not begun.append.only_adds:
        return lambda: merging.forget(begun.table.metadata)
    return lambda: merging.remember(begun.table.metadata, begun.append.data_files, merged)


def drop_surplus(transaction: Staging, metadata: TableMetadata, max_snapshots: int) -> None:
    """Drops the snapshots beyond that many from the table's next metadata."""
    if surplus := surplus_snapshots(metadata, max_snapshots, time.time_ns() // 1_000_000):
        statistics = carry(metadata, frozenset(surplus))
        ExpireSnapshots(transaction).by_ids(surplus).commit()
        transaction.apply(statistics)


def _stage_cut(
    settings: Settings, catalog: LakeCatalog, publication: Publication, begun: Collection[_Begun]
) -> tuple[Staged, Grown, GrowingAppend]:
    cut, table = publication.cut, ensure_cuts(catalog)
    assert cut is not None
    with store.connect_catalog(settings) as connection:
        now = store.ingestion_clock(connection, publication.source, publication.ingested_at)
    new = {item.append.identifier: item.update.snapshot_id for item in begun}
    covered = [(f"raw_{publication.source}", name) for name in cut.tables]
    others = catalog.load_tables([identifier for identifier in covered if identifier not in new])
    snapshots = {
        identifier[1]: str(new[identifier] if identifier in new else _current_snapshot(others[identifier]))
        for identifier in covered
    }
    row = pa.Table.from_pylist(
        [
            {
                "source": publication.source,
                "epoch": cut.epoch,
                "cut_lsn": cut.position.commit_bound - 1,
                "cut_at": cut.at,
                "published_at": now,
                "snapshots": list(snapshots.items()),
                "position": cut.position.text,
            }
        ],
        schema=table.schema().as_arrow(),
    )
    grown = grow(table, publication.source, row, now)
    summary = {"lakehouse.source": publication.source, "lakehouse.cycle": publication.cycle_id}
    append, transaction = TableAppend(CUTS, grown.files, summary), Staging(table)
    update = append_of(grown, transaction, summary)
    staged = _stage(catalog, _Begun(table, append, transaction, update), settings.ingestion.max_snapshots)
    return staged, grown, update


def surplus_snapshots(metadata: TableMetadata, most: int, now_ms: int) -> list[int]:
    """The oldest snapshots that are not tagged, once there are more than `most`: half of them go, and not one by one.

    Every publish writes the whole metadata file, so a table that gets one each second would slow down without end. No
    row goes with them: these tables are appended to. Their manifest lists, and the files of cuts that were replaced,
    are left to orphan removal. What a rewrite needs stays until that has ended; then no more than `most` go at a time,
    for PyIceberg compares each with all.
    """
    if len(metadata.snapshots) <= most:
        return []
    named = {ref.snapshot_id for ref in metadata.refs.values()}
    since = needed_since(metadata, now_ms)
    numbered = sorted((s.sequence_number or 0, s.snapshot_id) for s in metadata.snapshots)
    old = numbered[: len(numbered) - most // 2]
    return [i for number, i in old if i not in named and (since is None or number < since)][:most]


def _current_snapshot(table: Table) -> int:
    snapshot = table.current_snapshot()
    assert snapshot is not None, f"{table.name()} is in a cut but has no snapshot"
    return snapshot.snapshot_id


def _swap(settings: Settings, catalog_name: str, lease: Lease, publication: Publication, staged: _All) -> None:
    """The one SQL transaction. After an answer that never came, the cycle id tells whether it landed."""

    def attempt() -> None:
        with store.connect_catalog(settings) as connection, connection.transaction():
            leases.check(connection, lease, settings.ingestion.lease_seconds)
            # The lease's row is locked now, so an earlier attempt has either committed or gone.
            if store.cycle_landed(connection, publication.cycle_id):
                return
            if publication.revision is not None:
                stream = store.read_stream(connection, publication.source)
                if stream is None or stream.revision != publication.revision:
                    raise Outdated
            for table in sorted(staged.tables, key=lambda item: item.identifier):
                moved = (catalog_name, table.identifier, table.old_location, table.new_location)
                if not move_pointer(connection, *moved):
                    raise _Conflict
            if not _follow(connection, catalog_name, staged.views):
                raise _Conflict
            publication.record(connection)
            if publication.advance_to is not None:
                store.advance_positions(connection, publication.source, publication.advance_to)
            cut = publication.cut
            store.finish_cycle(
                connection,
                publication.cycle_id,
                publication.source,
                publication.epoch,
                (cut.position, cut.at, list(cut.tables)) if cut else None,
                staged.irregular,
                publication.ingested_at,
                publication.rows,
            )

    until_answered(attempt, what=f"publish of source {publication.source!r}")


def _follow(connection: CatalogConnection, catalog: str, made: Followed) -> bool:
    """Gives views the texts that follow; False if one is not where it was seen, so that it may have another by now.

    A refresh gives short and plain texts while no publish is in its transaction, so none comes in between
    (`leases.hold_off`).
    """
    at = pointers(connection, catalog, made.seen, are_views=True)
    if any(at.get(view) != seen for view, seen in made.seen.items()):
        return False
    return all(move_pointer(connection, catalog, item.view, item.base, item.location) for item in made.views)

"""Brings the mirrors of a source to its newest cut, all in one catalog transaction.

Each changed mirror is written as a copy, small ones several at a time; what happens meanwhile in the source is for the
next refresh. A table that is not in the cut, because it is parked or being loaded, keeps its mirror as it is, and the
row in `meta.mirrors` does not name it until it is back.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
from pyiceberg.table import Table

from ingestion.mirrors import copies
from ingestion.mirrors.changes import BEGINNING, Whole, changes_since, whole
from ingestion.mirrors.columns import ColumnPlan, fit, plan_columns, schema_of
from ingestion.mirrors.side_by_side import side_by_side
from ingestion.mirrors.state import MirrorState, added_files, columns_with_nulls, data_snapshot, read_state
from ingestion.mirrors.view_parts import Position
from ingestion.mirrors.views import Mirrored, NextView, forget_old, next_views
from ingestion.mirrors.write import BRANCH, SMALL_BYTES, Size, Target, write_all, write_changes
from ingestion.pipeline.repair.lake_side import Log
from ingestion.pipeline.repair.spelling import SpelledColumn, spelled_columns
from ingestion.pipeline.session import Session
from ingestion.schema.declared_columns import is_keyed_as_declared
from ingestion.schema.facts import TableFacts
from ingestion.sink.meta_tables import MIRRORS
from ingestion.sink.publish import surplus_snapshots
from ingestion.state import store
from lakehouse.catalog.file_io import open_io
from lakehouse.catalog.lake_catalog import LakeCatalog
from lakehouse.catalog.next_names import Name, next_name
from lakehouse.catalog.open import PASSED, is_unchanged, load_table, total
from lakehouse.catalog.private_pyiceberg import Staging
from lakehouse.catalog.statistics import carry
from lakehouse.catalog.views.current_views import TAG
from lakehouse.catalog.views.regular import moved, newest_tag, shows_all
from lakehouse.declarations import RawTable
from lakehouse.errors import LakehouseError
from lakehouse.servers.database import CatalogConnection
from lakehouse.servers.table_locks import Held, locked
from lakehouse.text.sql import spark_relation

AT_ONCE = 4
TOLD_FOR = timedelta(days=6)  # what publishes had irregular rows is kept for seven


class MirrorInUse(LakehouseError):
    """Maintenance works on a mirror."""


@dataclass(frozen=True)
class MirrorReport:
    """One mirror after a refresh that wrote it: keys with a new row and keys that are gone, unless all rows are new."""

    name: str
    snapshot_id: int
    rows: int
    changed: int
    gone: int
    anew: bool
    seconds: float


@dataclass(frozen=True)
class RefreshReport:
    """The mirrors of a source after a refresh; `position` is the common cut's, None before there is one.

    `aside` are the tables whose mirrors stay where they were: they are in no cut now, or have not the declared columns
    or key, as where a column was renamed in the source and the declaration has not followed.
    """

    source: str
    position: str | None
    cut_at: datetime | None
    written: tuple[MirrorReport, ...]
    unchanged: tuple[str, ...]
    aside: tuple[str, ...]


@dataclass(frozen=True)
class _Mirror:
    """A mirror to write: its table, the mirror as it is, and where it stands. `log` names its columns.

    Everything that the raw table had at `raw_snapshot` is in the cut.
    """

    table: RawTable
    raw: Table
    raw_snapshot: int | None
    mirror: Table | None
    state: MirrorState | None
    log: Log

    @property
    def columns(self) -> dict[str, int]:
        """The raw table's fields that the mirror has, by name."""
        return _fields(self.raw, self.log.columns)

    @property
    def is_same(self) -> bool:
        """Whether nothing has happened to it."""
        if self.state is None or self.columns != dict(self.state.columns) or not self.is_tagged:
            return False
        return is_unchanged(self.raw.metadata, self.state.raw_snapshot)

    @property
    def is_tagged(self) -> bool:
        """Whether expiry keeps the snapshot that the view names."""
        tag = self.mirror.metadata.refs.get(TAG) if self.mirror else None
        return self.state is not None and tag is not None and tag.snapshot_id == self.state.snapshot


@dataclass(frozen=True)
class _Written:
    """The rows of a copy are written; `counts` is None where all are new."""

    ingested_at: datetime
    counts: tuple[int, int] | None


@dataclass(frozen=True)
class _Built:
    """A mirror's next state, which is staged."""

    next: copies.Next
    report: MirrorReport
    state: MirrorState


def refresh(session: Session, states: CatalogConnection) -> RefreshReport:
    """Brings every mirror to the newest cut; the session's lease is that of the mirrors (see `mirrors_of`).

    Raises LeaseLost, MirrorInUse while maintenance works on one of them, MirrorChanged if another writer has changed
    one meanwhile, and LakehouseError.
    """
    mirrored = session.source.mirrored
    before, tags = _raw_snapshots(session)  # before the cut is read: all that these hold is in it
    with states.transaction():
        states.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")  # else a publish may come in between
        stream, positions = store.read_stream(states, session.name), store.read_positions(states, session.name)
        seen = store.last_publish(states, session.name) or BEGINNING
    if stream is None or stream.cut_lsn is None or stream.cut_position is None:
        return RefreshReport(session.name, None, None, (), (), tuple(table.name for table in mirrored))
    tables = [table for table in mirrored if table.name in stream.cut_tables]
    items = _items(session, tables, stream.epoch, positions, before)
    due = [item for item in items if not item.is_same]
    with ExitStack() as stack:
        _lock(session, due, stack)
        stack.callback(_forget_copies, session, states, due)
        built = _build_all(session, due, stream, seen)
        reports = tuple(made.report for made in built)
        snapshots = {item.table.name: str(_snapshot_id(item.mirror)) for item in items if item.mirror}
        snapshots |= {report.name: str(report.snapshot_id) for report in reports}
        mirrored_no_more = [Mirrored(t, None, None) for t in session.source.tables if not t.is_mirrored]
        regular = _regular(session, states, items, positions, tags, seen)
        standing = _mirrored(tables, items, built, stream, seen, regular)
        views = next_views(session.settings, session.catalog, [*standing, *mirrored_no_more])
        _publish(session, states, stream, seen, [made.next for made in built], views, snapshots)
    written, at_cut = {report.name for report in reports}, {item.table.name for item in items}
    unchanged = tuple(name for name in sorted(at_cut - written))
    aside = tuple(table.name for table in mirrored if table.name not in at_cut)
    return RefreshReport(session.name, stream.cut_position.text, stream.cut_at, reports, unchanged, aside)


def _lock(session: Session, due: list[_Mirror], stack: ExitStack) -> None:
    try:
        if due:
            names = [item.table.mirror_identifier for item in due]
            stack.enter_context(locked(session.settings, names, "mirrors"))
    except Held as held:
        raise MirrorInUse(f"{'.'.join(held.table)}: {held}; run it again later") from None


def _forget_copies(session: Session, states: CatalogConnection, due: list[_Mirror]) -> None:
    with suppress(psycopg.Error):  # the next refresh begins with other copies
        copies.forget(states, session.catalog, [item.table.mirror_identifier for item in due])


def _raw_snapshots(session: Session) -> tuple[dict[Name, int | None], dict[str, tuple[str, int]]]:
    """The newest snapshot of each raw table; the tag that moves along with it, and the schema that this shows."""
    raws = session.catalog.load_tables([table.identifier for table in session.source.mirrored])
    tags = {}
    for (_, name), raw in raws.items():
        if (tag := newest_tag(raw.metadata)) and shows_all(raw.metadata, tag[1]):
            tags[name] = (tag[0], raw.metadata.current_schema_id)
    return {name: data_snapshot(raw) for name, raw in raws.items()}, tags


def _tag_now(raw: Table) -> tuple[str, int] | None:
    """The newest tag, and the schema that the table has."""
    tag = newest_tag(raw.metadata)
    return (tag[0], raw.metadata.current_schema_id) if tag else None


def _items(
    session: Session,
    tables: list[RawTable],
    epoch: int,
    positions: Mapping[str, store.TablePosition],
    before: Mapping[Name, int | None],
) -> list[_Mirror]:
    """The mirrors of these tables, without those whose columns the next cycle adds to the raw table, or to which it
    brings what another key lacks."""
    raws = session.catalog.load_tables([table.identifier for table in tables])
    mirrors = session.catalog.load_tables([table.mirror_identifier for table in tables])
    items = []
    for table in tables:
        raw, mirror = raws[table.identifier], mirrors.get(table.mirror_identifier)
        followed = positions[table.name].followed
        log = _log(session, table, raw, followed)
        has_columns = {column.source.name for column in log.columns} == set(table.landed)
        if has_columns and is_keyed_as_declared(table, followed):
            state = read_state(mirror, epoch, *_made_of(raw, log)) if mirror else None
            if mirror and state and state.nulls is None:
                state = replace(state, nulls=_nulls(log, mirror, state.snapshot))
            items.append(_Mirror(table, raw, before.get(table.identifier), mirror, state, log))
    return items


def _fields(raw: Table, columns: Iterable[SpelledColumn]) -> dict[str, int]:
    """The raw table's fields of these columns, by name."""
    return {column.lake_name: raw.schema().find_field(column.lake_name).field_id for column in columns}


def _made_of(raw: Table, log: Log) -> tuple[str, tuple[int, ...]]:
    """The raw table, and its fields of the key in their order."""
    return str(raw.metadata.table_uuid), tuple(sorted(_fields(raw, log.key).values()))


def _log(session: Session, table: RawTable, raw: Table, facts: TableFacts) -> Log:
    """What is read of the raw table: its declared columns."""
    spelled = spelled_columns(table, raw, facts)
    columns = tuple(column for column in spelled if column.source.name in table.landed)
    key = tuple(column for name in table.key for column in columns if column.source.name == name)
    return Log(spark_relation(session.settings.catalog_name, *table.identifier), columns, key, ())


def _build_all(session: Session, due: list[_Mirror], stream: store.Stream, seen: datetime) -> list[_Built]:
    """The small ones first, several at a time: they take Spark's planning and requests, not memory and cores."""
    if due:
        copies.make_room(session.catalog, due[0].table.mirror_identifier)

    def build(item: _Mirror) -> _Built | None:
        with store.connect_catalog(session.settings) as states:
            return _build(session, states, item, stream, seen)

    size = {item.table.name: total(item.raw.current_snapshot(), "total-files-size") for item in due}
    small = [item for item in due if size[item.table.name] <= SMALL_BYTES]
    large = [item for item in due if size[item.table.name] > SMALL_BYTES]
    built = [*side_by_side(AT_ONCE, build, small), *map(build, large)]
    return [made for made in built if made is not None]


def _build(
    session: Session, states: CatalogConnection, item: _Mirror, stream: store.Stream, seen: datetime
) -> _Built | None:
    """Writes the mirror's next state as a copy and stages its properties; None if it needs none."""
    begun, name = time.monotonic(), item.table.mirror_identifier
    plan = ColumnPlan(anew=True) if item.state is None else plan_columns(item.columns, item.state)
    if item.mirror is None:
        copy = copies.create(states, session.catalog, name, schema_of(item.log, item.table), item.table.description)
    else:
        copies.begin(states, session.catalog, {name: item.mirror.metadata_location})
        copy = fit(session.catalog.load_table(next_name(name)), item.log, item.table, plan)
    written = _write(session, item, copy, plan, stream)
    has_columns = item.state is not None and item.columns == dict(item.state.columns)
    if written is None and has_columns and item.is_tagged:
        return None
    if written is None and not has_columns:
        with copy.transaction() as same, same.update_snapshot().fast_append():
            pass  # the view names a snapshot, which has the columns that the table had when it was made
    copy = copies.settle(session.catalog, name, BRANCH)
    state = _state(item, copy, stream, seen, written)
    properties = state.properties() | ({PASSED: str(state.snapshot)} if _passes(session, states, item) else {})
    location = _stage(session.catalog, copy, properties, state, session.limits.max_snapshots)
    size = _size(copy)
    changed, gone = written.counts if written and written.counts else (0, 0)
    report = MirrorReport(
        item.table.name,
        _snapshot_id(copy),
        size.rows - size.deletes,
        changed,
        gone,
        written is not None and written.counts is None,
        time.monotonic() - begun,
    )
    base = item.mirror.metadata_location if item.mirror else None
    return _Built(copies.Next(name, base, location), report, state)


def _write(session: Session, item: _Mirror, copy: Table, plan: ColumnPlan, stream: store.Stream) -> _Written | None:
    """Writes the copy's rows; None if no event concerns them."""
    assert stream.cut_lsn is not None
    below, spark = (stream.epoch, stream.cut_lsn + 1), session.spark
    target = _target(session, item)
    if item.state is None or plan.anew:
        return _all(target, whole(spark, item.log, below), item.raw)
    mirror = spark.table(target.table)
    with changes_since(spark, item.log, mirror, item.state, below) as changes:
        if changes is None:
            return None
        if isinstance(changes, Whole):
            return _all(target, changes, item.raw)
        if changes.lacking:
            return _all(target, whole(spark, item.log, below), item.raw)
        return _Written(changes.ingested_at, write_changes(spark, target, _size(copy), changes))


def _all(target: Target, found: Whole, raw: Table) -> _Written:
    write_all(target, found.rows, total(raw.current_snapshot(), "total-files-size"))
    return _Written(found.ingested_at, None)


def _target(session: Session, item: _Mirror) -> Target:
    name = spark_relation(session.settings.catalog_name, *next_name(item.table.mirror_identifier))
    columns = [column.lake_name for column in item.log.columns]
    return Target(name, columns, [column.lake_name for column in item.log.key], item.log.key[0].lake_type)


def _size(table: Table) -> Size:
    newest = table.current_snapshot()
    return Size(
        total(newest, "total-files-size"),
        total(newest, "total-records"),
        total(newest, "total-position-deletes"),
        added_files(table.metadata),
    )


def _state(item: _Mirror, copy: Table, stream: store.Stream, seen: datetime, written: _Written | None) -> MirrorState:
    assert stream.cut_lsn is not None and stream.cut_position is not None
    newest = data_snapshot(copy)
    assert newest is not None
    raw, key = _made_of(item.raw, item.log)
    nulls = _nulls(item.log, copy, newest)
    if written is None:  # only the columns are new: the rows are those of the earlier cut
        assert item.state is not None
        columns, last = item.columns, item.raw.metadata.last_column_id
        return replace(item.state, snapshot=newest, columns=columns, last_field=last, raw=raw, key=key, nulls=nulls)
    return MirrorState(
        stream.epoch,
        stream.cut_lsn,
        stream.cut_position.text,
        written.ingested_at,
        item.raw_snapshot,
        newest,
        item.columns,
        item.raw.metadata.last_column_id,
        seen,
        raw,
        key,
        nulls,
    )


def _nulls(log: Log, mirror: Table, snapshot: int) -> tuple[str, ...]:
    """The key's columns that have nulls in this snapshot of the mirror."""
    return columns_with_nulls(mirror, snapshot, [column.lake_name for column in log.key])


def _passes(session: Session, states: CatalogConnection, item: _Mirror) -> bool:
    """Whether the fresh view may have stayed before something that it cannot follow, and shows it with this refresh.

    Then marts that read the view are to be built again: no row of parsed is new. All irregular publishes since the
    refresh before count, those too that the long text of the view has followed.
    """
    if item.state is None:
        return item.mirror is not None
    before = item.state.seen or BEGINNING
    since = store.irregular_since(states, session.name, before) if before > datetime.now(UTC) - TOLD_FOR else None
    return since is None or item.table.name in since


def _stage(
    catalog: LakeCatalog, copy: Table, properties: dict[str, str], state: MirrorState, max_snapshots: int
) -> str:
    """Writes the metadata file with what the mirror says of itself; older snapshots than that many go."""
    from pyiceberg.table.update.snapshot import ExpireSnapshots

    staging = Staging(copy)
    staging.set_properties(properties)
    staging.apply((moved(TAG, state.snapshot),))  # so that expiry keeps the snapshot that the view names
    if surplus := surplus_snapshots(copy.metadata, max_snapshots, time.time_ns() // 1_000_000):
        statistics = carry(copy.metadata, frozenset(surplus))
        ExpireSnapshots(staging).by_ids(surplus).commit()
        staging.apply(statistics)
    return staging.stage(catalog, copy).metadata_location


def _regular(
    session: Session,
    states: CatalogConnection,
    items: list[_Mirror],
    positions: Mapping[str, store.TablePosition],
    tags: Mapping[str, tuple[str, int]],
    seen: datetime,
) -> dict[str, str]:
    """The tags of the tables that stream, and that no publish since has brought anything irregular to.

    A tag shows the columns that the table had then; of a table that has others by now there is none. Nor is there of
    one that has a newer tag: a publish before the refresh knew of any left the older one behind, and what came after it
    has been seen.
    """
    since = store.irregular_since(states, session.name, seen)
    if since is None:
        return {}
    now = {item.table.name: _tag_now(item.raw) for item in items}
    return {
        name: tag[0]
        for name, tag in tags.items()
        if now.get(name) == tag and positions[name].state == "streaming" and name not in since
    }


def _mirrored(
    tables: list[RawTable],
    items: list[_Mirror],
    built: list[_Built],
    stream: store.Stream,
    seen: datetime,
    regular: Mapping[str, str],
) -> list[Mirrored]:
    """Where the mirrors of the cut's tables stand now. One whose columns are not all there is not read by its view."""
    assert stream.cut_lsn is not None
    states = {item.table.name: item.state for item in items} | {made.report.name: made.state for made in built}
    read = {item.table.name: item for item in items}
    found = []
    for table in tables:
        state, item = states.get(table.name), read.get(table.name)
        tag = regular.get(table.name)
        at = Position(state.snapshot, stream.epoch, stream.cut_lsn, seen, tag) if state else None
        nulls = (state.nulls if state else None) or ()
        found.append(Mirrored(table, item.log, at, item.columns, nulls) if item else Mirrored(table, None, None))
    return found


def _publish(
    session: Session,
    states: CatalogConnection,
    stream: store.Stream,
    seen: datetime,
    nexts: list[copies.Next],
    views: list[NextView],
    snapshots: dict[str, str],
) -> None:
    """Without a row if neither a mirror, nor the cut, nor a table in it is another one than in the newest row."""
    listed = (stream.epoch, stream.cut_lsn, set(snapshots))
    is_listed = not nexts and newest_cut(session.catalog, session.name) == listed
    row = None if is_listed or not snapshots else _row(session, states, stream, snapshots)
    if row or views:
        made = copies.Published(session.name, seen, nexts, views, row)
        copies.publish(session.settings, session.catalog, session.lease, made)
        forget_old(open_io(session.settings), views)


def _row(
    session: Session, states: CatalogConnection, stream: store.Stream, snapshots: dict[str, str]
) -> dict[str, object]:
    return {
        "source": session.name,
        "epoch": stream.epoch,
        "cut_lsn": stream.cut_lsn,
        "cut_at": stream.cut_at,
        "published_at": store.catalog_clock(states),
        "snapshots": sorted(snapshots.items()),
    }


def newest_cut(catalog: LakeCatalog, source: str) -> tuple[int, int, set[str]]:
    """Epoch and LSN of the cut at which the mirrors of a source stand, and whose; zeros before the first refresh."""
    from pyiceberg.expressions import And, EqualTo

    table = load_table(catalog, *MIRRORS)
    if table is None:
        return 0, 0, set()
    own = EqualTo(term="source", value=source)
    wanted = ("epoch", "cut_lsn", "published_at")
    rows: list[dict[str, Any]] = table.scan(row_filter=own, selected_fields=wanted).to_arrow().to_pylist()
    newest = max(rows, key=lambda row: row["published_at"], default=None)
    if newest is None:
        return 0, 0, set()
    at = EqualTo(term="published_at", value=newest["published_at"].isoformat())
    (row,) = table.scan(row_filter=And(own, at), selected_fields=("snapshots",), limit=1).to_arrow().to_pylist()
    return newest["epoch"], newest["cut_lsn"], {name for name, _ in row["snapshots"]}


def _snapshot_id(table: Table) -> int:
    snapshot = table.current_snapshot()
    assert snapshot is not None, f"{table.name()} has no snapshot"
    return snapshot.snapshot_id

"""Writes the next state of mirrors as copies, which nobody reads until they are published."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from pyiceberg.table import Table

from ingestion.mirrors import copies
from ingestion.mirrors.changes import BEGINNING, NotWhole, Whole, changes_since, whole
from ingestion.mirrors.columns import ColumnPlan, fit, plan_columns, schema_of
from ingestion.mirrors.due import Mirror, made_of
from ingestion.mirrors.side_by_side import side_by_side
from ingestion.mirrors.state import MirrorState, added_files, columns_with_nulls, data_snapshot
from ingestion.mirrors.write import BRANCH, SMALL_BYTES, Size, Target, write_all, write_changes
from ingestion.pipeline.session import Session
from ingestion.sink.publish import surplus_snapshots
from ingestion.state import store
from lakehouse.catalog import row_groups
from lakehouse.catalog.lake_catalog import LakeCatalog
from lakehouse.catalog.next_names import next_name
from lakehouse.catalog.open import PASSED, total
from lakehouse.catalog.private_pyiceberg import Staging
from lakehouse.catalog.statistics import carry
from lakehouse.catalog.views.current_views import TAG
from lakehouse.catalog.views.mirrored import next_tag
from lakehouse.catalog.views.tags import moved
from lakehouse.servers.database import CatalogConnection
from lakehouse.text.sql import spark_relation

AT_ONCE = 4
TOLD_FOR = timedelta(days=6)  # what publishes had irregular rows is kept for seven


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
class _Written:
    """The rows of a copy are written; `counts` is None where all are new."""

    ingested_at: datetime
    counts: tuple[int, int] | None


@dataclass(frozen=True)
class Built:
    """A mirror's next state, which is staged."""

    next: copies.Next
    report: MirrorReport
    state: MirrorState


def build_all(
    session: Session, due: list[Mirror], stream: store.Stream, seen: datetime
) -> tuple[list[Built], frozenset[str]]:
    """The small ones first, several at a time: they take Spark's planning and requests, not memory and cores.

    Also the names of the tables of which a row is not whole: a null in the place of its value would be no value of the
    source's, so their mirrors stay as they are.
    """
    lacking: set[str] = set()
    if due:
        copies.make_room(session.catalog, due[0].table.mirror_identifier)

    def build(item: Mirror) -> Built | None:
        with store.connect_catalog(session.settings) as states:
            try:
                return _build(session, states, item, stream, seen)
            except NotWhole:
                lacking.add(item.table.name)
                return None

    size = {item.table.name: total(item.raw.current_snapshot(), "total-files-size") for item in due}
    small = [item for item in due if size[item.table.name] <= SMALL_BYTES]
    large = [item for item in due if size[item.table.name] > SMALL_BYTES]
    built = [*side_by_side(session.spark, AT_ONCE, build, small), *map(build, large)]
    return [made for made in built if made is not None], frozenset(lacking)


def _build(
    session: Session, states: CatalogConnection, item: Mirror, stream: store.Stream, seen: datetime
) -> Built | None:
    """Writes the mirror's next state as a copy and stages its properties; None if it needs none."""
    begun, name = time.monotonic(), item.table.mirror_identifier
    plan = ColumnPlan(anew=True) if item.state is None else plan_columns(item.columns, item.state)
    if item.mirror is None:
        copy = copies.create(states, session.catalog, name, schema_of(item.log, item.table), item.table.description)
    else:
        copy = copies.begin(states, session.catalog, name, item.mirror.metadata_location, BRANCH)
        copy = fit(copy, item.log, item.table, plan)
    known = _size(item.raw) if item.state is None or plan.anew else _size(copy)
    if fitting := row_groups.fitting(copy.properties, known.bytes, known.rows):
        with copy.transaction() as transaction:
            transaction.set_properties(fitting)
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
        snapshot_id_of(copy),
        size.rows - size.deletes,
        changed,
        gone,
        written is not None and written.counts is None,
        time.monotonic() - begun,
    )
    base = item.mirror.metadata_location if item.mirror else None
    return Built(copies.Next(name, base, location), report, state)


def _write(session: Session, item: Mirror, copy: Table, plan: ColumnPlan, stream: store.Stream) -> _Written | None:
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


def _target(session: Session, item: Mirror) -> Target:
    name = spark_relation(session.settings.catalog_name, *next_name(item.table.mirror_identifier))
    columns = [column.lake_name for column in item.log.columns]
    return Target(name, columns, item.key, item.log.key[0].lake_type)


def _size(table: Table) -> Size:
    newest = table.current_snapshot()
    return Size(
        total(newest, "total-files-size"),
        total(newest, "total-records"),
        total(newest, "total-position-deletes"),
        added_files(table.metadata),
    )


def _state(item: Mirror, copy: Table, stream: store.Stream, seen: datetime, written: _Written | None) -> MirrorState:
    assert stream.cut_lsn is not None and stream.cut_position is not None
    newest = data_snapshot(copy)
    assert newest is not None
    raw, key = made_of(item.raw, item.log)
    before = item.state if written is None or written.counts else None
    nulls = columns_with_nulls(copy, newest, item.key, before)
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


def _passes(session: Session, states: CatalogConnection, item: Mirror) -> bool:
    """Whether the fresh view may have stayed before something that it cannot follow, and shows it with this refresh.

    Then marts that read the view are to be built again: no row of parsed is new. All irregular publishes since the
    refresh before count, those too that the long text of the view has followed.
    """
    if item.state is None:
        return item.mirror is not None
    before = item.state.seen or BEGINNING
    if before <= datetime.now(UTC) - TOLD_FOR:
        return True
    since = store.irregular_since(states, session.name, before).irregular
    return since is None or item.table.name in since


def _stage(
    catalog: LakeCatalog, copy: Table, properties: dict[str, str], state: MirrorState, max_snapshots: int
) -> str:
    """Writes the metadata file with what the mirror says of itself; older snapshots than that many go."""
    from pyiceberg.table.update.snapshot import ExpireSnapshots

    staging = Staging(copy)
    staging.set_properties(properties)
    # so that expiry keeps what the view's texts name
    staging.apply((moved(TAG, state.snapshot), *next_tag(copy.metadata, state.snapshot)))
    if surplus := surplus_snapshots(copy.metadata, max_snapshots, time.time_ns() // 1_000_000):
        statistics = carry(copy.metadata, frozenset(surplus))
        ExpireSnapshots(staging).by_ids(surplus).commit()
        staging.apply(statistics)
    return staging.stage(catalog, copy).metadata_location


def snapshot_id_of(table: Table) -> int:
    snapshot = table.current_snapshot()
    assert snapshot is not None, f"{table.name()} has no snapshot"
    return snapshot.snapshot_id

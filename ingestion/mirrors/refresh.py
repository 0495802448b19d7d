"""Brings the mirrors of a source to its newest cut, all in one catalog transaction.

Each changed mirror is written as a copy, small ones several at a time; what happens meanwhile in the source is for the
next refresh. A table that is not in the cut, because it is parked or being loaded, keeps its mirror as it is, and the
row in `meta.mirrors` does not name it until it is back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import psycopg
from pyiceberg.table import Table

from ingestion.mirrors import copies
from ingestion.mirrors.build import Built, MirrorReport, build_all, snapshot_id_of
from ingestion.mirrors.changes import BEGINNING
from ingestion.mirrors.due import Mirror, mirrors_at_cut
from ingestion.mirrors.state import data_snapshot
from ingestion.mirrors.view_parts import Position
from ingestion.mirrors.views import Mirrored, NextView, forget_old, next_views
from ingestion.pipeline.session import Session
from ingestion.sink.meta_tables import MIRRORS
from ingestion.state import refreshes, store
from ingestion.state.lease import LeaseLost
from lakehouse.catalog.file_io import open_io
from lakehouse.catalog.lake_catalog import LakeCatalog
from lakehouse.catalog.next_names import Name
from lakehouse.catalog.open import load_table
from lakehouse.catalog.views.regular import newest_tag
from lakehouse.catalog.views.tags import shows_all
from lakehouse.declarations import RawTable
from lakehouse.errors import LakehouseError
from lakehouse.servers.database import CatalogConnection
from lakehouse.servers.outage import expected
from lakehouse.servers.table_locks import Held, locked
from lakehouse.text.shown import shortened

IN_NO_CUT = "it is in no cut now: see `lakehouse status`"
NOT_AS_DECLARED = "its columns or key are not the declared ones: let the declaration follow the source"
LACKING = "raw lacks a value that an update left out: `lakehouse reconcile --repair` fetches it"
LACKING_OF_TOPIC = (
    "raw lacks a value that an update left out: ask the connector for an incremental snapshot of its table, by a signal"
)
SAID = 500  # characters of an error that are kept


class MirrorInUse(LakehouseError):
    """Maintenance works on a mirror."""


@dataclass(frozen=True)
class RefreshReport:
    """The mirrors of a source after a refresh; `position` is the common cut's, None before there is one.

    `aside` are the tables whose mirrors stay where they were: they are in no cut now, or have not the declared columns
    or key, as where a column was renamed in the source and the declaration has not followed; or the lake lacks a value
    of one of their rows. `reasons` says which of these, by table.
    """

    source: str
    position: str | None
    cut_at: datetime | None
    written: tuple[MirrorReport, ...]
    unchanged: tuple[str, ...]
    aside: tuple[str, ...]
    reasons: Mapping[str, str] = field(default_factory=dict)


def refresh(session: Session, states: CatalogConnection) -> RefreshReport:
    """Brings every mirror to the newest cut; the session's lease is that of the mirrors (see `mirrors_of`).

    Raises LeaseLost, MirrorInUse while maintenance works on one of them, MirrorChanged if another writer has changed
    one meanwhile, and LakehouseError.
    """
    refreshes.begin(states, session.name)
    try:
        report, reached = _refresh(session, states)
    except Exception as error:
        if isinstance(error, LeaseLost) or session.stop.is_set():  # another one's row, or nobody's failure
            raise
        outcome: refreshes.Outcome = "held" if isinstance(error, MirrorInUse) else "failed"
        # what was not expected may cite a row: the log has it
        why = shortened(" ".join((expected(error) or f"{type(error).__name__}, see the log").split()), SAID)
        with suppress(psycopg.Error):  # as where it is the catalog's database that is away
            refreshes.give_up(states, session.name, outcome, why)
        raise
    told = {name: why for name, why in report.reasons.items() if why != IN_NO_CUT}  # that has alerts of its own
    refreshes.end(states, session.name, reached, told)
    return report


def _refresh(session: Session, states: CatalogConnection) -> tuple[RefreshReport, refreshes.Reached]:
    mirrored = session.source.mirrored
    before, tags = _raw_snapshots(session)  # before the cut is read: all that these hold is in it
    with states.transaction():
        states.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")  # else a publish may come in between
        stream, positions = store.read_stream(states, session.name), store.read_positions(states, session.name)
        seen = store.last_publish(states, session.name) or BEGINNING
    if stream is None or stream.cut_lsn is None or stream.cut_position is None:
        none = dict.fromkeys((table.name for table in mirrored), IN_NO_CUT)
        return RefreshReport(session.name, None, None, (), (), tuple(none), none), refreshes.Reached(seen, None, None)
    tables = tables_in_cut(mirrored, stream, positions)
    in_cut = {table.name for table in tables}
    items = mirrors_at_cut(session, tables, stream.epoch, positions, before)
    due = [item for item in items if not item.is_same]
    with ExitStack() as stack:
        _lock(session, due, stack)
        stack.callback(_forget_copies, session, states, due)
        built, lacking = build_all(session, due, stream, seen)
        tables = [table for table in tables if table.name not in lacking]
        items = [item for item in items if item.table.name not in lacking]
        reports = tuple(made.report for made in built)
        snapshots = {item.table.name: str(snapshot_id_of(item.mirror)) for item in items if item.mirror}
        snapshots |= {report.name: str(report.snapshot_id) for report in reports}
        mirrored_no_more = [Mirrored(t, None, None) for t in session.source.tables if not t.is_mirrored]
        regular = _regular(session, states, items, positions, tags, seen)
        standing = _mirrored(tables, items, built, stream, seen, regular)
        views = next_views(session.settings, session.catalog, [*standing, *mirrored_no_more])
        _publish(session, states, stream, seen, [made.next for made in built], views, snapshots)
    written, at_cut = {report.name for report in reports}, {item.table.name for item in items}
    unchanged = tuple(name for name in sorted(at_cut - written))
    reasons = {table.name: _why_aside(table, in_cut, lacking) for table in mirrored if table.name not in at_cut}
    report = RefreshReport(
        session.name, stream.cut_position.text, stream.cut_at, reports, unchanged, tuple(reasons), reasons
    )
    return report, refreshes.Reached(seen, stream.epoch, stream.cut_lsn)


def tables_in_cut(
    tables: Iterable[RawTable], stream: store.Stream, positions: Mapping[str, store.TablePosition]
) -> list[RawTable]:
    """Those in the newest cut, without any that is to be read again since: the next publish takes it out of the cut."""
    return [table for table in tables if table.name in stream.cut_tables and positions[table.name].versions]


def _why_aside(table: RawTable, in_cut: Collection[str], lacking: Collection[str]) -> str:
    if table.name not in in_cut:
        return IN_NO_CUT
    if table.name not in lacking:
        return NOT_AS_DECLARED
    return LACKING_OF_TOPIC if table.raw.topic else LACKING


def _lock(session: Session, due: list[Mirror], stack: ExitStack) -> None:
    try:
        if due:
            names = [item.table.mirror_identifier for item in due]
            stack.enter_context(locked(session.settings, names, "mirrors"))
    except Held as held:
        raise MirrorInUse(f"{'.'.join(held.table)}: {held}; run it again later") from None


def _forget_copies(session: Session, states: CatalogConnection, due: list[Mirror]) -> None:
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


def _regular(
    session: Session,
    states: CatalogConnection,
    items: list[Mirror],
    positions: Mapping[str, store.TablePosition],
    tags: Mapping[str, tuple[str, int]],
    seen: datetime,
) -> dict[str, str]:
    """The tags of the tables that stream, and that no publish since has brought anything irregular to.

    A tag shows the columns that the table had then; of a table that has others by now there is none. Nor is there of
    one that has a newer tag: a publish before the refresh knew of any left the older one behind, and what came after it
    has been seen.
    """
    since = store.irregular_since(states, session.name, seen).irregular
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
    items: list[Mirror],
    built: list[Built],
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
        if item is None:
            found.append(Mirrored(table, None, None))
        elif state is None:
            found.append(Mirrored(table, item.log, None, item.columns))
        else:
            at = Position(state.snapshot, stream.epoch, stream.cut_lsn, seen, regular.get(table.name))
            found.append(Mirrored(table, item.log, at, item.columns, state.nulls or (), state.raw_snapshot))
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
        assert stream.cut_lsn is not None
        made = copies.Published(session.name, seen, stream.cut_lsn, nexts, views, row)
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

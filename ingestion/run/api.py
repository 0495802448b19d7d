"""Ingestion as its callers see it: bring a source up to now, and say how far it is."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

from ingestion.pipeline.cycle import connections, run_cycle
from ingestion.pipeline.replay import replay_kept
from ingestion.pipeline.session import RowCounts, Session, add_counts
from ingestion.pipeline.survey import survey
from ingestion.run import operate
from ingestion.run.recover import begin_next_epoch
from ingestion.run.reports import Aside, SourceReport, SourceStatus, TableReport, TableStatus
from ingestion.schema.positions import Position
from ingestion.sources.base import HasParts
from ingestion.sources.findings import refusal
from ingestion.sources.kinds import check_kind, check_same_kind, source_of
from ingestion.state import claims, live, progress, store
from ingestion.state import lease as leases
from ingestion.tasks.outage import OUTAGES, outage
from lakehouse.catalog.open import open_catalog, total
from lakehouse.catalog.relations import list_relations
from lakehouse.declarations import Declarations, RawTable, Source
from lakehouse.declarations.metadata_columns import OF_KINDS
from lakehouse.errors import LakehouseError
from lakehouse.servers.database import CatalogConnection
from lakehouse.servers.spark import spark_session
from lakehouse.settings import Settings
from lakehouse.text.log_lines import about

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import SparkSession

    from lakehouse.catalog.lake_catalog import LakeCatalog

WAIT_STEP_SECONDS = 0.5
WHOLE_SECONDS = 10.0  # in which a transaction whose END has come lands
NOTICED_SECONDS = 60.0  # in which a follower has taken what was declared while it ran
Before = Callable[[Session], RowCounts | None]
"""What comes before a cycle, and the rows that it landed."""


def bring_up(
    settings: Settings,
    declarations: Declarations,
    source: str,
    spark: SparkSession | None = None,
    *,
    only_changed: bool = False,
) -> SourceReport:
    """Everything the source has committed at this moment is in the lake when this returns.

    Runs a cycle, or waits for the writer that holds the source's lease. The report describes each table in the cut, or
    `only_changed` ones: of a thousand tables, each metadata file is read for the former. Raises LakehouseError when the
    source or the lake cannot be reached, when going on would lose rows, or when the other writer takes too long.
    """
    declared = declarations.source(source)
    check_kind(settings, declared)
    with store.connect_catalog(settings) as states:
        store.ensure_state(states)
        check_same_kind(store.read_stream(states, source), settings.connection(source).kind)
        until = _committed(settings, source)
        begun = time.monotonic()
        deadline = begun + settings.ingestion.wait_seconds
        while time.monotonic() < deadline:
            lease = leases.acquire(states, source, settings.ingestion.lease_seconds, "once")
            if lease is not None:
                return _cycle(settings, declared, lease, spark, until, lambda session: None, only_changed)
            if declared.flush is not None:
                live.ask_for_flush(states, source)
            if _has_reached(states, declared, until):
                with closing(open_catalog(settings)) as catalog:
                    return _report(settings, declared, states, {}, only_changed, catalog)
            if time.monotonic() - begun > NOTICED_SECONDS and (unknown := _unknown(states, declared, until)):
                held = leases.holder_of(states, source)
                raise LakehouseError(
                    f"source {source!r}: the writer {held[0] if held else 'before this one'} does not know of "
                    f"{', '.join(unknown)}, which was declared while it ran: its log says why; it reads the "
                    "declarations of the folder that it was started in"
                )
            time.sleep(WAIT_STEP_SECONDS)
        held = leases.holder_of(states, source)
    raise LakehouseError(
        f"source {source!r}: the writer {held[0] if held else 'before this one'} did not reach "
        f"{until.text} within {settings.ingestion.wait_seconds:.0f} s: look at its log"
    )


def recover_source(
    settings: Settings, declarations: Declarations, source: str, spark: SparkSession | None = None
) -> SourceReport:
    """Goes on where the stream cannot: the slot is lost, or the source is another cluster or an older state of itself.

    Begins the next epoch with a new slot. Each table is compared with the source at a new consistent point, and what
    differs is restated, missed deletes included; a table without a key is read anew behind a truncate marker. Topics
    are read on, or from their beginning if they were created again: they hold nothing to compare with.
    A source whose tables were all dropped may be of another kind by now. Raises LakehouseError while another writer
    holds the lease.
    """
    with store.connect_catalog(settings) as states:
        store.ensure_state(states)
        _begin_as_declared(settings, states, declarations.source(source))
    return _alone(settings, declarations, source, spark, begin_next_epoch)


def _begin_as_declared(settings: Settings, states: CatalogConnection, declared: Source) -> None:
    """Lets a source of another kind begin anew where no raw table of it is left: positions of two kinds never meet."""
    check_kind(settings, declared)
    stream, kind = store.read_stream(states, declared.name), settings.connection(declared.name).kind
    if stream is None or stream.kind == kind:
        return
    lease = leases.take_over(states, declared.name, settings.ingestion.lease_seconds)
    with leases.kept_alive(settings, lease), closing(open_catalog(settings)) as catalog:
        if any(each.name.namespace == f"raw_{declared.name}" for each in list_relations(catalog)):
            check_same_kind(stream, kind)
        with states.transaction():
            leases.check(states, lease, settings.ingestion.lease_seconds)
            store.begin_as(states, declared.name, kind)


def resnapshot(
    settings: Settings, declarations: Declarations, source: str, tables: list[str], spark: SparkSession | None = None
) -> SourceReport:
    """Snapshots the named tables again, behind a truncate marker; the others go on as before."""
    return _change(operate.read_anew, settings, declarations, source, tables, spark)


def resume(
    settings: Settings, declarations: Declarations, source: str, tables: list[str], spark: SparkSession | None = None
) -> SourceReport:
    """Lands what was spooled of parked or paused tables; they stream again where that succeeds."""
    return _change(operate.resume, settings, declarations, source, tables, spark)


def _change(
    change: Callable[..., None],
    settings: Settings,
    declarations: Declarations,
    source: str,
    names: list[str],
    spark: SparkSession | None,
) -> SourceReport:
    """Does to all of the tables what the next cycle goes by, then runs that cycle."""
    change(settings, *(declarations.source(source).table(name) for name in names))
    return bring_up(settings, declarations, source, spark)


def replay(
    settings: Settings, declarations: Declarations, source: str, tables: list[str], spark: SparkSession | None = None
) -> SourceReport:
    """Tries quarantined records of the named tables again, as they are declared now; raises LakehouseError while
    another writer is at work."""
    names = [declarations.source(source).table(name).name for name in tables]
    return _alone(settings, declarations, source, spark, partial(try_again, names=names))


def try_again(session: Session, names: Collection[str]) -> RowCounts:
    """Lands the quarantined records of the named tables that can be read; raises LakehouseError."""
    rows = run_cycle(session).rows  # the raw tables follow what has been declared since the last one
    with connections(session) as (opened, states):
        outlooks = survey(session, opened, store.read_positions(states, session.name))
        for name in names:
            rows = add_counts(rows, replay_kept(session, opened, states, outlooks[name]))
    return rows


def _committed(settings: Settings, source: str) -> Position:
    """A position above the commit of everything that is visible at this moment."""
    with source_of(settings, source).open() as opened:
        position: Position = opened.committed()
        return position


def _has_reached(states: CatalogConnection, declared: Source, until: Position) -> bool:
    """Whether the stream is there, and every declared table is in the cut or known to be aside.

    What is to be read anew is in the newest cut until the next one, as it was before.
    """
    stream = store.read_stream(states, declared.name)
    if stream is None or not until <= stream.position:
        return False
    positions, cut = store.read_positions(states, declared.name), stream.cut_position
    whole = {n for n, at in positions.items() if at.state == "streaming" and cut is not None and at.point <= cut}
    aside = {item.name for item in _aside(positions)}
    return {t.name for t in declared.tables} <= set(stream.cut_tables) & whole | aside


def _unknown(states: CatalogConnection, declared: Source, until: Position) -> list[str]:
    """The declared tables that a writer which has reached the position has not met: it read the declarations before."""
    stream = store.read_stream(states, declared.name)
    if stream is None or not until <= stream.position:
        return []
    known = store.read_positions(states, declared.name)
    return sorted(table.name for table in declared.tables if table.name not in known)


def _aside(positions: Mapping[str, store.TablePosition]) -> tuple[Aside, ...]:
    """The declared tables that wait for the user."""
    return tuple(
        Aside(name, position.state, position.reason or position.state)
        for name, position in sorted(positions.items())
        if position.state in ("parked", "paused") or (position.state == "new" and position.reason)
    )


def _alone(
    settings: Settings, declarations: Declarations, source: str, spark: SparkSession | None, before: Before
) -> SourceReport:
    declared = declarations.source(source)
    check_kind(settings, declared)
    lease = _take_over(settings, source)
    return _cycle(settings, declared, lease, spark, _committed(settings, source), before)


@contextmanager
def up_to_date_alone(
    settings: Settings, declarations: Declarations, source: str, spark: SparkSession | None = None
) -> Iterator[Session]:
    """The source's only writer while the block runs, after a cycle: what was committed before is in the lake, or what
    was in topics before.

    Raises LakehouseError while another writer holds the lease, and where topics have something that is not whole.
    """
    declared = declarations.source(source)
    check_kind(settings, declared)
    lease = _take_over(settings, source)
    with about(source=source), leases.kept_alive(settings, lease), closing(open_catalog(settings)) as catalog:
        try:
            running = spark or spark_session(settings, "lakehouse-ingest")
            session = Session(settings, catalog, running, lease, declared)
            until = _committed(settings, source)
            reached, deadline = run_cycle(session, until).position, time.monotonic() + WHOLE_SECONDS
            while not until <= reached:
                if time.monotonic() > deadline:
                    raise LakehouseError(
                        f"source {source!r}: its topics have changes that wait, such as those of a transaction without "
                        "an END: run this again once nothing is behind in `lakehouse status`"
                    )
                time.sleep(WAIT_STEP_SECONDS)
                reached = run_cycle(session, until).position
            yield session
        except OUTAGES as error:
            raise outage(source, error) from error


def _take_over(settings: Settings, source: str) -> leases.Lease:
    with store.connect_catalog(settings) as states:
        store.ensure_state(states)
        check_same_kind(store.read_stream(states, source), settings.connection(source).kind)
        return leases.take_over(states, source, settings.ingestion.lease_seconds)


def source_status(settings: Settings, source: str) -> SourceStatus:
    """How far a source is in the lake; cheap, needs neither Spark nor Iceberg. Raises LakehouseError."""
    with store.connect_catalog(settings) as states:
        store.ensure_state(states)
        stream, held = store.read_stream(states, source), leases.holder_of(states, source)
        check_same_kind(stream, settings.connection(source).kind)
        shown = live.shown(states, source) if stream else None
        tables, clock = store.read_positions(states, source).values(), store.catalog_clock(states)
        follower = leases.follower_of(states, source)
        under_way = progress.read(states, source) if held else None
        seats = leases.seats(states, source) if held else {}
    with source_of(settings, source).open() as opened:
        retained = opened.retention(stream)
        reached = stream.position.join(shown.position) if stream and shown else stream and stream.position
        behind = max(0, opened.distance(reached, opened.now().position)) + retained.open_bytes if stream else 0
        parts = opened.parts() if seats and isinstance(opened, HasParts) else ()
    unclaimed, read_until = _parts(settings, source, parts)
    as_of = stream and max(stream.updated_at, shown.at if shown else stream.updated_at)
    as_of = min(as_of, read_until) if as_of and read_until else as_of  # others may have moved the position since
    return SourceStatus(
        source=source,
        follower_alive=held is not None and held[1] == "follow",
        holder=held[0] if held else None,
        slot_lag_bytes=retained.bytes,
        slot_active=retained.is_read,
        position=stream.position.text if stream else None,
        position_lsn=stream.position.commit_bound if stream else None,
        position_at=stream.updated_at if stream else None,
        cut_position=stream.cut_position.text if stream and stream.cut_position is not None else None,
        cut_lsn=stream.cut_lsn if stream else None,
        cut_at=stream.cut_at if stream else None,
        behind_bytes=behind,
        lag_seconds=max(0.0, (clock - as_of).total_seconds()) if as_of and behind else 0.0,
        slot_state=retained.state,
        slot_is_sound=retained.is_sound or stream is None,
        progress=under_way,
        follower=follower,
        followers=len(seats) or int(held is not None and held[1] == "follow"),
        unclaimed=unclaimed,
        former_slot=(stream.slot or None) if stream and stream.kind != "postgres" else None,
        tables=tuple(
            TableStatus(p.table, p.state, p.reason, p.position.text, p.position.commit_bound)
            for p in sorted(tables, key=lambda p: p.table)
        ),
    )


def why_refused(settings: Settings, source: str) -> str | None:
    """Why an ingestion of the source that begins now would be refused; None where nothing shows without a read.

    Raises LakehouseError where the source or the state cannot be reached.
    """
    with store.connect_catalog(settings) as states, source_of(settings, source).open() as opened:
        return refusal(source, lambda: opened.check_only(states))


def _parts(settings: Settings, source: str, parts: Collection[str]) -> tuple[tuple[str, ...], datetime | None]:
    """Of a shared source, the parts that nobody reads, and since when one of them has not been read to its end."""
    if not parts:
        return (), None
    with store.connect_catalog(settings) as states:
        return claims.unclaimed(states, source, parts), claims.read_until(states, source, parts)


def _cycle(
    settings: Settings,
    declared: Source,
    lease: leases.Lease,
    spark: SparkSession | None,
    until: Position,
    before: Before,
    only_changed: bool = False,
) -> SourceReport:
    with (
        about(source=declared.name),
        leases.kept_alive(settings, lease),
        store.connect_catalog(settings) as states,
        closing(open_catalog(settings)) as catalog,
    ):
        try:
            running = spark or spark_session(settings, "lakehouse-ingest")
            session = Session(settings, catalog, running, lease, declared)
            landed = before(session) or {}
            begun = time.monotonic()
            rows = add_counts(landed, run_cycle(session, until).rows)
            report = _report(settings, declared, states, rows, only_changed, catalog)
            return dataclasses.replace(report, seconds=time.monotonic() - begun)
        except OUTAGES as error:
            raise outage(declared.name, error) from error


def _report(
    settings: Settings,
    declared: Source,
    states: CatalogConnection,
    rows: RowCounts,
    only_changed: bool,
    catalog: LakeCatalog,
) -> SourceReport:
    stream, positions = store.read_stream(states, declared.name), store.read_positions(states, declared.name)
    aside = _aside(positions)
    if stream is None or stream.cut_position is None or stream.cut_lsn is None or stream.cut_at is None:
        raise LakehouseError(
            "; ".join(item.reason for item in aside) or f"source {declared.name!r}: nothing was published"
        )
    with source_of(settings, declared.name).open() as opened:
        behind = max(0, opened.distance(stream.position, opened.now().position))
    in_cut = [table for table in declared.tables if table.name in stream.cut_tables]
    described = [table for table in in_cut if not only_changed or rows.get(table.name)]
    loaded = catalog.load_tables([table.identifier for table in described])
    return SourceReport(
        source=declared.name,
        epoch=stream.epoch,
        cut_position=stream.cut_position.text,
        cut_lsn=stream.cut_lsn,
        cut_at=stream.cut_at,
        tables=tuple(
            _table_report(table, positions[table.name], loaded.get(table.identifier), rows.get(table.name, {}), behind)
            for table in described
        ),
        aside=aside,
        unchanged=tuple(table.name for table in in_cut if only_changed and not rows.get(table.name)),
    )


def _table_report(
    declared: RawTable, of: store.TablePosition, table: Table | None, rows: dict[str, int], behind: int
) -> TableReport:
    snapshot = table.current_snapshot() if table else None
    columns = tuple((field.name, str(field.field_type)) for field in table.schema().fields) if table else ()
    there = {(column.lake or column.name).lower() for column in of.facts.columns} if of.versions else set[str]()
    known = there | OF_KINDS[declared.kind].keys()
    return TableReport(
        name=of.table,
        snapshot_id=snapshot.snapshot_id if snapshot else None,
        rows=rows,
        total_rows=total(snapshot, "total-records"),
        lag_bytes=behind,
        columns=columns,
        left=tuple(name for name, _ in columns if there and name.lower() not in known),
    )

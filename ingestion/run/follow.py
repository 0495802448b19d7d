"""The follower: a long-lived process that keeps the lake up with its sources, one thread per source.

A second thread of the source loads new and stale tables: the others do not wait for them. A third one refreshes the
mirrors.

A change that comes alone is published at once; the next publish begins `flush_interval_seconds` after the last one
began, or after twice the time that the last two took at least, unless `flush_bytes` gather before. So a source in
steady work is published in steady intervals, no more than half of the time goes into publishing, and one publish that
was slow by chance does not delay the next.

Of a source that declares a flush, reads go on in these intervals, and are held and shown in its live tables until the
flush is due, or until the follower is stopped: nobody knows when the next one comes, and what topics keep till then.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

from ingestion.pipeline.cycle import catch_up, connections, note_if_read, waiting_tables
from ingestion.pipeline.held import Held
from ingestion.pipeline.load_tables import load_tables
from ingestion.pipeline.session import RowCounts, Session
from ingestion.run.at_work import at_work, stuck
from ingestion.run.mirrors import Refresher
from ingestion.run.pace import NOTED_SECONDS, Last, flush_in, log_rows, look_in
from ingestion.run.pauses import LONGEST_PAUSE_SECONDS, Pauses
from ingestion.run.sharing import follow_shared
from ingestion.run.stopped import publish_held
from ingestion.run.threads import Changed, Threads, take_changes
from ingestion.schema.positions import Position
from ingestion.sources.base import LiveStream, LiveStreamLost, OpenSource, ReadsAhead
from ingestion.sources.kinds import check_kind, check_shared, source_of
from ingestion.state import lease as leases
from ingestion.state import store
from ingestion.tasks.outage import OUTAGES, outage
from lakehouse.catalog.open import open_catalog
from lakehouse.declarations import Declarations, RawTable, Source
from lakehouse.errors import LakehouseError
from lakehouse.metrics import REGISTRY
from lakehouse.servers.database import CatalogConnection
from lakehouse.servers.exporter import served
from lakehouse.servers.outage import of_ended_jvm
from lakehouse.servers.spark import cancel_jobs, has_ended, spark_session
from lakehouse.settings import Settings
from lakehouse.text.log_lines import about, as_here

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("lakehouse.follow")
LIVE_PAUSE_SECONDS = 5.0
LIVE_TOOK_SECONDS = 1.5  # a read that is held counts as no longer: its rows are to be live within five seconds
LOOK_SECONDS = 1.0
STILL_SECONDS = 15.0
GRACE_SECONDS = 5.0  # in which a load may publish what it reads when the follower ends
Follow = Callable[[Settings, Source, "SparkSession", threading.Event], None]


def follow_sources(
    settings: Settings,
    declarations: Declarations,
    sources: list[str],
    stop: threading.Event,
    *,
    share: bool = False,
    changed: Changed | None = None,
) -> None:
    """Follows the sources until `stop` is set; a failing source is tried again and does not hold up the others.

    With `share`, beside other followers that do so, each with a part of every source. With `changed`, which is asked
    again and again, it takes sources that are declared or connected otherwise by then. Raises LakehouseError for a
    source that cannot be shared, and when Spark's JVM has ended: only a new process has a new one.
    """
    if share:
        for name in sources:
            check_shared(declarations.source(name))
    with store.connect_catalog(settings) as states:
        store.ensure_state(states)
    log.info("starting Spark")
    spark = spark_session(settings, "lakehouse-follow")
    follow = follow_shared if share else _hold_and_follow
    broken = threading.Event()
    threads = Threads(lambda now, source, end: _follow_source(now, source, spark, end, follow, broken))
    threads.want(settings, [declarations.source(name) for name in sources])
    if changed is not None:
        arguments = (changed, settings, threads, stop)
        threading.Thread(target=take_changes, name="declarations", args=arguments, daemon=True).start()
    with served(settings.metrics.host, settings.metrics.follower_port, partial(_readiness, settings, threads)):
        _run_threads(settings, threads, spark, stop, broken)


def _readiness(settings: Settings, threads: Threads) -> dict[str, str]:
    """Of each source, why this follower does not follow it; empty if it does, and gets on."""
    mine, limit = f"{socket.gethostname()}:{os.getpid()}:", settings.alerts.load_seconds
    with store.connect_catalog(settings) as states:
        held = {source: leases.holders_of(states, source) for source in threads.names}
        return {
            source: stuck(states, source, limit) if any(holder.startswith(mine) for holder in holders)
            else "this follower does not hold the lease"
            for source, holders in held.items()
        }  # fmt: skip


def _run_threads(
    settings: Settings, threads: Threads, spark: SparkSession, stop: threading.Event, broken: threading.Event
) -> None:
    """Sets `broken` before the threads end where that is for another reason than `stop`."""
    has_ended_alone = True
    try:
        while not stop.is_set() and not has_ended(spark):
            threads.tend()
            stop.wait(LOOK_SECONDS)
        has_ended_alone = not stop.wait(LOOK_SECONDS)
    finally:
        if has_ended_alone:
            broken.set()
        stop.set()
        threads.end()
    if has_ended_alone:
        log_file = settings.home / "logs" / "spark.log"
        raise LakehouseError(f"Spark's JVM has ended, the end of {log_file} may say why; nothing was lost: start again")


def _follow_source(
    settings: Settings,
    source: Source,
    spark: SparkSession,
    stop: threading.Event,
    follow: Follow,
    broken: threading.Event,
) -> None:
    with about(source=source.name):
        has_failed = _follow_again(settings, source, spark, stop, follow)
        stop.wait()  # where the JVM has ended, it is not known before whether somebody wanted it to
        if has_failed and not broken.is_set():
            leases.leave(settings, source.name)


def _follow_again(
    settings: Settings, source: Source, spark: SparkSession, stop: threading.Event, follow: Follow
) -> bool:
    """Whether the last try has failed."""
    pauses, has_failed = Pauses(settings.ingestion.poll_seconds), False
    while not stop.is_set():
        begun, pause, has_failed = time.monotonic(), 0.0, True
        try:
            follow(settings, source, spark, stop)
            has_failed = False
        except (LakehouseError, *OUTAGES) as error:
            pause = pauses.after(time.monotonic() - begun)
            if of_ended_jvm(error) and _ends(spark, stop):
                return True  # the follower ends, too, and says so once
            told = error if isinstance(error, LakehouseError) else outage(source.name, error)
            said = str(told).removeprefix(f"source {source.name!r}: ")
            log.error("source %r: %s; next try in %.0f s", source.name, said, pause)
        except Exception:
            pause = pauses.after(time.monotonic() - begun)
            if not _ends(spark, stop):
                log.exception("source %r: unexpected error; next try in %.0f s", source.name, pause)
        if not stop.is_set():
            REGISTRY.add("lakehouse_cycle_failures_total", source=source.name)
        stop.wait(pause)
    return has_failed


def _ends(spark: SparkSession, stop: threading.Event) -> bool:
    """Whether the follower or its JVM is ending, which makes any call fail. A signal to the whole group, as systemd
    sends it, ends both, and the JVM may be the first."""
    return stop.wait(LOOK_SECONDS) or has_ended(spark)


def _hold_and_follow(settings: Settings, source: Source, spark: SparkSession, stop: threading.Event) -> None:
    check_kind(settings, source)
    lease = _wait_for_lease(settings, source.name, stop)
    if lease is None:
        return
    with ExitStack() as stack:
        stack.enter_context(leases.kept_alive(settings, lease))
        catalog = open_catalog(settings)
        stack.callback(catalog.close)
        origin = source_of(settings, source.name, None, stop)
        held = Held(60 * source.flush.interval_minutes) if source.flush else None
        session = Session(settings, catalog, spark, lease, source, origin=origin, held=held)
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", source.name)
        loader = Loader(session)
        stack.callback(loader.join, stop)
        stack.callback(Refresher(session).join)
        stack.callback(session.stop.set)
        opened, states = stack.enter_context(connections(session))
        if held is not None:
            assert isinstance(opened, ReadsAhead), f"sources of kind {source.kind} may declare a flush"
            opened.read_on_from(lambda: held.ahead, held.hurry)
        live = Live(session)
        stack.callback(live.close)
        log.info("source %r: following", source.name)
        try:
            _cycles(session, opened, states, live, loader, stop)
        finally:
            if held is not None and _ends(spark, stop):
                log_rows(source.name, publish_held(session, held, opened, states))


def _cycles(
    session: Session, opened: OpenSource, states: CatalogConnection, live: Live, loader: Loader, stop: threading.Event
) -> None:
    last, name = Last(), session.name
    while not stop.is_set():
        _stand_still(session, stop)
        begun, reads = time.monotonic(), session.reads
        try:
            with at_work(name, "cycle"):
                rows = catch_up(session, opened, states, live=live.stream).rows
            log_rows(name, rows)
            took = time.monotonic() - begun
            if rows:
                REGISTRY.observe("lakehouse_publish_seconds", took, source=name)
                last.passed(begun, took, had_rows=True)
            else:
                last.passed(begun, min(took, LIVE_TOOK_SECONDS), had_rows=session.reads > reads)
            loader.start_if_needed(waiting_tables(session, opened, states))
            live.open_if_near(opened, states)
            _wait_for_flush(session, opened, states, live.stream, stop, loader, last)
        except LiveStreamLost as reason:
            log.info("source %r: reading the slot by peeks: %s", name, reason)
            live.close()


def _stand_still(session: Session, stop: threading.Event) -> None:
    """Waits while tables are registered whose point a stream with nothing to land has passed before: it could do so for
    ever."""
    until = time.monotonic() + STILL_SECONDS
    while session.registering.is_set() and time.monotonic() < until and not stop.wait(0.05):
        pass


class Loader:
    """Loads the tables that need a consistent point, one load at a time, beside the cycles."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._thread: threading.Thread | None = None
        self.wake = threading.Event()

    def start_if_needed(self, wanted: list[RawTable]) -> None:
        """Begins a load of the wanted tables unless one is under way."""
        if wanted and not self.is_loading():
            name = f"load-{self._session.name}"
            self._thread = threading.Thread(target=as_here(self._load), name=name, args=(wanted,), daemon=True)
            self._thread.start()

    def is_loading(self) -> bool:
        """Whether a load is under way."""
        return self._thread is not None and self._thread.is_alive()

    def join(self, stop: threading.Event) -> None:
        """Waits for the load under way, which goes no further than the wave or the table that it reads.

        When the process is to stop, the load's Spark jobs are cancelled: hours may be left, and the next one goes on.
        """
        while self._thread and self._thread.is_alive():
            self._thread.join(GRACE_SECONDS)
            if stop.is_set():
                cancel_jobs(self._session.spark, self._thread.name)

    def _load(self, wanted: list[RawTable]) -> None:
        try:
            context = self._session.spark.sparkContext
            context.setLocalProperty("spark.scheduler.pool", "load")
            name = threading.current_thread().name
            context.setJobGroup(name, name, interruptOnCancel=True)
            with at_work(self._session.name, "load"), connections(self._session) as (opened, states):
                rows = load_tables(
                    self._session, opened, states, wanted, lambda position: self._reach(states, position)
                )
            log_rows(self._session.name, rows)
        except (LakehouseError, *OUTAGES) as error:
            if of_ended_jvm(error) and _ends(self._session.spark, self._session.stop):
                return
            level = logging.INFO if self._session.stop.is_set() else logging.ERROR  # what ends with it is made again
            names = ", ".join(table.name for table in wanted)
            log.log(level, "source %r: loading %s: %s", self._session.name, names, error)
            self._session.stop.wait(self._session.limits.lease_seconds / 3)
        except Exception:
            if not _ends(self._session.spark, self._session.stop):
                log.exception("source %r: unexpected error while loading", self._session.name)
            self._session.stop.wait(self._session.limits.lease_seconds)
        finally:
            self.wake.set()

    def _reach(self, states: CatalogConnection, position: Position) -> RowCounts:
        """Waits until the cycles have read up to there."""
        self.wake.set()
        while not self._session.stop.wait(0.1):
            stream = store.read_stream(states, self._session.name)
            if stream is not None and position <= stream.position:
                return {}
        raise LakehouseError(f"source {self._session.name!r}: stopped before the load was done; it is made again")


def _wait_for_lease(settings: Settings, source: str, stop: threading.Event) -> leases.Lease | None:
    told = False
    while not stop.is_set():
        with store.connect_catalog(settings) as states:
            lease = leases.acquire(states, source, settings.ingestion.lease_seconds, "follow")
            if lease is not None:
                return lease
            held = leases.holder_of(states, source)
        if held and not told:
            log.info("source %r: %s holds the lease; standing by", source, held[0])
            told = True
        stop.wait(settings.ingestion.poll_seconds)
    return None


class Live:
    """The source's live stream, open while the lake is near the end of the WAL."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._not_before = 0.0
        self.stream: LiveStream | None = None

    def open_if_near(self, source: OpenSource, states: CatalogConnection) -> None:
        """Opens it unless it is open, was lost a moment ago, or there is a backlog, which reads bring faster."""
        if self.stream is not None or time.monotonic() < self._not_before:
            return
        at, session = store.read_stream(states, self._session.name), self._session
        if at is None or source.distance(at.position, source.now().position) > session.limits.flush_bytes:
            return
        try:
            self.stream = source.stream(at.position, session.limits.flush_bytes)
        except LakehouseError as error:
            log.warning("source %r: no live stream, reading the slot by peeks: %s", session.name, error)
            self._not_before = time.monotonic() + LONGEST_PAUSE_SECONDS

    def close(self) -> None:
        """Ends it; it is not opened again for some seconds."""
        if self.stream is not None:
            self.stream.close()
            self.stream = None
            self._not_before = time.monotonic() + LIVE_PAUSE_SECONDS


def _wait_for_flush(
    session: Session,
    source: OpenSource,
    states: CatalogConnection,
    live: LiveStream | None,
    stop: threading.Event,
    loader: Loader,
    last: Last,
) -> None:
    """Waits for changes and then for the flush to be due, until the loader wakes it or it is stopped."""
    limits = session.limits
    stream = store.read_stream(states, session.name)
    assert stream is not None
    revision, checked, noted = stream.revision, time.monotonic(), time.monotonic()
    while not stop.is_set() and not loader.wake.is_set():
        idle_for = time.monotonic() - last.published
        look = look_in(limits.poll_seconds, live is not None, idle_for, loader.is_loading())
        if time.monotonic() - checked > look:
            stream, checked = store.read_stream(states, session.name), time.monotonic()
            if stream is None or stream.revision != revision:
                break
        if session.flush_is_due(stream):
            break
        if live is None:
            behind = source.distance(session.reached(stream), source.now().position)
        else:
            live.wait(look)
            behind = source.distance(session.reached(stream), live.position)
        if behind == 0 and time.monotonic() - noted > NOTED_SECONDS:
            noted = time.monotonic()
            note_if_read(session, source, states)
        begun = last.published if live and live.has_changes else last.begun
        rest = flush_in(limits, behind, time.monotonic() - begun, last.took)
        if rest == 0 and behind > 0:
            break
        if behind > 0:
            stop.wait(min(rest, limits.poll_seconds))
        elif live is None:
            stop.wait(limits.poll_seconds)
    loader.wake.clear()

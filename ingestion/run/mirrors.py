"""Refreshing mirrors: once, or beside a follower on their interval.

Mirrors have a lease of their own, so that two refreshes never run at once and none holds up the publishes of changes.
It is taken for each refresh: between two of a follower's, others may refresh or compact.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from ingestion.mirrors.copies import MirrorChanged
from ingestion.mirrors.refresh import MirrorInUse, RefreshReport, refresh
from ingestion.pipeline.session import Session
from ingestion.state import lease as leases
from ingestion.state import store
from ingestion.tasks.outage import OUTAGES, outage
from lakehouse.catalog.open import open_catalog
from lakehouse.declarations import Declarations
from lakehouse.errors import LakehouseError
from lakehouse.metrics import REGISTRY
from lakehouse.servers.outage import of_ended_jvm
from lakehouse.servers.spark import cancel_jobs, has_ended, spark_session
from lakehouse.settings import Settings
from lakehouse.text.log_lines import as_here

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("lakehouse.mirrors")
WAIT_STEP_SECONDS = JOIN_STEP_SECONDS = 0.5
TRIES = 3


def refresh_mirrors(
    settings: Settings, declarations: Declarations, source: str, spark: SparkSession | None = None
) -> RefreshReport:
    """Brings the mirrors of a source to its newest cut; waits while another refresh is at work.

    Raises LakehouseError.
    """
    declared = declarations.source(source)
    with store.connect_catalog(settings) as states:
        store.ensure_state(states)
    with mirrors_held(settings, source) as lease, closing(open_catalog(settings)) as catalog:
        try:
            running = spark or spark_session(settings, "lakehouse-mirror")
            return _refresh(Session(settings, catalog, running, lease, declared))
        except OUTAGES as error:
            raise outage(source, error) from error


@contextmanager
def mirrors_held(settings: Settings, source: str) -> Iterator[leases.Lease]:
    """Nobody else writes the mirrors of the source during the block; waits for the one who does.

    Raises LakehouseError if that takes too long.
    """
    deadline = time.monotonic() + settings.ingestion.wait_seconds
    with store.connect_catalog(settings) as states:
        while (lease := _acquire(settings, states, source)) is None:
            held = leases.holder_of(states, leases.mirrors_of(source))
            if time.monotonic() > deadline:
                raise LakehouseError(
                    f"source {source!r}: {held[0] if held else 'another session'} has been writing its mirrors for "
                    f"{settings.ingestion.wait_seconds:.0f} s: `lakehouse status` says whether refreshes fail"
                )
            time.sleep(WAIT_STEP_SECONDS)
    with leases.kept_alive(settings, lease):
        yield lease


def _acquire(settings: Settings, states: store.CatalogConnection, source: str) -> leases.Lease | None:
    return leases.acquire(states, leases.mirrors_of(source), settings.ingestion.lease_seconds, "once")


def _refresh(session: Session) -> RefreshReport:
    for _ in range(TRIES - 1):
        with store.connect_catalog(session.settings) as states:
            try:
                return refresh(session, states)
            except MirrorChanged as changed:
                log.info("source %r: %s; again", session.name, changed)
    with store.connect_catalog(session.settings) as states:
        return refresh(session, states)


class Refresher:
    """Refreshes the mirrors of a followed source on their interval, in a thread of its own."""

    def __init__(self, session: Session, may: Callable[[], bool] = lambda: True) -> None:
        """`may` is asked before each refresh: of several followers of a source one does it."""
        self._session, self._may = session, may
        self._aside, self._told = frozenset[str](), frozenset[str]()
        self._thread = threading.Thread(target=as_here(self._run), name=f"mirrors-{session.name}", daemon=True)
        if session.source.mirrored or any(table.key for table in session.source.tables):
            self._thread.start()

    def join(self) -> None:
        """Ends it, once the session's `stop` is set; a refresh under way is given up and leaves the mirrors as is."""
        while self._thread.is_alive():
            cancel_jobs(self._session.spark, self._group)  # those of the future not among them
            self._thread.join(JOIN_STEP_SECONDS)

    @property
    def _group(self) -> str:
        return f"mirrors-{self._session.name}"

    def _run(self) -> None:
        session, every = self._session, self._session.source.refresh_seconds
        context = session.spark.sparkContext
        context.setLocalProperty("spark.scheduler.pool", "mirrors")
        context.setJobGroup(self._group, "refresh of mirrors", interruptOnCancel=True)
        pause = every
        while not session.stop.wait(pause):
            begun = time.monotonic()
            try:
                if self._may() and self._once() and not session.source.mirrored:
                    return  # the views of what had a mirror have dbt's text again
            except MirrorInUse as held:
                log.info("source %r: %s", session.name, held)
            except (LakehouseError, *OUTAGES) as error:
                if of_ended_jvm(error) and (session.stop.is_set() or has_ended(session.spark)):
                    return  # the follower ends, too, and says so once
                log.error("source %r: mirrors: %s; next try in %.0f s", session.name, error, every)
            except Exception:
                if not session.stop.is_set() and not has_ended(session.spark):
                    log.exception("source %r: unexpected error while refreshing mirrors", session.name)
            pause = max(0.0, every - (time.monotonic() - begun))

    def _once(self) -> bool:
        """Whether it could: somebody else may be at it."""
        session = self._session
        with store.connect_catalog(session.settings) as states:
            lease = _acquire(session.settings, states, session.name)
        if lease is None:
            return False
        begun = time.monotonic()
        with leases.kept_alive(session.settings, lease):
            report = _refresh(replace(session, lease=lease))
        REGISTRY.observe("lakehouse_mirror_refresh_seconds", time.monotonic() - begun, source=session.name)
        if report.written:
            written = ", ".join(f"{m.name} {'all' if m.anew else m.changed + m.gone}" for m in report.written)
            log.info("source %r: mirrors at %s: %s", session.name, report.position, written)
        self._tell(report.reasons)
        return True

    def _tell(self, reasons: Mapping[str, str]) -> None:
        """Warns once of mirrors that stay where they were twice: a next cycle may have brought what was missing."""
        aside = frozenset(reasons)
        new = (aside & self._aside) - self._told
        for name in sorted(new):
            log.warning("source %r: the mirror of %s stays as it was: %s", self._session.name, name, reasons[name])
        self._aside, self._told = aside, (self._told | new) & aside

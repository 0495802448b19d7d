"""The follower: a long-lived process that keeps the lake up with its sources, one thread per source.

It publishes when `flush_bytes` of WAL have gathered or `flush_interval_seconds` have passed since the first change
that is not in the lake, whichever comes first.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from ingestion import lease as leases
from ingestion import source as src
from ingestion import state
from ingestion.context import Writer
from ingestion.cycle import run_cycle
from lakehouse.catalog import open_catalog
from lakehouse.declarations import Declarations, Source
from lakehouse.errors import LakehouseError
from lakehouse.settings import IngestionSettings, Settings
from lakehouse.spark import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("lakehouse.follow")
LONGEST_PAUSE_SECONDS = 30.0


def follow_sources(settings: Settings, declarations: Declarations, sources: list[str], stop: threading.Event) -> None:
    """Follows the sources until `stop` is set; a failing source is tried again and does not hold up the others."""
    with state.connect_catalog(settings) as states:
        state.ensure_state(states)
    session = spark_session(settings, "lakehouse-follow")
    threads = [
        threading.Thread(target=_follow_source, name=name, args=(settings, declarations.source(name), session, stop))
        for name in sources
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def flush_due(limits: IngestionSettings, behind_bytes: int, waited_seconds: float) -> bool:
    """Whether it is time to publish: enough bytes, or long enough since the first of them."""
    return behind_bytes >= limits.flush_bytes or (behind_bytes > 0 and waited_seconds >= limits.flush_interval_seconds)


def _follow_source(settings: Settings, source: Source, session: SparkSession, stop: threading.Event) -> None:
    pause = settings.ingestion.poll_seconds
    while not stop.is_set():
        try:
            _hold_and_follow(settings, source, session, stop)
            pause = settings.ingestion.poll_seconds
        except LakehouseError as error:
            log.error("%s; next try in %.0f s", error, pause)
        except Exception:
            log.exception("source %r: unexpected error; next try in %.0f s", source.name, pause)
        stop.wait(pause)
        pause = min(pause * 2, LONGEST_PAUSE_SECONDS)


def _hold_and_follow(settings: Settings, source: Source, session: SparkSession, stop: threading.Event) -> None:
    lease = _wait_for_lease(settings, source.name, stop)
    if lease is None:
        return
    with ExitStack() as stack:
        stack.enter_context(leases.kept_alive(settings, lease))
        catalog = open_catalog(settings)
        stack.callback(catalog.close)
        writer = Writer(settings, catalog, session, lease, source)
        _log_rows(source.name, run_cycle(writer).rows)
        log.info("source %r: following", source.name)
        while not stop.is_set():
            if _wait_for_flush(settings, source.name, stop):
                _log_rows(source.name, run_cycle(writer).rows)


def _wait_for_lease(settings: Settings, source: str, stop: threading.Event) -> leases.Lease | None:
    told = False
    while not stop.is_set():
        with state.connect_catalog(settings) as states:
            lease = leases.acquire(states, source, settings.ingestion.lease_seconds, "follow")
            if lease is not None:
                return lease
            held = leases.holder_of(states, source)
        if held and not told:
            log.info("source %r: %s holds the lease; standing by", source, held[0])
            told = True
        stop.wait(settings.ingestion.poll_seconds)
    return None


def _wait_for_flush(settings: Settings, source: str, stop: threading.Event) -> bool:
    """Waits for changes and then for the flush to be due; False when stopped or after a quiet while."""
    first_change: float | None = None
    with src.connect_source(settings, source) as connection, state.connect_catalog(settings) as states:
        stream = state.read_stream(states, source)
        assert stream is not None
        while not stop.is_set():
            behind = src.source_now(connection).lsn - stream.lsn
            if behind > 0 and first_change is None:
                first_change = time.monotonic()
            if first_change is not None and flush_due(settings.ingestion, behind, time.monotonic() - first_change):
                return True
            stop.wait(settings.ingestion.poll_seconds)
    return False


def _log_rows(source: str, rows: dict[str, dict[str, int]]) -> None:
    parts = [f"{table} {op}={count}" for table, ops in sorted(rows.items()) for op, count in sorted(ops.items())]
    if parts:
        log.info("source %r: published %s", source, ", ".join(parts))

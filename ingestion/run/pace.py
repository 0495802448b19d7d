"""When a follower looks and publishes next, and what it tells of a publish."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass

from ingestion.pipeline.session import RowCounts
from lakehouse.metrics import REGISTRY
from lakehouse.settings import IngestionSettings

log = logging.getLogger("lakehouse.follow")
PUBLISH_SHARE = 2.0
LIVE_POLLS = 2  # a change wakes who waits for a live stream
IDLE_POLLS = 10
IDLE_AFTER_SECONDS = 30.0
NOTED_SECONDS = 10.0  # between two notes that a source was read until now, while nothing happens in it


def flush_in(limits: IngestionSettings, behind_bytes: int, since_begun: float, took: float) -> float:
    """Seconds until the next publish is due, 0 when it is; the last one began `since_begun` seconds ago."""
    if behind_bytes >= limits.flush_bytes:
        return 0.0
    return max(0.0, max(limits.flush_interval_seconds, PUBLISH_SHARE * took) - since_begun)


def look_in(poll_seconds: float, live: bool, idle_for: float, loading: bool) -> float:
    """Seconds between two looks at a source's state. A source is idle that has a live stream and has had no rows for
    `idle_for` seconds; one that loads a table is not, for the load waits for cycles."""
    if not live:
        return poll_seconds
    return poll_seconds * (IDLE_POLLS if idle_for > IDLE_AFTER_SECONDS and not loading else LIVE_POLLS)


@dataclass
class Last:
    """When the last cycle began, when the last one began that had rows, and how long those took; monotonic seconds.

    `took` is the shorter time of the newest two that had rows, `newest` that of the newest. A cycle that only passes
    WAL without changes must not hold up a change that comes right after it.
    """

    begun: float = -math.inf
    published: float = -math.inf
    took: float = 0.0
    newest: float = math.inf

    def passed(self, begun: float, took: float, had_rows: bool) -> None:
        """Notes a cycle that has just ended."""
        self.begun = begun
        if had_rows:
            self.published, self.took, self.newest = begun, min(took, self.newest), took


def log_rows(source: str, rows: RowCounts) -> None:
    """Counts and logs the rows of a publish, by table and operation."""
    for table, counts in rows.items():
        for op, count in counts.items():
            REGISTRY.add("lakehouse_rows_published_total", count, source=source, table=table, op=op)
    parts = [f"{table} {op}={count}" for table, ops in sorted(rows.items()) for op, count in sorted(ops.items())]
    if parts:
        log.info("source %r: published %s", source, ", ".join(parts))

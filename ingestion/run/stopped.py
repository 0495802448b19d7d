"""What a follower publishes when it is stopped: what it holds for a declared flush."""

from __future__ import annotations

import logging
from dataclasses import replace

from ingestion.pipeline.cycle import outlooks_of
from ingestion.pipeline.held import Held
from ingestion.pipeline.load_changes import load_changes
from ingestion.pipeline.session import RowCounts, Session
from ingestion.sink.publish import Outdated
from ingestion.sources.base import OpenSource
from ingestion.tasks.outage import OUTAGES, outage
from lakehouse.errors import LakehouseError
from lakehouse.servers.database import CatalogConnection

log = logging.getLogger("lakehouse.follow")


def publish_held(session: Session, held: Held, source: OpenSource, states: CatalogConnection) -> RowCounts:
    """Publishes what is held, and reads no further, so that Spark may have ended before; returns the rows.

    Where that fails, the next follower reads it again: it is as after a crash.
    """
    if held.cycle_id is None:
        return {}
    held.hurry()
    try:
        stream = source.check(states)
        now = replace(source.now(), position=session.reached(stream))
        return load_changes(session, source, states, outlooks_of(session, source, states), now)[0]
    except (LakehouseError, *OUTAGES, Outdated) as error:
        told = outage(session.name, error) if isinstance(error, OUTAGES) else error
        says = str(told).removeprefix(f"source {session.name!r}: ") or "its tables have changed"
        log.warning(
            "source %r: what was read is not published: %s; the next follower reads it again", session.name, says
        )
        return {}

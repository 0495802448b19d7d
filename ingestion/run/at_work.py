"""What a follower is at for each source, and since when: a lease that is renewed says only that its process lives."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from ingestion.state import progress, store
from lakehouse.servers.database import CatalogConnection

Work = Literal["cycle", "load"]
_begun: dict[tuple[str, Work], float] = {}


@contextmanager
def at_work(source: str, work: Work) -> Iterator[None]:
    """Notes that this process is at such work of the source while the block runs."""
    _begun[source, work] = time.monotonic()
    try:
        yield
    finally:
        _begun.pop((source, work), None)


def stuck(states: CatalogConnection, source: str, seconds: float) -> str:
    """What this process is at for longer than these seconds without a publish; empty if nothing is."""
    now = time.monotonic()
    late = {work: now - at for (of, work), at in list(_begun.items()) if of == source and now - at > seconds}
    for work in sorted(late):
        idle = min(late[work], _since_publish(states, source, work))
        if idle > seconds:
            return f"its {work} has made no progress for {idle / 60:,.0f} minutes"
    return ""


def _since_publish(states: CatalogConnection, source: str, work: Work) -> float:
    at, stream = progress.read(states, source), store.read_stream(states, source)
    moments = [at.updated_at] if at else []
    if work == "cycle" and stream is not None:
        moments.append(stream.updated_at)  # cycles move it, too, beside a load that hangs
    return (store.catalog_clock(states) - max(moments)).total_seconds() if moments else float("inf")

"""Compacted topics: a delete that compaction took before it was read shows in nothing that is left."""

from collections.abc import Collection, Iterator
from datetime import datetime, timedelta

from ingestion.schema.offsets import Offsets
from ingestion.sources.kafka.connection import Brokers

A_WHILE = timedelta(minutes=1)  # after which it is asked for how long topics keep deletes
MILLISECOND = timedelta(milliseconds=1)


def read_late(
    brokers: Brokers, topics: Collection[str], reached: Offsets, end: Offsets, read_at: datetime, now: datetime
) -> Iterator[str]:
    """Of the topics, whose events up to `end` are about to be read, says which may have lost deletes, if it was last
    read at `read_at`: those that are compacted, and had something to read for longer than they keep deletes.

    What came last night and was read then leaves the position behind it, and the next event is there, and young.
    """
    if now - read_at < A_WHILE:
        return
    at, ends = reached.by_partition, end.by_partition
    for topic, kept_ms in sorted(brokers.compacted(topics).items()):
        if (now - read_at) / MILLISECOND <= kept_ms:
            continue
        unread = [p for p, offset in at.items() if p[0] == topic and offset < ends.get(p, 0)]
        starts, young = brokers.starts(unread), brokers.since(unread, now - kept_ms * MILLISECOND)
        if any(starts[p] < at[p] and young.get(p) != at[p] for p in unread):
            yield (
                f"topic {topic} is compacted and keeps deletes for {hours(kept_ms)} (delete.retention.ms), and had "
                "events for longer that were not read: deletes may be lost, and their rows stay current: compare with "
                "who writes it, and raise delete.retention.ms, or ingest more often"
            )


def hours(milliseconds: int) -> str:
    """A time for people."""
    return f"{milliseconds / 3_600_000:,.4g} h"

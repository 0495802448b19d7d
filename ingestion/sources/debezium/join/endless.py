"""Transactions whose END will never come. Pure.

A connector that lost its offsets, or was killed before it had stored the first, begins anew: with a snapshot, and then
with what is committed after it. If it was within a transaction, the rest of that is in the snapshot's rows, and neither
its other events nor its END are ever sent. A snapshot that a signal asks for interrupts a transaction, too, but its END
follows.
"""

from collections.abc import Sequence
from datetime import timedelta

from ingestion.sources.debezium.join.heads import SNAPSHOT, Heads
from ingestion.sources.debezium.join.joined import Firsts, Follows, Reached, Told

INTERRUPTED = timedelta(seconds=60)


def endless(
    heads: Heads, told: Sequence[Told], firsts: Firsts, before: Reached, follows: Follows
) -> frozenset[int]:  # fmt: skip
    """Their xids: a snapshot came after what there is of them, and another transaction, or nothing for a while.

    One all of whose records are before what has landed may have landed itself, and come once more.
    """
    rows = [heads.at[i] for i in range(len(heads)) if heads.kind[i] == SNAPSHOT]
    if not rows or not follows.is_whole:
        return frozenset()
    newest, ended = max(rows), {one.end.xid for one in told if one.end is not None}
    last = {
        xid: max(heads.at[i] for i in events)
        for xid, events in firsts.by_xid.items()
        if xid not in ended and xid not in follows.older and max(heads.lsn[i] for i in events) > before.end
    }
    is_over = follows.now.timestamp() - newest / 1000 > INTERRUPTED.total_seconds() or any(
        one.at.timestamp() * 1000 > newest for one in told if one.end is not None
    )
    return frozenset(xid for xid, at in last.items() if is_over and at < newest)

"""Transactions that have no END: those that are under way, and those to which none will ever come. Pure.

A connector that lost its offsets, or was killed before it had stored the first, begins anew: with a snapshot, and then
with what is committed after it. If it was within a transaction, the rest of that is in the snapshot's rows, and neither
its other events nor its END are ever sent. A snapshot that a signal asks for interrupts a transaction, too, but its END
follows, before that of any other. Until it is known which it was, the rows of the snapshot wait as the events do.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from datetime import timedelta

from ingestion.sources.debezium.join.heads import SNAPSHOT, Loaded
from ingestion.sources.debezium.join.joined import Firsts, Follows, Reached, Told

INTERRUPTED = timedelta(seconds=60)


def without_end(
    heads: Loaded, told: Sequence[Told], firsts: Firsts, before: Reached, follows: Follows
) -> tuple[frozenset[int], frozenset[int], dict[int, int]]:
    """The xids to which no END will come: a snapshot began after what there is of them, and then another transaction
    ended, or nothing came for a while. Those whose END the transaction topic has no more. And of the others without an
    END, when their last event came.

    One all of whose records are before what has landed may have landed itself, and come once more, where that happens.
    """
    ended = {one.end.xid for one in told if one.end is not None}
    last = {
        xid: max(heads.at[i] for i in events)
        for xid, events in firsts.by_xid.items()
        if xid not in ended and xid not in follows.older
    }
    forgotten = frozenset(xid for xid, at in last.items() if follows.is_forgotten(at))
    last = {xid: at for xid, at in last.items() if xid not in forgotten}
    rows = sorted(heads.at[i] for i in range(len(heads)) if heads.kind[i] == SNAPSHOT) if last else []
    newest_end = max((one.at.timestamp() * 1000 for one in told if one.end is not None), default=0.0)
    is_quiet = rows and follows.is_whole and follows.now.timestamp() - rows[-1] / 1000 > INTERRUPTED.total_seconds()
    gone = {
        xid
        for xid, at in last.items()
        if (begun := bisect_right(rows, at)) < len(rows)
        and (is_quiet or newest_end > rows[begun])
        and (follows.exactly_once or max(heads.lsn[i] for i in firsts.by_xid[xid]) > before.end)
    }
    return frozenset(gone), forgotten, {xid: at for xid, at in last.items() if xid not in gone}


def waiting_rows(heads: Loaded, under_way: Iterable[int]) -> set[int]:
    """The rows of snapshots that began after the last event of a transaction that is `under_way`."""
    since = min(under_way, default=None)
    if since is None:
        return set()
    return {i for i in range(len(heads)) if heads.kind[i] == SNAPSHOT and heads.at[i] > since}

"""ENDs of another database among those of the one that is read. Pure.

A connector that was restarted says again what it had said before, and in the order in which it had. So an END that goes
back is a repetition where it was told before. Where it was not, although what was told at its time is known, it is of
another database, which has xids and positions of its own: its rows must not be taken for rows that have landed.
"""

from collections.abc import Sequence
from datetime import datetime

from ingestion.sources.debezium.join.joined import CLOCKS, SET_BACK, Earlier, Told
from ingestion.sources.debezium.message.envelope import End


def strangers(earlier: Earlier, told: Sequence[Told], landed: int) -> frozenset[int]:
    """The offsets of the ENDs that are of another database for sure. Transactions up to the END at `landed` have landed
    in this epoch: what was told before the read and ends higher is of an earlier one.

    Where positions fall although time goes on, the database went back: from there on, what comes is compared with what
    came since.
    """
    known, found = set[tuple[int, int]](), set[int]()
    top: End | None = None
    since: datetime | None = None  # all that was committed later is known
    for number, one in enumerate((*earlier.told, *told)):
        end = one.end
        if end is None or (end.xid, end.lsn) in known:
            continue
        known.add((end.xid, end.lsn))
        if number < len(earlier.told) and end.lsn > landed:
            top = None
        elif top is None or end.lsn > top.lsn or end.at > top.at + CLOCKS:
            top = end
        elif earlier.is_all or (since is not None and end.at > since + SET_BACK):
            found.add(one.offset)
        since = end.at if since is None else min(since, end.at)
    return frozenset(found)

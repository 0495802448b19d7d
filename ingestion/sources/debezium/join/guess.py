"""The places of events by the ENDs alone, as if all transactions that have ended were whole. Pure."""

from collections.abc import Sequence

import numpy as np

from ingestion.sources.debezium.join.heads import EMPTY, EVENT, Heads
from ingestion.sources.debezium.join.joined import Follows, Joined, OutOfOrder, Reached, Told
from ingestion.sources.debezium.join.transactions import ended_of


def is_plain(heads: Heads) -> bool:
    """Whether all are changes of rows in transactions, whose places depend on no other kind of event."""
    kinds, ops = np.unique(np.frombuffer(heads.kind, np.int8)), np.unique(np.frombuffer(heads.op, np.int8))
    return set(kinds.tolist()) <= {EVENT, EMPTY} and ord("t") not in ops.tolist()


def guess(heads: Heads, told: Sequence[Told], before: Reached, follows: Follows) -> Joined | None:
    """Numbers and places; None where they depend on more than the ENDs."""
    kind = np.array(heads.kind, np.int8)
    try:
        ended = ended_of(told, before, follows)
    except OutOfOrder:
        return None
    if not is_plain(heads) or ended.again or len(ended.xids) < len(ended.new):
        return None
    numbers, places = (np.full(len(kind), -1, np.int64) for _ in range(2))
    if ended.new:
        by_xid = sorted((one.end.xid, one.end.lsn) for one in ended.new)
        known, lsns = (np.array(column, np.int64) for column in zip(*by_xid, strict=True))
        xid = np.array(heads.xid, np.int64)
        at = np.minimum(np.searchsorted(known, xid), len(known) - 1)
        lands = (kind == EVENT) & (known[at] == xid)
        numbers[lands], places[lands] = lsns[at[lands]], np.array(heads.order, np.int64)[lands]
    return Joined(numbers.tolist(), places.tolist())

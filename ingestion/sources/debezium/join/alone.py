"""Events whose transactions no topic tells: they land as they come, each partition in its order.

A change of a key comes as a delete and, after its tombstone, a create, which belong together. So a delete that is the
last of its partition waits for a moment, for what may follow.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ingestion.sources.debezium.join.heads import EMPTY, EVENT, Heads
from ingestion.sources.debezium.join.joined import PLACED, SETTLED, Follows, Joined, Reached
from ingestion.sources.debezium.join.pairs import Pairs


def place_alone(heads: Heads, before: Reached, follows: Follows) -> Joined:
    """Places the events of a read under one number, which is the next one."""
    number = max(before.bound, 1)
    pairs = Pairs(heads, _numbers_of(follows.relations))
    joined = Joined(offsets=list(follows.ends))
    waiting = _last_deletes(heads, pairs, follows)
    for index in waiting:
        joined.offsets[heads[index]["partition"]] = int(heads[index]["offset"])
    bases, lands = np.array(follows.bases, np.int64), False
    for first, rows in heads.windows():
        wanted = rows["kind"] != EMPTY
        wanted[[index - first for index in waiting if first <= index < first + len(rows)]] = False
        placed = np.full(len(rows), -1, PLACED)
        placed["number"][wanted] = number
        placed["place"][wanted] = (bases[rows["partition"]] + rows["offset"])[wanted]
        placed["old"] = pairs.of(first, len(rows))
        joined.placed.extend(placed)
        lands |= bool(wanted.any())
    joined.reached = replace(before, bound=number + 1) if lands else before
    joined.waits = joined.offsets != list(follows.ends)
    return joined


def _numbers_of(relations: Sequence[str]) -> np.ndarray:
    return np.unique(np.array([*relations]), return_inverse=True)[1]


def _last_deletes(heads: Heads, pairs: Pairs, follows: Follows) -> list[int]:
    """The deletes that are the last event of their partition, where what follows them may be on the way."""
    last = np.full(len(follows.ends), -1, np.int64)
    for first, rows in heads.windows():
        index = np.flatnonzero(rows["kind"] != EMPTY)
        np.maximum.at(last, rows["partition"][index], first + index)
    ends = [(index, heads[index]) for index in last[last >= 0].tolist()]
    return [
        index
        for index, head in ends
        if head["kind"] == EVENT and head["op"] == ord("d") and index not in pairs.deletes
        and not (follows.is_whole and follows.now.timestamp() - int(head["at"]) / 1000 > SETTLED.total_seconds())
    ]  # fmt: skip

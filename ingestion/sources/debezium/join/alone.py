"""Events whose transactions no topic tells: they land as they come, each partition in its order. Pure.

A change of a key comes as a delete and, after its tombstone, a create, which belong together. So a delete that is the
last of its partition waits for a moment, for what may follow.
"""

from array import array
from dataclasses import replace

from ingestion.sources.debezium.join.heads import EMPTY, EVENT, Heads
from ingestion.sources.debezium.join.joined import SETTLED, Follows, Joined, Reached, nowhere
from ingestion.sources.debezium.join.pairs import key_changes


def place_alone(heads: Heads, before: Reached, follows: Follows) -> Joined:
    """Places the events of a read under one number, which is the next one."""
    number = max(before.bound, 1)
    numbers = array("q", (number if kind != EMPTY else -1 for kind in heads.kind))
    joined = Joined(numbers, nowhere(len(heads)))
    joined.old = key_changes(heads, joined, follows.relations)
    joined.offsets = list(follows.ends)
    for partition, index in _last_deletes(heads, {*joined.old.values()}, follows).items():
        joined.numbers[index] = -1
        joined.offsets[partition] = heads.offset[index]
    for index in range(len(heads)):
        if joined.numbers[index] >= 0:
            joined.places[index] = follows.place(heads, index)
    joined.reached = replace(before, bound=number + 1) if any(n >= 0 for n in joined.numbers) else before
    joined.waits = joined.offsets != list(follows.ends)
    return joined


def _last_deletes(heads: Heads, paired: set[int], follows: Follows) -> dict[int, int]:
    """By partition the delete that is its last event, where what follows it may be on the way."""
    last = {heads.partition[i]: i for i in range(len(heads)) if heads.kind[i] != EMPTY}
    return {
        partition: index
        for partition, index in last.items()
        if heads.kind[index] == EVENT and heads.op[index] == ord("d") and index not in paired
        and not (follows.is_whole and follows.now.timestamp() - heads.at[index] / 1000 > SETTLED.total_seconds())
    }  # fmt: skip

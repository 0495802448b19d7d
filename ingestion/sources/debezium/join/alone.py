"""Events whose transactions no topic tells: they land as they come, each partition in its order. Pure."""

from dataclasses import replace

from ingestion.sources.debezium.join.heads import EMPTY, Heads
from ingestion.sources.debezium.join.joined import Follows, Joined, Reached
from ingestion.sources.debezium.join.pairs import key_changes


def place_alone(heads: Heads, before: Reached, follows: Follows) -> Joined:
    """Places all events of a read under one number, which is the next one."""
    number = max(before.bound, 1)
    lands = [kind != EMPTY for kind in heads.kind]
    joined = Joined(
        [number if landing else -1 for landing in lands],
        [follows.place(heads, index) if landing else -1 for index, landing in enumerate(lands)],
        offsets=list(follows.ends), reached=replace(before, bound=number + 1) if any(lands) else before,
    )  # fmt: skip
    joined.old = key_changes(heads, joined, follows.relations)
    return joined

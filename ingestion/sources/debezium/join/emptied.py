"""Rows of snapshots that a TRUNCATE has removed which came in another partition of their topic. Pure.

No partition tells that it was truncated but the one that has the event, and rows of snapshots have no transaction. They
are sent in one order with the changes, so the moments at which they came tell which of them were there.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from ingestion.sources.debezium.join.heads import SNAPSHOT, UNREAD, Loaded
from ingestion.sources.debezium.join.joined import Follows

TRUNCATE = ord("t")
Truncates = Mapping[str, tuple[Sequence[int], Sequence[Any]]]
"""By relation, when each of its TRUNCATEs came, and where the first one stands that came then or later."""


def truncates(heads: Loaded, stands: Iterable[tuple[int, Any]], follows: Follows) -> Truncates:
    """Those of relations with several partitions, of events by index, each with where it stands."""
    found: dict[str, list[tuple[int, Any]]] = {}
    for index, at in stands:
        relation = follows.relations[heads.partition[index]]
        if follows.relations.count(relation) > 1:
            found.setdefault(relation, []).append((heads.at[index], at))
    return {relation: _firsts(sorted(there)) for relation, there in found.items()}


def _firsts(there: Sequence[tuple[int, Any]]) -> tuple[Sequence[int], Sequence[Any]]:
    return [came for came, _ in there], [*accumulate((at for _, at in reversed(there)), min)][::-1]


def first_after(found: Truncates, heads: Loaded, index: int, follows: Follows) -> Any:
    """Where the first TRUNCATE stands that came after a row, None for none. A snapshot ends before changes of the same
    moment come."""
    there = found.get(follows.relations[heads.partition[index]]) if found else None
    if there is None or heads.kind[index] == UNREAD:  # which may be of a transaction
        return None
    came, firsts = there
    at = (bisect_left if heads.kind[index] == SNAPSHOT else bisect_right)(came, heads.at[index])
    return firsts[at] if at < len(firsts) else None


def may_empty_more(heads: Loaded, events: Sequence[int], last: Mapping[int, int], follows: Follows) -> bool:
    """Whether one of these events is a TRUNCATE before which rows may still come in another partition; `last` is by
    partition when the last event came that is read."""
    for index in (i for i in events if heads.op[i] == TRUNCATE):
        of = heads.partition[index]
        for other, relation in enumerate(follows.relations):
            is_beside = other != of and relation == follows.relations[of]
            if is_beside and other in last and last[other] <= heads.at[index]:
                return True
    return False

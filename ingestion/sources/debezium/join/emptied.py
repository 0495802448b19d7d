"""Rows of snapshots that a TRUNCATE has removed which came in another partition of their topic. Pure.

No partition tells that it was truncated but the one that has the event, and rows of snapshots have no transaction. They
are sent in one order with the changes, so the moments at which they came tell which of them were there.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from ingestion.sources.debezium.join.heads import SNAPSHOT, UNREAD, Loaded
from ingestion.sources.debezium.join.joined import Ended, Firsts, Follows

TRUNCATE = ord("t")
Truncates = Mapping[str, Mapping[int, tuple[Sequence[int], Sequence[Any]]]]
"""By relation and partition, when each TRUNCATE came, and where the first one stands that came then or later."""


def truncates(heads: Loaded, stands: Iterable[tuple[int, Any]], follows: Follows) -> Truncates:
    """Those of relations with several partitions, of events by index, each with where it stands."""
    found: dict[str, dict[int, list[tuple[int, Any]]]] = {}
    for index, at in stands:
        of = heads.partition[index]
        if follows.beside[of]:
            found.setdefault(follows.relations[of], {}).setdefault(of, []).append((heads.sent[index], at))
    return {relation: {of: _firsts(sorted(there)) for of, there in each.items()} for relation, each in found.items()}


def _firsts(there: Sequence[tuple[int, Any]]) -> tuple[Sequence[int], Sequence[Any]]:
    return [came for came, _ in there], [*accumulate((at for _, at in reversed(there)), min)][::-1]


def first_after(found: Truncates, heads: Loaded, index: int, follows: Follows, above: Any = None) -> Any:
    """Where the first TRUNCATE of another partition stands that came after a row, None for none. A snapshot ends before
    changes of the same moment come. What stands before this row in its own partition stands at `above`: no TRUNCATE
    below that came after the row, whatever clocks say."""
    each, of = found.get(follows.relations[heads.partition[index]]) if found else None, heads.partition[index]
    if each is None or heads.kind[index] == UNREAD:  # which may be of a transaction
        return None
    after, firsts = bisect_left if heads.kind[index] == SNAPSHOT else bisect_right, list[Any]()
    for came, there in (those for partition, those in each.items() if partition != of):
        at = max(after(came, heads.sent[index]), 0 if above is None else bisect_left(there, above))
        firsts += there[at : at + 1]
    return min(firsts, default=None)


@dataclass(frozen=True)
class Lasts:
    """Of each partition when the last event came that is read, and of those of transactions the last one: the number of
    its transaction among the new ones, and its place in that."""

    sent: Mapping[int, int]
    places: Mapping[int, tuple[int, int]]

    @classmethod
    def of(cls, heads: Loaded, ended: Ended, firsts: Firsts, under_way: Collection[int]) -> "Lasts":
        """Those of a read; transactions that are `under_way` end later than all that have ended. A transaction that is
        not clean has no order."""
        numbers = {one.end.xid: number for number, one in enumerate(ended.new)}
        places: dict[int, tuple[int, int]] = {}
        for xid in (*numbers, *under_way) if TRUNCATE in heads.op else ():
            number = numbers.get(xid, len(numbers))
            for index in firsts.by_xid.get(xid, ()):
                of, place = heads.partition[index], 0 if xid in firsts.unclean else heads.order[index]
                places[of] = max((number, place), places.get(of, (-1, 0)))
        return cls(dict(zip(heads.partition, heads.sent, strict=True)), places)

    def held(self, heads: Loaded, follows: Follows) -> dict[int, int]:
        """By partition the first event of history for which the others of its relation are not read far enough: a
        TRUNCATE that is there later would be behind it, or rows that it removed."""
        found: dict[int, int] = {}
        for index in range(len(heads)) if follows.older and any(follows.beside) else ():
            of = heads.partition[index]
            is_old = of not in found and heads.xid[index] in follows.older
            if is_old and follows.history(heads, index) is not None and self._is_ahead(heads, index, follows):
                found[of] = index
        return found

    def _is_ahead(self, heads: Loaded, index: int, follows: Follows) -> bool:
        """Whether another partition of its relation is not read up to when an event came."""
        of, at, sent = heads.partition[index], heads.at[index], heads.sent[index]
        return any(at > follows.whole_to[other] and self.sent.get(other, -1) <= sent for other in follows.beside[of])

    def may_follow(self, heads: Loaded, index: int, emptied: Truncates, follows: Follows) -> bool:
        """Whether a TRUNCATE of another partition that came before a row may land later: one of those `emptied`, which
        wait, or one that is not read yet. That row would be lost."""
        of, sent = heads.partition[index], heads.sent[index]
        each = emptied.get(follows.relations[of], {})
        before = bisect_left if heads.kind[index] == SNAPSHOT else bisect_right
        if any(before(came, sent) for partition, (came, _) in each.items() if partition != of):
            return True
        return self._is_ahead(heads, index, follows)

    def may_empty_more(self, heads: Loaded, number: int, events: Sequence[int], follows: Follows) -> bool:
        """Whether one of these events, of the transaction of this number, is a TRUNCATE before which rows may still
        come in another partition: one that is not read up to then, and has nothing that came after it."""
        for index in (i for i in events if heads.op[i] == TRUNCATE):
            of, at, place = heads.partition[index], heads.at[index], (number, heads.order[index])
            sent = heads.sent[index]
            for other in (other for other in follows.beside[of] if at > follows.whole_to[other]):
                if self.sent.get(other, -1) <= sent and self.places.get(other, (-1, 0)) <= place:
                    return True
        return False

"""The join of events to transactions in columns, where all is as a connector sends it that was never restarted. Pure.

Every event is of a transaction, those that ended have all their events, each once, and in every partition they are
before those of transactions that have not. What is not so is placed step by step.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ingestion.sources.debezium.join.heads import EMPTY, EVENT, Heads
from ingestion.sources.debezium.join.joined import SETTLED, STALLED, Ended, Follows, Joined, New, Reached

_ODD = np.uint64(0x9E3779B97F4A7C15)


def join_at_once(heads: Heads, ended: Ended, before: Reached, follows: Follows) -> Joined | None:
    """What `join` finds; None where it has to look at each event."""
    kind = np.array(heads.kind)
    is_settled = follows.exactly_once or all(follows.now - one.at >= SETTLED for one in ended.new)
    is_plain = np.isin(kind, (EVENT, EMPTY)).all() and not follows.older and len(ended.xids) == len(ended.new)
    is_plain &= follows.forgotten_to is None
    if not is_plain or not is_settled or ended.again or ended.told_to != follows.told_to:
        return None
    events = _Events.of(heads, kind == EVENT, ended.new, follows)
    landing = events.whole(ended.new, follows)
    if landing is None:
        return None
    lands = (events.end >= 0) & (events.end < landing)
    stops = events.stops(lands, len(follows.ends))
    if stops is None or _is_interrupted(events):
        return None
    lsns = np.array([one.end.lsn for one in ended.new] or [0], np.int64)
    numbers, places = np.full(len(kind), -1, np.int64), np.full(len(kind), -1, np.int64)
    numbers[events.index[lands]] = lsns[events.end[lands]]
    places[events.index[lands]] = np.array(heads.order)[events.index[lands]]
    last = ended.new[landing - 1].end if landing else None
    joined = Joined(
        _column(numbers), _column(places), old=_key_changes(events, lands),
        offsets=[heads.offset[stop] if stop >= 0 else end for stop, end in zip(stops, follows.ends, strict=True)],
        told_to=ended.new[landing].offset if landing < len(ended.new) else ended.told_to,
        reached=before if last is None else Reached(last.lsn, last.at, last.lsn + 1),
    )  # fmt: skip
    joined.waits = landing < len(ended.new) or joined.offsets != list(follows.ends)
    return joined


@dataclass(frozen=True)
class _Events:
    """The events of transactions: their index among all, and which END of those that are new each has, -1 for none."""

    index: np.ndarray
    end: np.ndarray
    partition: np.ndarray
    relation: np.ndarray
    xid: np.ndarray
    lsn: np.ndarray
    op: np.ndarray
    in_table: np.ndarray
    identity: np.ndarray
    relations: Mapping[str, int]

    @classmethod
    def of(cls, heads: Heads, wanted: np.ndarray, new: Sequence[New], follows: Follows) -> _Events:
        relations = {name: number for number, name in enumerate(sorted({*follows.followed, *follows.relations}))}
        of_partition = np.array([relations[name] for name in follows.relations] or [0])
        partition, xid = np.array(heads.partition)[wanted], np.array(heads.xid)[wanted]
        known = np.array([one.end.xid for one in new], np.int64)
        order = np.argsort(known)
        at = np.searchsorted(known, xid, sorter=order)
        found = order[np.minimum(at, len(known) - 1)] if len(known) else np.zeros(len(xid), np.int64)
        is_known = known[found] == xid if len(known) else np.zeros(len(xid), bool)
        lsn, op, in_table, identity = (
            np.array(getattr(heads, name))[wanted] for name in ("lsn", "op", "in_table", "identity")
        )
        return cls(
            np.flatnonzero(wanted), np.where(is_known, found, -1), partition, of_partition[partition], xid, lsn, op,
            in_table, identity, relations,
        )  # fmt: skip

    def whole(self, new: Sequence[New], follows: Follows) -> int | None:
        """How many transactions land: those before the first whose events have not all come. None where events came
        twice, or more than END counts, or those that lack will not come."""
        width = len(self.relations)
        counts = np.zeros((len(new), width), np.int64)
        for row, one in enumerate(new):
            for name, count in one.end.counts.items():
                if name in follows.followed:
                    counts[row, self.relations[name]] = count
        of = np.flatnonzero(self.end >= 0)
        group, place = self.end[of] * width + self.relation[of], self.in_table[of]
        flat = counts.reshape(-1)
        if len(of) and ((place < 1) | (place > flat[group])).any():
            return None
        if self._are_repeated(follows):
            return None
        come = np.bincount(group, minlength=len(flat)) if len(flat) else flat
        lacks = np.flatnonzero((come.reshape(len(new), width) < counts).any(axis=1))
        landing = int(lacks[0]) if len(lacks) else len(new)
        if landing < len(new) and follows.is_whole and follows.now - new[landing].at > STALLED:
            return None
        ranked = np.lexsort((place, group))
        group, place = group[ranked], place[ranked]
        is_twice = (np.diff(group) == 0) & (np.diff(place) == 0)
        return None if is_twice.any() else landing

    def _are_repeated(self, follows: Follows) -> bool:
        """Whether two events may be the same one: by a number that stands for what tells them apart."""
        keyed = np.array([name in follows.keyed for name in self.relations])[self.relation]
        parts = (self.xid, self.lsn, self.relation, self.op, self.identity)
        ranked = np.sort(_mixed(*(part[keyed] for part in parts)))  # np.unique would take ten times as long
        return bool((ranked[1:] == ranked[:-1]).any())

    def stops(self, lands: np.ndarray, count: int) -> list[int] | None:
        """Of each partition the index of the first event that waits, -1 for none; None where one that lands is behind
        it."""
        found = []
        for number in range(count):
            mine = self.partition == number
            waiting, landing = self.index[mine & ~lands], self.index[mine & lands]
            if len(waiting) and len(landing) and landing[-1] > waiting[0]:
                return None
            found.append(int(waiting[0]) if len(waiting) else -1)
        return found


def _is_interrupted(events: _Events) -> bool:
    """Whether events that have an END are behind others that have none."""
    for number in np.unique(events.partition[events.end < 0]).tolist():
        mine = events.partition == number
        first = events.index[mine & (events.end < 0)][0]
        if (events.index[mine & (events.end >= 0)] > first).any():
            return True
    return False


def _key_changes(events: _Events, lands: np.ndarray) -> dict[int, int]:
    """As `key_changes`."""
    deletes, creates = (np.flatnonzero(lands & (events.op == ord(op))) for op in "dc")
    if not len(deletes) or not len(creates):
        return {}
    records = _mixed(events.xid, events.lsn, events.relation)
    both = np.intersect1d(records[deletes], records[creates])
    old: dict[tuple[int, ...], int] = {}

    def record(row: int) -> tuple[int, ...]:
        return int(events.xid[row]), int(events.lsn[row]), int(events.relation[row])

    for row in deletes[np.isin(records[deletes], both)].tolist():
        old[record(row)] = int(events.index[row])
    rows = creates[np.isin(records[creates], both)].tolist()
    return {int(events.index[row]): old[record(row)] for row in rows if record(row) in old}


def _column(values: np.ndarray) -> array[int]:
    found = array("q")
    found.frombytes(values.tobytes())
    return found


def _mixed(*parts: np.ndarray) -> np.ndarray:
    """A number for each combination, which others may have by chance."""
    found = np.zeros(len(parts[0]), np.uint64)
    for part in parts:
        found = (found ^ part.astype(np.uint64)) * _ODD
        found ^= found >> np.uint64(29)
    return found

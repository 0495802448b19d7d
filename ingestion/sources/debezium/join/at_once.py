"""The join of events to transactions in columns, where all is as a connector sends it that was never restarted.

Transactions that ended have all their events, each once, and in every partition these are before those of transactions
that have not; rows of snapshots came before the latter. What is not so is placed step by step. Some events are looked
at together, and what is known of all of them is a few numbers for each transaction and partition: the events of one may
be more than fit into memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ingestion.sources.debezium.join.emptied import TRUNCATE
from ingestion.sources.debezium.join.heads import EMPTY, EVENT, LOOSE, SNAPSHOT, Heads
from ingestion.sources.debezium.join.joined import PLACED, SETTLED, STALLED, Ended, Follows, Joined, New, Reached
from ingestion.sources.debezium.join.pairs import Pairs
from ingestion.sources.debezium.join.rest import is_free
from ingestion.sources.debezium.join.sharing import CHANGE, sharing
from ingestion.sources.debezium.numbers import HASHES, Shared, has_twice, mixed

_NEVER = np.iinfo(np.int64).max


def join_at_once(heads: Heads, ended: Ended, before: Reached, follows: Follows) -> Joined | None:
    """What `join` finds; None where it has to look at each event."""
    is_settled = follows.exactly_once or all(follows.now - one.at >= SETTLED for one in ended.new)
    is_plain = not follows.older and follows.forgotten_to is None and len(ended.xids) == len(ended.new)
    if not is_plain or not is_settled or ended.again or ended.told_to != follows.told_to:
        return None
    ends = _Ends.of(ended.new, follows)
    if _may_empty(heads, ends, follows):
        return None
    landing, is_double = _landing(heads, ends, follows)
    if landing is None or (is_double and _may_repeat(heads, ends, follows)):
        return None
    bounds = _Bounds.of(heads, ends, landing, len(follows.ends))
    if bounds.overlap:
        return None
    joined = _placed(heads, ends, ended, bounds, before, follows, landing)
    if is_double:
        joined.sharing = sharing(lambda: (window.changes(landing) for window in _windows(heads, ends)))
    return joined


@dataclass(frozen=True)
class _Ends:
    """The new ENDs: `xids` in their order with the number of each END, and how many events of which relation they
    count, by `groups` of END and relation."""

    new: Sequence[New]
    xids: np.ndarray
    numbers: np.ndarray
    lsns: np.ndarray
    width: int
    relations: np.ndarray
    is_keyed: np.ndarray
    groups: np.ndarray
    counts: np.ndarray

    @classmethod
    def of(cls, new: Sequence[New], follows: Follows) -> _Ends:
        names = sorted({*follows.followed, *follows.relations})
        known, width = {name: number for number, name in enumerate(names)}, max(1, len(names))
        xids = np.array([one.end.xid for one in new], np.int64)
        counted = sorted(
            (row * width + known[name], count)
            for row, one in enumerate(new)
            for name, count in one.end.counts.items()
            if count and name in follows.followed
        )
        groups, counts = np.array(counted, np.int64).reshape(-1, 2).T
        return cls(
            new, np.sort(xids), np.argsort(xids), np.array([one.end.lsn for one in new], np.int64), width,
            np.array([known[name] for name in follows.relations] or [0]),
            np.array([name in follows.keyed for name in names] or [False]), groups, counts,
        )  # fmt: skip

    def of_xids(self, xids: np.ndarray) -> np.ndarray:
        """The number of the END of each, -1 for none."""
        return _found(self.xids, xids, self.numbers)

    def of_groups(self, groups: np.ndarray) -> np.ndarray:
        """Where the groups are among those that are counted, -1 for none."""
        return _found(self.groups, groups, np.arange(len(self.groups)))


def _found(ranked: np.ndarray, wanted: np.ndarray, what: np.ndarray) -> np.ndarray:
    if not len(ranked):
        return np.full(len(wanted), -1, np.int64)
    at = np.minimum(np.searchsorted(ranked, wanted), len(ranked) - 1)
    return np.where(ranked[at] == wanted, what[at], -1)


@dataclass(frozen=True)
class _Window:
    """Some of the messages, from the index `first` on."""

    first: int
    rows: np.ndarray
    ends: _Ends

    @cached_property
    def is_event(self) -> np.ndarray:
        return self.rows["kind"] == EVENT

    @cached_property
    def is_loose(self) -> np.ndarray:
        return np.isin(self.rows["kind"], (LOOSE, SNAPSHOT))

    @cached_property
    def end(self) -> np.ndarray:
        """The number of the END of each, -1 for what has none."""
        return np.where(self.is_event, self.ends.of_xids(self.rows["xid"]), -1)

    @cached_property
    def relation(self) -> np.ndarray:
        return self.ends.relations[self.rows["partition"]]

    @cached_property
    def index(self) -> np.ndarray:
        return self.first + np.arange(len(self.rows))

    def lands(self, landing: int) -> np.ndarray:
        """The events whose transactions are among the first so many."""
        return (self.end >= 0) & (self.end < landing)

    @cached_property
    def is_keyed(self) -> np.ndarray:
        return self.is_event & self.ends.is_keyed[self.relation]

    def changes(self, landing: int) -> np.ndarray:
        """What lands in tables with a key."""
        wanted = self.is_keyed & self.lands(landing)
        found = np.empty(int(wanted.sum()), CHANGE)
        found["number"], found["relation"] = self.end[wanted], self.relation[wanted]
        found["identity"], found["op"] = self.rows["identity"][wanted], self.rows["op"][wanted]
        found["place"], found["what"] = self.rows["order"][wanted], self.index[wanted]
        return found

    def records(self, lsns: np.ndarray) -> np.ndarray:
        """Hashes of what came in tables with a key; `lsns` are those by which records are told apart."""
        parts = (self.rows["xid"], lsns, self.relation, self.rows["op"], self.rows["identity"])
        return _hashes(*(part[self.is_keyed] for part in parts))


def _windows(heads: Heads, ends: _Ends) -> Iterator[_Window]:
    return (_Window(first, rows, ends) for first, rows in heads.windows())


def _may_empty(heads: Heads, ends: _Ends, follows: Follows) -> bool:
    """Whether a TRUNCATE has come in one of several partitions, and rows of snapshots, too, or maybe later ones."""
    emptied, sent, last = (np.full(len(follows.relations), -1, np.int64) for _ in range(3))
    if not any(follows.beside):
        return False
    for window in _windows(heads, ends):
        rows = window.rows
        truncated = rows[rows["op"] == TRUNCATE]
        np.maximum.at(emptied, truncated["partition"], truncated["at"])
        np.maximum.at(sent, truncated["partition"], truncated["sent"])
        last[rows["partition"]] = rows["sent"]  # of several the last one stays
    whole_to, truncated = np.array(follows.whole_to, np.int64), np.flatnonzero(emptied >= 0).tolist()
    beside = {of: np.array(follows.beside[of]) for of in truncated if follows.beside[of]}
    may_come = ((emptied[of] > whole_to[near]) & (sent[of] >= last[near]) for of, near in beside.items())
    if any(found.any() for found in may_come):
        return True
    return bool(beside) and any(window.is_loose.any() for window in _windows(heads, ends))


def _landing(heads: Heads, ends: _Ends, follows: Follows) -> tuple[int | None, bool]:
    """How many transactions land: those before the first whose events have not all come. None where events came twice,
    or more than END counts, or those that lack will not come, or where rows of a snapshot depend on such an event. And
    whether a transaction inserts a key twice, or one of its records came twice."""
    come, doubles = np.zeros(len(ends.groups), np.int64), (Shared(HASHES), Shared(HASHES))
    snapshot_to, open_from = -1, _NEVER
    try:
        for window in _windows(heads, ends):
            rows, end = window.rows, window.end
            if not (window.is_event | window.is_loose | (rows["kind"] == EMPTY)).all():
                return None, False
            of, places = _counted(window)
            if of is None or ((places < 1) | (places > ends.counts[of])).any():
                return None, False
            come += np.bincount(of, minlength=len(come))
            doubles[0].add(_hashes(of, places))
            doubles[1].add(window.records(np.where(rows["op"] == ord("c"), 0, rows["lsn"])))
            snapshot_to = max(snapshot_to, rows["at"][rows["kind"] == SNAPSHOT].max(initial=-1))
            open_from = min(open_from, rows["at"][window.is_event & (end < 0)].min(initial=_NEVER))
        lacks = np.flatnonzero(come < ends.counts)
        landing = int(ends.groups[lacks[0]]) // ends.width if len(lacks) else len(ends.new)
        if landing < len(ends.new) and follows.is_whole and follows.now - ends.new[landing].at > STALLED:
            return None, False
        is_none = snapshot_to > open_from or has_twice(doubles[0])
        return (None, False) if is_none else (landing, has_twice(doubles[1]))
    finally:
        for shared in doubles:
            shared.close()


def _may_repeat(heads: Heads, ends: _Ends, follows: Follows) -> bool:
    """Whether one of the records that are alike may be one that came again. Where each came once, as their numbers say,
    they are other rows, unless records go back, as they do after a restart."""
    records = Shared(HASHES)
    try:
        for window in _windows(heads, ends):
            records.add(window.records(window.rows["lsn"]))
        return has_twice(records) and not (follows.exactly_once and _is_in_order(heads, ends))
    finally:
        records.close()


def _is_in_order(heads: Heads, ends: _Ends) -> bool:
    """Whether the records of each transaction are in the order of its numbers, as far as one partition shows it."""
    if len(set(ends.relations.tolist())) < len(ends.relations):
        return False
    last: dict[int, np.ndarray] = {}
    for window in _windows(heads, ends):
        for partition in np.unique(window.rows["partition"]).tolist():
            rows = window.rows[window.is_event & (window.rows["partition"] == partition)]
            rows = np.concatenate([last.get(partition, rows[:0]), rows])
            last[partition] = rows[-1:]
            is_same = rows["xid"][1:] == rows["xid"][:-1]
            falls = [rows[name][1:] < rows[name][:-1] for name in ("lsn", "in_table")]
            if (is_same & (falls[0] | falls[1])).any():
                return False
    return True


def _counted(window: _Window) -> tuple[np.ndarray | None, np.ndarray]:
    """Of events with an END, by what they are counted, and their place in it; None where one is not."""
    ends, has_end = window.ends, window.end >= 0
    of = ends.of_groups((window.end * ends.width + window.relation)[has_end])
    return (None if (of < 0).any() else of), window.rows["in_table"][has_end]


def _hashes(*parts: np.ndarray) -> np.ndarray:
    return mixed(*parts).view(HASHES)


@dataclass(frozen=True)
class _Bounds:
    """By partition: the first event that waits, and the last that lands; the first that has no END, and the last that
    has one."""

    waits: np.ndarray
    lands: np.ndarray
    open: np.ndarray
    ended: np.ndarray

    @classmethod
    def of(cls, heads: Heads, ends: _Ends, landing: int, partitions: int) -> _Bounds:
        found = cls(*(np.full(partitions, none, np.int64) for none in (_NEVER, -1, _NEVER, -1)))
        for window in _windows(heads, ends):
            lands, has_end = window.lands(landing), window.end >= 0
            for into, which in ((found.waits, ~lands), (found.open, ~has_end)):
                _note(np.minimum, into, window, window.is_event & which)
            for into, which in ((found.lands, lands), (found.ended, has_end)):
                _note(np.maximum, into, window, which)
        return found

    @property
    def overlap(self) -> bool:
        """Whether one that lands is behind one that waits, or one that has an END behind one that has none."""
        return bool((self.lands > self.waits).any() or (self.ended > self.open).any())


def _note(which: np.ufunc, into: np.ndarray, window: _Window, wanted: np.ndarray) -> None:
    which.at(into, window.rows["partition"][wanted], window.index[wanted])


def _placed(
    heads: Heads, ends: _Ends, ended: Ended, bounds: _Bounds, before: Reached, follows: Follows, landing: int
) -> Joined:  # fmt: skip
    last = ends.new[landing - 1].end if landing else None
    reached = before if last is None else Reached(last.lsn, last.at, last.lsn + 1)
    loose = _Loose(heads, ends, bounds, reached, follows)
    pairs = Pairs(heads, ends.relations)
    joined = Joined(told_to=ends.new[landing].offset if landing < len(ends.new) else ended.told_to)
    for window in _windows(heads, ends):
        lands, placed = window.lands(landing), np.full(len(window.rows), -1, PLACED)
        placed["number"][lands] = ends.lsns[window.end[lands]]
        placed["place"][lands] = window.rows["order"][lands]
        placed["old"][lands] = pairs.of(window.first, len(window.rows))[lands]
        loose.place(window, placed)
        joined.placed.extend(placed)
    joined.offsets = [
        int(heads[stop]["offset"]) if stop < _NEVER else end
        for stop, end in zip(loose.stops.tolist(), follows.ends, strict=True)
    ]
    joined.reached = replace(reached, bound=loose.fallback + 1) if loose.has_tail else reached
    first = {int(heads[index]["xid"]): int(heads[index]["at"]) for index in bounds.open[bounds.open < _NEVER].tolist()}
    if late := follows.unended(first):  # its last event may be younger
        joined.unended = follows.unended(_last_of(heads, ends, late))
    joined.waits = landing < len(ends.new) or joined.offsets != list(follows.ends)
    return joined


def _last_of(heads: Heads, ends: _Ends, xids: Collection[int]) -> dict[int, int]:
    """When the last event of each of these transactions came."""
    found = dict.fromkeys(xids, 0)
    for window in _windows(heads, ends):
        for xid in xids:
            of_it = window.rows["at"][window.is_event & (window.rows["xid"] == xid)]
            found[xid] = max(found[xid], int(of_it.max(initial=0)))
    return found


class _Loose:
    """Rows of snapshots: the number of each is just below that of the next transaction of its partition. Where none has
    come, it is one behind the last; if that may be another's, they wait, as they do for a TRUNCATE that may have come
    before them. `stops` is what waits by partition."""

    def __init__(self, heads: Heads, ends: _Ends, bounds: _Bounds, reached: Reached, follows: Follows) -> None:
        self._bounds, self._bases = bounds, np.array(follows.bases, np.int64)
        self.stops, self.has_tail = bounds.waits.copy(), False
        self.fallback = max(reached.bound, 1)
        self._is_free = is_free(self.fallback, reached)
        self._next = _next_events(heads, ends, len(follows.ends))
        self._beside = _beside(heads, ends, follows)

    def place(self, window: _Window, placed: np.ndarray) -> None:
        """Adds to what is placed of a window."""
        of = np.where(window.is_loose, window.rows["partition"], -1)
        for partition in np.unique(of[of >= 0]).tolist():
            mine = np.flatnonzero((of == partition) & (window.index < self.stops[partition]))
            is_before = window.index[mine] < self._bounds.lands[partition]
            indices, numbers = self._next[partition]
            rows, tail = mine[is_before], mine[~is_before]
            is_early = self._is_early(window.rows[tail], partition)
            if self._is_free and is_early.any():
                self.stops[partition] = window.index[tail[is_early.argmax()]]
                tail = tail[: is_early.argmax()]
            placed["number"][rows] = numbers[np.searchsorted(indices, window.index[rows])] - 1
            if len(tail) and not self._is_free:
                self.stops[partition] = min(self.stops[partition], window.index[tail[0]])
            elif len(tail):
                placed["number"][tail], self.has_tail = self.fallback, True
            for some in (rows, tail) if self._is_free else (rows,):
                placed["place"][some] = self._bases[partition] + window.rows["offset"][some]

    def _is_early(self, rows: np.ndarray, partition: int) -> np.ndarray:
        """Which of them came when another partition of their topic may have had a TRUNCATE that is not read yet."""
        found = np.zeros(len(rows), bool)
        for whole_to, last in self._beside[partition]:
            found |= (rows["at"] > whole_to) & (rows["sent"] >= last)
        return found


def _beside(heads: Heads, ends: _Ends, follows: Follows) -> list[list[tuple[int, int]]]:
    """By partition, of the others of its relation up to when they are read, and when the last came that is."""
    last = np.full(len(follows.relations), -1, np.int64)
    for window in _windows(heads, ends) if any(follows.beside) else ():
        last[window.rows["partition"]] = window.rows["sent"]  # of several the last one stays
    read_to = list(zip(follows.whole_to, last.tolist(), strict=True))
    return [[read_to[other] for other in others] for others in follows.beside]


def _next_events(heads: Heads, ends: _Ends, partitions: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """By partition the events that are the next of some row of a snapshot, by index, and the numbers of their
    transactions."""
    found: list[list[tuple[np.ndarray, np.ndarray]]] = [[] for _ in range(partitions)]
    was_loose = np.zeros(partitions, bool)
    for window in _windows(heads, ends):
        if not (window.is_loose.any() or was_loose.any()):
            continue
        of = np.where(window.is_loose | window.is_event, window.rows["partition"], -1)
        for partition in np.unique(of[of >= 0]).tolist():
            mine = np.flatnonzero(of == partition)
            is_loose = np.append(was_loose[partition], window.is_loose[mine])
            nexts = mine[is_loose[:-1] & ~is_loose[1:]]
            nexts = nexts[window.end[nexts] >= 0]
            found[partition].append((window.index[nexts], ends.lsns[window.end[nexts]]))
            was_loose[partition] = is_loose[-1]
    none = np.zeros(0, np.int64)
    return [
        (np.concatenate([none, *(i for i, _ in parts)]), np.concatenate([none, *(n for _, n in parts)]))
        for parts in found
    ]

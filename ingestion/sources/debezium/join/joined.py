"""What a join of events to transactions goes by, and what it finds."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from functools import cached_property

import numpy as np

from ingestion.sources.debezium.join.heads import Loaded
from ingestion.sources.debezium.join.sharing import PAIR
from ingestion.sources.debezium.message.envelope import End
from ingestion.sources.debezium.numbers import Numbers

SETTLED = timedelta(seconds=1)  # after an event all that was sent before it has arrived
STALLED = timedelta(seconds=60)  # after an END what it counts and has not come will not come
CLOCKS = timedelta(seconds=1)  # by which the moments of commits may differ from their order
SET_BACK = timedelta(minutes=1)  # by which a clock may be set back
SKEW = timedelta(seconds=5)  # by which the clocks of Connect's workers may differ


PLACED = np.dtype([("number", np.int64), ("place", np.int64), ("old", np.int64)])
"""Of an event its number and its place within it, -1 where it does not land; and the index of the delete that made room
for it, where it is the create of a key that changed, else -1."""


class OutOfOrder(ValueError):
    """Events that do not go together as Debezium sends them; the text says what, for people."""


@dataclass(frozen=True, slots=True)
class Told:
    """A message of the transaction topic; `end` is None for a BEGIN. `at` is when the broker got it."""

    offset: int
    at: datetime
    end: End | None


@dataclass(frozen=True)
class Earlier:
    """What the transaction topic told just before a read; `is_all`: nothing was ever told before that."""

    told: Sequence[Told] = ()
    is_all: bool = False


@dataclass(frozen=True)
class Reached:
    """What has landed: up to the END at the position `end`, committed at `at`; rows have numbers below `bound`."""

    end: int = 0
    at: datetime | None = None
    bound: int = 0


@dataclass(frozen=True)
class Follows:
    """What is read: of each partition its relation, where it ends, and what an offset and its place differ by; the
    relations whose rows have a key, and all that are `followed`, with something to read or not. `histories` are
    relations that began to be read when transactions up to the END at a position had landed: their events of those are
    history, which `older` ENDs tell, by xids, which come again after four billion. Of relations that are `fresh`,
    nothing was read before: what comes again after a restart may be there for the first time, too.

    Where delivery is not `exactly_once`, the counts of an END are wrong once Debezium was restarted within its
    transaction. `is_read`: the read reaches the end of all topics as of `now`; `is_whole`: nor does it leave out what
    cannot be read at the end of the transaction topic. `forgotten_to` is the moment before
    which the transaction topic has no END any more, where an event needs one of that time. `earlier` is what was told
    before the read, where one of its ENDs goes back. `content` is a number for all that an event says of its row.
    `whole_to` is by partition the moment, in milliseconds, up to which all that was sent is read; -1 where the read
    does not reach its end. Partitions of a relation that has several are all there, with something to read or not.
    """

    relations: Sequence[str]
    ends: Sequence[int]
    bases: Sequence[int]
    told_to: int
    keyed: frozenset[str]
    followed: frozenset[str]
    exactly_once: bool
    is_whole: bool
    now: datetime
    whole_to: Sequence[int]
    histories: Mapping[str, int] = field(default_factory=dict)
    older: Mapping[int, Sequence[End]] = field(default_factory=dict)
    fresh: frozenset[str] = frozenset()
    forgotten_to: datetime | None = None
    earlier: Earlier | None = None
    content: Callable[[int], int] = lambda index: index
    is_read: bool = False

    @cached_property
    def beside(self) -> Sequence[Sequence[int]]:
        """By partition, the others of its relation."""
        each: dict[str, list[int]] = {}
        for of, relation in enumerate(self.relations):
            each.setdefault(relation, []).append(of)
        return [[other for other in each[name] if other != of] for of, name in enumerate(self.relations)]

    def history(self, heads: Loaded, index: int) -> End | None:
        """The END of an event's transaction where that had landed without its relation: the first behind the event."""
        ends = [end for end in self.older.get(heads.xid[index], ()) if end.lsn >= heads.lsn[index]]
        end = min(ends, key=lambda end: end.lsn, default=None)
        landed_to = self.histories.get(self.relations[heads.partition[index]], 0)
        return end if end is not None and end.lsn <= landed_to else None

    def is_forgotten(self, at: int) -> bool:
        """Whether what was sent at that moment, in milliseconds, and has no END will have none."""
        return self.forgotten_to is not None and at < self.forgotten_to.timestamp() * 1000

    def unended(self, last: Mapping[int, int]) -> dict[int, int]:
        """Of transactions without an END, each with when its last event came, in milliseconds: those whose END has not
        come for so long that people are told."""
        at = (self.now - STALLED).timestamp() * 1000
        return {xid: came for xid, came in last.items() if (self.is_whole or self.is_read) and came < at}

    def place(self, heads: Loaded, index: int) -> int:
        """The number of an event within the read, whatever order its partitions came in."""
        return self.bases[heads.partition[index]] + heads.offset[index]


@dataclass
class Joined:
    """What becomes of each event is `placed`, by its index. `offsets` are where each partition goes on. To the
    transactions `endless` there will never be an END, and that of those `forgotten` is not in its topic any more. Those
    that are `unended` wait for theirs longer than is usual, and are the first to wait in a partition: of each, when its
    last event came, in milliseconds. Of events that cannot be read, by index, `counted` are the transactions
    whose orders they may tell later. `sharing` are PAIRs of inserts of one transaction with the same key, by index,
    both of which are there when it ends. `missing` are by relation the events that ENDs of an epoch's first read count
    and no topic has, and how many they count."""

    placed: Numbers = field(default_factory=lambda: Numbers(PLACED))
    offsets: list[int] = field(default_factory=list)
    told_to: int = 0
    reached: Reached = field(default_factory=Reached)
    waits: bool = False
    repeated: int = 0
    endless: frozenset[int] = frozenset()
    forgotten: frozenset[int] = frozenset()
    unended: Mapping[int, int] = field(default_factory=dict)
    counted: dict[int, int] = field(default_factory=dict)
    sharing: Numbers = field(default_factory=lambda: Numbers(PAIR))
    missing: dict[str, tuple[int, int]] = field(default_factory=dict)

    @cached_property
    def lacking(self) -> frozenset[int]:
        """The transactions of which something cannot be read."""
        return frozenset(self.counted.values())

    def note_missing(self, end: End, lacking: Mapping[str, int]) -> None:
        """Adds what is missing of a transaction that lands without it."""
        for relation, count in lacking.items():
            if count > 0:
                missing, of = self.missing.get(relation, (0, 0))
                self.missing[relation] = missing + count, of + end.counts[relation]


@dataclass
class Placing(Joined):
    """A join that looks at each event: by index its number and its place, and by creates of a changed key the delete
    that made room for each."""

    numbers: array[int] = field(default_factory=lambda: array("q"))
    places: array[int] = field(default_factory=lambda: array("q"))
    old: dict[int, int] = field(default_factory=dict)

    def done(self) -> Joined:
        """What it has found."""
        rows = np.empty(len(self.numbers), PLACED)
        rows["number"], rows["place"], rows["old"] = self.numbers, self.places, -1
        rows["old"][[*self.old]] = [*self.old.values()]
        self.placed.extend(rows)
        return Joined(**{item.name: getattr(self, item.name) for item in fields(Joined)})


def nowhere(count: int) -> array[int]:
    """The numbers, or places, of so many events none of which lands."""
    return array("q", [-1]) * count


@dataclass
class Ended:
    """The ENDs of a read: those that are new, the transactions that had landed before, and where each is first told."""

    told_to: int
    new: list[New] = field(default_factory=list)
    again: set[int] = field(default_factory=set)
    firsts: dict[int, int] = field(default_factory=dict)

    @property
    def xids(self) -> frozenset[int]:
        return frozenset(one.end.xid for one in self.new)


@dataclass(frozen=True, slots=True)
class New:
    offset: int
    at: datetime
    end: End


@dataclass
class Firsts:
    """Of each transaction its events, each at the first time that it came; and those whose counts are void."""

    by_xid: dict[int, list[int]] = field(default_factory=dict)
    unclean: set[int] = field(default_factory=set)
    repeated: int = 0

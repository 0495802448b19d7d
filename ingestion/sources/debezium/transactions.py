"""Events joined to their transactions: which land, under which numbers, and which wait. Pure.

No event tells the position of its commit; the END of its transaction does, in a topic of its own. They are joined by
xid: `transaction.id` differs between the two, and records' own LSNs go back where transactions overlapped. Debezium
sends transactions in the order of their commits, one after the other, so each partition has their events in that order
at the first time that it has them; what comes once more after a restart has the same (xid, lsn, relation, operation,
key), whatever its `total_order` says then.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from ingestion.sources.debezium.envelope import End
from ingestion.sources.debezium.heads import EMPTY, EVENT, LOOSE, UNREAD, Heads

FREE = 16  # numbers after an END that no other END can have: the record of a commit alone is longer
FIRST_LSN = 1 << 24  # the WAL of a cluster begins behind it
FAR = 1 << 40  # places of events that do not tell theirs
SETTLED = timedelta(seconds=1)  # after an END all that was sent before it has arrived
STALLED = timedelta(seconds=60)
CLOCKS = timedelta(seconds=1)


class OutOfOrder(ValueError):
    """Events that do not go together as Debezium sends them; the text says what, for people."""


@dataclass(frozen=True)
class Told:
    """A message of the transaction topic; `end` is None for a BEGIN. `at` is when the broker got it."""

    offset: int
    at: datetime
    end: End | None


@dataclass(frozen=True)
class Reached:
    """What has landed: up to the END at the position `end`, committed at `at`; rows have numbers below `bound`."""

    end: int = 0
    at: datetime | None = None
    bound: int = 0


@dataclass(frozen=True)
class Follows:
    """What is read: of each partition its relation, where it ends, and what an offset and its place differ by; the
    relations whose rows have a key.

    Where delivery is not `exactly_once`, the counts of an END are wrong once Debezium was restarted within its
    transaction. `is_whole`: the read reaches the end of all topics as of `now`.
    """

    relations: Sequence[str]
    ends: Sequence[int]
    bases: Sequence[int]
    told_to: int
    keyed: frozenset[str]
    exactly_once: bool
    is_whole: bool
    now: datetime

    def place(self, heads: Heads, index: int) -> int:
        """The number of an event within the read, whatever order its partitions came in."""
        return self.bases[heads.partition[index]] + heads.offset[index]


@dataclass
class Joined:
    """By index of the event: its number and its place within it; -1 for one that does not land.

    `old` has the delete that made room for each create of a key change, `offsets` where each partition goes on.
    """

    numbers: list[int]
    places: list[int]
    old: dict[int, int] = field(default_factory=dict)
    offsets: list[int] = field(default_factory=list)
    told_to: int = 0
    reached: Reached = field(default_factory=Reached)
    waits: bool = False
    repeated: int = 0


def join(heads: Heads, told: Sequence[Told], before: Reached, follows: Follows) -> Joined:
    """Places events; raises OutOfOrder."""
    ended = _ended(told, before, follows)
    firsts = _firsts(heads, ended, follows)
    joined = Joined([-1] * len(heads), [-1] * len(heads), repeated=firsts.repeated)
    landed = _landed(heads, ended, firsts, before, follows)
    for end, places in landed:
        for index, place in places:
            joined.numbers[index], joined.places[index] = end.lsn, place
    joined.old = _key_changes(heads, landed, follows.relations)
    waiting = ended.new[len(landed) :]
    ended.told_to = waiting[0].offset if waiting else ended.told_to
    last = landed[-1][0] if landed else None
    joined.reached = before if last is None else Reached(last.lsn, last.at, last.lsn + 1)
    _place_loose(heads, joined, firsts, ended, before, follows)
    joined.told_to = _told_to(heads, joined, ended, follows)
    joined.waits = bool(waiting) or joined.offsets != list(follows.ends) or joined.told_to != follows.told_to
    return joined


@dataclass
class _Ended:
    """The ENDs of a read: those that are new, the transactions that had landed before, and where each is first told."""

    told_to: int
    new: list["_New"] = field(default_factory=list)
    again: set[int] = field(default_factory=set)
    firsts: dict[int, int] = field(default_factory=dict)

    @property
    def xids(self) -> frozenset[int]:
        return frozenset(one.end.xid for one in self.new)


@dataclass(frozen=True)
class _New:
    offset: int
    at: datetime
    end: End


def _ended(told: Sequence[Told], before: Reached, follows: Follows) -> _Ended:
    found = _Ended(follows.told_to)
    new = found.new
    for one in told:
        end = one.end
        if end is None:
            continue
        last, last_at = (new[-1].end.lsn, new[-1].end.at) if new else (before.end, before.at)
        if end.lsn > last:
            new.append(_New(one.offset, one.at, end))
            found.firsts[end.xid] = one.offset
            continue
        if last_at is not None and end.at > last_at + CLOCKS:
            raise OutOfOrder(
                f"transaction {end.xid} was committed at {end.at:%Y-%m-%d %H:%M:%S} UTC and ends at position {end.lsn}, "
                f"before one of {last_at:%Y-%m-%d %H:%M:%S} at {last}: the database was restored, or another one took "
                "its place"
            )
        if follows.now - one.at < SETTLED:  # its events, which come again too, may not be visible yet
            found.told_to = one.offset
            break
        if end.xid not in found.firsts:
            found.again.add(end.xid)
            found.firsts[end.xid] = one.offset
    return found


@dataclass
class _Firsts:
    """Of each transaction its events, each at the first time that it came; and those whose counts are void."""

    by_xid: dict[int, list[int]] = field(default_factory=dict)
    unclean: set[int] = field(default_factory=set)
    repeated: int = 0


def _firsts(heads: Heads, ended: _Ended, follows: Follows) -> _Firsts:
    found = _Firsts()
    seen: dict[int, dict[tuple[int, str, int, int], int]] = {}
    for index in range(len(heads)):
        if heads.kind[index] != EVENT:
            continue
        xid, relation = heads.xid[index], follows.relations[heads.partition[index]]
        if xid in ended.again:
            found.repeated += 1
            continue
        if relation in follows.keyed:
            identity = heads.lsn[index], relation, heads.op[index], heads.identity[index]
            first = seen.setdefault(xid, {}).setdefault(identity, index)
            if first != index:
                found.repeated += 1
                if heads.order[first] != heads.order[index]:
                    found.unclean.add(xid)
                continue
        found.by_xid.setdefault(xid, []).append(index)
    return found


_Landed = list[tuple[End, list[tuple[int, int]]]]


def _landed(heads: Heads, ended: _Ended, firsts: _Firsts, before: Reached, follows: Follows) -> _Landed:
    """The transactions that are whole, up to the first that is not; each with its events and their places."""
    landed: _Landed = []
    unread = _Unread(heads, firsts, follows)
    for one in ended.new:
        if not follows.exactly_once and follows.now - one.at < SETTLED:  # its counts may be void: more may be on the way
            break
        events = firsts.by_xid.get(one.end.xid, [])
        orders: dict[str, list[int]] = {relation: [] for relation in follows.relations}
        for index in events:
            orders[follows.relations[heads.partition[index]]].append(heads.in_table[index])
        lacking = {r: one.end.counts.get(r, 0) - len(found) for r, found in orders.items()}
        bad = unread.of(one.end.xid, lacking)
        is_clean = one.end.xid not in firsts.unclean and all(
            sorted(found) == list(range(1, one.end.counts.get(r, 0) + 1))
            for r, found in orders.items()
            if not bad.get(r)
        )
        if is_clean and not any(lacking[r] - len(bad.get(r, ())) for r in lacking):
            places = [(index, heads.order[index]) for index in events]
        elif not _may_land(heads, one, events, orders, firsts, follows, lacking):
            break
        else:
            ranked = sorted(events, key=lambda index: (heads.lsn[index], heads.partition[index], heads.offset[index]))
            places = [(index, place) for place, index in enumerate(ranked, start=1)]
        landed.append(
            (one.end, [*places, *((i, FAR + follows.place(heads, i)) for found in bad.values() for i in found)])
        )
        unread.pass_by(index for index, _ in places)
    return landed


def _may_land(
    heads: Heads, one: _New, events: Sequence[int], orders: Mapping[str, list[int]], firsts: _Firsts, follows: Follows,
    lacking: Mapping[str, int],
) -> bool:  # fmt: skip
    """Whether a transaction whose counts do not fit is whole all the same: Debezium was restarted within it.

    Raises OutOfOrder where that must not be, or where what is missing does not come.
    """
    counted = one.end.counts
    was_restarted = one.end.xid in firsts.unclean or any(
        len(set(found)) < len(found) or max(found, default=0) > counted.get(relation, 0)
        for relation, found in orders.items()
    )
    age = follows.now - one.at
    if was_restarted and follows.exactly_once:
        raise OutOfOrder(
            f"events of transaction {one.end.xid} came more than once or are numbered anew, so they are not delivered "
            "exactly once as meta.debezium.delivery says: set exactly.once.source.support of Kafka Connect, or declare "
            "at_least_once"
        )
    if was_restarted:
        return follows.is_whole
    if age > STALLED and follows.is_whole:
        short = ", ".join(f"{n} of {counted.get(r, 0)} events of {r}" for r, n in lacking.items() if n > 0)
        raise OutOfOrder(f"{short} in transaction {one.end.xid} are missing, {age.total_seconds():.0f} s after its END")
    return False


class _Unread:
    """Events that cannot be read are counted by END too: each is of the transaction around it that lacks one."""

    def __init__(self, heads: Heads, firsts: _Firsts, follows: Follows) -> None:
        self._heads, self._follows = heads, follows
        self._left = [index for index in range(len(heads)) if heads.kind[index] == UNREAD]
        self._of: dict[int, int] = {}
        if self._left:
            self._of = {index: xid for xid, events in firsts.by_xid.items() for index in events}
        self._passed = dict.fromkeys(range(len(follows.relations)), -1)

    def of(self, xid: int, lacking: Mapping[str, int]) -> dict[str, list[int]]:
        """As many as its relations lack, of those behind the transactions that were passed and not behind later ones."""
        found: dict[str, list[int]] = {}
        for index in list(self._left):
            relation = self._follows.relations[self._heads.partition[index]]
            taken = found.setdefault(relation, [])
            if len(taken) < lacking.get(relation, 0) and self._may_be(index, xid):
                taken.append(index)
                self._left.remove(index)
        return {relation: taken for relation, taken in found.items() if taken}

    def pass_by(self, events: Iterable[int]) -> None:
        """What is before these events is of no later transaction."""
        if self._left:
            for index in events:
                partition = self._heads.partition[index]
                self._passed[partition] = max(self._passed[partition], index)

    def _may_be(self, index: int, xid: int) -> bool:
        partition = self._heads.partition[index]
        behind = range(self._passed[partition] + 1, index)
        return index > self._passed[partition] and all(
            self._of.get(other, xid) == xid for other in behind if self._heads.partition[other] == partition
        )


def _key_changes(heads: Heads, landed: _Landed, relations: Sequence[str]) -> dict[int, int]:
    """The create and the delete of one record: an update that changed the key comes as both, at one LSN."""
    found: dict[int, int] = {}
    for _, places in landed:
        at = [(heads.lsn[index], relations[heads.partition[index]], index) for index, _ in places]
        deletes = {(lsn, relation): index for lsn, relation, index in at if heads.op[index] == ord("d")}
        creates = (
            [(lsn, relation, index) for lsn, relation, index in at if heads.op[index] == ord("c")] if deletes else ()
        )
        found |= {index: deletes[lsn, relation] for lsn, relation, index in creates if (lsn, relation) in deletes}
    return found


def _place_loose(
    heads: Heads, joined: Joined, firsts: _Firsts, ended: _Ended, before: Reached, follows: Follows
) -> None:
    """Places what is of no transaction, and tells where each partition goes on: at the first event that waits.

    Its number is just below that of the next transaction in its partition. Where none has come, it is one of those
    that no END can have; once these are used up, it waits.
    """
    waiting = {i for events in firsts.by_xid.values() for i in events if joined.numbers[i] < 0}
    fallback, tails = max(joined.reached.bound, 1), dict[int, list[int]]()
    stops: dict[int, int] = {}
    for partition, indices in _by_partition(heads, len(follows.ends)):
        loose = [i for i in indices if joined.numbers[i] < 0 and heads.kind[i] in (LOOSE, UNREAD)]
        if before.end == 0:
            loose = sorted([*loose, *_of_forgotten(heads, indices, waiting, ended, joined)])
            waiting.difference_update(loose)
        stop = next((i for i in indices if i in waiting), len(heads))
        landed = [i for i in indices if joined.numbers[i] >= 0]
        if landed and stop < landed[-1]:
            raise OutOfOrder(_late(heads, stop, ended))
        number = -1
        tail: list[int] = []
        for index in reversed([i for i in loose if i < stop]):
            while landed and landed[-1] > index:
                number = joined.numbers[landed.pop()]
            if number < 0:
                tail.append(index)
            else:
                joined.numbers[index], joined.places[index] = number - 1, follows.place(heads, index)
        tails[partition], stops[partition] = tail[::-1], stop
    free = fallback < FIRST_LSN if joined.reached.end == 0 else fallback - joined.reached.end <= FREE
    for partition, tail in tails.items():
        for index in tail:
            if not free or (heads.kind[index] == UNREAD and not _is_alone(heads, index, follows)):
                stops[partition] = index
                break
            joined.numbers[index], joined.places[index] = fallback, follows.place(heads, index)
            joined.reached = Reached(joined.reached.end, joined.reached.at, fallback + 1)
    joined.offsets = [
        heads.offset[stops[p]] if stops.get(p, len(heads)) < len(heads) else end for p, end in enumerate(follows.ends)
    ]


def _told_to(heads: Heads, joined: Joined, ended: _Ended, follows: Follows) -> int:
    """Where the transaction topic goes on: not behind the END of a transaction whose events are read once more."""
    waits = [joined.offsets[partition] for partition in range(len(follows.ends))]
    again = {
        heads.xid[i]
        for i in range(len(heads))
        if heads.kind[i] == EVENT and heads.offset[i] >= waits[heads.partition[i]]
    }
    return min([ended.told_to, *(ended.firsts[xid] for xid in again if xid in ended.firsts)])


def _by_partition(heads: Heads, count: int) -> Iterator[tuple[int, list[int]]]:
    found: dict[int, list[int]] = {partition: [] for partition in range(count)}
    for index, partition in enumerate(heads.partition):
        if heads.kind[index] != EMPTY:
            found[partition].append(index)
    return iter(found.items())


def _of_forgotten(
    heads: Heads, indices: Sequence[int], waiting: set[int], ended: _Ended, joined: Joined
) -> Iterator[int]:
    """At a first read, the events of transactions whose END the transaction topic has no more: what came later has one."""
    known = ended.xids
    told = [i for i in indices if heads.xid[i] in known and (joined.numbers[i] >= 0 or i in waiting)]
    return (i for i in indices if told and i < told[-1] and i in waiting and heads.xid[i] not in known)


def _is_alone(heads: Heads, index: int, follows: Follows) -> bool:
    """Whether an event that cannot be read is of no transaction that is still under way."""
    return follows.is_whole and follows.now.timestamp() - heads.at[index] / 1000 > STALLED.total_seconds()


def _late(heads: Heads, index: int, ended: _Ended) -> str:
    xid = heads.xid[index]
    if xid in ended.xids:
        return f"events of transaction {xid} are missing, although later transactions have come"
    return (
        f"an event of transaction {xid} stands before events of later transactions, and no END of it came: it was sent "
        "after its transaction had landed, or the transaction topic has lost its END"
    )

"""Events joined to their transactions: which land, under which numbers, and which wait. Pure.

No event tells the position of its commit; the END of its transaction does, in a topic of its own. They are joined by
xid: `transaction.id` differs between the two, and records' own LSNs go back where transactions overlapped. Debezium
sends transactions in the order of their commits, one after the other, so each partition has their events in that order
at the first time that it has them. What comes once more after a restart is `repeated`.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from ingestion.sources.debezium.join.at_once import join_at_once
from ingestion.sources.debezium.join.emptied import Lasts
from ingestion.sources.debezium.join.endless import without_end
from ingestion.sources.debezium.join.heads import EVENT, UNREAD, Heads, Loaded
from ingestion.sources.debezium.join.joined import (
    CLOCKS,
    SETTLED,
    STALLED,
    Ended,
    Firsts,
    Follows,
    Joined,
    New,
    OutOfOrder,
    Placing,
    Reached,
    Told,
    nowhere,
)
from ingestion.sources.debezium.join.pairs import key_changes
from ingestion.sources.debezium.join.repeated import repetitions
from ingestion.sources.debezium.join.rest import FAR, place_rest, told_to
from ingestion.sources.debezium.join.sharing import CHANGE, sharing
from ingestion.sources.debezium.join.strangers import strangers
from ingestion.sources.debezium.message.envelope import End


def join(heads: Heads, told: Sequence[Told], before: Reached, follows: Follows) -> Joined:
    """Places events; raises OutOfOrder."""
    ended = _ended(told, before, follows)
    return join_at_once(heads, ended, before, follows) or join_each(heads.loaded(), told, ended, before, follows)


def join_each(heads: Loaded, told: Sequence[Told], ended: Ended, before: Reached, follows: Follows) -> Joined:
    """Places events whatever became of them on their way, each by itself."""
    firsts = _firsts(heads, ended, follows)
    gone, forgotten, under_way = without_end(heads, told, firsts, before, follows)
    numbers, places = nowhere(len(heads)), nowhere(len(heads))
    late = follows.unended(under_way)
    first = _first_of(heads, firsts, under_way) if late else ()
    joined = Placing(
        numbers=numbers, places=places, repeated=firsts.repeated, endless=gone, forgotten=forgotten,
        unended={xid: late[xid] for xid in first if xid in late},
    )  # fmt: skip
    lasts = Lasts.of(heads, ended, firsts, under_way)
    held = lasts.held(heads, follows)
    landed = _landed(heads, ended, firsts, before, follows, under_way, lasts, held, joined)
    for end, events in landed:
        for index, place in events:
            numbers[index], places[index] = end.lsn, place
    joined.sharing = sharing(lambda: (_changes(heads, end.lsn, events, follows) for end, events in landed))
    waiting = ended.new[len(landed) :]
    ended.told_to = waiting[0].offset if waiting else ended.told_to
    last = landed[-1][0] if landed else None
    joined.reached = before if last is None else Reached(last.lsn, last.at, last.lsn + 1)
    place_rest(heads, joined, firsts, ended, before, follows, under_way, lasts, held)
    joined.old = key_changes(heads, joined, follows.relations)
    joined.told_to = told_to(heads, joined, ended, follows)
    joined.waits = bool(waiting) or joined.offsets != list(follows.ends) or joined.told_to != follows.told_to
    return joined.done()


def _changes(heads: Loaded, number: int, events: Sequence[tuple[int, int]], follows: Follows) -> np.ndarray:
    """The changes of a transaction in tables with a key."""
    known = {relation: place for place, relation in enumerate(sorted(follows.keyed))}
    found = [
        (number, known[relation], heads.identity[index], heads.op[index], place, index)
        for index, place in events
        if heads.kind[index] == EVENT and (relation := follows.relations[heads.partition[index]]) in known
    ]
    return np.array(found, CHANGE)


def _first_of(heads: Loaded, firsts: Firsts, under_way: Collection[int]) -> set[int]:
    """Of these transactions those that have the first event of them all in a partition: what is behind it waits."""
    first: dict[int, tuple[int, int]] = {}
    for xid in under_way:
        for index in firsts.by_xid[xid]:
            partition = heads.partition[index]
            first[partition] = min((index, xid), first.get(partition, (index, xid)))
    return {xid for _, xid in first.values()}


def _ended(told: Sequence[Told], before: Reached, follows: Follows) -> Ended:
    found = Ended(follows.told_to)
    new = found.new
    strange = strangers(follows.earlier, told, before.end) if follows.earlier else frozenset()
    for one in told:
        end = one.end
        if end is None:
            continue
        last, last_at = (new[-1].end.lsn, new[-1].end.at) if new else (before.end, before.at)
        if end.lsn > last:
            new.append(New(one.offset, one.at, end))
            found.firsts[end.xid] = one.offset
            continue
        if last_at is not None and end.at > last_at + CLOCKS:
            if new:  # what was committed before it lands first
                found.told_to = one.offset
                break
            raise OutOfOrder(
                f"transaction {end.xid} was committed at {end.at:%Y-%m-%d %H:%M:%S} UTC and ends at {end.lsn}, "
                f"before one of {last_at:%Y-%m-%d %H:%M:%S} at {last}: the database was restored, or another one took "
                "its place"
            )
        if new and before.end and follows.exactly_once:
            raise OutOfOrder(
                f"transaction {end.xid} ends at {end.lsn}, and was told behind one that ends at {last}: it came more "
                "than once, so declare at_least_once, or it is of another database, whose transactions need topics of "
                "their own"
            )
        if one.offset in strange:
            if new:
                found.told_to = one.offset
                break
            raise OutOfOrder(
                f"transaction {end.xid} ends at {end.lsn}, was told behind one that ends higher, and never before: it "
                "is of another database, whose connector needs topics of another prefix, and a source of its own"
            )
        if follows.now - one.at < SETTLED:  # its events, which come again too, may not be visible yet
            found.told_to = one.offset
            break
        if end.xid not in found.firsts:
            found.again.add(end.xid)
            found.firsts[end.xid] = one.offset
    return found


def _firsts(heads: Loaded, ended: Ended, follows: Follows) -> Firsts:
    found = Firsts()
    seen: dict[int, set[tuple[int, str, int, int]]] = {}
    twice: dict[int, None] = {}
    for index in range(len(heads)):
        if heads.kind[index] != EVENT:
            continue
        xid, relation = heads.xid[index], follows.relations[heads.partition[index]]
        if xid in ended.again and not (relation in follows.fresh and follows.history(heads, index)):
            found.repeated += 1
            continue
        if relation in follows.keyed:
            identity = heads.lsn[index], relation, heads.op[index], heads.identity[index]
            known = seen.setdefault(xid, set())
            if identity in known:
                twice[xid] = None
            known.add(identity)
        found.by_xid.setdefault(xid, []).append(index)
    for xid in twice:
        events = found.by_xid[xid]
        again = repetitions(heads, events, follows)
        found.by_xid[xid] = [index for index in events if index not in again]
        found.repeated += len(again)
        if any(again.values()):
            found.unclean.add(xid)
    return found


_Landed = list[tuple[End, list[tuple[int, int]]]]


def _landed(
    heads: Loaded, ended: Ended, firsts: Firsts, before: Reached, follows: Follows, under_way: Collection[int],
    lasts: Lasts, held: Mapping[int, int], joined: Joined,
) -> _Landed:  # fmt: skip
    """The transactions that are whole, up to the first that is not; each with its events and their places. Notes what
    cannot be read, or is missing, of those that land.

    One that is behind events of another that is `under_way`, or that lacks as many as cannot be read, waits until it is
    sure that more is not on the way: the latter no longer than until later ones have events in the same partitions.
    """
    landed: _Landed = []
    opens: dict[int, int] = {}
    for index in (i for xid in under_way if before.end for i in firsts.by_xid[xid]):
        partition = heads.partition[index]
        opens[partition] = min(index, opens.get(partition, index))
    unread = _Unread(heads, firsts, follows)
    for number, one in enumerate(ended.new):
        if (
            not follows.exactly_once and follows.now - one.at < SETTLED
        ):  # its counts may be void: more may be on the way
            break
        events = firsts.by_xid.get(one.end.xid, [])
        is_sure = follows.is_whole and follows.now - one.at >= SETTLED
        if opens and not is_sure and any(index > opens.get(heads.partition[index], index) for index in events):
            break
        if any(index > held.get(heads.partition[index], index) for index in events):
            break
        if lasts.may_empty_more(heads, number, events, follows):
            break
        orders: dict[str, list[int]] = {relation: [] for relation in follows.followed}
        for index in events:
            orders[follows.relations[heads.partition[index]]].append(heads.in_table[index])
        lacking = {r: one.end.counts.get(r, 0) - len(found) for r, found in orders.items()}
        bad = unread.of(one.end.xid, lacking)
        if bad and not is_sure and not all(unread.is_passed(relation, number, ended) for relation in bad):
            break  # what it lacks may be on the way, and what cannot be read of no transaction
        is_clean = one.end.xid not in firsts.unclean and all(
            sorted(found) == list(range(1, one.end.counts.get(r, 0) + 1))
            for r, found in orders.items()
            if not bad.get(r)
        )
        if is_clean and not any(lacking[r] - len(bad.get(r, ())) for r in lacking):
            places = [(index, heads.order[index]) for index in events]
            joined.counted |= dict.fromkeys((i for found in bad.values() for i in found), one.end.xid)
        elif not _may_land(one, orders, firsts, before, follows, lacking):
            break
        else:
            if not _was_restarted(one, orders, firsts):
                joined.note_missing(one.end, {r: n - len(bad.get(r, ())) for r, n in lacking.items()})
            ranked = sorted(events, key=lambda index: (heads.lsn[index], heads.partition[index], heads.offset[index]))
            places = [(index, place) for place, index in enumerate(ranked, start=1)]
        landed.append(
            (one.end, [*places, *((i, FAR + follows.place(heads, i)) for found in bad.values() for i in found)])
        )
        unread.pass_by(index for index, _ in places)
    return landed


def _may_land(
    one: New, orders: Mapping[str, list[int]], firsts: Firsts, before: Reached, follows: Follows,
    lacking: Mapping[str, int],
) -> bool:  # fmt: skip
    """Whether a transaction whose counts do not fit is whole all the same: Debezium was restarted within it.

    Raises OutOfOrder where that must not be, or where what is missing does not come; not before anything has landed in
    an epoch, which goes on with what is there.
    """
    counted, age, is_first = one.end.counts, follows.now - one.at, before.end == 0
    was_restarted = _was_restarted(one, orders, firsts)
    if was_restarted and follows.exactly_once and not is_first:
        raise OutOfOrder(
            f"events of transaction {one.end.xid} came more than once or are numbered anew, so they are not delivered "
            "exactly once as its `delivery` says: set exactly.once.source.support of Kafka Connect, or declare "
            "at_least_once"
        )
    if was_restarted or age <= STALLED or not follows.is_whole:
        return was_restarted and follows.is_whole
    if not is_first:
        short = ", ".join(f"{n} of {counted.get(r, 0)} events of {r}" for r, n in lacking.items() if n > 0)
        raise OutOfOrder(f"{short} in transaction {one.end.xid} are missing, {age.total_seconds():.0f} s after its END")
    return True


def _was_restarted(one: New, orders: Mapping[str, list[int]], firsts: Firsts) -> bool:
    """Whether Debezium was restarted within a transaction, as its events show: its counts are void then."""
    return one.end.xid in firsts.unclean or any(
        len(set(found)) < len(found) or max(found, default=0) > one.end.counts.get(relation, 0)
        for relation, found in orders.items()
    )


class _Unread:
    """Events that cannot be read are counted by END too: each is of the transaction around it that lacks one."""

    def __init__(self, heads: Loaded, firsts: Firsts, follows: Follows) -> None:
        self._heads, self._follows = heads, follows
        self._left = [index for index in range(len(heads)) if heads.kind[index] == UNREAD]
        self._of: dict[int, int] = {}
        self._last: dict[int, int] = {}  # by partition, the number of the last transaction with an event there
        if self._left:
            self._of = {index: xid for xid, events in firsts.by_xid.items() for index in events}
        self._passed = dict.fromkeys(range(len(follows.relations)), -1)

    def of(self, xid: int, lacking: Mapping[str, int]) -> dict[str, list[int]]:
        """As many as its relations lack, of those behind the transactions passed and not behind later ones."""
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

    def is_passed(self, relation: str, number: int, ended: Ended) -> bool:
        """Whether each partition of a relation has events of transactions that end after the one of this number, or is
        read up to then."""
        if not self._last:
            self._last = dict.fromkeys(range(len(self._follows.relations)), -1)
            numbers = {one.end.xid: place for place, one in enumerate(ended.new)}
            for index, xid in self._of.items():
                partition = self._heads.partition[index]
                self._last[partition] = max(self._last[partition], numbers.get(xid, -1))
        at, whole_to = ended.new[number].at.timestamp() * 1000, self._follows.whole_to
        partitions = (partition for partition, name in enumerate(self._follows.relations) if name == relation)
        return all(self._last[partition] > number or whole_to[partition] >= at for partition in partitions)

    def _may_be(self, index: int, xid: int) -> bool:
        partition = self._heads.partition[index]
        behind = range(self._passed[partition] + 1, index)
        return index > self._passed[partition] and all(
            self._of.get(other, xid) == xid for other in behind if self._heads.partition[other] == partition
        )

"""Events of no transaction whose END a read has: rows of snapshots, history, what has none, what cannot be read. Pure.

Their numbers are between those of transactions. An END's position is the end of a record of the WAL, which is longer
than FREE bytes, so those just below the next one, and a few behind the last one, are nobody else's.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

from ingestion.sources.debezium.join.emptied import TRUNCATE, Lasts, first_after, truncates
from ingestion.sources.debezium.join.endless import waiting_rows
from ingestion.sources.debezium.join.heads import EMPTY, EVENT, LOOSE, SNAPSHOT, UNREAD, Loaded
from ingestion.sources.debezium.join.joined import Ended, Firsts, Follows, OutOfOrder, Placing, Reached

OF_NONE = (LOOSE, SNAPSHOT, UNREAD)
FREE = 16
FIRST_LSN = 1 << 24  # the WAL of a cluster begins behind it
FAR = 1 << 40  # places of events that do not tell theirs
BEHIND_HISTORY = 2 * FAR  # places of rows that came behind history, which has the same number
ALONE = timedelta(seconds=60)


def place_rest(
    heads: Loaded, joined: Placing, firsts: Firsts, ended: Ended, before: Reached, follows: Follows,
    under_way: Mapping[int, int], lasts: Lasts, held: Mapping[int, int],
) -> None:  # fmt: skip
    """Places them, and tells where each partition goes on: at the first event that waits.

    The number of a snapshot's row is just below that of the next transaction in its partition. Where none has come, it
    is one behind the last; once these are used up, it waits, as it does for a TRUNCATE of another partition that came
    before it. It is below one that came later.
    """
    waiting = {i for events in firsts.by_xid.values() for i in events if joined.numbers[i] < 0}
    placed, history = _place_history(heads, joined, waiting, before, follows, held)
    waiting -= placed
    waiting |= waiting_rows(heads, under_way.values())
    landed_in = ((i, n) for i, n in enumerate(joined.numbers) if heads.op[i] == TRUNCATE and n >= 0 and i not in placed)
    emptied = truncates(heads, landed_in, follows)
    fallback, tails = max(joined.reached.bound, 1), dict[int, list[int]]()
    stops: dict[int, int] = {}
    lost = joined.endless | joined.forgotten
    for partition, indices in _by_partition(heads, len(follows.ends)):
        loose = [i for i in indices if joined.numbers[i] < 0 and heads.kind[i] in OF_NONE and i not in waiting]
        loose += [i for i in indices if i in waiting and heads.kind[i] == EVENT and heads.xid[i] in lost]
        if before.end == 0:
            loose += _of_forgotten(heads, indices, waiting, ended, joined)
        loose = sorted({*loose})
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
            first = first_after(emptied, heads, index, follows, joined.numbers[landed[-1]] if landed else None)
            if number < 0 and first is None:
                tail.append(index)
            else:
                below = min(n for n in (number, first) if n is not None and n >= 0) - 1
                behind = BEHIND_HISTORY if below == history else 0
                joined.numbers[index], joined.places[index] = below, behind + follows.place(heads, index)
        tails[partition], stops[partition] = tail[::-1], stop
    free = is_free(fallback, joined.reached)
    not_repeated = (i for events in firsts.by_xid.values() for i in events)
    still = ((i, 0) for i in not_repeated if heads.op[i] == TRUNCATE and joined.numbers[i] < 0)
    unlanded = truncates(heads, still, follows)
    for partition, tail in tails.items():
        for index in tail:
            is_early = heads.kind[index] != UNREAD and lasts.may_follow(heads, index, unlanded, follows)
            if not free or is_early or (heads.kind[index] == UNREAD and not _is_alone(heads, index, follows)):
                stops[partition] = index
                break
            joined.numbers[index], joined.places[index] = fallback, follows.place(heads, index)
            joined.reached = replace(joined.reached, bound=fallback + 1)
    joined.offsets = [
        heads.offset[stops[p]] if stops.get(p, len(heads)) < len(heads) else end for p, end in enumerate(follows.ends)
    ]


def is_free(number: int, reached: Reached) -> bool:
    """Whether no END can be at this number."""
    return number < FIRST_LSN if reached.end == 0 else number - reached.end <= FREE


def _place_history(
    heads: Loaded, joined: Placing, waiting: set[int], before: Reached, follows: Follows, held: Mapping[int, int]
) -> tuple[set[int], int]:
    """Places events of a relation that is read later than others, whose transactions have landed in these: all under
    one number, which is returned with them, in the order of their commits. It is -1 where there are none. Of each
    partition those before what is `held`."""
    if not follows.older:
        return set(), -1
    found: list[tuple[int, int, int, int, int]] = []
    old = ((i, follows.history(heads, i)) for i in waiting if heads.op[i] == TRUNCATE)
    emptied = truncates(heads, ((i, (end.lsn, heads.lsn[i] - 1)) for i, end in old if end), follows)
    for partition, indices in _by_partition(heads, len(follows.ends)):
        after, end_of = None, held.get(partition, len(heads))
        for index in reversed([index for index in indices if index < end_of]):
            is_told = index in waiting and heads.xid[index] in follows.older
            if is_told and (end := follows.history(heads, index)) is not None:
                after = end.lsn, heads.lsn[index]
            is_loose = heads.kind[index] in OF_NONE or (index in waiting and heads.xid[index] in joined.forgotten)
            first = first_after(emptied, heads, index, follows) if is_loose else None
            stands = min((one for one in (after, first) if one is not None), default=None)
            if stands is not None and (is_told or is_loose):
                found.append((*stands, partition, heads.offset[index], index))
    new = [number for number in joined.numbers if number >= 0]
    number = min(new) - 1 if new else max(before.bound, 1)
    if not found or not (new or is_free(number, before)):
        return set(), -1
    for place, (*_, index) in enumerate(sorted(found), start=1):
        joined.numbers[index], joined.places[index] = number, FAR + place
    joined.reached = replace(joined.reached, bound=max(joined.reached.bound, number + 1))
    return {index for *_, index in found}, number


def told_to(heads: Loaded, joined: Placing, ended: Ended, follows: Follows) -> int:
    """Where the transaction topic goes on: not behind the END of a transaction whose events are read once more."""
    waits = [joined.offsets[partition] for partition in range(len(follows.ends))]
    again = {
        heads.xid[i]
        for i in range(len(heads))
        if heads.kind[i] == EVENT and heads.offset[i] >= waits[heads.partition[i]]
    }
    return min([ended.told_to, *(ended.firsts[xid] for xid in again if xid in ended.firsts)])


def _by_partition(heads: Loaded, count: int) -> Iterator[tuple[int, list[int]]]:
    found: dict[int, list[int]] = {partition: [] for partition in range(count)}
    for index, partition in enumerate(heads.partition):
        if heads.kind[index] != EMPTY:
            found[partition].append(index)
    return iter(found.items())


def _of_forgotten(
    heads: Loaded, indices: Sequence[int], waiting: set[int], ended: Ended, joined: Placing
) -> Iterator[int]:
    """At a first read, the events of transactions whose END the transaction topic has no more: later ones have one."""
    known = ended.xids
    told = [i for i in indices if heads.xid[i] in known and (joined.numbers[i] >= 0 or i in waiting)]
    return (i for i in indices if told and i < told[-1] and i in waiting and heads.xid[i] not in known)


def _is_alone(heads: Loaded, index: int, follows: Follows) -> bool:
    """Whether an event that cannot be read is of no transaction that is still under way."""
    return follows.is_whole and follows.now.timestamp() - heads.at[index] / 1000 > ALONE.total_seconds()


def _late(heads: Loaded, index: int, ended: Ended) -> str:
    xid = heads.xid[index]
    if heads.kind[index] == SNAPSHOT:
        return "a snapshot began within a transaction that has no END, and whose events may have landed before"
    if xid in ended.xids:
        return f"events of transaction {xid} are missing, although later transactions have come"
    return (
        f"an event of transaction {xid} stands before events of later transactions, and no END of it came: it was sent "
        "after its transaction had landed, or the transaction topic has lost its END"
    )

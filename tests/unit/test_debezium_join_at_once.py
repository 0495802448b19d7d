"""The join in columns beside the one that looks at each event, on random histories and restarts."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import debezium_topics
import pytest
from debezium_topics import Change, Event, Lake, Topics, deliver, deliver_anew, few_at_a_time, random_history, rows_of

from ingestion.sources.debezium.join import transactions
from ingestion.sources.debezium.join.at_once import join_at_once
from ingestion.sources.debezium.join.heads import Heads
from ingestion.sources.debezium.join.joined import Follows, Joined, OutOfOrder, Reached, Told
from tests.marks import seeds

RELATIONS = ["public.a", "public.a", "public.b", "public.c"]


SHARED: Counter[bool] = Counter()  # how many of those in columns found rows that share a key


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> Counter[bool]:
    """How many joins were in columns, and how many not; both find the same."""
    found, shared = Counter[bool](), SHARED
    shared.clear()

    def join(heads: Heads, told: Sequence[Told], before: Reached, follows: Follows) -> Joined:
        def ended() -> transactions.Ended:
            return transactions._ended(told, before, follows)

        each = transactions.join_each(heads.loaded(), told, ended(), before, follows)
        at_once = join_at_once(heads, ended(), before, follows)
        if at_once is not None:
            assert rows_of(at_once.placed) == rows_of(each.placed)
            assert sorted(rows_of(at_once.sharing)) == sorted(rows_of(each.sharing))
            assert replace(at_once, placed=each.placed, sharing=each.sharing) == each
            shared[len(each.sharing) > 0] += 1
        found[at_once is not None] += 1
        return each

    monkeypatch.setattr(debezium_topics, "join", join)
    return found


@pytest.fixture(params=["in memory", "on disk"], autouse=True)
def spills(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether what is known of events is on disk; a few of them are looked at together then."""
    if request.param == "on disk":
        few_at_a_time(monkeypatch)


def snapshot(chance: random.Random, topics: Topics, op: str) -> None:
    """Some rows of one: `r` for one with which a connector begins, `i` for an incremental one."""
    for key in range(1, chance.randint(2, 9)):
        topics.send(chance.randrange(len(RELATIONS)), Event(0, 0, op, key))


@pytest.mark.parametrize("seed", seeds(20, 7))
@pytest.mark.parametrize("exactly_once", [True, False])
def test_a_join_in_columns_is_the_join_of_each_event(ways: Counter[bool], seed: int, exactly_once: bool) -> None:
    chance = random.Random(seed)
    topics = Topics(RELATIONS)
    lake = Lake(topics, exactly_once=exactly_once, keyed=chance.random() < 0.8)
    if chance.random() < 0.5:
        snapshot(chance, topics, "r")
    for part in range(12):
        if chance.random() < 0.2:
            snapshot(chance, topics, "i")
        history = random_history(chance, RELATIONS, chance.randint(1, 12))
        shift = part * 1_000_000
        moved = [
            (xid + part * 100, end + shift, [replace(c, lsn=c.lsn + shift) for c in changes])
            for xid, end, changes in history
        ]
        if exactly_once and chance.random() < 0.15:
            deliver_anew(chance, topics, moved, 0.1)
        else:
            deliver(chance, topics, moved, 0.0 if exactly_once else 0.01)
        try:
            lake.read(behind=[chance.random() * debezium_topics.LAG for _ in range(5)])
        except OutOfOrder:
            return
    lake.read(later=100)
    assert ways[True] > 2 or not exactly_once


def again(chance: random.Random, changes: Sequence[Change], *, copies: bool) -> list[Change]:
    """Changes some of which insert a key that was inserted before, in the same record if it is one of `copies`."""
    found = list[Change]()
    for change in changes:
        one = change
        if found and chance.random() < 0.3:
            one = replace(chance.choice(found), op="c", lsn=change.lsn)
        if copies and found and found[-1].op == "c" and chance.random() < 0.1:
            one = found[-1]
        if copies or not any((o.lsn, o.key, o.op) == (one.lsn, one.key, one.op) for o in found):
            found.append(one)
    return found


@pytest.mark.parametrize("seed", seeds(20, 7))
@pytest.mark.parametrize("relations", [RELATIONS, ["public.a", "public.b"]])
@pytest.mark.parametrize("copies", [True, False])
def test_keys_that_come_again_in_a_transaction_are_joined_in_columns(
    ways: Counter[bool], seed: int, relations: list[str], copies: bool
) -> None:
    """Each event of such a read was held in memory."""
    chance = random.Random(seed)
    topics = Topics(relations)
    history = [
        (xid, end, again(chance, [replace(c, partition=c.partition % len(relations)) for c in changes], copies=copies))
        for xid, end, changes in random_history(chance, RELATIONS, 40)
    ]
    deliver(chance, topics, history, 0.0)
    Lake(topics).read(later=100)
    is_wide = len(set(relations)) < len(relations)
    assert (ways[True] == 1 and SHARED[True] == 1) or (copies and is_wide)


def test_what_comes_in_order_is_joined_in_columns(ways: Counter[bool]) -> None:
    chance = random.Random(1)
    topics = Topics(RELATIONS)
    deliver(chance, topics, random_history(chance, RELATIONS, 60), 0.0)
    lake = Lake(topics)
    lake.read(later=100)
    assert ways == {True: 1} and len(lake.rows) > 100

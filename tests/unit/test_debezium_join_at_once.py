"""The join in columns beside the one that looks at each event, on random histories and restarts."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import debezium_topics
import pytest
from debezium_topics import Lake, Topics, deliver, deliver_anew, random_history

from ingestion.sources.debezium.join import transactions
from ingestion.sources.debezium.join.at_once import join_at_once
from ingestion.sources.debezium.join.heads import Heads
from ingestion.sources.debezium.join.joined import Follows, Joined, OutOfOrder, Reached, Told

RELATIONS = ["public.a", "public.a", "public.b", "public.c"]


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> Counter[bool]:
    """How many joins were in columns, and how many not; both find the same."""
    found: Counter[bool] = Counter()

    def join(heads: Heads, told: Sequence[Told], before: Reached, follows: Follows) -> Joined:
        def ended() -> transactions.Ended:
            return transactions._ended(told, before, follows)

        each = transactions.join_each(heads, told, ended(), before, follows)
        at_once = join_at_once(heads, ended(), before, follows)
        assert at_once is None or at_once == each
        found[at_once is not None] += 1
        return each

    monkeypatch.setattr(debezium_topics, "join", join)
    return found


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("exactly_once", [True, False])
def test_a_join_in_columns_is_the_join_of_each_event(ways: Counter[bool], seed: int, exactly_once: bool) -> None:
    chance = random.Random(seed)
    topics = Topics(RELATIONS)
    lake = Lake(topics, exactly_once=exactly_once, keyed=chance.random() < 0.8)
    for part in range(12):
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


def test_what_comes_in_order_is_joined_in_columns(ways: Counter[bool]) -> None:
    chance = random.Random(1)
    topics = Topics(RELATIONS)
    deliver(chance, topics, random_history(chance, RELATIONS, 60), 0.0)
    lake = Lake(topics)
    lake.read(later=100)
    assert ways == {True: 1} and len(lake.rows) > 100

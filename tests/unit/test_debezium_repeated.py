"""Rows that look alike and events that came twice: none of the former is dropped, none of the latter lands."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from debezium_topics import LAG, Event, Lake, Topics, few_at_a_time, rows_of

from tests.marks import seeds

A, B = "public.a", "public.b"


@pytest.fixture(params=["in memory", "on disk"], autouse=True)
def spills(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether what is known of events is on disk; a few of them are looked at together then."""
    if request.param == "on disk":
        few_at_a_time(monkeypatch)


@dataclass
class Row:
    """A change of a transaction; `number` tells it from all others, `lsn` is that of its record."""

    number: int
    partition: int
    op: str
    key: int
    lsn: int


@dataclass
class Connector:
    """What Debezium sends of transactions, killed at any event: from 3.7 on it goes on behind the event whose offset it
    had stored, before that behind the record of it, and counts on from there."""

    chance: random.Random
    topics: Topics
    is_exact: bool
    restarts: float
    is_keyless: bool = False  # messages have no key, so that an event may go to another partition when it comes again
    restarted: set[int] = field(default_factory=set)

    def transact(self, xid: int, rows: Sequence[Row], end: int) -> None:
        """Sends a transaction, and its END."""
        chance, sent, last = self.chance, 0, 0
        total, of_each = 0, dict[str, int]()
        stored = {0: (0, dict[str, int]())}
        while sent < len(rows):
            if last and chance.random() < self.restarts:
                self.restarted.add(xid)
                begin = chance.choice([at for at in stored if self._next(rows, at) <= last])
                total, of_each = stored[begin][0], dict(stored[begin][1])
                sent = self._next(rows, begin)
                stored = {at: of for at, of in stored.items() if at <= begin}
                if sent == len(rows):
                    break
            row = rows[sent]
            relation = self.topics.relations[row.partition]
            total, of_each[relation] = total + 1, of_each.get(relation, 0) + 1
            event = Event(xid, row.lsn, row.op, row.key, total, of_each[relation], row=row.number)
            self.topics.send(self._partition(row), event)
            sent += 1
            last = max(last, sent)
            stored[sent] = total, dict(of_each)
        self.topics.end(xid, end, of_each)

    def _partition(self, row: Row) -> int:
        same = [p for p, r in enumerate(self.topics.relations) if r == self.topics.relations[row.partition]]
        return self.chance.choice(same) if self.is_keyless else row.partition

    def _next(self, rows: Sequence[Row], at: int) -> int:
        """Where it goes on if the offset of so many events was stored."""
        if self.is_exact or at == 0:
            return at
        return next((n for n in range(at, len(rows)) if rows[n].lsn != rows[at - 1].lsn), len(rows))


def transactions(chance: random.Random, count: int) -> list[tuple[int, int, list[Row]]]:
    """Transactions of COPYs, whose rows share a record, and often a key, and of single changes."""
    found, lsn, number = [], 30_000_000, 0
    for xid in range(700, 700 + count):
        rows: list[Row] = []
        for _ in range(chance.randint(1, 5)):
            lsn += 100
            relation, is_copy = chance.choice((0, 2)), chance.random() < 0.6
            for _ in range(chance.randint(1, 12) if is_copy else 1):
                key, number = chance.randint(1, 4), number + 1
                partition = key % 2 if relation == 0 else 2
                rows.append(Row(number, partition, "c" if is_copy else chance.choice("cu"), key, lsn))
        lsn += 100
        found.append((xid, lsn, rows))
    return found


def landed(lake: Lake) -> list[int]:
    """The changes that have landed."""
    return sorted(lake.topics.logs[partition][offset].row for partition, offset in lake.rows)


@pytest.mark.parametrize("exactly_once", [True, False])
def test_rows_of_a_copy_that_share_a_key_all_land(exactly_once: bool) -> None:
    """All but the first were dropped as repetitions, without a word."""
    topics = Topics([A])
    for order, key in enumerate((5, 5, 6, 5), start=1):
        topics.send(0, Event(7, 39_000_000, "c", key, order, order, row=order))
    topics.end(7, 40_000_000, {A: 4})
    lake = Lake(topics, exactly_once=exactly_once)
    joined = lake.read(later=2)
    assert [lake.rows[0, offset] for offset in range(4)] == [(40_000_000, place) for place in (1, 2, 3, 4)]
    assert joined.repeated == 0 and sorted(rows_of(joined.sharing)) == [(0, 1), (0, 3)]


def test_of_rows_that_are_the_same_in_all_they_say_one_lands_where_events_may_come_twice() -> None:
    """Debezium may count on from any number after a restart, so nothing tells these from one that came three times."""
    for exactly_once, landed in ((True, 4), (False, 2)):
        topics = Topics([A])
        for order, key in enumerate((5, 5, 6, 5), start=1):
            topics.send(0, Event(7, 39_000_000, "c", key, order, order))
        topics.end(7, 40_000_000, {A: 4})
        lake = Lake(topics, exactly_once=exactly_once)
        lake.read(later=5)
        assert len(lake.rows) == landed


@pytest.mark.parametrize(
    ("changes", "shares"),
    [
        ("c1 c1", True), ("c1 u1 c1", True), ("d1 c1 c1", True), ("c1 d1 c1", False), ("c1 t0 c1", False),
        ("d1 c2 d2 c3", False), ("c1 c1 d1", False), ("c1 u2 c1", False), ("c1 u2 c1 c1", True), ("c1 c2 u1 u2", False),
    ],
)  # fmt: skip
def test_two_rows_that_a_transaction_leaves_with_one_key_are_told(changes: str, shares: bool) -> None:
    """`u2` where no 2 was inserted may be what has become of a 1, where the declared key is not that of the events."""
    topics, given = Topics([A]), changes.split()
    for order, change in enumerate(given, start=1):
        topics.send(0, Event(7, 39_000_000 + order, change[0], int(change[1]) or 99, order, order))
    topics.end(7, 40_000_000, {A: len(given)})
    lake = Lake(topics)
    assert bool(lake.read().sharing) == shares and len(lake.rows) == len(given)


@pytest.mark.parametrize("seed", seeds(60, 15))
@pytest.mark.parametrize("way", ["never restarted", "exact", "before 3.7", "exact, without message keys"])
def test_whatever_comes_twice_each_change_lands_once(seed: int, way: str) -> None:
    chance = random.Random(f"{way} {seed}")
    topics = Topics([A, A, B])
    connector = Connector(
        chance, topics, is_exact=way != "before 3.7", restarts=0.0 if way.startswith("never") else 0.06,
        is_keyless="without" in way,
    )  # fmt: skip
    history = transactions(chance, 20)
    for xid, end, rows in history:
        connector.transact(xid, rows, end)
    lake, whole = Lake(topics, exactly_once=way.startswith("never")), topics.clock
    topics.clock = 0.0
    while topics.clock < whole:
        topics.clock = min(whole, topics.clock + chance.random())
        lake.read(behind=[chance.random() * LAG for _ in range(4)])
    for _ in range(2):
        lake.read(later=5)
    assert landed(lake) == [row.number for _, _, rows in history for row in rows]
    assert len(set(lake.rows.values())) == len(lake.rows)
    assert bool(connector.restarted) != way.startswith("never")


@pytest.mark.parametrize("seed", seeds(60, 15))
def test_however_a_connector_counts_what_it_sends_again_nothing_is_lost(seed: int) -> None:
    """Numbers that go on as if nothing had been sent twice: inserts of one record and key may land twice, no others."""
    chance = random.Random(seed)
    topics = Topics([A, A, B])
    history = transactions(chance, 20)
    for xid, end, rows in history:
        again = chance.randrange(len(rows))
        first = next(n for n, row in enumerate(rows) if row.lsn == rows[again].lsn)
        total, of_each = 0, dict[str, int]()
        for row in (*rows[: chance.randint(again, len(rows))], *rows[first:]):
            relation = topics.relations[row.partition]
            total, of_each[relation] = total + 1, of_each.get(relation, 0) + 1
            topics.send(row.partition, Event(xid, row.lsn, row.op, row.key, total, of_each[relation], row=row.number))
        topics.end(xid, end, of_each)
    lake = Lake(topics, exactly_once=False)
    lake.read(later=5)
    found = landed(lake)
    changes = {row.number: row for _, _, rows in history for row in rows}
    assert {*found} == {*changes} and {changes[n].op for n in found if found.count(n) > 1} <= {"c"}

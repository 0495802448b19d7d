"""Topics as Debezium would write them, restarts of Kafka Connect included, and reads of them at any moment."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from ingestion.sources.debezium import numbers
from ingestion.sources.debezium.clocks import believed
from ingestion.sources.debezium.ends import Ends
from ingestion.sources.debezium.join.heads import EMPTY, EVENT, LOOSE, SNAPSHOT, UNREAD, Heads
from ingestion.sources.debezium.join.joined import SETTLED, SKEW, Earlier, Follows, Joined, Reached, Told
from ingestion.sources.debezium.join.transactions import join
from ingestion.sources.debezium.message.envelope import End
from ingestion.sources.debezium.numbers import Numbers
from ingestion.sources.kafka.events import EVENTS_SCHEMA
from ingestion.sources.kafka.reading import Range

START = datetime(2026, 11, 24, tzinfo=UTC)
LAG = 0.8  # seconds: by so much one partition may be visible later than another


@dataclass(frozen=True)
class Event:
    """A message of a data topic. `key` 0 stands for a tombstone, `xid` 0 for a row of a snapshot, 'i' for one of an
    incremental one. `row` is the change that it tells of, where these are numbered."""

    xid: int
    lsn: int
    op: str
    key: int
    order: int = 0
    in_table: int = 0
    at: float = 0.0
    is_broken: bool = False
    row: int = 0


@dataclass
class Topics:
    """Partitions of data topics, by relation, and the transaction topic; `clock` is in seconds."""

    relations: list[str]
    logs: list[list[Event]] = field(default_factory=list)
    told: list[tuple[float, End | None]] = field(default_factory=list)
    clock: float = 0.0
    step: float = 0.01  # between two messages

    def __post_init__(self) -> None:
        self.logs = [[] for _ in self.relations]

    def send(self, partition: int, event: Event) -> None:
        self.clock += self.step
        self.logs[partition].append(replace(event, at=self.clock))

    def end(self, xid: int, lsn: int, counts: dict[str, int], committed: float | None = None) -> None:
        """Its END, committed so many seconds after the start; by its position if that is None."""
        self.clock += self.step
        at = lsn / 1_000_000 if committed is None else committed
        self.told.append((self.clock, End(xid, lsn, START + timedelta(seconds=at), counts)))


@dataclass
class Lake:
    """What has landed of some topics: by partition and offset the number and the place."""

    topics: Topics
    exactly_once: bool = True
    keyed: bool = True
    rows: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    offsets: list[int] = field(default_factory=list)
    visible: list[int] = field(default_factory=list)
    told_to: int = 0
    reached: Reached = field(default_factory=Reached)
    begun: dict[str, int] = field(default_factory=dict)  # by relation, the END up to which it had no rows
    hidden: frozenset[int] = frozenset()  # partitions that are not read
    is_whole: bool = True  # whether the reads reach the end of the topics
    told_from: int = 0  # where the transaction topic begins, whose earlier messages are gone
    ahead: float = 0.0  # seconds by which the clock of who writes is ahead
    known: Ends = field(default_factory=Ends)

    def __post_init__(self) -> None:
        self.now = START
        self.offsets = [0] * len(self.topics.logs)

    def _begun_before(self) -> set[str]:
        return {r for r, offset in zip(self.topics.relations, self.offsets, strict=True) if offset}

    def _forgotten_to(self) -> datetime | None:
        if not self.told_from:
            return None
        return START + timedelta(seconds=self.topics.told[self.told_from][0]) - SKEW

    def _earlier(self) -> Earlier:
        return Earlier(self._told(self.told_from, self.told_to), is_all=not self.told_from)

    def _told(self, first: int, end: int) -> list[Told]:
        moments, _ = self._moments(len(self.topics.logs), first, [at for at, _ in self.topics.told[first:end]])
        told = zip(moments, self.topics.told[first:end], strict=True)
        return [Told(first + number, at, said) for number, (at, (_, said)) in enumerate(told)]

    def _moments(self, of: int, first: int, at: Sequence[float]) -> tuple[list[datetime], list[datetime]]:
        """When messages of a partition came, and by which they are ordered, as a read would have it."""
        given = [START + timedelta(seconds=moment + self.ahead) for moment in at]
        if not self.ahead:
            return given, given
        columns = {"partition": [of] * len(at), "offset": [*range(first, first + len(at))], "at": given}
        names = [EVENTS_SCHEMA.field(name) for name in columns]
        messages = pa.table([pa.array(c, f.type) for c, f in zip(columns.values(), names, strict=True)], list(columns))
        seen = self.known.seen([Range("t", of, first, first + len(at), 0)])
        found = believed(messages, self.now, {partition: ends for (_, partition), ends in seen.items()})
        return found.column("at").to_pylist(), found.column("sent").to_pylist()

    def _whole_to(self, ends: Sequence[int], there: Sequence[int]) -> list[int]:
        settled = int((self.now - SETTLED).timestamp() * 1000)
        is_read = (
            end == of and (self.is_whole or end == len(log))
            for end, of, log in zip(ends, there, self.topics.logs, strict=False)
        )
        return [settled if is_end else -1 for is_end in is_read]

    def read(
        self, *, behind: Iterable[float] | None = None, later: float = 0.0, most: Iterable[int] | None = None
    ) -> Joined:
        """Reads what is visible, each partition by so many seconds behind, the transaction topic too; `later` seconds
        after the last message. No more of each than `most`."""
        topics, now = self.topics, self.topics.clock + later
        self.now = START + timedelta(seconds=now)
        lags = list(behind or [0.0] * (len(topics.logs) + 1))
        ends = [sum(event.at <= now - lag for event in log) for log, lag in zip(topics.logs, lags, strict=False)]
        ends = [0 if partition in self.hidden else end for partition, end in enumerate(ends)]
        self.visible = ends = [max(pair) for pair in zip(ends, self.visible or ends, strict=True)]
        told_to = max(self.told_to, sum(at <= now - lags[-1] for at, _ in topics.told))
        self.known.note(self.now, {("t", p): end for p, end in enumerate([*ends, told_to])})
        there = [*ends, told_to]
        if most is not None:
            passed = zip(there, [*self.offsets, self.told_to], most, strict=True)
            *ends, told_to = (min(end, first + count) for end, first, count in passed)
        is_whole = self.is_whole and [*ends, told_to] == there
        heads = Heads()
        for partition, log in enumerate(topics.logs):
            mine = range(self.offsets[partition], ends[partition])
            moments = self._moments(partition, mine.start, [log[offset].at for offset in mine])
            for offset, at, sent in zip(mine, *moments, strict=True):
                _add(heads, partition, offset, log[offset], at, sent)
        told = self._told(self.told_to, told_to)
        past = [end for _, end in topics.told[self.told_from : self.told_to]]
        past += [one.end for one in told if one.end and one.end.lsn <= self.reached.end]
        follows = Follows(
            relations=[r if p not in self.hidden else "" for p, r in enumerate(topics.relations)], ends=ends,
            bases=[1_000_000 * p for p in range(len(ends))], told_to=told_to,
            followed=frozenset(r for p, r in enumerate(topics.relations) if p not in self.hidden),
            keyed=frozenset(topics.relations if self.keyed else ()), exactly_once=self.exactly_once,
            is_whole=is_whole, now=self.now, histories=self.begun,
            older={end.xid: [e for e in past if e and e.xid == end.xid] for end in past if end} if self.begun else {},
            forgotten_to=self._forgotten_to(), earlier=self._earlier(),
            is_read=is_whole, fresh=frozenset(r for r in topics.relations if r not in self._begun_before()),
            content=lambda index: _said(topics, heads, index), whole_to=self._whole_to(ends, there),
        )  # fmt: skip
        joined = join(heads, told, self.reached, follows)
        placed = rows_of(joined.placed)
        for index, (number, place, _) in enumerate(placed):
            if number >= 0:
                where = int(heads[index]["partition"]), int(heads[index]["offset"])
                assert where not in self.rows and number >= self.reached.bound
                self.rows[where] = number, place
        assert all(new >= old for new, old in zip(joined.offsets, self.offsets, strict=True))
        assert joined.told_to >= self.told_to and joined.reached.bound >= self.reached.bound
        assert all(number < joined.reached.bound for number, *_ in placed)
        self.offsets, self.told_to, self.reached = joined.offsets, joined.told_to, joined.reached
        return joined


def _said(topics: Topics, heads: Heads, index: int) -> int:
    """What an event says of its row: of those without a number, its key."""
    event = topics.logs[heads[index]["partition"]][heads[index]["offset"]]
    return event.row or event.key


def few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is known of events is on disk, and a few of them are looked at together."""
    monkeypatch.setattr(numbers, "IN_MEMORY", 300)
    monkeypatch.setattr(numbers, "WINDOW", 7)
    monkeypatch.setattr(numbers, "NEAR", 3)


def rows_of(numbers: Numbers) -> list[tuple[int, ...]]:
    """All of them."""
    return [row for _, rows in numbers.windows() for row in rows.tolist()]


def _add(heads: Heads, partition: int, offset: int, event: Event, came: datetime, by_order: datetime) -> None:
    at, sent = (int(moment.timestamp() * 1000) for moment in (came, by_order))
    if event.is_broken:
        heads.add(partition, offset, at, UNREAD, sent=sent)
    elif event.key == 0:
        heads.add(partition, offset, at, EMPTY)
    elif event.xid == 0:
        heads.add(partition, offset, at, SNAPSHOT if event.op == "r" else LOOSE, sent=sent)
    else:
        heads.add(
            partition, offset, at, EVENT, sent=sent, xid=event.xid, lsn=event.lsn, order=event.order,
            in_table=event.in_table, op=event.op, identity=event.key,
        )  # fmt: skip


@dataclass(frozen=True)
class Change:
    """One change of a transaction, in a partition."""

    partition: int
    op: str
    key: int
    lsn: int


def random_history(chance: random.Random, relations: list[str], count: int) -> list[tuple[int, int, list[Change]]]:
    """Transactions: xid, position of their END, changes; a COPY has several rows at one LSN."""
    found, lsn = [], 30_000_000
    for xid in range(700, 700 + count):
        changes: list[Change] = []
        for _ in range(chance.choice((0, 1, 1, 2, 5, 12))):
            if chance.random() < 0.7 or not changes:
                lsn += chance.randint(40, 200)
            keys = {change.key for change in changes if change.lsn == lsn}
            key = chance.choice([k for k in range(1, 60) if k not in keys])
            partition = chance.choice([p for p in range(len(relations)) if key % 2 == p % 2 or p == 2])
            is_there = any(change.op == "c" and change.key == key for change in changes)
            changes.append(Change(partition, chance.choice("ud" if is_there else "cud"), key, lsn))
        lsn += chance.randint(40, 200)
        found.append((xid, lsn, changes))
    return found


def deliver(
    chance: random.Random, topics: Topics, history: list[tuple[int, int, list[Change]]], restarts: float
) -> None:
    """Sends a history in order; at a restart, what was sent since an earlier place comes once more, and within its
    transaction Debezium counts on from another number."""
    steps = [(t, c) for t, (_, _, changes) in enumerate(history) for c in range(len(changes) + 1)]
    at, counted = 0, dict[str, int]()
    skew = 0
    while at < len(steps):
        number, change = steps[at]
        xid, end, changes = history[number]
        if change == 0:
            counted, skew = {}, 0
        if chance.random() < restarts:
            back = max(0, at - chance.randint(1, 15))
            if steps[back][1] > 0:
                skew = chance.randint(-2, 2)
                of = [topics.relations[c.partition] for c in history[steps[back][0]][2][: steps[back][1]]]
                counted = {r: max(0, of.count(r) + skew) for r in set(of)}
            at = back
            continue
        if change == len(changes):
            topics.end(xid, end, counted)
        else:
            this = changes[change]
            relation = topics.relations[this.partition]
            counted[relation] = counted.get(relation, 0) + 1
            topics.send(
                this.partition,
                Event(xid, this.lsn, this.op, this.key, sum(counted.values()), counted[relation]),
            )
            if this.op == "d":
                topics.send(this.partition, Event(xid, this.lsn, " ", 0))
        at += 1


def deliver_anew(
    chance: random.Random, topics: Topics, history: list[tuple[int, int, list[Change]]], share: float
) -> set[int]:
    """Sends a history in order, by a connector that loses its offsets now and then: it begins with a snapshot, and goes
    on with the next transaction. Returns the transactions that it was within."""
    cut: set[int] = set()
    for xid, end, changes in history:
        sent = chance.randrange(len(changes) + 1) if chance.random() < share else None
        counted: dict[str, int] = {}
        for this in changes[:sent]:
            relation = topics.relations[this.partition]
            counted[relation] = counted.get(relation, 0) + 1
            topics.send(
                this.partition, Event(xid, this.lsn, this.op, this.key, sum(counted.values()), counted[relation])
            )
        if sent is None:
            topics.end(xid, end, counted)
            continue
        cut |= {xid} if sent else set()
        topics.clock += 3
        for key in range(1, chance.randint(2, 6)):
            topics.send(chance.randrange(len(topics.relations)), Event(0, 0, "r", key))
    return cut

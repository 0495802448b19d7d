"""Fetches ranges of offsets from the brokers as columns, one batch ahead of those who decode and write them."""

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from ingestion.schema.offsets import Partition
from ingestion.sources.kafka.events import EVENTS_SCHEMA
from lakehouse.errors import LakehouseError

MESSAGE_BYTES = 256  # of a message beside its key and value: one may have none
MESSAGES = 2_000  # taken from the client at a time, at most: more do not fit into the cache of a core
TAKEN_BYTES = 4 * 1024 * 1024  # at most, if all are as large as the largest of those before
WAIT_SECONDS = 0.2  # for so many messages; those that have come are taken then
SILENT_SECONDS = 60.0
LAST_MOMENT = 253_402_300_799_999  # of the year 9999: no day of a later one has a name
PASSING = (  # the client connects again, and no group is used
    KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError.GROUP_AUTHORIZATION_FAILED,
)  # fmt: skip
BYTES = ("key", "value")
T = TypeVar("T")
Fetched = tuple[str, pa.Table]


@dataclass(frozen=True)
class Range:
    """Offsets of one partition, the end exclusive; `place` is the number of the first one within the publish."""

    topic: str
    partition: int
    first: int
    end: int
    place: int


@dataclass
class Fetch:
    """What is left to read, and the events that wait to be decoded.

    `at` is the moment of events without a timestamp; `failed` makes the error for people.
    """

    source: str
    consumer: Consumer
    ranges: Sequence[Range]
    at: datetime
    batch_bytes: int
    failed: Callable[[KafkaError], LakehouseError]
    next: dict[Partition, int] = field(default_factory=dict)
    ends: dict[Partition, int] = field(default_factory=dict)
    waiting: dict[str, list[pa.Table]] = field(default_factory=dict)
    waiting_bytes: int = 0
    largest: int = TAKEN_BYTES // 64  # message of those that came last; a guess until some have come

    def events(self) -> Iterator[Fetched]:
        """All events of the ranges, a batch of one topic at a time; raises LakehouseError."""
        self.next = {(r.topic, r.partition): r.first for r in self.ranges}
        self.ends = {(r.topic, r.partition): r.end for r in self.ranges}
        self.consumer.assign([TopicPartition(r.topic, r.partition, r.first) for r in self.ranges])
        came = time.monotonic()
        while self.ends:
            if self._took(self.consumer.consume(self._wanted(), WAIT_SECONDS)):
                came = time.monotonic()
            elif time.monotonic() - came > SILENT_SECONDS:
                raise LakehouseError(
                    f"source {self.source!r}: no event came for {SILENT_SECONDS:.0f} s although "
                    f"{self._missing()} has more: look at its brokers; nothing was published"
                )
            if self.waiting_bytes >= self.batch_bytes or not self.ends:
                yield from self._taken()

    def _wanted(self) -> int:
        """No more than there can be: the client waits until so many have come. Of large ones only a few: those that it
        hands over are in memory together."""
        left = sum(end - self.next[partition] for partition, end in self.ends.items())
        return max(1, min(MESSAGES, left, TAKEN_BYTES // max(1, self.largest)))

    def _took(self, messages: list[Message]) -> bool:
        """Whether the messages bring the read on; the end of a partition is told after its events."""
        told = [message for message in messages if message.error() is not None]
        events = [message for message in messages if message.error() is None] if told else messages
        if events:
            self.largest = 0
        moved = [self._keep(topic, of_topic) for topic, of_topic in self._by_topic(events).items()]
        return any([*moved, *map(self._was_told, told)])

    def _by_topic(self, messages: list[Message]) -> dict[str, list[Message]]:
        if len({r.topic for r in self.ranges}) == 1:
            return {self.ranges[0].topic: messages} if messages else {}
        found: dict[str, list[Message]] = {}
        for message in messages:
            found.setdefault(str(message.topic()), []).append(message)
        return found

    def _keep(self, topic: str, messages: list[Message]) -> bool:
        """Keeps those that are within the ranges; a partition whose end has come is read no further."""
        events = table_of(messages, self.at)
        self.largest = max(self.largest, _largest(events))
        numbers, offsets = (events.column(name).to_numpy() for name in ("partition", "offset"))
        wanted, before = np.zeros(len(offsets), bool), len(self.ends)
        for number in np.unique(numbers).tolist():
            if (end := self.ends.get((topic, number))) is not None:
                mine = numbers == number
                self._check_onward((topic, number), offsets[mine])
                wanted |= mine & (offsets < end)
                self._reached((topic, number), int(offsets[mine].max()) + 1)
        kept = events if wanted.all() else events.filter(pa.array(wanted))
        if kept.num_rows:
            self.waiting.setdefault(topic, []).append(kept)
            self.waiting_bytes += MESSAGE_BYTES * kept.num_rows + sum(kept.column(name).nbytes for name in BYTES)
        return kept.num_rows > 0 or len(self.ends) < before

    def _check_onward(self, partition: Partition, offsets: np.ndarray) -> None:
        """Raises LakehouseError where events come again: at an offset there may be another one by now."""
        first = self.next[partition]
        if offsets[0] < first or (np.diff(offsets) <= 0).any():
            raise LakehouseError(
                f"source {self.source!r}: topic {partition[0]}, partition {partition[1]} went back to an offset that "
                f"was read before ({offsets.min()}): its broker may have lost events; nothing was published: ingest "
                "again"
            )

    def _was_told(self, message: Message) -> bool:
        """Whether what is no event brings the read on; raises LakehouseError for a failure."""
        error, topic, number, offset = message.error(), message.topic(), message.partition(), message.offset()
        assert error is not None
        if error.code() != KafkaError._PARTITION_EOF:
            if error.code() in PASSING:
                return False
            raise self.failed(error)
        if topic is None or number is None or offset is None or (topic, number) not in self.ends:
            return False
        return self._reached((topic, number), offset)  # an end comes where the last records are no events

    def _reached(self, partition: Partition, offset: int) -> bool:
        if offset < self.ends[partition]:
            self.next[partition] = max(offset, self.next[partition])
            return False
        del self.ends[partition]
        self.consumer.incremental_unassign([TopicPartition(*partition)])
        return True

    def _taken(self) -> Iterator[Fetched]:
        taken, self.waiting, self.waiting_bytes = self.waiting, {}, 0
        for topic, tables in taken.items():
            yield topic, pa.concat_tables(tables).combine_chunks()

    def _missing(self) -> str:
        return ", ".join(f"{topic}/{number}" for topic, number in self.ends)


def table_of(messages: list[Message], at: datetime) -> pa.Table:
    """Messages in columns; `at` is the moment of those without one, and of those whose producer has sent microseconds
    as milliseconds."""
    stamps = [message.timestamp() for message in messages]
    now = int(at.timestamp() * 1000)
    moments = [milliseconds if kind and 0 <= milliseconds <= LAST_MOMENT else now for kind, milliseconds in stamps]
    columns = [
        pa.array([message.partition() for message in messages], pa.int32()),
        pa.array([message.offset() for message in messages], pa.int64()),
        pa.array(moments, pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC")),
        pa.array([message.key() for message in messages], pa.binary()),
        pa.array([message.value() for message in messages], pa.binary()),
    ]
    return pa.table(columns, schema=EVENTS_SCHEMA)


def _largest(events: pa.Table) -> int:
    return sum(pc.max(pc.binary_length(events.column(name))).as_py() or 0 for name in BYTES)


def ahead(items: Iterable[T]) -> Generator[T]:
    """The items, each made by another thread while the one before it is at work."""
    upcoming = iter(items)
    with ThreadPoolExecutor(1) as pool:
        made = pool.submit(lambda: next(upcoming, None))
        while (item := made.result()) is not None:
            made = pool.submit(lambda: next(upcoming, None))
            yield item


def some_at_once(begun: Iterable[tuple[int, T]], most: int) -> Iterator[T]:
    """The items in their order, each with its weight: what begins with them goes on while those that wait, and the one
    that comes next, weigh no more than `most` together."""
    waiting: deque[tuple[int, T]] = deque()
    for of in begun:
        waiting.append(of)
        while waiting and sum(weight for weight, _ in waiting) > most:
            yield waiting.popleft()[1]
    for _, item in waiting:
        yield item

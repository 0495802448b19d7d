"""Events of ranges of offsets: read and decoded inside a Spark task."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from ingestion.schema.offsets import Partition
from ingestion.sources.base import Keys, Landing, Noticed, Piece
from ingestion.sources.kafka.connection import log, refused
from ingestion.sources.kafka.events import EVENTS_SCHEMA, Decoded, batch_of, decode_in_parts
from ingestion.sources.kafka.records import KEPT_SCHEMA, kept
from ingestion.sources.kafka.shape import Shape
from ingestion.sources.kafka.values import Values
from lakehouse.errors import LakehouseError

MESSAGE_BYTES = 256  # of a message beside its value: one may have none
MESSAGES = 500  # taken from the client at a time
SILENT_SECONDS = 60.0
PASSING = (  # the client connects again, and no group is used
    KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError.GROUP_AUTHORIZATION_FAILED,
)  # fmt: skip
READING = {
    "group.id": "lakehouse",  # the client wants one; no offset is ever stored for it
    "enable.auto.commit": False,
    "isolation.level": "read_committed",
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
    "fetch.wait.max.ms": 100,
    "queued.max.messages.kbytes": 65536,
}


@dataclass(frozen=True)
class Range:
    """Offsets of one partition, the end exclusive; `place` is the number of the first one within the publish."""

    topic: str
    partition: int
    first: int
    end: int
    place: int


@dataclass(frozen=True)
class TopicReader:
    """One read. Travels by pickle; holds the password.

    All its rows get `commit_lsn`. `shapes` are those of the topics, `at` is the moment of events without a timestamp.
    """

    source: str
    properties: Mapping[str, Any]
    ranges: tuple[Range, ...]
    shapes: Mapping[str, Shape]
    commit_lsn: int
    at: datetime
    batch_bytes: int
    formats: Mapping[str, Values]

    @property
    def is_silent(self) -> bool:
        """Whether there is nothing to read."""
        return not self.ranges

    def read(self, keys: Keys, landing: Landing, imaged: frozenset[int], take: Callable[[Piece], None]) -> Noticed:
        """Gives the events in pieces, each of one topic; raises LakehouseError for what cannot be read."""
        if self.ranges:
            places = {(r.topic, r.partition): r.place - r.first for r in self.ranges}
            for topic, events in self.fetched():
                for piece in _pieces(self, self.shapes[topic], events, places, landing):
                    take(piece)
        return Noticed()

    def fetched(self) -> Iterator[tuple[str, pa.Table]]:
        """All events of the ranges, a batch of one topic at a time."""
        consumer = Consumer(dict(self.properties) | READING, logger=log)
        try:
            consumer.assign([TopicPartition(r.topic, r.partition, r.first) for r in self.ranges])
            yield from _Fetch(self, consumer).events()
        except KafkaException as error:
            raise self.failed(error.args[0]) from None
        finally:
            consumer.close()

    def failed(self, error: KafkaError) -> LakehouseError:
        """The error for people."""
        if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            return LakehouseError(
                f"source {self.source!r}: events were deleted while they were read ({error.str()}); nothing was "
                "published: raise retention.ms of the topic, then ingest again"
            )
        return refused(self.source, str(self.properties["bootstrap.servers"]), error)


@dataclass
class _Fetch:
    """What is left to read, and the events that wait to be decoded."""

    reader: TopicReader
    consumer: Consumer
    left: dict[Partition, int] = field(default_factory=dict)
    waiting: dict[str, list[Message]] = field(default_factory=dict)
    waiting_bytes: int = 0

    def events(self) -> Iterator[tuple[str, pa.Table]]:
        """All events of the ranges, a batch of one topic at a time."""
        self.left = {(r.topic, r.partition): r.end for r in self.reader.ranges}
        came = time.monotonic()
        while self.left:
            for message in self.consumer.consume(MESSAGES, 0.5):
                if self._took(message):
                    came = time.monotonic()
            if self.left and time.monotonic() - came > SILENT_SECONDS:
                raise LakehouseError(
                    f"source {self.reader.source!r}: no event came for {SILENT_SECONDS:.0f} s although "
                    f"{self._missing()} has more: look at its brokers; nothing was published"
                )
            if self.waiting_bytes >= self.reader.batch_bytes or not self.left:
                yield from self._taken()

    def _took(self, message: Message) -> bool:
        """Whether the message brings the read on."""
        error, topic, number, offset = message.error(), message.topic(), message.partition(), message.offset()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            if error.code() in PASSING:
                return False
            raise self.reader.failed(error)
        if topic is None or number is None or offset is None or (topic, number) not in self.left:
            return False
        end = self.left[topic, number]
        if error is None and offset < end:
            self.waiting.setdefault(topic, []).append(message)
            self.waiting_bytes += MESSAGE_BYTES + len(message)
        if offset + (error is None) >= end:  # an end of the partition comes where its last records are no events
            del self.left[topic, number]
            self.consumer.incremental_unassign([TopicPartition(topic, number)])
            return True
        return error is None

    def _taken(self) -> Iterator[tuple[str, pa.Table]]:
        taken, self.waiting, self.waiting_bytes = self.waiting, {}, 0
        for topic, messages in taken.items():
            yield topic, table_of(messages, self.reader.at)

    def _missing(self) -> str:
        return ", ".join(f"{topic}/{number}" for topic, number in self.left)


def table_of(messages: list[Message], at: datetime) -> pa.Table:
    """Messages in columns."""
    stamps = [message.timestamp() for message in messages]
    now = int(at.timestamp() * 1000)
    moments = [milliseconds if kind and milliseconds >= 0 else now for kind, milliseconds in stamps]
    columns = [
        pa.array([message.partition() for message in messages], pa.int32()),
        pa.array([message.offset() for message in messages], pa.int64()),
        pa.array(moments, pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC")),
        pa.array([message.key() for message in messages], pa.binary()),
        pa.array([message.value() for message in messages], pa.binary()),
    ]
    return pa.table(columns, schema=EVENTS_SCHEMA)


def _pieces(
    reader: TopicReader, shape: Shape, events: pa.Table, places: Mapping[Partition, int], landing: Landing
) -> Iterator[Piece]:
    """The events that could be read as pieces, the others as others."""
    lsn = reader.commit_lsn
    if shape.oid not in landing():
        yield Piece([], partial(_records, shape, events, lsn, _places(shape, events, places)))
        return
    for part, decoded in decode_in_parts(shape, events, reader.formats[shape.format]):
        at = _places(shape, part, places)
        yield from _landed(shape, part, decoded, lsn, at)


def _landed(shape: Shape, events: pa.Table, decoded: Decoded, lsn: int, at: np.ndarray) -> Iterator[Piece]:
    good, at_good = events, at
    if decoded.unread:
        good, at_good = events.take(decoded.indices), at[decoded.indices]
    if decoded.indices:
        batch = batch_of(shape, decoded, _meta(shape, good, lsn, at_good))
        yield Piece([batch], partial(_records, shape, good, lsn, at_good))
    if decoded.unread:
        bad = sorted(decoded.unread)
        reasons = {(lsn, int(at[index])): decoded.unread[index] for index in bad}
        yield Piece([], partial(_records, shape, events.take(bad), lsn, at[bad]), reasons)


def _places(shape: Shape, events: pa.Table, places: Mapping[Partition, int]) -> np.ndarray:
    """The numbers of events within the publish."""
    numbers, offsets = (events.column(name).to_numpy() for name in ("partition", "offset"))
    firsts = np.array([places.get((shape.topic, number), 0) for number in range(numbers.max(initial=0) + 1)])
    return firsts[numbers] + offsets


def _records(shape: Shape, events: pa.Table, lsn: int, places: np.ndarray, oids: frozenset[int]) -> pa.Table:
    return kept(shape, events, lsn, places.tolist()) if shape.oid in oids else KEPT_SCHEMA.empty_table()


def _meta(shape: Shape, events: pa.Table, lsn: int, places: np.ndarray) -> dict[str, Any]:
    rows = events.num_rows
    return {
        "_commit_lsn": pa.repeat(pa.scalar(lsn, pa.int64()), rows),
        "_seq": pa.array(2 * places, pa.int64()),
        "_committed_at": events.column("at"),
        "_topic": pa.repeat(shape.topic, rows),
        "_topic_partition": events.column("partition"),
        "_offset": events.column("offset"),
    }

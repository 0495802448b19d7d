"""Events of ranges of offsets: read and decoded inside a Spark task."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from ingestion.schema.offsets import Partition
from ingestion.sources.base import Keys, Landing, Noticed, Piece
from ingestion.sources.kafka.connection import log, refused
from ingestion.sources.kafka.events import EVENTS_SCHEMA, batch_of, decode
from ingestion.sources.kafka.records import KEPT_SCHEMA, kept
from ingestion.sources.kafka.shape import Shape
from lakehouse.errors import LakehouseError

MESSAGE_BYTES = 256  # of a message beside its value: one may have none
MESSAGES = 500  # taken from the client at a time
SILENT_SECONDS = 60.0
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
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

    @property
    def is_silent(self) -> bool:
        """Whether there is nothing to read."""
        return not self.ranges

    def read(self, keys: Keys, landing: Landing, imaged: frozenset[int], take: Callable[[Piece], None]) -> Noticed:
        """Gives the events in pieces, each of one topic; raises LakehouseError for what cannot be read."""
        if self.ranges:
            places = {(r.topic, r.partition): r.place - r.first for r in self.ranges}
            for topic, events in self._fetched():
                for piece in _pieces(self.shapes[topic], events, places, self.commit_lsn, landing):
                    take(piece)
        return Noticed()

    def _fetched(self) -> Iterator[tuple[str, pa.Table]]:
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
    return pa.table(
        {
            "partition": [message.partition() for message in messages],
            "offset": [message.offset() for message in messages],
            "at": [_moment(message, at) for message in messages],
            "key": [message.key() for message in messages],
            "value": [message.value() for message in messages],
        },
        schema=EVENTS_SCHEMA,
    )


def _moment(message: Message, at: datetime) -> datetime:
    kind, milliseconds = message.timestamp()
    return EPOCH + timedelta(milliseconds=milliseconds) if kind and milliseconds >= 0 else at


def _pieces(
    shape: Shape, events: pa.Table, places: Mapping[Partition, int], commit_lsn: int, landing: Landing
) -> Iterator[Piece]:
    """The events that could be read as one piece, the others as another."""
    at = [places[shape.topic, p] + o for p, o in zip(*map(pa.ChunkedArray.to_pylist, events.columns[:2]), strict=True)]
    lands = shape.oid in landing()
    decoded = decode(shape, events) if lands else None
    good = events.take(decoded.indices) if decoded and decoded.unread else events
    at_good = [at[index] for index in decoded.indices] if decoded else at
    records = partial(_records, shape, good, commit_lsn, at_good)
    if decoded is None or decoded.indices:
        meta = _meta(shape, good, commit_lsn, at_good)
        yield Piece([batch_of(shape, decoded, meta)] if decoded else [], records)
    if decoded and decoded.unread:
        reasons = {(commit_lsn, at[index]): reason for index, reason in decoded.unread.items()}
        bad = sorted(decoded.unread)
        at_bad = [at[index] for index in bad]
        yield Piece([], partial(_records, shape, events.take(bad), commit_lsn, at_bad), reasons)


def _records(shape: Shape, events: pa.Table, commit_lsn: int, places: list[int], oids: frozenset[int]) -> pa.Table:
    return kept(shape, events, commit_lsn, places) if shape.oid in oids else KEPT_SCHEMA.empty_table()


def _meta(shape: Shape, events: pa.Table, commit_lsn: int, places: list[int]) -> dict[str, Any]:
    rows = events.num_rows
    return {
        "_commit_lsn": pa.repeat(pa.scalar(commit_lsn, pa.int64()), rows),
        "_seq": pa.array([2 * place for place in places], pa.int64()),
        "_committed_at": events.column("at"),
        "_topic": pa.repeat(shape.topic, rows),
        "_topic_partition": events.column("partition"),
        "_offset": events.column("offset"),
    }

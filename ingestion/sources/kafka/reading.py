"""Events of ranges of offsets: read and decoded inside a Spark task."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Consumer, KafkaError, KafkaException

from ingestion.schema.offsets import Partition
from ingestion.sources.base import Keys, Landing, Noticed, Piece
from ingestion.sources.kafka.connection import log, refused
from ingestion.sources.kafka.events import Decoded, batch_of, decode_in_parts
from ingestion.sources.kafka.fetching import Fetch, Fetched, Range, ahead
from ingestion.sources.kafka.records import KEPT_SCHEMA, kept
from ingestion.sources.kafka.shape import Shape
from ingestion.sources.kafka.told_columns import ToldColumns
from ingestion.sources.kafka.values import Values
from lakehouse.errors import LakehouseError

SKEW = timedelta(seconds=5)  # by which clocks may differ, and nobody is told
EVENTS = 100_000  # that a task of their own pays for, and data files of their own
READING = {
    "group.id": "lakehouse",  # the client wants one; no offset is ever stored for it
    "enable.auto.commit": False,
    "isolation.level": "read_committed",
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
    "fetch.wait.max.ms": 100,
    "fetch.queue.backoff.ms": 10,  # a queue that was full is empty long before the second that is the default
    "queued.max.messages.kbytes": 65536,
    "receive.message.max.bytes": (1 << 31) - 1,  # a single message may be larger than what is asked for at a time
}


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

    @property
    def relations(self) -> frozenset[int] | None:
        """Not known before it is read."""
        return None

    def parts(self) -> "Sequence[TopicReader]":
        """One for every `EVENTS` of them, of whole partitions: their order is that of a key's events."""
        return [replace(self, ranges=ranges) for ranges in spread(self.ranges)] or [self]

    def read(self, keys: Keys, landing: Landing, imaged: frozenset[int], take: Callable[[Piece], None]) -> Noticed:
        """Gives the events in pieces, each of one topic; raises LakehouseError for what cannot be read."""
        told, ahead = ToldColumns(), set[str]()
        if self.ranges:
            places = {(r.topic, r.partition): r.place - r.first for r in self.ranges}
            for topic, events in self.fetched():
                if _is_ahead(events, self.at + SKEW):
                    ahead.add(topic)
                events = _come_by(events, self.at)
                for piece in _pieces(self, self.shapes[topic], events, places, landing, told):
                    take(piece)
        begun = {r.topic for r in self.ranges if not r.first}
        return Noticed(warnings=(*told.warnings(begun), *map(_says_ahead, sorted(ahead))))

    def fetched(self) -> Iterator[Fetched]:
        """All events of the ranges, a batch of one topic at a time."""
        try:
            consumer = Consumer(dict(self.properties) | READING, logger=log)
        except KafkaException as error:
            raise self.failed(error.args[0]) from None
        try:
            fetch = Fetch(self.source, consumer, self.ranges, self.at, self.batch_bytes, self.failed)
            yield from ahead(fetch.events())
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
        return refused(self.source, self.properties, error)


def _is_ahead(events: pa.Table, of: datetime) -> bool:
    latest = pc.max(events.column("at")).as_py()
    return latest is not None and latest > of


def _come_by(events: pa.Table, at: datetime) -> pa.Table:
    """Events, none of which came later than `at`, when they were there to be read: one that says so would be the newest
    version of its key until then, whatever comes later."""
    if not _is_ahead(events, at):
        return events
    given, now = events.column("at"), pa.scalar(at, events.schema.field("at").type)
    came = pc.if_else(pc.greater(given, now), now, given)
    return events.set_column(events.schema.get_field_index("at"), events.schema.field("at"), came)


def _says_ahead(topic: str) -> str:
    return (
        f"topic {topic}: events have timestamps that were still to come when they were read, and land with the time of "
        "the read: set the clock of who writes them right"
    )


def spread(ranges: Sequence[Range]) -> list[tuple[Range, ...]]:
    """Ranges as those of several tasks, each of about as many events, in the order they were given."""
    count = min(len(ranges), -(-sum(r.end - r.first for r in ranges) // EVENTS))
    found: list[list[Range]] = [[] for _ in range(count)]
    for of in sorted(ranges, key=lambda r: r.first - r.end):
        min(found, key=lambda part: sum(r.end - r.first for r in part)).append(of)
    return [tuple(sorted(part, key=ranges.index)) for part in found]


def _pieces(
    reader: TopicReader, shape: Shape, events: pa.Table, places: Mapping[Partition, int], landing: Landing,
    told: ToldColumns,
) -> Iterator[Piece]:  # fmt: skip
    """The events that could be read as pieces, the others as others."""
    lsn = reader.commit_lsn
    if shape.oid not in landing():
        yield Piece([], partial(_records, shape, events, lsn, _places(shape, events, places)))
        return
    for part, decoded in decode_in_parts(shape, events, reader.formats[shape.format]):
        told.note(shape, part, decoded)
        at = _places(shape, part, places)
        yield from _landed(shape, part, decoded, lsn, at)


def _landed(shape: Shape, events: pa.Table, decoded: Decoded, lsn: int, at: np.ndarray) -> Iterator[Piece]:
    if decoded.indices:
        good, at_good = (events.take(decoded.indices), at[decoded.indices]) if decoded.unread else (events, at)
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

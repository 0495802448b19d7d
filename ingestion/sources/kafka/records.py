"""Events that are kept as bytes: a line that says where they were, then the value as the topic had it."""

import json
from base64 import b64decode, b64encode
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from ingestion.schema.changes import PICKED_SCHEMA, Batch, Relation
from ingestion.sources.base import Keys, UnreadableRecord
from ingestion.sources.kafka.events import EVENTS_SCHEMA, batch_of, decode
from ingestion.sources.kafka.shape import Shape, decoded

KEPT_SCHEMA = pa.schema([
    *PICKED_SCHEMA, pa.field("topic", pa.string()), pa.field("partition", pa.int32()), pa.field("offset", pa.int64()),
])  # fmt: skip


def kept(shape: Shape, events: pa.Table, commit_lsn: int, places: list[int]) -> pa.Table:
    """Events as records; `places` are their numbers within the publish."""
    rows = events.num_rows
    columns = {
        "commit_lsn": pa.repeat(pa.scalar(commit_lsn, pa.int64()), rows),
        "place": pa.array(places, pa.int64()),
        "committed_at": events.column("at"),
        "oid": pa.repeat(pa.scalar(shape.oid, pa.int64()), rows),
        "relation": pa.repeat(pa.scalar(shape.encoded, pa.binary()), rows),
        "message": pa.array([_message(event) for event in events.to_pylist()], pa.binary()),
        "topic": pa.repeat(shape.topic, rows),
        "partition": events.column("partition"),
        "offset": events.column("offset"),
    }
    return pa.table([columns.get(item.name, pa.nulls(rows, item.type)) for item in KEPT_SCHEMA], schema=KEPT_SCHEMA)


@dataclass(frozen=True)
class EventRecords:
    """The base's `Records`. `shapes` are those of today, by number: an event that was kept is read by them."""

    shapes: Mapping[int, Shape] = field(default_factory=dict)

    def relation(self, encoded: bytes) -> Relation:
        """The relation of kept events."""
        return decoded(encoded).relation

    def without(self, record: bytes, columns: list[str], gone: Collection[str]) -> bytes:
        """An event without the fields `gone`; of a value that cannot be read nothing is left, nor of the key."""
        head, _, value = record.partition(b"\n")
        told = json.loads(head) | {"key": None}
        try:
            fields = json.loads(value)
            left = {name: part for name, part in fields.items() if name not in gone}
        except (ValueError, RecursionError, AttributeError):
            left = {}
        return json.dumps(told).encode() + b"\n" + json.dumps(left).encode()

    def decode(self, relation: bytes, records: pa.Table, keys: Keys, imaged: Collection[int]) -> Iterator[Batch]:
        """Kept events as rows, each at its own place; raises UnreadableRecord."""
        kept_as = decoded(relation)
        shape = self.shapes.get(kept_as.oid, kept_as)
        table, broken = _events(records.column("message").to_pylist())
        found = decode(shape, table)
        if found.unread:
            first = min(found.unread)
            raise UnreadableRecord(first, found.unread[first])
        if broken is not None:
            raise broken
        meta = {
            "_commit_lsn": records.column("commit_lsn"),
            "_seq": records.column("seq"),
            "_committed_at": records.column("committed_at"),
            "_topic": pa.repeat(shape.topic, table.num_rows),
            "_topic_partition": table.column("partition"),
            "_offset": table.column("offset"),
        }
        return iter([batch_of(shape, found, meta)])


def _message(event: dict[str, object]) -> bytes:
    key, value = event["key"], event["value"]
    assert isinstance(key, bytes | None) and isinstance(value, bytes | None)
    told = {
        "partition": event["partition"],
        "offset": event["offset"],
        "key": None if key is None else b64encode(key).decode(),
        "is_empty": value is None,
    }
    return json.dumps(told).encode() + b"\n" + (value or b"")


def _events(messages: list[bytes]) -> tuple[pa.Table, UnreadableRecord | None]:
    """Kept events up to the first that is none."""
    found = []
    for index, message in enumerate(messages):
        try:
            found.append(_event(index, message))
        except UnreadableRecord as broken:
            return pa.Table.from_pylist(found, schema=EVENTS_SCHEMA), broken
    return pa.Table.from_pylist(found, schema=EVENTS_SCHEMA), None


def _event(index: int, message: bytes) -> dict[str, object]:
    head, _, value = message.partition(b"\n")
    try:
        told = json.loads(head)
        key = None if told["key"] is None else b64decode(told["key"])
        event = {"partition": told["partition"], "offset": told["offset"], "key": key}
        return event | {"value": None if told["is_empty"] else value}
    except (ValueError, TypeError, KeyError):
        raise UnreadableRecord(index, "it is no kept event") from None

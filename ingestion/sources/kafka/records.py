"""Events that are kept as bytes: a line that says where they were, then the value as the topic had it."""

import json
from base64 import b64decode, b64encode
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from ingestion.schema.changes import PICKED_SCHEMA, Batch, Relation
from ingestion.sources.base import Keys, UnreadableRecord
from ingestion.sources.kafka.events import EVENTS_SCHEMA, batch_of, decode, deleted
from ingestion.sources.kafka.json_values import JsonValues
from ingestion.sources.kafka.shape import Shape, decoded
from ingestion.sources.kafka.values import Row, Unread, Values, text
from lakehouse.errors import LakehouseError

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
        "message": pa.array([_message(event, shape.format) for event in events.to_pylist()], pa.binary()),
        "topic": pa.repeat(shape.topic, rows),
        "partition": events.column("partition"),
        "offset": events.column("offset"),
    }
    return pa.table([columns.get(item.name, pa.nulls(rows, item.type)) for item in KEPT_SCHEMA], schema=KEPT_SCHEMA)


@dataclass(frozen=True)
class EventRecords:
    """The base's `Records`. `shapes` are those of today, by number: an event that was kept is read by them."""

    shapes: Mapping[int, Shape] = field(default_factory=dict)
    formats: Mapping[str, Values] = field(default_factory=lambda: {"json": JsonValues()})

    def relation(self, encoded: bytes) -> Relation:
        """The relation of kept events."""
        return decoded(encoded).relation

    def without(self, record: bytes, relation: bytes, gone: Collection[str]) -> bytes:
        """An event without the fields `gone`, as JSON; of one that cannot be read the reason alone is left. Of the key
        the declared columns are left where there is no value, which is what such an event tells."""
        head, _, value = record.partition(b"\n")
        told = json.loads(head)
        if "unread" in told:
            return record
        values = self._values(told.get("format", "json"))
        key, left = told["key"], ""
        told |= {"key": None, "format": "json"}
        try:
            if told["is_empty"]:
                told["key"] = _key_of(decoded(relation), key, gone, values)
            else:
                left = text({name: part for name, part in values.row(value).items() if name not in gone})
        except (Unread, RecursionError) as reason:
            told["unread"] = gone_since(reason)
        return json.dumps(told).encode() + b"\n" + left.encode()

    def told(self, record: bytes, shape: Shape) -> tuple[Row, bool]:
        """What an event tells, by name, and whether it has no value: then that is its key's columns, or what stands in
        its key where the shape has none. Raises UnreadableRecord, Unread, and LakehouseError as `Values` do."""
        event, form = _event(0, record)
        key, value, values = event["key"], event["value"], self._values(form)
        assert isinstance(key, bytes | None) and isinstance(value, bytes | None)
        if value is not None:
            return values.row(value), False
        if shape.key:
            return deleted(shape, key, values), True
        found = values.key(key) if key else None
        return found if isinstance(found, dict) else {}, True

    def decode(self, relation: bytes, records: pa.Table, keys: Keys, imaged: Collection[int]) -> Iterator[Batch]:
        """Kept events as rows, each at its own place; raises UnreadableRecord."""
        kept_as = decoded(relation)
        shape = self.shapes.get(kept_as.oid, kept_as)
        table, formats, broken = _events(records.column("message").to_pylist())
        batches, unread = [], dict[int, str]()
        for name in sorted(set(formats)):
            rows = [index for index, other in enumerate(formats) if other == name]
            found = decode(shape, table.take(rows), self._values(name))
            unread |= {rows[index]: reason for index, reason in found.unread.items()}
            if not unread:
                batches.append(batch_of(shape, found, _meta(shape, records.take(rows), table.take(rows))))
        if unread:
            raise UnreadableRecord(min(unread), unread[min(unread)])
        if broken is not None:
            raise broken
        return iter(batches)

    def _values(self, name: str) -> Values:
        if name not in self.formats:
            raise LakehouseError(f"kept events are {name}: set the SCHEMA_REGISTRY__URL of their source")
        return self.formats[name]


def gone_since(reason: Exception) -> str:
    """Why a kept event has no value any more which could not be read."""
    says = str(reason) if isinstance(reason, Unread) else "the value is nested too deeply"
    return f"{says}; nothing of it is kept, since columns of its table are excluded or masked"


def _key_of(shape: Shape, key: str | None, gone: Collection[str], values: Values) -> str:
    if lost := [name for name in shape.key if name in gone]:
        raise Unread(f"the event has no value, and its key has {', '.join(lost)}")
    row = deleted(shape, None if key is None else b64decode(key), values)
    return b64encode(text(row).encode()).decode()


def _meta(shape: Shape, records: pa.Table, events: pa.Table) -> dict[str, pa.Array | pa.ChunkedArray]:
    return {
        "_commit_lsn": records.column("commit_lsn"),
        "_seq": records.column("seq"),
        "_committed_at": records.column("committed_at"),
        "_topic": pa.repeat(shape.topic, events.num_rows),
        "_topic_partition": events.column("partition"),
        "_offset": events.column("offset"),
    }


def _message(event: dict[str, object], form: str) -> bytes:
    key, value = event["key"], event["value"]
    assert isinstance(key, bytes | None) and isinstance(value, bytes | None)
    told = {
        "partition": event["partition"],
        "offset": event["offset"],
        "key": None if key is None else b64encode(key).decode(),
        "is_empty": value is None,
        "format": form,
    }
    return json.dumps(told).encode() + b"\n" + (value or b"")


def _events(messages: list[bytes]) -> tuple[pa.Table, list[str], UnreadableRecord | None]:
    """Kept events up to the first that is none, with their formats: what releases kept that knew one alone is JSON."""
    found, formats, broken = [], [], None
    for index, message in enumerate(messages):
        try:
            event, form = _event(index, message)
        except UnreadableRecord as problem:
            broken = problem
            break
        found.append(event)
        formats.append(form)
    return pa.Table.from_pylist(found, schema=EVENTS_SCHEMA), formats, broken


def _event(index: int, message: bytes) -> tuple[dict[str, object], str]:
    head, _, value = message.partition(b"\n")
    try:
        told = json.loads(head)
        key = None if told["key"] is None else b64decode(told["key"])
        event = {"partition": told["partition"], "offset": told["offset"], "key": key}
        event |= {"value": None if told["is_empty"] else value}
    except (ValueError, TypeError, KeyError):
        raise UnreadableRecord(index, "it is no kept event") from None
    if "unread" in told:
        raise UnreadableRecord(index, told["unread"])
    return event, told.get("format", "json")

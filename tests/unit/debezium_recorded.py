"""What Debezium 3.7.0 wrote for a few statements (Postgres 18, Kafka Connect 4.1, exactly once), read as a task does.

`plain` is JSON without schemas in the connector's default modes, `schemas` the same with schemas, `text` has decimals
and moments as text and `hex:ff00ff` for values that an update did not carry.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from ingestion.schema.transaction_offsets import TransactionOffsets
from ingestion.sources.base import Noticed, Piece
from ingestion.sources.debezium.reading import EnvelopeReader
from ingestion.sources.debezium.shape import Shape, facts_of, modes_of, shape_of
from ingestion.sources.kafka.events import EVENTS_SCHEMA
from ingestion.sources.kafka.reading import Range
from ingestion.sources.kafka.registry import SchemaRegistry
from lakehouse.declarations import Column, RawTable
from lakehouse.declarations.policies import LoadPolicy, RawPolicy
from lakehouse.settings import DebeziumSettings

FIXTURES = Path(__file__).parent / "fixtures" / "debezium"
ITEMS = {"id": "bigint", "name": "text", "price": "numeric(10,2)", "big": "text"}
PAIRS = {"a": "integer", "b": "text", "note": "text"}
Message = dict[str, Any]


def settings(**given: Any) -> DebeziumSettings:
    """Of a source whose delivery is exactly once."""
    of = {"bootstrap_servers": "a:9092", "transactions": "transaction", "delivery": "exactly_once"}
    modes = {"decimals": "precise", "times": "adaptive", "binary": "bytes"}
    return DebeziumSettings(kind="debezium", **(of | modes | given))


def table(name: str, columns: Mapping[str, str], key: tuple[str, ...] = ("id",), **policy: Any) -> RawTable:
    """A declared table of a recorded topic."""
    return RawTable(
        source="shop", name=name, description="", kind="debezium", owners=(), load=LoadPolicy(), maintenance=None,
        raw=RawPolicy(**({"topic": f"public.{name}", "key": key} | policy)),
        columns=tuple(Column(name=n, data_type=kind, description="") for n, kind in columns.items()),
    )  # fmt: skip


def recorded(name: str) -> list[Message]:
    """The messages of a recording."""
    return [json.loads(line) for line in (FIXTURES / f"{name}.jsonl").read_text().splitlines()]


def untold(messages: list[Message]) -> list[Message]:
    """What a connector without provide.transaction.metadata had written."""
    found = []
    for message in messages:
        if message["topic"] != "transaction" and message["value"] is not None:
            message = message | {"value": json.dumps(json.loads(message["value"]) | {"transaction": None})}
        found.append(message)
    return [message for message in found if message["topic"] != "transaction"]


@dataclass(frozen=True)
class RecordedReader(EnvelopeReader):
    """Reads messages that were recorded."""

    recording: Sequence[Message] = field(default=())

    def messages(self, ranges: Sequence[Range]) -> Iterator[tuple[str, pa.Table]]:
        for of in ranges:
            rows = [
                {
                    "partition": m["partition"], "offset": m["offset"],
                    "at": datetime.fromtimestamp(m["at"] / 1000, UTC), "key": _bytes(m["key"]),
                    "value": _bytes(m["value"]),
                }
                for m in self.recording
                if m["topic"] == of.topic and m["partition"] == of.partition and of.first <= m["offset"] < of.end
            ]  # fmt: skip
            yield of.topic, pa.Table.from_pylist(rows, schema=EVENTS_SCHEMA)


def _earliest(messages: Sequence[Message]) -> int:
    return min((m["offset"] for m in messages if m["topic"] == "transaction"), default=0)


def _bytes(given: str | bytes | None) -> bytes | None:
    return given.encode("utf-8", "surrogatepass") if isinstance(given, str) else given


@dataclass
class Read:
    """What a read gave: rows by table in their order, dead letters, parked tables, and what it noticed."""

    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    unread: dict[str, list[str]] = field(default_factory=dict)
    parked: dict[str, str] = field(default_factory=dict)
    kept: list[tuple[Piece, pa.Table]] = field(default_factory=list)  # the records of each piece
    noticed: Noticed = field(default_factory=Noticed)

    @property
    def position(self) -> Any:
        assert self.noticed.reached is not None
        return self.noticed.reached.position


def shape(of: RawTable, given: DebeziumSettings) -> Shape:
    """The shape of a table, whose topic has a number of its own."""
    return shape_of(facts_of(of, sum(map(ord, of.name)), given), modes_of(given))


def read(
    messages: Sequence[Message], *tables: RawTable, given: DebeziumSettings | None = None,
    before: TransactionOffsets | None = None, ends: Mapping[str, int] | None = None, now: datetime | None = None,
    registry: SchemaRegistry | None = None, paused: Collection[str] = (), **more: Any,
) -> Read:  # fmt: skip
    """Reads recorded messages, up to `ends` by topic. The records of tables that are `paused` are kept alone. `more` is
    of the reader."""
    given, before = given or settings(), before or TransactionOffsets()
    shapes = {t.raw.topic: shape(t, given) for t in tables}
    partitions = sorted({(m["topic"], m["partition"]) for m in messages if m["topic"] in {*shapes, "transaction"}})
    ranges, place = [], 0
    for topic, number in partitions:
        last = max(m["offset"] for m in messages if (m["topic"], m["partition"]) == (topic, number)) + 1
        end = min(last, (ends or {}).get(topic, last))
        first = before.by_partition.get((topic, number), 0)
        ranges.append(Range(topic, number, first, max(first, end), place))
        place += max(first, end) - first
    told = next((r for r in ranges if r.topic == "transaction"), Range("transaction", 0, 0, 0, 0))
    newest = max(datetime.fromtimestamp(m["at"] / 1000, UTC) for m in messages)
    wide = frozenset(t for t in shapes if sum(name == t for name, _ in partitions) > 1)
    reader = RecordedReader(
        source="shop", properties={}, histories={}, shapes=shapes,
        ranges=tuple(r for r in ranges if r.topic in shapes and (r.first < r.end or r.topic in wide)),
        is_told=any(m["topic"] == "transaction" for m in messages),
        told=replace(told, place=_earliest(messages)) if given.transactions else None, before=before,
        wide=wide, is_whole=True,
        now=now or newest,
        exactly_once=given.delivery == "exactly_once", batch_bytes=1 << 20, recording=messages,
        registry=registry, **more,
    )  # fmt: skip
    found, names = Read(), {s.oid: topic.split(".")[-1] for topic, s in shapes.items()}
    landing = {oid for oid, name in names.items() if name not in paused}

    def take(piece: Piece) -> None:
        found.kept.append((piece, piece.records(frozenset(names))))
        for oid, reason in piece.parks.items():
            found.parked[names[oid]] = reason
            landing.discard(oid)
        if piece.unread is not None:
            for record in found.kept[-1][1].to_pylist():
                reason = piece.unread[record["commit_lsn"], record["place"]]
                said = f"{record['partition']}/{record['offset']}: {reason}"
                found.unread.setdefault(names[record["oid"]], []).append(said)
        for batch in piece.batches:
            rows = [v | m for v, m in zip(batch.values.to_pylist(), batch.meta.to_pylist(), strict=True)]
            found.rows.setdefault(names[batch.relation.oid], []).extend(rows)

    found.noticed = reader.read({}, lambda: frozenset(landing), frozenset(), take)
    for rows in found.rows.values():
        rows.sort(key=lambda row: (row["_commit_lsn"], row["_seq"]))
    return found

"""Envelopes in Avro: what lands is what the same envelopes land as JSON with schemas."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random as Chance
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from debezium_avro import in_avro
from debezium_recorded import Message, read, settings, table

from ingestion.sources.base import UnreadableRecord
from ingestion.sources.debezium.message.avro import AvroOpener, as_json
from ingestion.sources.debezium.message.avro_schema import double_text, single_text
from ingestion.sources.debezium.message.opened import JsonOpener
from ingestion.sources.debezium.records import EnvelopeRecords
from ingestion.sources.kafka import registry as module
from ingestion.sources.kafka.registry import SchemaRegistry
from ingestion.tasks.replay import _replay_relation
from lakehouse.errors import LakehouseError
from tests.marks import seeds
from tests.registry import Registry, keeping, running_registry
from tests.unit.test_debezium_at_once import LATE, SCHEMAS, Topic, columns_by, declared, landed, one_by_one, schema_of


@pytest.fixture
def registry() -> Iterator[Registry]:
    module._known.clear()
    module._unknown.clear()
    with running_registry() as running:
        yield running


@pytest.fixture
def client(registry: Registry, tmp_path: Path) -> SchemaRegistry:
    return SchemaRegistry("shop", registry.url, None, None, None, keeping(tmp_path, "shop"))


def unread(found: Any) -> dict[str, list[str]]:
    return {name: sorted(reasons) for name, reasons in found.unread.items()}


@pytest.mark.parametrize("seed", seeds(12, 1))
def test_what_lands_is_what_json_with_schemas_lands(
    monkeypatch: pytest.MonkeyPatch, registry: Registry, client: SchemaRegistry, seed: int
) -> None:
    """At once, one by one, across schemas that change, beside what was JSON before, and as it is kept aside."""
    chance = Chance(seed)
    columns, key = columns_by(chance, [kind for kind in SCHEMAS if kind != "bigint"])
    topic = Topic(chance, columns, key, told=seed % 4 > 0, strange=chance.choice((0.0, 0.0, 0.1)))
    topic.schema = schema_of(columns)
    for xid in range(700, 750):
        if xid % 17 == 3:
            chosen = {name: k for name, k in columns.items() if name in key or xid < 740 or chance.random() < 0.8}
            topic.schema = schema_of(chosen)
        topic.transact(xid)
    given = settings() if seed % 4 else settings().model_copy(update={"transactions": None})
    avro = [in_avro(registry, message) for message in topic.messages]
    was = [message["value"] for message in topic.messages if message["value"]]
    assert sum(isinstance(message["value"], bytes) for message in avro) > len(was) * 0.8
    in_json, of = (table("a", declared(columns), key, format=form) for form in ("json", "avro"))
    expected = attempt(topic.messages, in_json, given)
    singly = one_by_one(monkeypatch, avro, of, given=given, now=LATE, registry=client)
    fast = attempt(avro, of, given, client)
    for found in (singly, fast):
        if isinstance(expected, str) or isinstance(found, str):
            assert found == expected
            continue
        assert found.parked == expected.parked and found.position == expected.position
        assert set(found.noticed.warnings) == set(expected.noticed.warnings)
        if not expected.parked:
            assert landed(found, of, given) == landed(expected, in_json, given)
            assert unread(found) == unread(expected)
            assert kept(found) == kept(expected)
            assert all(message.count(b'"format"') == 0 for message in messages_of(found))


def attempt(messages: list[Message], of: Any, given: Any, client: SchemaRegistry | None = None) -> Any:
    try:
        return read(messages, of, given=given, now=LATE, registry=client)
    except LakehouseError as refused:
        return str(refused)


def messages_of(found: Any) -> list[bytes]:
    return [record["message"] for _, table in found.kept for record in table.to_pylist()]


def kept(found: Any) -> list[str]:
    """What becomes of the records that were kept aside, without a registry."""
    said = []
    for record in (record for _, rows in found.kept for record in rows.to_pylist()):
        place = record["offset"], record["commit_lsn"], record["place"]
        try:
            made = list(EnvelopeRecords().decode(record["relation"], records_of(record), {}, ()))
            rows = [
                {name: repr(value) for name, value in (values | meta).items()}
                for batch in made
                for values, meta in zip(batch.values.to_pylist(), batch.meta.to_pylist(), strict=True)
            ]
        except (UnreadableRecord, LakehouseError) as reason:
            rows = [{"reason": str(reason)}]
        said.append(f"{place} {rows}")
    return sorted(said)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.0, "0.0"), (-0.0, "-0.0"), (1.0, "1.0"), (0.001, "0.001"), (1e7, "1.0E7"), (1234567.5, "1234567.5"),
        (9999999.0, "9999999.0"), (1e10, "1.0E10"), (1.5e-5, "1.5E-5"), (-2.25e300, "-2.25E300"),
        (12345678.9, "1.23456789E7"), (0.00099, "9.9E-4"), (1e22, "1.0E22"),
        (12345678901234568.0, "1.2345678901234568E16"),
        (float("nan"), "NaN"), (float("-inf"), "-Infinity"),
    ],
)  # fmt: skip
def test_a_number_is_written_as_connects_json_has_it(number: float, text: str) -> None:
    assert double_text(number) == text


def test_a_number_of_32_bits_is_the_shortest_that_reads_back() -> None:
    assert [single_text(n) for n in (0.10000000149011612, 1.100000023841858, 3.4028234663852886e38)] == [
        "0.1", "1.1", "3.4028235E38",
    ]  # fmt: skip


def test_poison_is_kept_as_it_is_and_lands_once_its_schema_is_there(registry: Registry, client: SchemaRegistry) -> None:
    columns = {"id": "bigint", "t": "text"}
    topic = Topic(Chance(1), columns, ("id",), told=False, strange=0.0)
    topic.schema = schema_of(columns)
    for xid in range(700, 706):
        topic.transact(xid)
    given = settings().model_copy(update={"transactions": None})
    messages = [in_avro(registry, message) for message in topic.messages]
    events = [n for n, message in enumerate(messages) if isinstance(message["value"], bytes)]
    lost = messages[events[0]]
    lost["value"] = b"\0" + (77).to_bytes(4, "big") + lost["value"][5:]
    messages[events[1]]["value"] += b"x"
    messages[events[2]]["value"] = messages[events[2]]["value"][:-1]
    messages[events[3]]["value"] = b"\0\0"
    of = table("a", columns, format="avro")
    found = read(messages, of, given=given, now=LATE, registry=client)
    assert len(found.unread["a"]) == 4 and "schema 77 is not in the registry" in found.unread["a"][0]
    assert len(landed(found, of, given)) == len(events) - 4
    [record] = aside_with(found, b"\n\0" + (77).to_bytes(4, "big"))
    aside = EnvelopeRecords(registry=client)
    one = records_of(record)
    with pytest.raises(UnreadableRecord, match="schema 77 is not in the registry"):
        list(aside.decode(record["relation"], one, {}, ()))
    with pytest.raises(LakehouseError, match="SCHEMA_REGISTRY__URL"):
        list(EnvelopeRecords().decode(record["relation"], one, {}, ()))
    registry.register(77, registry.schemas[1]["schema"])
    module._unknown.clear()
    [batch] = aside.decode(record["relation"], one, {}, ())
    assert batch.meta.column("_offset").to_pylist() == [lost["offset"]]
    nothing = aside.without(record["message"], record["relation"], {"t"})
    assert nothing.endswith(b"\n"), "of what cannot be read nothing is left"
    with pytest.raises(UnreadableRecord, match="could not be read by a schema of the registry; nothing of it is kept"):
        list(aside.decode(record["relation"], records_of(record | {"message": nothing}), {}, ()))


def test_what_lands_once_its_schema_is_there_stands_where_it_was_sent(
    registry: Registry, client: SchemaRegistry
) -> None:
    """It stood behind all of its transaction: of a row that the transaction changed again the older version won."""
    columns = {"id": "bigint", "t": "text"}
    topic = Topic(Chance(3), columns, ("id",), told=True, strange=0.0)
    topic.schema = schema_of(columns)
    for xid in range(700, 720):
        topic.transact(xid)
    in_json, of = (table("a", columns, format=form) for form in ("json", "avro"))
    expected = read(topic.messages, in_json, now=LATE).rows["a"]
    messages = [in_avro(registry, message) for message in topic.messages]
    sizes = Counter(row["_commit_lsn"] for row in expected)
    row = next(r for r in expected if r["_seq"] == 4 and r["_op"] != "d" and sizes[r["_commit_lsn"]] > 3)
    [message] = [m for m in messages if m["topic"] == of.raw.topic and m["offset"] == row["_offset"]]
    number = message["value"][1:5]
    message["value"] = b"\0" + (77).to_bytes(4, "big") + message["value"][5:]
    found = read(messages, of, now=LATE, registry=client)
    [record] = aside_with(found, b"\n\0" + (77).to_bytes(4, "big"))
    assert len(found.unread["a"]) == 1 and len(found.rows["a"]) == len(expected) - 1
    registry.register(77, registry.schemas[int.from_bytes(number, "big")]["schema"])
    module._unknown.clear()

    def places(message: bytes) -> list[tuple[int, int]]:
        one = records_of(record | {"message": message})
        batches = EnvelopeRecords(registry=client).decode(record["relation"], one, {}, ())
        return [(r["_commit_lsn"], r["_seq"]) for batch in batches for r in batch.meta.to_pylist()]

    assert places(record["message"]) == [(row["_commit_lsn"], row["_seq"])]
    head, _, value = record["message"].partition(b"\n")
    told = json.loads(head)
    as_kept = [(row["_commit_lsn"], 2 * record["place"])]
    assert places(json.dumps(told | {"counted_in": 1}).encode() + b"\n" + value) == as_kept, "of another transaction"
    del told["counted_in"]
    assert places(json.dumps(told).encode() + b"\n" + value) == as_kept, "as it was kept before"

    kept: list[dict[Any, str]] = []
    plan: Any = SimpleNamespace(
        records=EnvelopeRecords(registry=client),
        target=SimpleNamespace(oids=frozenset([record["oid"]]), key=("id",), shares_keys=False),
    )
    lanes: Any = SimpleNamespace(
        aside=(), key_in=lambda relation: ("id",), imaged=frozenset(),
        keep=lambda where, picked, reasons: kept.append(dict(reasons)),
        land=lambda batches: {"a": {(row["_commit_lsn"], row["_seq"] // 2): "a value that does not land"}},
    )  # fmt: skip
    columns_kept = ("xid", "committed_at", "relation", "topic", "partition", "offset")
    stored = pa.table({name: [record[name]] for name in columns_kept})
    for name in ("message", "commit_lsn", "seq"):
        stored = stored.append_column(name, records_of(record).column(name))
    _replay_relation(plan, lanes, record["relation"], stored)
    assert kept == [{(row["_commit_lsn"], record["place"]): "a value that does not land"}], "it is kept again"


def aside_with(found: Any, part: bytes) -> list[dict[str, Any]]:
    """The records kept aside whose message has this part."""
    return [row for piece, rows in found.kept if piece.unread for row in rows.to_pylist() if part in row["message"]]


def records_of(record: dict[str, Any]) -> Any:
    return pa.table({
        "message": [record["message"]], "commit_lsn": [record["commit_lsn"]], "seq": [2 * record["place"]],
    })  # fmt: skip


def test_a_registry_that_is_down_stops_the_read_and_is_no_poison(registry: Registry, client: SchemaRegistry) -> None:
    topic = Topic(Chance(1), {"id": "bigint"}, ("id",), told=True, strange=0.0)
    topic.schema = schema_of({"id": "bigint"})
    topic.transact(700)
    messages, of = (
        [in_avro(registry, message) for message in topic.messages],
        table("a", {"id": "bigint"}, format="avro"),
    )
    registry.status = 503
    with pytest.raises(LakehouseError, match=r"schema registry at .* fails \(503\)"):
        read(messages, of, now=LATE, registry=client)
    registry.status = None
    known = read(messages, of, now=LATE, registry=client)
    registry.status = 503
    module._known.clear()
    assert read(messages, of, now=LATE, registry=client).rows == known.rows, "the warehouse keeps what was seen"


def test_a_message_is_the_same_as_json_with_its_schema(registry: Registry, client: SchemaRegistry) -> None:
    columns = {f"c{n}": kind for n, kind in enumerate(SCHEMAS)}
    topic = Topic(Chance(5), columns, (), told=False, strange=0.0)
    topic.schema, opener = schema_of(columns), AvroOpener(client)
    for xid in range(700, 730):
        topic.transact(xid)
    compared = 0
    for message in topic.messages:
        value = in_avro(registry, message)["value"]
        if isinstance(value, bytes):
            compared += 1
            opened, again = opener.open(value), JsonOpener().open(as_json(opener.open(value)))
            assert (again.fields, again.types) == (opened.fields, opened.types)
            assert opened.types == JsonOpener().open(message["value"].encode()).types
            assert json.loads(message["value"])["payload"]["op"] == opened.fields["op"]
    assert compared > 50


def test_what_no_converter_told_of_types_is_not_guessed(registry: Registry, client: SchemaRegistry) -> None:
    """`connect.meta.data=false` leaves a count of microseconds that is a plain number."""
    columns = {"id": "bigint", "ts": "timestamp", "n": "numeric(12,2)"}
    topic = Topic(Chance(1), columns, ("id",), told=False, strange=0.0)
    topic.schema = schema_of(columns)
    topic.transact(700)
    messages = [in_avro(registry, message) for message in topic.messages]
    for known in registry.schemas.values():
        known["schema"] = json.dumps(json.loads(known["schema"]), default=str).replace('"connect.name"', '"other"')
    given = settings().model_copy(update={"transactions": None})
    found = read(messages, table("a", columns, format="avro"), given=given, now=LATE, registry=client)
    assert "values of type int64 came in a column that is declared as timestamp" in found.parked["a"]
    fitting = {name: kind for name, kind in columns.items() if name != "ts"}
    found = read(messages, table("a", fitting, format="avro"), given=given, now=LATE, registry=client)
    assert not found.parked and found.rows["a"], "a decimal is told by Avro itself"

"""Events in Avro: exact by the schema of their writer; what the registry does not tell is never guessed."""

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, time
from decimal import Decimal
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from pydantic import ValidationError

from ingestion.schema.problem import TableProblem
from ingestion.sink.writer import pack, unpack
from ingestion.sources.base import UnreadableRecord
from ingestion.sources.kafka import registry as module
from ingestion.sources.kafka.avro_values import AvroValues
from ingestion.sources.kafka.events import Decoded, decode
from ingestion.sources.kafka.formats import check_format, formats_of
from ingestion.sources.kafka.json_values import JsonValues
from ingestion.sources.kafka.records import EventRecords, kept
from ingestion.sources.kafka.registry import SchemaRegistry
from ingestion.sources.kafka.shape import decoded, facts_of, shape_of
from lakehouse.declarations.policies import RawPolicy
from lakehouse.errors import LakehouseError
from lakehouse.servers.retry import Unreachable
from lakehouse.settings import RegistrySettings, Settings
from tests.registry import Registry, framed, keeping, record, running_registry
from tests.unit.test_kafka_columns import given
from tests.unit.test_kafka_events import events, table


@pytest.fixture(autouse=True)
def knows_nothing() -> Iterator[None]:
    forget()
    yield
    forget()


def forget() -> None:
    """As a process that begins anew."""
    module._known.clear()
    module._unknown.clear()


@pytest.fixture
def registry() -> Iterator[Registry]:
    with running_registry() as running:
        yield running


@pytest.fixture
def avro(registry: Registry, tmp_path: Path) -> AvroValues:
    return AvroValues(SchemaRegistry("web", registry.url, None, None, None, keeping(tmp_path, "web")))


def decoded_by(avro: AvroValues, columns: dict[str, str], *values: bytes | None, key: tuple[str, ...] = ()) -> Decoded:
    return decode(shape_of(facts_of(table(key=key, **columns), 1)), given(*values), avro)


def logical(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


AT = datetime(2026, 11, 24, 1, 2, 3, 456789, UTC)
NUMBER = Decimal("12345678901234567890123456.0123456789")
A_UUID = UUID("6f9619ff-8b86-d011-b42d-00cf4fc964ff")
LANDS = [
    ("int", 5, "integer", 5), ("long", 2**63 - 1, "bigint", 2**63 - 1), ("string", "ä", "text", "ä"),
    ("boolean", True, "boolean", True), ("double", 0.1, "double precision", 0.1), ("float", 0.5, "real", 0.5),
    ("bytes", b"\x00\xff", "bytea", b"\x00\xff"), (["null", "long"], None, "bigint", None),
    (["null", "long"], 7, "bigint", 7), (["string", "long", "null"], 7, "text", "7"),
    (logical("bytes", "decimal", precision=36, scale=10), NUMBER, "numeric(36,10)", NUMBER),
    ({"type": "fixed", "name": "f", "size": 8, "logicalType": "decimal", "precision": 18, "scale": 2},
     Decimal("-1.50"), "numeric(10,2)", Decimal("-1.50")),
    (logical("bytes", "decimal", precision=10, scale=2), Decimal("1.50"), "text", "1.50"),
    (logical("int", "date"), date(2026, 2, 28), "date", date(2026, 2, 28)),
    (logical("long", "timestamp-millis"), AT, "timestamptz", AT.replace(microsecond=456000)),
    (logical("long", "timestamp-micros"), AT, "timestamptz", AT),
    (logical("long", "local-timestamp-micros"), AT.replace(tzinfo=None), "timestamp", AT.replace(tzinfo=None)),
    (logical("long", "time-micros"), time(1, 2, 3, 4), "time", 3_723_000_004),
    (logical("string", "uuid"), A_UUID, "uuid", str(A_UUID)),
    ({"type": "enum", "name": "e", "symbols": ["NEW", "OLD"]}, "OLD", "text", "OLD"),
    ({"type": "array", "items": ["null", "double"]}, [1.5, None], "jsonb", "[1.5, null]"),
    ({"type": "map", "values": "long"}, {"ä": 1}, "jsonb", '{"ä": 1}'),
    (record("inner", d=logical("bytes", "decimal", precision=5, scale=2), on=logical("int", "date"), t="string"),
     {"d": Decimal("1.50"), "on": date(2026, 2, 28), "t": '"'}, "text", '{"d": 1.50, "on": "2026-02-28", "t": "\\""}'),
    ("double", float("inf"), "double precision", float("inf")), ("double", 1e300, "double precision", 1e300),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "datum", "declared", "lands"), LANDS, ids=lambda value: str(value)[:40])
def test_a_datum_lands_exactly(
    registry: Registry, avro: AvroValues, kind: Any, datum: Any, declared: str, lands: Any
) -> None:
    schema = record("event", v=kind)
    registry.register(7, schema)
    found = decoded_by(avro, {"v": declared}, framed(7, schema, {"v": datum}))
    assert not found.unread and found.values.to_pylist() == [{"v": lands}]


REFUSED = [
    ("double", 1.5, "bigint"), ("string", "x", "bigint"), ("long", 2**31, "integer"), ("long", 1, "boolean"),
    (logical("long", "timestamp-micros"), AT, "timestamp"), ("long", 1764000000, "timestamptz"),
    (logical("long", "local-timestamp-micros"), AT.replace(tzinfo=None), "timestamptz"),
    (logical("bytes", "decimal", precision=10, scale=3), Decimal("1.555"), "numeric(10,2)"),
    (logical("long", "timestamp-micros"), AT, "date"), ("string", "AAEC", "bytea"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "datum", "declared"), REFUSED, ids=lambda value: str(value)[:40])
def test_no_datum_is_cast_with_a_loss(
    registry: Registry, avro: AvroValues, kind: Any, datum: Any, declared: str
) -> None:
    schema = record("event", v=["null", kind])
    registry.register(7, schema)
    found = decoded_by(avro, {"v": declared}, framed(7, schema, {"v": None}), framed(7, schema, {"v": datum}))
    assert list(found.indices) == [0] and "column 'v'" in found.unread[1]


def test_a_decimal_with_more_digits_than_its_schema_says_keeps_them(registry: Registry, avro: AvroValues) -> None:
    """fastavro rounds it to the precision of the schema."""
    loose, strict = (record("event", v=logical("bytes", "decimal", precision=p, scale=2)) for p in (30, 4))
    registry.register(7, strict)
    found = decoded_by(avro, {"v": "numeric(20,2)"}, framed(7, loose, {"v": Decimal("123456789.12")}))
    assert found.values.to_pylist() == [{"v": Decimal("123456789.12")}]


def test_a_uuid_in_sixteen_bytes_is_one(registry: Registry, avro: AvroValues) -> None:
    plain = {"type": "fixed", "name": "u", "size": 16}
    registry.register(7, record("event", v=plain | {"logicalType": "uuid"}))
    found = decoded_by(avro, {"v": "uuid"}, framed(7, record("event", v=plain), {"v": A_UUID.bytes}))
    assert found.values.to_pylist() == [{"v": str(A_UUID)}]


def test_each_event_is_read_by_the_schema_of_its_writer(registry: Registry, avro: AvroValues) -> None:
    first, second = record("event", id="long"), record("event", agent="string", id="int", gone="bytes")
    registry.register(1, first)
    registry.register(2, second)
    values = (
        framed(1, first, {"id": 1}),
        framed(2, second, {"id": 2, "agent": "a", "gone": b""}),
        framed(1, first, {"id": 3}),
    )
    found = decoded_by(avro, {"id": "bigint", "agent": "text"}, *values)
    assert found.values.to_pylist() == [{"id": 1, "agent": None}, {"id": 2, "agent": "a"}, {"id": 3, "agent": None}]
    assert registry.asked == ["/schemas/ids/1", "/schemas/ids/2"], "each once"


def test_schemas_that_name_others_are_read_with_them(registry: Registry, avro: AvroValues) -> None:
    money, line = record("Money", cents="long"), record("Line", price="Money")
    registry.subjects["money", 3] = {"schema": json.dumps(money)}
    registry.subjects["line", 1] = {
        "schema": json.dumps(line), "references": [{"name": "Money", "subject": "money", "version": 3}],
    }  # fmt: skip
    refers = [{"name": "Line", "subject": "line", "version": 1}, {"name": "Money", "subject": "money", "version": 3}]
    registry.register(9, record("event", a="Line", b="Money"), references=refers)
    whole = record("event", a=record("Line", price=money), b="Money")
    value = framed(9, whole, {"a": {"price": {"cents": 5}}, "b": {"cents": 6}})
    found = decoded_by(avro, {"a": "jsonb", "b": "jsonb"}, value)
    assert found.values.to_pylist() == [{"a": '{"price": {"cents": 5}}', "b": '{"cents": 6}'}]


def test_an_unknown_schema_is_asked_for_once_whatever_the_number_of_its_events(
    registry: Registry, avro: AvroValues
) -> None:
    found = decoded_by(avro, {"id": "bigint"}, *[framed(5, "long", 1)] * 1000)
    assert len(found.unread) == 1000 and registry.asked == ["/schemas/ids/5"]


def test_poison_is_told_and_does_no_harm_to_the_others(registry: Registry, avro: AvroValues) -> None:
    schema = record("event", id="long", t="string", at=logical("long", "timestamp-micros"))
    registry.register(7, schema)
    registry.register(8, '{"type": "object"}', schemaType="JSON")
    registry.register(9, "{")
    registry.register(10, '"long"')
    at = datetime(2026, 1, 1, tzinfo=UTC)
    good = framed(7, schema, {"id": 1, "t": "x", "at": at})
    far = record("event", id="long", t="string", at="long")
    poison = {
        b"": "no schema id", b'{"id": 1}': "no schema id", b"\1" + good[1:]: "no schema id", good[:-1]: "schema 7",
        good + b"\0": "goes on", good[:5] + b"\xff" * 20: "schema 7", good[:5] + b"\x02\x04\xff\xfe\x00": "schema 7",
        b"\0\0\0\0\x63" + good[5:]: "schema 99 is not in the registry", b"\0\0\0\0\x08{}": "is JSON, not Avro",
        b"\0\0\0\0\x09x": "no schema of Avro", framed(10, "long", 5): "no record",
        framed(7, far, {"id": 1, "t": "x", "at": 2**62}): "schema 7",
    }  # fmt: skip
    for value, says in poison.items():
        found = decoded_by(avro, {"id": "bigint"}, good, value, good)
        assert list(found.indices) == [0, 2] and says in found.unread[1], value
    assert decoded_by(avro, {"id": "bigint"}, None).unread


@pytest.mark.parametrize("given_key", ["framed", "record", "text"])
def test_an_event_without_value_deletes_the_row_of_its_key(
    registry: Registry, avro: AvroValues, given_key: str
) -> None:
    registry.register(3, '"long"')
    registry.register(4, record("key", id="long"))
    as_record = framed(4, record("key", id="long"), {"id": 7})
    key = {"framed": framed(3, "long", 7), "record": as_record, "text": b"7"}[given_key]
    shape = shape_of(facts_of(table(key=("id",), id="bigint", v="text"), 1))
    found = decode(shape, events(None, keys=(key,)), avro)
    assert found.operations == ["d"] and found.values.to_pylist() == [{"id": 7, "v": None}]


def test_a_registry_that_is_down_stops_what_is_not_known_and_nothing_else(
    registry: Registry, avro: AvroValues, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = record("event", id="long")
    registry.register(7, schema)
    value = framed(7, schema, {"id": 1})
    registry.status = 503
    with pytest.raises(Unreachable, match="fails \\(503\\)"):
        decoded_by(avro, {"id": "bigint"}, value)
    registry.status = None
    decoded_by(avro, {"id": "bigint"}, value)
    monkeypatch.setattr(module, "AGAIN_SECONDS", 0.0)
    for forgets in (False, True):
        if forgets:
            forget()  # the warehouse has it
        registry.status = 503
        assert decoded_by(avro, {"id": "bigint"}, value).values.to_pylist() == [{"id": 1}]
    gone = AvroValues(replace(avro.registry, url="http://127.0.0.1:1"))
    with pytest.raises(Unreachable, match=r"source 'web': the schema registry at http://127.0.0.1:1 does not answer"):
        decoded_by(gone, {"id": "bigint"}, framed(8, schema, {"id": 1}))


def test_an_id_that_means_another_schema_than_before_stops_the_read(
    registry: Registry, avro: AvroValues, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = record("event", id="long")
    registry.register(7, schema)
    decoded_by(avro, {"id": "bigint"}, framed(7, schema, {"id": 1}))
    monkeypatch.setattr(module, "AGAIN_SECONDS", 0.0)
    registry.register(7, record("event", id="int"))
    for _ in range(2):
        with pytest.raises(LakehouseError, match=r"another schema for id 7 than before.*remove .*7\.json"):
            decoded_by(avro, {"id": "bigint"}, framed(7, schema, {"id": 1}))
        forget()


def test_what_is_no_registry_and_a_wrong_login_are_told(registry: Registry, avro: AvroValues) -> None:
    """A 404 of another server must not send every event to the quarantine."""
    value = framed(7, "long", 1)
    for status, says in ((404, "is no schema registry"), (302, "is no schema registry"), (403, "refuses the login")):
        registry.status = status
        with pytest.raises(LakehouseError, match=says):
            decoded_by(avro, {"id": "bigint"}, value)
    registry.status, registry.login = None, "Basic dTpw"
    with pytest.raises(LakehouseError, match=r"refuses the login \(401\).*SCHEMA_REGISTRY__PASSWORD"):
        avro.registry.check()
    replace(avro.registry, user="u", password="p").check()


def test_kept_events_are_read_again_and_withheld_fields_are_gone(registry: Registry, avro: AvroValues) -> None:
    schema = record("event", id="long", secret="string", price=logical("bytes", "decimal", precision=9, scale=2))
    registry.register(7, schema)
    value = framed(7, schema, {"id": 1, "secret": "s3", "price": Decimal("1.50")})
    of = table(id="bigint", secret="text", price="text").model_copy(
        update={"raw": RawPolicy(topic="clicks", format="avro")}
    )
    shape = shape_of(facts_of(of, 5))
    assert shape.format == "avro" and decoded(shape.encoded) == shape
    stored = kept(shape, given(value, value), 9, [0, 1]).append_column("seq", pa.array([0, 2], pa.int64()))
    records = EventRecords({}, {"json": JsonValues(), "avro": avro})
    message, at = stored["message"][0].as_py(), stored.schema.get_field_index("message")
    assert b"s3" in message
    without = records.without(message, shape.encoded, {"secret"})
    assert b"s3" not in without and b"1.50" in without
    mixed = stored.set_column(at, "message", pa_bytes([message, without]))
    rows = [
        (row | {"seq": seq})
        for batch in unpack(pack(records)).decode(shape.encoded, mixed, {}, ())  # type: ignore[attr-defined]
        for row, seq in zip(batch.values.to_pylist(), batch.meta["_seq"].to_pylist(), strict=True)
    ]
    assert sorted(rows, key=lambda row: row["seq"]) == [
        {"id": 1, "secret": "s3", "price": "1.50", "seq": 0}, {"id": 1, "secret": None, "price": "1.50", "seq": 2},
    ]  # fmt: skip
    broken = stored.set_column(stored.schema.get_field_index("message"), "message", pa_bytes([without, message[:-3]]))
    with pytest.raises(UnreadableRecord) as failure:
        list(records.decode(shape.encoded, broken, {}, ()))
    assert failure.value.index == 1
    with pytest.raises(LakehouseError, match="SCHEMA_REGISTRY__URL"):
        list(EventRecords().decode(shape.encoded, stored, {}, ()))


def pa_bytes(values: list[bytes]) -> pa.Array:
    return pa.array(values, pa.binary())


def test_a_table_in_avro_without_a_registry_is_a_problem_of_its_own(tmp_path: Path) -> None:
    of = table(id="bigint").model_copy(update={"raw": RawPolicy(topic="clicks", format="avro")})
    source = {"web": {"kind": "kafka", "bootstrap_servers": "a:1"}}
    settings = Settings(home=tmp_path, sources=source)  # type: ignore[arg-type]
    with pytest.raises(TableProblem, match="LAKEHOUSE_SOURCES__WEB__SCHEMA_REGISTRY__URL"):
        check_format(of, formats_of(settings, "web"))
    source["web"]["schema_registry"] = {"url": "http://a:8081/"}  # type: ignore[assignment]
    settings = Settings(home=tmp_path, sources=source)  # type: ignore[arg-type]
    check_format(of, formats_of(settings, "web"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"url": "registry:8081"}, {"url": "http://u:p@a"}, {"url": "http://a", "user": "u", "password": "p"},
        {"url": "https://a", "user": "u"}, {"url": "http://a", "ca": "/ca.pem"},
    ],
)  # fmt: skip
def test_wrong_settings_of_a_registry_are_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        RegistrySettings.model_validate(wrong)


@pytest.fixture
def other() -> Iterator[Registry]:
    with running_registry() as running:
        yield running


def test_a_registry_at_another_address_is_held_to_what_ids_meant_before(
    registry: Registry, other: Registry, avro: AvroValues
) -> None:
    """Nothing was compared: values landed in the columns of the other schema, without a word."""
    schema = record("event", id="long", a="string")
    value = framed(7, schema, {"id": 1, "a": "x"})
    registry.register(7, schema)
    assert not decoded_by(avro, {"id": "bigint", "a": "text"}, value).unread
    forget()
    moved = AvroValues(replace(avro.registry, url=other.url))
    other.register(7, record("event", id="long", b="string"))
    with pytest.raises(LakehouseError, match=r"another schema for id 7 than before.*remove .*web-7\.json"):
        decoded_by(moved, {"id": "bigint", "a": "text", "b": "text"}, value)


def test_an_id_that_a_registry_at_another_address_lacks_means_what_it_meant(
    registry: Registry, other: Registry, avro: AvroValues
) -> None:
    schema = record("event", id="long")
    registry.register(7, schema)
    decoded_by(avro, {"id": "bigint"}, framed(7, schema, {"id": 1}))
    forget()
    moved = AvroValues(replace(avro.registry, url=other.url))
    found = decoded_by(moved, {"id": "bigint"}, framed(7, schema, {"id": 2}))
    assert not found.unread and found.values.to_pylist() == [{"id": 2}]


@pytest.mark.parametrize("name", ["source", "address"])
def test_a_file_of_an_earlier_release_is_taken_over(
    registry: Registry, avro: AvroValues, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    schema, values = record("event", id="long"), (framed(7, record("event", id="long"), {"id": 1}),)
    names = {"source": "web", "address": sha256(registry.url.encode()).hexdigest()[:16]}
    file = avro.registry.kept.files / f"{names[name]}-7.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps([json.dumps(schema)]))
    registry.status = 503
    assert decoded_by(avro, {"id": "bigint"}, *values).values.to_pylist() == [{"id": 1}]
    registry.status = None
    kept = Path(avro.registry.kept.location(7))
    assert kept.read_text() == file.read_text()
    registry.register(7, record("event", id="int"))
    monkeypatch.setattr(module, "AGAIN_SECONDS", 0.0)
    forget()
    with pytest.raises(LakehouseError, match=rf"another schema for id 7 .* remove {kept} and {file} and ingest again"):
        decoded_by(avro, {"id": "bigint"}, *values)


def test_a_file_of_an_earlier_release_does_not_win_over_the_warehouse(registry: Registry, avro: AvroValues) -> None:
    schema = record("event", id="long")
    registry.register(7, schema)
    decoded_by(avro, {"id": "bigint"}, framed(7, schema, {"id": 1}))
    forget()
    file = avro.registry.kept.files / "web-7.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps([json.dumps(record("event", id="int"))]))
    assert not decoded_by(avro, {"id": "bigint"}, framed(7, schema, {"id": 1})).unread

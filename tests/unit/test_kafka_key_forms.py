"""Keys of topics that land as text: however a producer spells a value, it is one row."""

import json
import time
import uuid
from typing import Any

import pyarrow as pa
import pytest

from ingestion.schema.types.model import SourceType
from ingestion.sources.kafka.events import EVENTS_SCHEMA, _one_by_one, _ordinary
from ingestion.sources.kafka.json_values import JsonValues
from ingestion.sources.kafka.key_forms import in_key_form
from ingestion.sources.kafka.shape import Shape, facts_of, shape_of
from ingestion.sources.kafka.values import Number
from tests.unit.test_kafka_events import table

ID = "0f3c1a52-9d4e-4b7a-8c11-aabbccddeeff"
NUMERIC, UUID = SourceType(1700, "numeric"), SourceType(2950, "uuid")


class Given:
    """As Avro is read: the values as they are."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def row(self, value: bytes) -> dict[str, Any]:
        return {"k": self.value, "v": self.value}

    def key(self, key: bytes) -> Any:
        return {"k": self.value}


def shape(kind: str) -> Shape:
    return shape_of(facts_of(table(("k",), k=kind, v=kind), 1))


def event(key: bytes | None, value: bytes | None) -> pa.Table:
    return pa.Table.from_pylist([{"partition": 0, "offset": 0, "key": key, "value": value}], schema=EVENTS_SCHEMA)


NUMBERS = [
    ("7777", "7777"), ("7777.0", "7777"), ("7.777e3", "7777"), ("7777.00", "7777"), ("+7777", "7777"),
    ("07777", "7777"), ("7777.", "7777"), ("1.50", "1.5"), ("-0.0", "0"), ("0e5", "0"), ("1e-3", "0.001"),
    (".5", "0.5"), ("-1200", "-1200"), ("1E2", "100"), ("0.10000000000000000000000000000000000000000010",
    "0.1000000000000000000000000000000000000000001"), ("nan", "NaN"), ("-inf", "-Infinity"), ("Infinity", "Infinity"),
    ("1e999999999", "1e999999999"), ("1e99999999999999999999", "1e99999999999999999999"), ("no number", "no number"),
    ("", ""), ("0x10", "0x10"), (None, None),
]  # fmt: skip


def test_a_number_of_a_key_has_one_form() -> None:
    given, wanted = zip(*NUMBERS, strict=True)
    assert in_key_form(pa.array(given, pa.string()), NUMERIC).to_pylist() == list(wanted)


def test_a_uuid_of_a_key_has_one_form() -> None:
    given = [ID, ID.upper(), ID.replace("-", ""), "{" + ID.upper() + "}", "no UUID", ID + "0", "", None]
    wanted = [ID, ID, ID, ID, "no UUID", ID + "0", "", None]
    assert in_key_form(pa.array(given, pa.string()), UUID).to_pylist() == wanted


@pytest.mark.parametrize("kind", ["numeric(12,2)", "text", "jsonb", "bigint"])
def test_other_types_are_as_they_are(kind: str) -> None:
    [field] = [f for f in shape(kind).fields if f.name == "k"]
    values = pa.array(["1.50", "1e2"], pa.string())
    assert in_key_form(values, field.source_type) is values


@pytest.mark.parametrize("given", ["7777", "7777.0", "7.777e3", "7777.00", '"7777.0"'])
def test_an_event_and_a_tombstone_have_the_key_in_its_form_and_other_columns_as_written(given: str) -> None:
    of, written = shape("numeric"), given.strip('"')
    value = f'{{"k": {given}, "v": {given}}}'.encode()
    found = _one_by_one(of, event(None, value), JsonValues())
    assert found.values.to_pylist() == [{"k": "7777", "v": written}] and found.operations == ["c"]
    in_columns = _ordinary(of, event(None, value), JsonValues())
    assert in_columns is None or in_columns.values.to_pylist() == found.values.to_pylist()
    assert given[0] != '"' or in_columns is not None
    for key in (written.encode(), f'{{"k": {given}}}'.encode()):
        found = _one_by_one(of, event(key, None), JsonValues())
        assert (found.values.to_pylist(), found.operations) == ([{"k": "7777", "v": None}], ["d"])
    for value_of in (value, None):
        found = _one_by_one(of, event(b"\0k", value_of), Given(Number(written)))  # type: ignore[arg-type]
        assert found.values.column("k").to_pylist() == ["7777"]


@pytest.mark.parametrize("given", [ID, ID.upper(), ID.replace("-", "")])
def test_a_uuid_is_one_row_by_any_spelling(given: str) -> None:
    of, value = shape("uuid"), json.dumps({"k": given, "v": given}).encode()
    for found in (_ordinary(of, event(None, value), JsonValues()), _one_by_one(of, event(None, value), JsonValues())):
        assert found is not None and found.values.to_pylist() == [{"k": ID, "v": given}]
    found = _one_by_one(of, event(given.encode(), None), JsonValues())
    assert found.values.column("k").to_pylist() == [ID] and found.operations == ["d"]


def test_many_keys_take_a_moment() -> None:
    numbers = pa.array([f"{n}.5" for n in range(200_000)])
    uuids = pa.array([str(uuid.UUID(int=n)).upper() for n in range(200_000)])
    begun = time.monotonic()
    in_key_form(numbers, NUMERIC), in_key_form(uuids, UUID)
    assert time.monotonic() - begun < 5

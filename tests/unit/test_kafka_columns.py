"""JSON events that are read in columns are what they are when they are read one by one, or are not read in columns."""

import json
import random
from typing import Any

import pyarrow as pa
import pytest

from ingestion.sources.kafka.events import EVENTS_SCHEMA, decode_in_parts
from ingestion.sources.kafka.events import _one_by_one as one_by_one
from ingestion.sources.kafka.events import _ordinary as ordinary
from ingestion.sources.kafka.json_columns import json_columns
from ingestion.sources.kafka.json_values import JsonValues
from ingestion.sources.kafka.shape import Shape, facts_of, shape_of
from tests.unit.test_kafka_events import table

JSON = JsonValues()
TYPES = {
    "i": "integer", "b": "bigint", "s": "smallint", "n": "numeric(10,2)", "w": "numeric(38,10)", "u": "numeric",
    "f": "double precision", "g": "real", "t": "text", "m": "boolean", "d": "date", "z": "timestamptz",
    "l": "timestamp", "c": "time", "y": "bytea", "j": "jsonb",
}  # fmt: skip
SHAPE = shape_of(facts_of(table(**TYPES), 1))
WRITTEN = [
    '0', '-0', '1', '-1', '7', '1.0', '1.5', '1.50', '-0.0', '1.505', '1e2', '1E-2', '1e400', '-1e400', '1e-400',
    '0.1', '16777217', '3.4028236e38', '2147483647', '2147483648', '-2147483649', '32768', '9223372036854775807',
    '9223372036854775808', '12345678.99', '123456789.99', '9999999999999999999999999999999999999999', '0.00000000001',
    '0.1234567890123456789', 'true', 'false', 'null', 'NaN', 'Infinity', '-Infinity', '{}', '[]', '[1, 2.50]',
    '{"a": {"b": [null]}}', '""', '"x"', '"1"', '"1.5"', '"1.505"', '" 1"', '"1 "', '"t"', '"f"', '"true"', '"NaN"',
    '"-inf"', '"1e2"', '"+1"', '"0x10"', '"2026-11-24"', '"2026-11-24T01:02:03Z"',
    '"2026-11-24 01:02:03.123456+02:00"', '"2026-11-24T01:02:03"', '"2026-11-24T01:02:03.1234567Z"', '"0000-01-01"',
    '"infinity"', '"24:00:00"', '"01:02:03.5"', '"\\\\x00ff"', '"\\\\x0"', '"ä€\\u00e4"', '"\\u0000"',
    '"\\ud83d\\ude00"', '"\\ud800"', '"\\"}{\\""', '"a\\nb"', '01', '1.', '.5', '--1', "'x'", '"a\nb"', '"\t"', 'ÿ',
    'nul', 'tru',
]  # fmt: skip


def given(*values: bytes | None) -> pa.Table:
    rows = [{"partition": 0, "offset": n, "at": None, "key": None, "value": v} for n, v in enumerate(values)]
    return pa.Table.from_pylist(rows, schema=EVENTS_SCHEMA)


def assert_the_same(shape: Shape, events: pa.Table) -> bool:
    """Whether the events could be read in columns."""
    found, one = ordinary(shape, events, JSON), one_by_one(shape, events, JSON)
    if found is None:
        return False
    assert not one.unread and list(found.indices) == list(one.indices) and found.operations == one.operations
    assert found.values.schema == one.values.schema
    for name in found.values.column_names:
        assert found.values.column(name).combine_chunks().equals(one.values.column(name).combine_chunks()) or [
            str(value) for value in found.values.column(name).to_pylist()
        ] == [str(value) for value in one.values.column(name).to_pylist()]  # NaN is not equal to itself
    return True


@pytest.mark.parametrize("name", TYPES)
def test_each_value_is_the_same_in_columns_and_by_itself(name: str) -> None:
    shape = shape_of(facts_of(table(**{name: TYPES[name]}), 1))
    as_columns = 0
    for written in WRITTEN:
        value = f'{{"{name}": {written}}}'.encode("latin-1" if written == "\xff" else "utf-8")
        as_columns += assert_the_same(shape, given(value))
        as_columns += assert_the_same(shape, given(f'{{"{name}": null}}'.encode(), value, value))
    assert as_columns >= 4


def test_random_events_are_the_same_in_columns_and_one_by_one() -> None:
    chance, as_columns = random.Random(7), 0
    for _ in range(300):
        rate = chance.choice([0.0, 0.02, 0.3])
        fitting = {
            "i": "1",
            "b": "2",
            "s": "3",
            "n": "1.5",
            "w": '"2"',
            "f": "1e3",
            "g": "0.1",
            "t": '"x"',
            "m": "true",
        }
        events = []
        for _ in range(chance.randrange(1, 12)):
            parts = {name: chance.choice(WRITTEN) if chance.random() < rate else v for name, v in fitting.items()}
            kept = [f'"{name}": {v}' for name, v in parts.items() if chance.random() < 0.9]
            chance.shuffle(kept)
            gap = chance.choice(["", " ", "\n"])
            events.append(f"{{{gap}{(',' + gap).join(kept)}}}".encode("latin-1", errors="ignore"))
        as_columns += assert_the_same(SHAPE, given(*events))
    assert as_columns > 60


BOUNDS = [
    [b'{"t": "a"}{"t": "b"}', b""], [b'{"t": "a"}\n{"t": "b"}', b""], [b'{"t":', b'"a"}\n{"t": "b"}'],
    [b'{"j": {}', b'{"t": "x"}}'], [b'{"t": "a"} ', b' {"t": "b"}'], [b'{"t": "}', b'{"}'], [b"{}", b"", b"{}\n{}"],
    [b'{"t": "a"}\n', b'{"t": "b"}'], [b'{"t": "a", "t": "b"}'], [b'[{"t": "a"}]'], [b'\xef\xbb\xbf{"t": "a"}'],
    [b'{"t": "a"}/* */'], [b'{"other": "\xff"}'], [b'{"other": "\xed\xa0\x80"}'], [b'{"T": "a"}'],
    [b'{"t\\u0000": "a"}'],
    [b'{"other": 01}'], [b'{"other": "\\ud800"}'], [b"{}"], [b'{"\\u0074": "a"}'],
]  # fmt: skip


@pytest.mark.parametrize("values", BOUNDS, ids=map(str, range(len(BOUNDS))))
def test_an_event_is_what_lies_between_its_own_ends(values: list[bytes]) -> None:
    shape = shape_of(facts_of(table(t="text", j="jsonb"), 1))
    assert_the_same(shape, given(*values))


def test_nesting_of_any_depth_does_no_harm() -> None:
    shape = shape_of(facts_of(table(t="text"), 1))
    for depth in (10, 2_000_000):
        deep = b'{"other": ' + b"[" * depth + b"]" * depth + b', "t": "x"}'
        json_columns(shape, [deep, b"{}"])


def test_among_many_one_that_is_out_of_the_ordinary_holds_up_those_near_it_alone() -> None:
    shape = shape_of(facts_of(table(id="bigint"), 1))
    values: list[bytes] = [json.dumps({"id": n}).encode() for n in range(20_000)]
    values[9_000] = b"{"
    parts = list(decode_in_parts(shape, given(*values), JSON))
    assert [len(part.unread) for _, part in parts] == [0, 0, 1, 0, 0]
    landed: list[Any] = [value for _, part in parts for value in part.values.column("id").to_pylist()]
    assert landed == [n for n in range(20_000) if n != 9_000]

"""A value has one text, that of Postgres, however it came: so it has one digest, and an old key is found."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Literal

import pyarrow as pa
import pytest
from debezium_recorded import settings, shape
from debezium_recorded import table as debezium_table
from test_kafka_events import decode, events, table

from ingestion.schema.positions import Lsn
from ingestion.schema.types import SourceType, convert, printed
from ingestion.schema.types.declared import source_type_of
from ingestion.sink.rows import Counts, TableTarget, raw_rows
from ingestion.sources.debezium.message.envelope import Envelope
from ingestion.sources.debezium.rows import Placed, rows_of
from ingestion.sources.kafka.shape import facts_of, shape_of
from ingestion.tasks.snapshot import Point, rows_at

AT = datetime(2026, 11, 24, tzinfo=UTC)
SPELLED: list[tuple[str, Any, str]] = [  # type, what an event says, what Postgres prints
    ("boolean", True, "t"), ("boolean", False, "f"), ("integer", 7, "7"), ("bigint", -9, "-9"),
    ("numeric(12,2)", "1.5", "1.50"), ("numeric(12,10)", "0", "0.0000000000"), ("numeric(3,-2)", 1200, "1200"),
    ("timestamp", "2024-01-01T00:00:00.500", "2024-01-01 00:00:00.5"),
    ("timestamp", "0044-03-15 10:20:00", "0044-03-15 10:20:00"),
    ("timestamptz", "2024-01-01T02:00:00.000120+02:00", "2024-01-01 00:00:00.00012+00"),
    ("timestamptz", "2024-01-01T00:00:00Z", "2024-01-01 00:00:00+00"), ("date", "0044-03-15", "0044-03-15"),
    ("time", "10:00:00.250000", "10:00:00.25"), ("time", "00:00:00", "00:00:00"), ("time", "24:00:00", "24:00:00"),
    ("double precision", 1e20, "1e+20"), ("double precision", 100000, "100000"),
    ("double precision", "1.8014398509481992e16", "1.8014398509481992e+16"), ("double precision", 0.00001, "1e-05"),
    ("double precision", "NaN", "NaN"), ("double precision", "-Infinity", "-Infinity"),
    ("double precision", "-0.0", "-0"), ("double precision", 0.1, "0.1"), ("real", 0.1, "0.1"),
    ("real", 1234567, "1.234567e+06"), ("bytea", "\\x00ff", "\\x00ff"), ("bytea", "\\x", "\\x"), ("text", "a", "a"),
    ("uuid", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
]  # fmt: skip
BESIDE = {  # a value that the lake's type cannot hold: all that come beside it stay text
    "numeric(12,2)": "NaN", "numeric(12,10)": "NaN", "timestamp": "infinity",
    "timestamptz": "10000-01-01 00:00:00+00", "date": "0044-03-15 BC",
}  # fmt: skip


def digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def landed(of: Any, facts: Any, values: pa.Table, mask: Mapping[str, Literal["sha256"]]) -> list[Any]:
    target = TableTarget(
        of.source, of.name, "", facts.columns, (facts,), frozenset(), mask, of.key, "null", 0, 1, AT
    )  # fmt: skip
    meta = rows_at(Point(Lsn(1), "", AT), "c", 0, values.num_rows)
    schema = pa.schema([("v", pa.string())])
    return raw_rows(target, values.select(["v"]), meta, schema, Counts()).column("v").to_pylist()


@pytest.mark.parametrize("given", ["alone", "with odd events", "beside what the lake cannot hold"])
@pytest.mark.parametrize(("kind", "value", "text"), SPELLED)
def test_a_masked_value_of_a_topic_has_the_digest_of_its_text_in_postgres(
    kind: str, value: Any, text: str, given: str
) -> None:
    """Arrow's text was hashed, or the event's if one beside it was odd: the same value had two digests."""
    of = table(v=kind)
    facts = facts_of(of, 1)
    said = [{"v": value}, {"v": None}]
    if given == "with odd events":
        said.append({"v": [1]})
    if given == "beside what the lake cannot hold":
        said.append({"v": BESIDE.get(kind)})
    found = decode(shape_of(facts), events(*said))
    [first, nothing, *_] = landed(of, facts, found.values, {"v": "sha256"})
    assert first == digest(text) and nothing is None
    if given == "beside what the lake cannot hold" and kind in BESIDE:
        assert landed(of, facts, found.values, {"v": "sha256"})[2] == digest(BESIDE[kind])


@pytest.mark.parametrize(("kind", "value", "text"), SPELLED)
def test_what_postgres_prints_is_printed_again(kind: str, value: Any, text: str) -> None:
    source = source_type_of(kind)
    for texts in ([text, None], [text, BESIDE.get(kind), None], [text, "\0", None]):
        assert printed(pa.array(texts, pa.string()), source).to_pylist() == texts
    assert printed(convert(pa.array([text, None]), source).array, source).to_pylist() == [text, None]


def test_a_text_of_a_type_without_a_rule_is_as_it_is() -> None:
    texts = pa.array(["{1.50}", None])
    assert printed(texts, SourceType(1231, "_numeric")) is texts


@pytest.mark.parametrize("kind", ["citext", "public.citext", "CITEXT", "ltree"])
@pytest.mark.parametrize("value", ["Ab.c", None])
def test_a_type_of_an_extension_that_comes_as_text_is_text(kind: str, value: str | None) -> None:
    """It was refused: a table with such a column could only be declared as another type than its database has."""
    of = table(v=kind)
    assert decode(shape_of(facts_of(of, 1)), events({"v": value})).values.to_pylist() == [{"v": value}]
    [batch] = rows_of(
        shape(debezium_table("items", {"id": "bigint", "v": kind}), settings()), [changed({"id": 1, "v": value})]
    ).batches  # fmt: skip
    assert batch.values.column("v").to_pylist() == [value]


def changed(after: dict[str, Any], before: dict[str, Any] | None = None) -> Placed:
    envelope = Envelope("u", before, after, ("public", "items"), 1, AT, "3.7.0", "false", 1, None, None)
    return Placed(envelope, 0, 0, 1, 0)


KEYS: list[tuple[str, Any, Any, str]] = [  # type, former and new value as Debezium writes them, the former in Postgres
    ("boolean", True, False, "t"), ("integer", 1, 2, "1"), ("time", 36_000_000_000, 1, "10:00:00"),
    ("timestamp", 1_704_067_200_500_000, 1, "2024-01-01 00:00:00.5"), ("date", 19_723, 1, "2024-01-01"),
    ("timestamptz", "2024-01-01T00:00:00.5Z", "2025-01-01T00:00:00Z", "2024-01-01 00:00:00.5+00"),
    ("double precision", 1e20, 1.0, "1e+20"), ("bytea", "AP8=", "AA==", "\\x00ff"),
    ("numeric(10,2)", "AJY=", "AA==", "1.50"), ("text", "a", "b", "a"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "old", "new", "text"), KEYS)
def test_the_old_key_of_an_envelope_is_as_a_slot_tells_it(kind: str, old: Any, new: Any, text: str) -> None:
    """It was as Arrow prints it, `true` or a number of microseconds: no row was found under it."""
    of = shape(debezium_table("items", {"id": kind}), settings())
    [batch] = rows_of(of, [changed({"id": new}, before={"id": old})]).batches
    said = batch.meta.column("_old_key").to_pylist()
    assert said[0] is None and json.loads(said[1]) == {"id": text}


def test_a_former_key_that_cannot_be_read_makes_its_event_a_dead_letter() -> None:
    of = shape(debezium_table("items", {"id": "bytea"}), settings())
    made = rows_of(of, [changed({"id": "AA=="}, before={"id": "!"}), changed({"id": "AP8="})])
    assert made.unread == {0: "column 'id': a value that is no bytea"}
    assert [batch.meta.column("_op").to_pylist() for batch in made.batches] == [["u"]]

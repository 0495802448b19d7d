"""Events of a topic as columns: exact, of their declared types; one that cannot be read does no harm to the next."""

import json
import random
import time
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from ingestion.schema.declared_columns import may_share_keys
from ingestion.schema.evolve import changes, resync_reason
from ingestion.schema.facts import facts_from_json
from ingestion.schema.offsets import Offsets
from ingestion.schema.problem import TableProblem
from ingestion.schema.streamed_columns import columns_of
from ingestion.sink.rows import TableTarget
from ingestion.sink.writer import pack, unpack
from ingestion.sources.base import Piece, UnreadableRecord
from ingestion.sources.kafka.events import EVENTS_SCHEMA, Decoded
from ingestion.sources.kafka.events import decode as decode_by
from ingestion.sources.kafka.json_values import JsonValues
from ingestion.sources.kafka.reading import Range, TopicReader
from ingestion.sources.kafka.records import EventRecords, kept
from ingestion.sources.kafka.shape import Shape, decoded, facts_of, shape_of
from ingestion.sources.kafka.told_columns import ToldColumns
from ingestion.tasks.lanes import _messages
from lakehouse.declarations import Column, RawTable
from lakehouse.declarations.policies import LoadPolicy, RawPolicy

AT = datetime(2026, 11, 24, tzinfo=UTC)


def table(key: tuple[str, ...] = (), **columns: str) -> RawTable:
    return RawTable(
        source="web", name="clicks", description="", kind="kafka", raw=RawPolicy(topic="clicks", key=key), owners=(),
        columns=tuple(Column(name=n, data_type=kind, description="") for n, kind in columns.items()),
        load=LoadPolicy(), maintenance=None,
    )  # fmt: skip


def events(*values: Any, keys: tuple[bytes | None, ...] = ()) -> pa.Table:
    given = [value if isinstance(value, bytes | None) else json.dumps(value).encode() for value in values]
    rows = [
        {"partition": 0, "offset": n, "at": None, "key": keys[n] if keys else None, "value": value}
        for n, value in enumerate(given)
    ]
    return pa.Table.from_pylist(rows, schema=EVENTS_SCHEMA)


def decode(shape: Shape, given: pa.Table) -> Decoded:
    return decode_by(shape, given, JsonValues())


def values_of(of: RawTable, *values: Any) -> list[dict[str, Any]]:
    found = decode(shape_of(facts_of(of, 1)), events(*values))
    assert not found.unread
    return found.values.to_pylist()


def test_numbers_are_as_they_were_written_however_long() -> None:
    of = table(n="numeric(38,10)", t="text", f="double precision", b="bigint")
    written = b'{"n": 123456789012345678.0000000001, "t": 1.50, "f": Infinity, "b": 9007199254740993}'
    [row] = values_of(of, written)
    exact = Decimal("123456789012345678.0000000001")
    assert row == {"n": exact, "t": "1.50", "f": float("inf"), "b": 9007199254740993}
    long = b'{"b": 1, "t": -' + b"7" * 5_000 + b', "other": ' + b"9" * 5_000 + b"}"
    assert values_of(of, b'{"t": "x"}', long)[1] == {"n": None, "t": "-" + "7" * 5_000, "f": None, "b": 1}


TOO_LARGE = [("double precision", b"1e400"), ("double precision", b"-" + b"9" * 5_000), ("real", b"1e39"),
             ("double precision", b'"1e400"'), ("bigint", b"9" * 5_000)]  # fmt: skip


@pytest.mark.parametrize(("kind", "number"), TOO_LARGE, ids=range(len(TOO_LARGE)))
@pytest.mark.parametrize("beside", [b'{"v": 1}', b'{"v": 1, "t": 1}'])
def test_a_number_that_its_type_does_not_hold_is_no_infinity(kind: str, number: bytes, beside: bytes) -> None:
    """Whatever comes beside it, which decides how all are read."""
    found = decode(shape_of(facts_of(table(v=kind, t="text"), 1)), events(beside, b'{"v": ' + number + b"}"))
    assert found.indices == [0] and "column 'v'" in found.unread[1]


UPPER = "6F9619FF-8B86-D011-B42D-00CF4FC964FF"
FITTING = [
    ("bigint", "5", 5), ("numeric(10,2)", "1.5", Decimal("1.50")), ("numeric(3,0)", 7, Decimal(7)),
    ("date", "2026-11-24", date(2026, 11, 24)), ("timestamptz", "2026-11-24T02:00:00+02:00", AT),
    ("timestamptz", "2026-11-24 00:00:00Z", AT), ("timestamp", "2026-11-24T00:00:00", AT.replace(tzinfo=None)),
    ("double precision", 1, 1.0), ("double precision", "NaN", "nan"), ("bytea", "\\x00ff", b"\x00\xff"),
    ("text", 1, "1"), ("varchar(3)", "long", "long"), ("uuid", UPPER, UPPER),
]  # fmt: skip
UNFIT = [
    ("bigint", True), ("bigint", 1.0), ("bigint", 2**63), ("bigint", [1]), ("integer", 2**31), ("boolean", "yes"),
    ("boolean", 1), ("date", "24.11.2026"), ("date", "0000-01-01"), ("timestamptz", "2026-11-24T00:00:00"),
    ("timestamptz", 1764000000), ("timestamptz", "2026-11-24T00:00:00.123456789Z"),
    ("timestamp", "2026-11-24T00:00:00Z"), ("numeric(4,2)", 12345.6), ("numeric(10,2)", 1.555), ("bytea", "AAEC"),
    ("double precision", {}), ("real", 1e39), ("timestamptz", "0001-01-01T00:30:00+01:00"),
]  # fmt: skip

INFINITE = dict.fromkeys(("date", "timestamp", "timestamptz"), "infinity") | dict.fromkeys(
    ("real", "double precision"), "Infinity"
)


@pytest.mark.parametrize(("kind", "given", "lands"), FITTING)
def test_a_value_lands_in_its_declared_type(kind: str, given: Any, lands: Any) -> None:
    [row, missing] = values_of(table(v=kind, other="text"), {"v": given}, {"other": "x"})
    assert (str(row["v"]) if lands == "nan" else row["v"]) == lands and missing["v"] is None


@pytest.mark.parametrize(("kind", "given"), UNFIT)
def test_a_value_of_another_type_is_refused_and_no_other_event(kind: str, given: Any) -> None:
    """No zone is guessed and no digit is lost."""
    found = decode(shape_of(facts_of(table(v=kind), 1)), events({"v": None}, {"v": given}, {"v": None}, {"v": given}))
    assert found.indices == [0, 2] and set(found.unread) == {1, 3}
    assert "column 'v'" in found.unread[1]


@pytest.mark.parametrize(("kind", "given"), [(kind, given) for kind, given in UNFIT if kind in INFINITE])
def test_a_value_of_another_type_is_refused_beside_one_that_is_infinite(kind: str, given: Any) -> None:
    """All were text then, which landed as the year 0."""
    infinite = {"v": INFINITE[kind]}
    found = decode(shape_of(facts_of(table(v=kind), 1)), events(infinite, {"v": given}, infinite, {"v": given}))
    assert found.indices == [0, 2] and set(found.unread) == {1, 3}


def test_what_no_decimal_can_hold_is_left_to_the_policy_of_the_table() -> None:
    assert values_of(table(v="numeric(4,2)"), {"v": "NaN"}, {"v": 1}) == [{"v": "NaN"}, {"v": "1"}]


def test_a_topic_of_nothing_but_poison_is_read_in_a_moment() -> None:
    """Each bad value was searched for by itself: time grew with the square of their number."""
    begun = time.process_time()
    found = decode(shape_of(facts_of(table(v="timestamptz"), 1)), events(*[{"v": "now"}] * 10_000))
    assert len(found.unread) == 10_000 and time.process_time() - begun < 10


def test_a_nested_value_is_its_json_with_its_numbers_untouched() -> None:
    [row] = values_of(table(j="jsonb", a="text"), b'{"j": {"x": [1.10, "\xc3\xa4", null, true]}, "a": []}')
    assert row == {"j": '{"x": [1.10, "ä", null, true]}', "a": "[]"}


def test_booleans_missing_fields_nulls_and_fields_that_are_not_declared() -> None:
    of = table(m="boolean", t="text")
    assert values_of(of, {"m": True, "other": 1}, {"m": False, "t": None}, {"t": True}) == [
        {"m": True, "t": None}, {"m": False, "t": None}, {"m": None, "t": "true"},
    ]  # fmt: skip


DEEP = b'{"a": ' + b"[" * 600 + b"]" * 600 + b"}"  # which Python's parser takes, and its functions do not
DEEP_ESCAPED = b'{"b": "\\u00e4", "a": ' + b'{"a":' * 900 + b"1" + b"}" * 901
POISON = [b"{", b"", b"[1]", b"null", b"1", b"\xff", b'{"a":1}{"a":2}', b'{"a": "\\ud800"}', b"[" * 100_000,
          DEEP, DEEP_ESCAPED, None]  # fmt: skip


@pytest.mark.parametrize("poison", POISON, ids=range(len(POISON)))
def test_an_event_that_cannot_be_read_does_no_harm_to_the_others(poison: bytes | None) -> None:
    found = decode(shape_of(facts_of(table(a="text"), 1)), events({"a": "x"}, poison, {"a": "y"}))
    assert found.indices == [0, 2] and list(found.unread) == [1] and found.unread[1]
    assert found.values.to_pylist() == [{"a": "x"}, {"a": "y"}]


@pytest.mark.parametrize("key", [b"7", b'{"id": 7, "other": 1}', b'"7"'])
def test_an_event_without_value_deletes_the_row_of_its_key(key: bytes) -> None:
    shape = shape_of(facts_of(table(key=("id",), id="bigint", v="text"), 1))
    found = decode(shape, events({"id": 7, "v": "x"}, None, keys=(b"7", key)))
    assert found.operations == ["c", "d"]
    assert [(str(row["id"]), row["v"]) for row in found.values.to_pylist()] == [("7", "x"), ("7", None)]
    unknown = decode(shape, events(None, keys=(b'{"other": 1}',)))
    assert list(unknown.unread) == [0]


TEXT_KEYS = [
    (b"12 ", "12 "), (b"12", "12"), (b" 12", " 12"), (b'"12 "', "12 "), (b"1.50", "1.50"), (b"true", "true"),
    (b"-0", None), (b"[1,2]", None), (b"[1, 2]", "[1, 2]"), (b"null", None), (b"x y", "x y"), (b'{"id": 7}', "7"),
    (b"\xff\xfe", None), (b"Stra\xdfe", None), ("Straße".encode(), "Straße"),
    (b'"\\ud800"', None), (b'{"id": "\\udc00"}', None), (b"9" * 5000, "9" * 5000),
]  # fmt: skip


@pytest.mark.parametrize(("key", "deletes"), TEXT_KEYS, ids=range(len(TEXT_KEYS)))
def test_a_key_that_is_text_and_reads_as_json_deletes_the_row_of_its_text(key: bytes, deletes: str | None) -> None:
    """It was read as JSON and printed, so the delete missed its row; half a surrogate pair stopped the source."""
    shape = shape_of(facts_of(table(key=("id",), id="text"), 1))
    found = decode(shape, events(None, {"id": "z"}, keys=(key, None)))
    assert found.values.to_pylist() == [{"id": name} for name in (deletes, "z") if name is not None]
    assert sorted(found.unread) == ([] if deletes is not None else [0])


@pytest.mark.parametrize("key", [b"\0\0\0\0\x07\x06abc", b"\0\0\0\0\0\0\0\x05", b"\x01\x02", b"\0"])
def test_a_key_in_bytes_that_are_no_text_deletes_no_row(key: bytes) -> None:
    """A delete landed of a row that is none, and the row of the key stayed: Avro's keys, and LongSerializer's."""
    shape = shape_of(facts_of(table(key=("id",), id="text"), 1))
    found = decode(shape, events(None, {"id": "abc"}, None, keys=(key, None, b"a\tb\n")))
    assert found.operations == ["c", "d"] and "the key is neither JSON nor text" in found.unread[0]
    assert found.values.to_pylist() == [{"id": "abc"}, {"id": "a\tb\n"}]


@pytest.mark.parametrize("key", [b"eu\x1f4711", b"a\x1cb", b"a\x7fb", b"a\tb"])
def test_a_key_of_parts_between_separators_is_text(key: bytes) -> None:
    """Its deletes went to the dead letters."""
    shape = shape_of(facts_of(table(key=("id",), id="text"), 1))
    found = decode(shape, events({"id": key.decode()}, None, keys=(key, key)))
    assert found.operations == ["c", "d"] and not found.unread
    assert found.values.to_pylist() == [{"id": key.decode()}] * 2


def test_a_key_that_is_a_number_is_one_however_it_is_written() -> None:
    shape = shape_of(facts_of(table(key=("id",), id="bigint"), 1))
    found = decode(shape, events(*[None] * 4, keys=(b"12 ", b"-0", b"[1,2]", b"x")))
    assert [row["id"] for row in found.values.cast(pa.schema([("id", pa.int64())])).to_pylist()] == [12, 0]
    assert sorted(found.unread) == [2, 3]


KEYLESS = [{"v": "x"}, {"id": None, "v": "y"}, {"ID": 1, "v": "z"}, b'{"v": "m", "id": null}']


@pytest.mark.parametrize("beside", [{"id": 3, "v": "w"}, b'{"id": 3, "v": 1.50}', None], ids=["plain", "odd", "empty"])
def test_an_event_whose_value_lacks_the_key_is_no_row_of_the_key_null(beside: Any) -> None:
    """All of them were versions of one row."""
    shape = shape_of(facts_of(table(key=("id",), id="bigint", v="text"), 1))
    given = [beside, *KEYLESS, beside]
    found = decode(shape, events(*given, keys=(b"3", b"1", b"1", b"1", b"1", b"3")))
    assert list(found.indices) == [0, 5] and sorted(found.unread) == [1, 2, 3, 4]
    assert set(found.unread.values()) == {"its value does not tell id, which the declared key has"}
    assert [str(row["id"]) for row in found.values.to_pylist()] == ["3", "3"]
    alone = decode(shape, events(KEYLESS[0]))
    assert list(alone.unread) == [0] and not alone.indices and alone.values.num_rows == 0


@dataclass(frozen=True)
class Given(TopicReader):
    """Reads events that are at hand."""

    given: pa.Table = None

    def fetched(self) -> Iterator[tuple[str, pa.Table]]:
        yield "clicks", self.given


@pytest.mark.parametrize("is_landing", [True, False])
@pytest.mark.parametrize(("ahead", "is_told"), [(timedelta(days=27_000), True), (timedelta(seconds=1), False)])
def test_an_event_from_the_future_came_when_it_was_read(is_landing: bool, ahead: timedelta, is_told: bool) -> None:
    """All later versions of its key began in 2100, where it said it was from."""
    shape = shape_of(facts_of(table(id="bigint"), 5))
    moments = [AT - timedelta(1), AT + ahead, AT - timedelta(hours=1)]
    given = events({"id": 1}, {"id": 1}, {"id": 1}).set_column(2, EVENTS_SCHEMA.field("at"), pa.array(moments))
    reader = Given(
        "web", {}, (Range("clicks", 0, 0, 3, 0),), {"clicks": shape}, 9, AT, 1 << 20, {"json": JsonValues()}, given
    )
    pieces: list[Piece] = []
    noticed = reader.read({}, lambda: frozenset({5} if is_landing else ()), frozenset(), pieces.append)
    came = [AT - timedelta(1), AT, AT - timedelta(hours=1)]
    landed = [at for piece in pieces for batch in piece.batches for at in batch.meta["_committed_at"].to_pylist()]
    kept_as = [at for piece in pieces for at in piece.records(frozenset({5}))["committed_at"].to_pylist()]
    assert landed == (came if is_landing else []) and kept_as == came
    assert [says for says in noticed.warnings if "set the clock" in says] == [
        "topic clicks: events have timestamps that were still to come when they were read, and land with the time of "
        "the read: set the clock of who writes them right"
    ] * is_told


FOREIGN = [{}, {"ID": 1}, {"schema": {"type": "struct"}, "payload": {"id": 1}}, {"op": "c", "after": {"id": 1}},
           {"specversion": "1.0", "data": {"id": 1}}]  # fmt: skip


@pytest.mark.parametrize("given", FOREIGN, ids=range(len(FOREIGN)))
@pytest.mark.parametrize("key", [(), ("id",)])
def test_an_event_with_none_of_the_declared_columns_is_no_row(given: Any, key: tuple[str, ...]) -> None:
    """It landed as a row of NULLs, as all of them do where Connect writes schemas."""
    shape = shape_of(facts_of(table(key=key, id="bigint", v="text"), 1))
    found = decode(shape, events({"id": 1, "v": "x"}, given, {"id": 2, "v": None}))
    assert list(found.indices) == [0, 2] and found.unread[1].startswith("it has none of the declared columns")
    assert ("schemas.enable" in found.unread[1]) == ("payload" in given)
    assert ("kind debezium" in found.unread[1]) == ("op" in given)
    alone = decode(shape_of(facts_of(table(id="bigint", v="text"), 1)), events({"id": None, "v": None}, {"v": None}))
    assert list(alone.indices) == [0, 1]


def told(of: RawTable, *given: Any, begun: tuple[str, ...] = ("clicks",)) -> list[str]:
    shape, noted = shape_of(facts_of(of, 1)), ToldColumns()
    for part in given:
        noted.note(shape, part, decode(shape, part))
    return list(noted.warnings(begun))


def test_a_declared_column_that_no_event_has_is_told() -> None:
    """A column that is misspelt was NULL for good, without a word."""
    of, odd = table(id="bigint", nmae="text"), b'{"id": 1.50}'
    for given in ([{"id": 1, "name": "x"}], [{"id": 1}, odd]):
        [says] = told(of, events(*given))
        assert says.startswith("topic clicks: column nmae is in none of the events")
    both = told(table(id="bigint", a="text", b="text"), events({"id": 1}))
    assert [says.split(" is in none")[0] for says in both] == ["topic clicks: column a", "topic clicks: column b"]
    assert set(told(table(id="bigint", a="text", b="text"), events({"id": 1, "a": "x"}))) < set(both), "told before"
    for given in ([{"id": 1, "nmae": None}], [{"id": 1}, {"nmae": "x"}], [{"id": 1}, odd, {"nmae": None}]):
        assert not told(of, events(*given))
    assert not told(of, events({"id": 1}), events({"id": 2, "nmae": "x"})), "one batch of several"
    few, many = events({"id": 1}), events(*[{"id": 1}] * 100)
    assert not told(of, few, begun=()) and told(of, many, begun=())
    assert not told(table(key=("id",), id="bigint", v="text"), events(None, keys=(b"1",)))


UNAVAILABLE = "__debezium_unavailable_value"


@pytest.mark.parametrize("beside", [{"id": 3, "v": "w"}, b'{"id": 3, "v": 1.50}', None], ids=["plain", "odd", "empty"])
@pytest.mark.parametrize(
    "lacking", [UNAVAILABLE, [UNAVAILABLE], {UNAVAILABLE: UNAVAILABLE}, "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="]
)
@pytest.mark.parametrize("kind", ["text", "jsonb"])
def test_a_value_that_an_update_of_debezium_left_out_is_no_value(kind: str, lacking: Any, beside: Any) -> None:
    """The placeholder landed over what the row has."""
    shape = shape_of(facts_of(table(key=("id",), id="bigint", v=kind), 1))
    found = decode(shape, events(beside, {"id": 1, "v": lacking}, beside, keys=(b"3", b"1", b"3")))
    assert list(found.indices) == [0, 2] and found.unread[1].startswith("it lacks v, which Debezium's update")


@pytest.mark.parametrize("beside", [{"id": 3, "v": "w"}, b'{"id": 3.0, "v": "w"}'], ids=["plain", "odd"])
def test_without_a_key_such_a_value_lands_as_it_came(beside: Any) -> None:
    """The models of a log of changes may handle the placeholder."""
    shape = shape_of(facts_of(table(id="text", v="text"), 1))
    found = decode(shape, events(beside, {"id": 1, "v": UNAVAILABLE}))
    assert found.values.column("v").to_pylist() == ["w", UNAVAILABLE] and not found.unread


@pytest.mark.parametrize("mark", ["true", True])
@pytest.mark.parametrize("beside", [{"id": 3, "__deleted": "false"}, b'{"id": 3, "v": 1.50}'], ids=["plain", "odd"])
def test_a_delete_that_debezium_has_rewritten_deletes_its_row(beside: Any, mark: Any) -> None:
    """It landed as a version of NULLs, and the row stayed."""
    given = events(beside, {"id": 1, "v": "old", "__deleted": mark}, {"id": 2, "v": "x"})
    found = decode(shape_of(facts_of(table(key=("id",), id="bigint", v="text"), 1)), given)
    assert found.operations == ["c", "d", "c"]
    assert [(str(row["id"]), row["v"]) for row in found.values.to_pylist()][1:] == [("1", None), ("2", "x")]
    without_key = decode(shape_of(facts_of(table(id="bigint", v="text"), 1)), given)
    assert list(without_key.indices) == [0, 2] and "the table has no key" in without_key.unread[1]
    declared = decode(shape_of(facts_of(table(key=("id",), id="bigint", __deleted="text"), 1)), given)
    assert declared.operations == ["c"] * 3 and declared.values.to_pylist()[1]["__deleted"] == "true"


def test_each_column_of_a_key_is_told_and_a_table_without_one_takes_any_event() -> None:
    both = shape_of(facts_of(table(key=("a", "b"), a="bigint", b="text", v="text"), 1))
    found = decode(both, events({"a": 1, "b": "x"}, {"a": 1, "v": "y"}, {"b": ""}, {"v": "z"}))
    assert list(found.indices) == [0]
    assert [found.unread[n].split(",")[0] for n in (1, 2)] == ["its value does not tell b", "its value does not tell a"]
    assert found.unread[3].startswith("its value does not tell a, b")
    assert len(values_of(table(id="bigint", v="text"), {"v": "x"}, {"id": None})) == 2


def test_kept_events_become_the_same_rows_and_say_where_they_were() -> None:
    shape = shape_of(facts_of(table(key=("id",), id="bigint", v="text"), 5))
    given = events({"id": 1, "v": "a\nb"}, None, {"id": 3}, keys=(None, b"2", b"3"))
    records = kept(shape, given, 99, [4, 5, 6])
    assert records["offset"].to_pylist() == [0, 1, 2] and set(records["topic"].to_pylist()) == {"clicks"}
    assert decoded(records["relation"][0].as_py()) == shape
    stored = records.append_column("seq", pa.array([8, 10, 12], pa.int64()))
    [batch] = unpack(pack(EventRecords())).decode(records["relation"][0].as_py(), stored, {}, ())  # type: ignore
    assert batch.values.to_pylist() == decode(shape, given).values.to_pylist()
    assert batch.meta["_op"].to_pylist() == ["c", "d", "c"] and batch.meta["_seq"].to_pylist() == [8, 10, 12]
    assert batch.meta["_offset"].to_pylist() == [0, 1, 2]


def test_a_kept_event_that_cannot_be_read_is_told_by_its_number_and_holds_nothing_that_is_withheld() -> None:
    shape = shape_of(facts_of(table(id="bigint", secret="text"), 5))
    given = events({"id": 1, "secret": "s3"}, b'{"secret": "s3"', keys=(b"s3", b"s3"))
    records = kept(shape, given, 9, [0, 1]).append_column("seq", pa.array([0, 2], pa.int64()))
    with pytest.raises(UnreadableRecord) as failure:
        list(EventRecords().decode(shape.encoded, records, {}, ()))
    assert failure.value.index == 1
    messages = pa.array([records["message"][0].as_py(), b"?"], pa.binary())
    one_is_none = records.set_column(records.schema.get_field_index("message"), "message", messages)
    with pytest.raises(UnreadableRecord, match="no kept event") as failure:
        list(EventRecords().decode(shape.encoded, one_is_none, {}, ()))
    assert failure.value.index == 1
    for message in records["message"].to_pylist():
        without = EventRecords().without(message, shape.encoded, {"secret"})
        assert b"s3" not in without and b"czM" not in without  # nor in base64


def stripped(shape: Shape, given: pa.Table, gone: str = "secret") -> pa.Table:
    """Kept events of a table that has a column whose values must not be kept."""
    records = kept(shape, given, 9, [*range(given.num_rows)])
    left = [EventRecords().without(message, shape.encoded, {gone}) for message in records["message"].to_pylist()]
    assert [EventRecords().without(message, shape.encoded, {gone}) for message in left] == left
    records = records.set_column(records.schema.get_field_index("message"), "message", pa.array(left, pa.binary()))
    return records.append_column("seq", pa.array([*range(0, 2 * len(left), 2)], pa.int64()))


@pytest.mark.parametrize("key", [b"7", b'{"id": 7, "secret": "s3"}', b'"7"'])
def test_a_kept_event_without_value_still_deletes_its_row(key: bytes) -> None:
    """It became a dead letter for good where a column is masked, and the row stayed."""
    shape = shape_of(facts_of(table(key=("id",), id="bigint", secret="text"), 5))
    records = stripped(shape, events({"id": 7, "secret": "s3"}, None, keys=(b"7", key)))
    message = records["message"][1].as_py()
    assert b"s3" not in b64decode(json.loads(message.partition(b"\n")[0])["key"]) + message
    [batch] = EventRecords().decode(shape.encoded, records, {}, ())
    assert batch.meta["_op"].to_pylist() == ["c", "d"] and batch.values.column("id").cast("string").to_pylist() == [
        "7", "7",
    ]  # fmt: skip


@pytest.mark.parametrize("poison", [b'{"id": 7, "secret": "s3"', b'["s3"]', DEEP_ESCAPED.replace(b"1", b'"s3"')])
def test_a_kept_event_that_cannot_be_read_is_no_row_of_nulls(poison: bytes) -> None:
    """An empty object was kept in its place, which landed as a row all of whose columns were NULL."""
    shape = shape_of(facts_of(table(id="bigint", secret="text", a="text"), 5))
    records = stripped(shape, events({"id": 7}, poison, keys=(b"s3", b"s3")))
    assert b"s3" not in records["message"][1].as_py()
    with pytest.raises(UnreadableRecord, match="nothing of it is kept, since columns of its table are") as failure:
        list(EventRecords().decode(shape.encoded, records, {}, ()))
    assert failure.value.index == 1


def test_events_are_kept_as_they_came_where_columns_land_as_digests() -> None:
    """They stand in the spool as they are, so nothing has to be taken from an event that cannot be read."""
    facts = facts_of(table(key=("id",), id="bigint", secret="text"), 5)
    target = TableTarget(
        "web", "clicks", "", facts.columns, (facts,), frozenset(), {"secret": "sha256"}, ("id",), "error", 0, 0, AT
    )
    shape = shape_of(facts)
    picked = kept(shape, events(b'{"id": 7', None, keys=(b"7", b"7")), 9, [0, 1])
    assert _messages(EventRecords(), picked, target).to_pylist() == picked["message"].to_pylist()
    emptied = _messages(EventRecords(), picked, replace(target, mask={"secret": "null"})).to_pylist()
    assert b"is no JSON; nothing of it is kept" in emptied[0] and b'"is_empty": true' in emptied[1]


def test_what_was_kept_before_is_read_as_it_was() -> None:
    shape = shape_of(facts_of(table(key=("id",), id="bigint", v="text"), 5))
    told = {"partition": 0, "offset": 1, "key": None, "is_empty": False, "format": "json"}
    message = json.dumps(told).encode() + b'\n{"id": 7}'
    without = json.dumps(told | {"is_empty": True}).encode() + b"\n{}"
    stored = kept(shape, events({}, None), 9, [0, 1]).append_column("seq", pa.array([0, 2], pa.int64()))
    at = stored.schema.get_field_index("message")
    stored = stored.set_column(at, "message", pa.array([message, without], pa.binary()))
    [batch] = EventRecords().decode(shape.encoded, stored.slice(0, 1), {}, ())
    assert batch.values.to_pylist() == [{"id": 7, "v": None}] and batch.meta["_offset"].to_pylist() == [1]
    with pytest.raises(UnreadableRecord, match="has no value, and its key does not tell id"):
        list(EventRecords().decode(shape.encoded, stored, {}, ()))


def test_a_column_is_its_name_whatever_is_declared_around_it() -> None:
    before = facts_of(table(a="text", b="integer"), 1)
    after = facts_of(table(c="date", b="bigint", a="text"), 1)
    assert facts_from_json(before.to_json()) == before
    assert {(c.kind, c.column) for c in changes(before, after)} == {("column added", "c"), ("type changed", "b")}
    assert resync_reason(before, after) is None, "rows that have landed are as they were"
    assert [c.name for c in columns_of((before, after), shape_of(after).relation, frozenset())] == sorted(
        "abc", key=lambda name: next(c.number for c in after.columns if c.name == name)
    )
    assert not may_share_keys(table(key=("a",), a="text"), [before])


def test_a_type_that_there_is_not_is_a_problem_of_its_table() -> None:
    with pytest.raises(TableProblem, match=r"column 'a' is declared as 'strnig'"):
        facts_of(table(a="strnig"), 1)


def test_positions_of_topics_are_vectors() -> None:
    chance, found = random.Random(3), []
    for _ in range(12):
        parts = [(topic, number) for topic in ("a.b-c_d", "x") for number in range(3) if chance.random() < 0.6]
        found.append(Offsets.of({part: chance.randrange(5) for part in parts}))
    for one in found:
        assert Offsets.parse(one.text) == one and Offsets.start() <= one and one <= one
        for other in found:
            both = one.join(other)
            assert one <= both and other <= both and both == other.join(one)
            assert (one <= other) == (both == other)
            assert not one <= other or one.commit_bound <= other.commit_bound
    assert Offsets.parse("clicks/1:7,clicks/0:3").text == "clicks/0:3,clicks/1:7"
    assert Offsets.start().text == "" and Offsets.start().commit_bound == 0

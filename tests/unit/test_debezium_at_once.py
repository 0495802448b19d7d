"""Generated envelopes, ordinary and odd, read at once: what lands is what reading them one by one lands."""

import json
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from random import Random as Chance
from typing import Any

import pyarrow as pa
import pytest
from debezium_recorded import Message, Read, RecordedReader, read, settings, shape, table

from ingestion.schema.types import convert
from ingestion.schema.types.declared import source_type_of
from ingestion.sources.debezium import gathered
from ingestion.sources.debezium.at_once.decimals import decimals
from ingestion.sources.debezium.at_once.parsed import DEPTH
from ingestion.sources.debezium.message.columns import BAD, Modes, Typed
from ingestion.sources.debezium.message.opened import ConnectType
from ingestion.sources.debezium.message.values import DECIMAL, _digits, reader_of
from ingestion.sources.kafka.fetching import Range
from ingestion.sources.kafka.values import Number
from lakehouse.errors import LakehouseError
from lakehouse.settings import DebeziumSettings
from tests.marks import seeds

AT = 1_764_000_000_000
LATE = datetime(2027, 1, 1, tzinfo=UTC)
PLACEHOLDER = "__debezium_unavailable_value"


class Bare(str):
    """JSON as it stands."""


def encoded(number: int, size: int = 0) -> str:
    return b64encode(number.to_bytes(max(size, (number.bit_length() + 8) // 8), "big", signed=True)).decode()


def moment(c: Chance, digits: int = 6) -> str:
    at = datetime(1, 1, 1) + timedelta(seconds=c.randrange(300_000_000_000), microseconds=c.randrange(1_000_000))
    return at.isoformat()[: 19 + (digits + 1 if digits else 0)] + "Z"


INTEGERS = {"smallint": 15, "integer": 31, "bigint": 63}
SCHEMAS: dict[str, dict[str, Any]] = {  # as Connect tells the types; those of other columns are their own name
    "bigint": {"type": "int64"}, "integer": {"type": "int32"}, "smallint": {"type": "int16"},
    "boolean": {"type": "boolean"}, "text": {"type": "string"}, "real": {"type": "float"},
    "double precision": {"type": "double"}, "uuid": {"type": "string", "name": "io.debezium.data.Uuid"},
    "numeric(12,2)": {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "2"}},
    "numeric(38,10)": {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "10"}},
    "numeric": {"type": "struct", "name": "io.debezium.data.VariableScaleDecimal"},
    "date": {"type": "int32", "name": "io.debezium.time.Date"},
    "timestamp": {"type": "int64", "name": "io.debezium.time.MicroTimestamp"},
    "timestamp(3)": {"type": "int64", "name": "io.debezium.time.Timestamp"},
    "time": {"type": "int64", "name": "io.debezium.time.MicroTime"},
    "timestamptz": {"type": "string", "name": "io.debezium.time.ZonedTimestamp"}, "bytea": {"type": "bytes"},
    "jsonb": {"type": "string", "name": "io.debezium.data.Json"},
    "text[]": {"type": "array", "items": {"type": "string"}}, "bigint[]": {"type": "array", "items": {"type": "int64"}},
}  # fmt: skip
VALUES: dict[str, Callable[[Chance], Any]] = {
    **{n: lambda c, b=bits: c.choice((c.randrange(-(1 << b), 1 << b), c.randrange(9))) for n, bits in INTEGERS.items()},
    "boolean": lambda c: c.random() < 0.5,
    "text": lambda c: c.choice(("", "plain", "ä€𝄞", 'a "b" \\ \n\t{}', PLACEHOLDER[:-1], "Z" * 40, "\u2028}\n{")),
    "real": lambda c: c.choice((1, 0, -0.0, 1.5, 3.4e38, Bare("1E-45"), Bare("16777217"), Bare("0.1"))),
    "double precision": lambda c: c.choice((1, 1e-320, 0.1, c.random() / 7, Bare("1.7976931348623157E308"))),
    "uuid": lambda c: f"{c.getrandbits(128):032x}",
    "numeric(12,2)": lambda c: encoded(c.randrange(-(10**12) + 1, 10**12), c.choice((0, 0, 7, 9))),
    "numeric(38,10)": lambda c: encoded(c.randrange(-(10**38) + 1, 10 ** c.choice((38, 20, 3))), c.choice((0, 16))),
    "numeric": lambda c: {"scale": c.randrange(-3, 30), "value": encoded(c.getrandbits(c.choice((8, 200))))},
    "date": lambda c: c.randrange(-719_162, 2_932_897),
    "timestamp": lambda c: c.randrange(-62_135_596_800_000_000, 253_402_300_799_999_999),
    "timestamp(3)": lambda c: c.randrange(-62_135_596_800_000, 253_402_300_799_999),
    "time": lambda c: c.choice((0, 86_400_000_000, c.randrange(86_400_000_000))),
    "timestamptz": lambda c: moment(c, c.choice((0, 3, 6))),
    "bytea": lambda c: b64encode(c.randbytes(c.randrange(9))).decode(),
    "jsonb": lambda c: json.dumps({"a": [1, None, "é"]}),
    "text[]": lambda c: c.choice(([], ["a", None, 'b"'], [""])),
    "bigint[]": lambda c: c.choice(([], [1, None, 1 << 62])),
}  # fmt: skip
UNREPRESENTABLE: dict[str, tuple[Any, ...]] = {  # what the lake's types cannot hold, and the database may have
    "date": (2_147_483_647, -2_147_483_648, -800_000, 4_000_000),
    "timestamp": (9223371331200000000, -9223372036832400000, 1 << 62, -62_135_596_800_000_001),
    "timestamptz": ("infinity", "-infinity", "+12345-01-02T03:04:05Z", "-0043-03-15T00:00:00Z", moment(Chance(1)),
                    "0000-12-31T23:00:00Z", "-x", "+T"),
    "numeric(12,2)": ("", "AA=", "A===", "!AAA", encoded(10**12), encoded(1 << 160), Bare("12.5"), "AB==", "AB=A"),
    "numeric(38,10)": (encoded(10**38), encoded(-(10**38)), encoded(1 << 127, 17)),
    "numeric": ({"scale": 1}, {"value": "AA=="}, {}, {PLACEHOLDER: PLACEHOLDER}, PLACEHOLDER),
    "real": ("NaN", "Infinity", "1.5", True, Bare("1e400"), Bare("1e39")),
    "double precision": ("NaN", "-Infinity", Bare("1e-400"), {}, Bare("NaN")),
    "bigint": (1 << 63, Bare("1.0"), "12", True, Bare("1e3"), []),
    "integer": (1 << 31, "x"), "smallint": (1 << 15,), "boolean": ("t", 1, "true"),
    "text": ("\0", "\0x", Bare('"\\ud800"'), Bare('"\\u0041"'), 5, ["x"], {}),
    "bytea": ("!", "A"), "time": (Bare("1.5"), "x"), "text[]": ([1], "x", [["a"]]), "bigint[]": (["1"], [Bare("1.50")]),
}  # fmt: skip
FORMS = (PLACEHOLDER, b64encode(PLACEHOLDER.encode()).decode(), PLACEHOLDER.encode().hex(), [PLACEHOLDER])


def dumped(value: Any) -> str:
    """JSON as compact as the converter writes it."""
    if isinstance(value, Bare):
        return str(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(name)}:{dumped(part)}" for name, part in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(dumped, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


class Topic:
    """One topic, generated: `strange` is the share of events that are out of the ordinary."""

    ops = "ccccuuud"

    def __init__(
        self, chance: Chance, columns: dict[str, str], key: tuple[str, ...], *, told: bool, strange: float
    ) -> None:
        self._chance, self.columns, self._key, self._told, self._strange = chance, columns, key, told, strange
        self._lsn, self._offset, self._id = 30_000_000, -1, 0
        self.messages: list[Message] = []
        self.schema: dict[str, Any] | None = None

    def transact(self, xid: int) -> None:
        chance, count = self._chance, self._chance.choice((1, 2, 9))
        for order in range(1, count + 1):
            self._lsn += chance.choice((0, 60))
            self._event(xid, order)
        self._lsn += 100
        if self._told and chance.random() < 0.5:
            self._send(
                "transaction", None, dumped({"status": "BEGIN", "id": f"{xid}:{self._lsn - 1}", "ts_ms": AT}), xid
            )
        if self._told:
            parts = [{"data_collection": "public.a", "event_count": count}]
            end = {"status": "END", "id": f"{xid}:{self._lsn}", "data_collections": parts, "ts_ms": AT + xid}
            self._send("transaction", None, dumped(end), xid)
            if chance.random() < 0.1:
                empty = chance.choice(([], None)) if self._strange else []
                end = end | {"id": f"{xid + 5000}:{self._lsn + 50}", "data_collections": empty}
                self._send("transaction", None, dumped(end), xid)

    def _event(self, xid: int, order: int) -> None:
        chance = self._chance
        op, row = chance.choice(self.ops), self._row()
        before = None
        if op == "d" or (chance.random() < 0.1 and self.ops != "c"):
            before = {name: value if name in self._key else None for name, value in row.items()}
        if op == "u":
            row = {name: self._form(name, value) for name, value in row.items()}
            if before and chance.random() < 0.3:
                before = before | {self._key[0]: self._row()[self._key[0]]} if self._key else before
        of: dict[str, Any] = {
            "version": "3.7.0.Final", "ts_ms": AT + xid, "snapshot": "false", "ts_us": (AT + xid) * 1000 + order,
            "schema": "public", "table": "a", "txId": xid, "lsn": self._lsn,
        }  # fmt: skip
        transaction = {"id": f"{xid}:{self._lsn}", "total_order": order, "data_collection_order": order}
        value = {
            "before": before, "after": None if op == "d" else row, "source": of,
            "transaction": transaction if self._told else None, "op": op, "ts_ms": AT,
        }  # fmt: skip
        if chance.random() < self._strange / 3:
            value = self._bent(value)
        text = dumped(value)
        if chance.random() < self._strange / 20:
            text = chance.choice(
                (text[:-1], text + "}", "", "[]", "{}", text.replace(":", ": "), text + "\n", "{" + text)
            )
        if self.schema is not None:
            text = f'{{"schema":{json.dumps(self.schema)},"payload":{text}}}'
        self._send("public.a", dumped({name: row[name] for name in self._key}), text, xid)
        if op == "d":
            self._send("public.a", "{}", None, xid)

    def _form(self, name: str, value: Any) -> Any:
        """The value, or now and then what Debezium writes instead of one that did not come."""
        kind, chance = self.columns[name], self._chance
        if name in self._key or chance.random() > 0.1:
            return value
        if chance.random() < self._strange / 3:
            return chance.choice(FORMS)
        if kind == "text[]":
            return FORMS[-1]
        return chance.choice(FORMS[:3]) if kind in ("text", "jsonb", "bytea") or kind.startswith("numeric(") else value

    def _row(self) -> dict[str, Any]:
        chance, row = self._chance, dict[str, Any]()
        for name, kind in self.columns.items():
            odd = UNREPRESENTABLE.get(kind)
            strange = self._strange / len(self.columns)
            row[name] = chance.choice(odd) if odd and chance.random() < strange else VALUES[kind](chance)
            if name not in self._key and chance.random() < 0.1:
                row[name] = None
        if "id" in row:
            self._id += 1
            row["id"] = self._id
        return row

    def _bent(self, value: dict[str, Any]) -> dict[str, Any]:
        source = value["source"]
        transaction = value["transaction"] or {"id": "1", "total_order": 1, "data_collection_order": 1}
        return self._chance.choice((
            value | {"source": source | {"table": "b"}}, value | {"op": "x"}, value | {"op": "t", "after": None},
            value | {"source": source | {"ts_us": None}}, value | {"source": source | {"ts_us": None, "ts_ms": None}},
            value | {"source": source | {"lsn": None}}, value | {"source": source | {"lsn": -1}},
            value | {"source": source | {"version": "2.5.1.Final"}}, value | {"source": None}, value | {"after": {}},
            value | {"source": source | {"txId": "7"}}, value | {"source": source | {"ts_us": 1 << 62}},
            value | {"source": source | {"snapshot": "first"}}, {"id": 1, "name": "flat"},
            value | {"op": "r", "transaction": None}, value | {"transaction": transaction | {"id": "x:1"}},
            value | {"op": "r", "transaction": None, "source": source | {"snapshot": "incremental"}},
            value | {"transaction": transaction | {"total_order": -1}},
        ))  # fmt: skip

    def _send(self, topic: str, key: str | None, value: str | None, xid: int) -> None:
        self._offset += self._chance.choice((1, 1, 2))
        self.messages.append(
            {"topic": topic, "partition": 0, "offset": self._offset, "at": AT + xid, "key": key, "value": value}
        )


def one_by_one(monkeypatch: pytest.MonkeyPatch, *arguments: Any, **given: Any) -> Read | str:
    with monkeypatch.context() as patched:
        patched.setattr(gathered, "scanned", lambda *_, **__: None)
        patched.setattr(gathered, "ends_at_once", lambda *_: None)
        patched.setattr(gathered, "TOGETHER", 1 << 30)
        return tried(*arguments, **given)


def tried(*arguments: Any, **given: Any) -> Read | str:
    try:
        return read(*arguments, **given)
    except LakehouseError as refused:
        return str(refused)


def landed(found: Read, of: Any, given: DebeziumSettings) -> dict[Any, Any]:
    """The rows as the sink converts them, by their place; and of each value that no type holds its text."""
    types = {column.name: column.typed.source for column in shape(of, given).columns}
    rows: dict[Any, Any] = {}
    for piece, _ in found.kept:
        for batch in piece.batches:
            columns = dict[str, list[Any]]()
            for name, values in zip(batch.values.column_names, batch.values.columns, strict=True):
                columns[name] = [repr(value) for value in values.to_pylist()]
                if pa.types.is_string(values.type):
                    converted = convert(values, types[name], "null")
                    columns[name] = [repr(value) for value in converted.array.to_pylist()]
                    for row, text in zip(converted.rows.to_pylist(), converted.texts.to_pylist(), strict=True):
                        columns[name][row] = f"text {text}"
            for row, meta in enumerate(batch.meta.to_pylist()):
                place = meta["_topic_partition"], meta["_offset"], meta["_seq"]
                assert place not in rows
                rows[place] = meta, {name: values[row] for name, values in columns.items()}
    return rows


def records(found: Read) -> list[Any]:
    return sorted(
        (str(record) for _, kept in found.kept for record in kept.to_pylist()),
    )


def assert_the_same(monkeypatch: pytest.MonkeyPatch, messages: list[Message], of: Any, given: DebeziumSettings) -> int:
    """How many rows landed."""
    slow, fast = (
        one_by_one(monkeypatch, messages, of, given=given, now=LATE),
        tried(messages, of, given=given, now=LATE),
    )
    if isinstance(slow, str) or isinstance(fast, str):
        assert slow == fast
        return 0
    assert fast.parked == slow.parked
    assert fast.position == slow.position and set(fast.noticed.warnings) == set(slow.noticed.warnings)
    if slow.parked:
        return 0
    assert landed(fast, of, given) == landed(slow, of, given)
    assert {n: sorted(u) for n, u in fast.unread.items()} == {n: sorted(u) for n, u in slow.unread.items()}
    assert records(fast) == records(slow)
    return len(landed(fast, of, given))


def schema_of(columns: dict[str, str]) -> dict[str, Any]:
    fields = [SCHEMAS[kind] | {"field": name, "optional": True} for name, kind in columns.items()]
    return {
        "type": "struct",
        "fields": [{"field": part, "type": "struct", "fields": fields} for part in ("before", "after")],
    }


def declared(columns: dict[str, str]) -> dict[str, str]:
    """An array has no type of its own."""
    return {name: "text" if kind.endswith("[]") else kind for name, kind in columns.items()}


def columns_by(chance: Chance, kinds: list[str]) -> tuple[dict[str, str], tuple[str, ...]]:
    columns = {"id": "bigint"} | {f"c{i}": kind for i, kind in enumerate(chance.sample(kinds, 6))}
    texts = [name for name, kind in columns.items() if kind in ("text", "uuid", "integer", "boolean")]
    return columns, chance.choice((("id",), ("id",), ("id", *texts[:1]), ()))


@pytest.mark.parametrize("seed", seeds(30, 10))
def test_what_is_read_at_once_is_what_is_read_one_by_one(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    chance = Chance(seed)
    with_schemas, strange = seed % 3 == 0, chance.choice((0.0, 0.02, 0.1, 0.3))
    kinds = [kind for kind in SCHEMAS if kind != "bigint" and (with_schemas or not kind.endswith("[]"))]
    columns, key = columns_by(chance, kinds)
    told = chance.random() < 0.6
    given = settings(delivery=chance.choice(("exactly_once", "at_least_once")) if key else "exactly_once")
    given = given if told else given.model_copy(update={"transactions": None})
    topic = Topic(chance, columns, key, told=told, strange=strange)
    topic.schema = schema_of(columns) if with_schemas else None
    for xid in range(700, 760):
        if topic.schema is not None and xid % 20 == 0:
            topic.schema = schema_of(
                {name: kind for name, kind in columns.items() if name in key or xid < 740 or chance.random() < 0.8}
            )
        topic.transact(xid)
    count = assert_the_same(monkeypatch, topic.messages, table("a", declared(columns), key), given)
    assert count > 150 or strange


@pytest.mark.parametrize("seed", seeds(9, 3))
def test_batches_of_any_size_land_the_same(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Several are opened beside each other, of several schemas, and some of them one by one."""
    chance = Chance(seed)
    columns, key = columns_by(chance, [kind for kind in SCHEMAS if kind != "bigint"])
    topic = Topic(chance, columns, key, told=True, strange=chance.choice((0.0, 0.02)))
    for xid in range(700, 760):
        if xid % 9 == 0:
            topic.columns = {n: k for n, k in columns.items() if n in key or chance.random() < 0.8}
            topic.schema = schema_of(topic.columns)
        topic.transact(xid)
    whole, sizes = RecordedReader.messages, chance.choice(((1,), (1, 3, 200), (40, 70)))

    def in_batches(reader: RecordedReader, ranges: Sequence[Range]) -> Iterator[tuple[str, pa.Table]]:
        for name, messages in whole(reader, ranges):
            while messages.num_rows:
                size = chance.choice(sizes)
                yield name, messages.slice(0, size)
                messages = messages.slice(size)

    of, given = table("a", declared(columns), key), settings()
    alone = one_by_one(monkeypatch, topic.messages, of, given=given, now=LATE)
    monkeypatch.setattr(RecordedReader, "messages", in_batches)
    for threads in (1, 4):
        monkeypatch.setattr(gathered, "THREADS", threads)
        found = tried(topic.messages, of, given=given, now=LATE)
        if isinstance(alone, str) or isinstance(found, str):
            assert alone == found
            continue
        assert found.parked == alone.parked and found.position == alone.position
        assert set(found.noticed.warnings) == set(alone.noticed.warnings)
        assert alone.parked or landed(found, of, given) == landed(alone, of, given)
        assert alone.parked or sorted(found.unread.get("a", ())) == sorted(alone.unread.get("a", ()))
        assert alone.parked or records(found) == records(alone)


@pytest.mark.parametrize("begins", [True, False])
def test_a_converter_begins_or_ceases_to_write_schemas(monkeypatch: pytest.MonkeyPatch, begins: bool) -> None:
    columns = {"id": "bigint", "v": "text"}
    topic = Topic(Chance(4), columns, ("id",), told=True, strange=0.0)
    for xid in range(700, 720):
        topic.schema = schema_of(columns) if (xid >= 710) == begins else None
        topic.transact(xid)
    assert assert_the_same(monkeypatch, topic.messages, table("a", columns), settings()) > 40


ENDS: tuple[dict[str, Any] | Bare, ...] = (
    {}, {"status": "x"}, {"id": "7"}, {"id": "x:1"}, {"id": "7:-1"}, {"id": f"7:{1 << 63}"}, {"id": None},
    {"ts_ms": None}, {"ts_ms": "1"}, {"ts_ms": 1 << 60}, {"data_collections": None}, {"data_collections": {}},
    {"data_collections": [{}]}, {"data_collections": [None]},
    {"data_collections": [{"data_collection": "public.a", "event_count": -1}]}, Bare("{"),
    {"data_collections": [{"data_collection": None, "event_count": 1}]}, Bare("[]"), Bare('{"status": "BEGIN"}'),
)  # fmt: skip


@pytest.mark.parametrize("number", range(len(ENDS)))
def test_an_end_is_read_as_by_itself(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    topic = Topic(Chance(3), {"id": "bigint"}, ("id",), told=True, strange=0.0)
    for xid in range(700, 720):
        topic.transact(xid)
    of, change = [m for m in topic.messages if m["topic"] == "transaction"][-1], ENDS[number]
    of["value"] = str(change) if isinstance(change, Bare) else dumped(json.loads(of["value"]) | change)
    assert_the_same(monkeypatch, topic.messages, table("a", {"id": "bigint"}), settings())


@pytest.mark.parametrize("kind", sorted(UNREPRESENTABLE))
def test_a_value_that_its_type_does_not_hold_is_no_other_value(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    for with_schemas in {kind.endswith("[]"), True}:
        for value in UNREPRESENTABLE[kind]:
            topic = Topic(Chance(1), {"id": "bigint", "v": kind}, ("id",), told=True, strange=0.0)
            topic.schema = schema_of({"id": "bigint", "v": kind}) if with_schemas else None
            made = iter([value, VALUES[kind](Chance(2)), None] * 100)
            monkeypatch.setitem(VALUES, kind, lambda _, made=made: next(made))
            topic.transact(700)
            topic.transact(701)
            assert_the_same(monkeypatch, topic.messages, table("a", declared({"id": "bigint", "v": kind})), settings())


NUMBERS: dict[str, dict[str, str | None]] = {  # as Connect's converter writes them, and what lands; None: nothing
    "numeric(12,2)": {
        "12.50": "12.50", "7": "7.00", "-0.07": "-0.07", "1E+2": "100.00", "0.00": "0.00", "12.505": None, "true": None,
        "NaN": None, "1E+999999999": None, "1E-999999999": None, "1E+99999999999999999999": None,
    },
    "numeric(50,10)": {
        "12.5000000000": "12.5000000000", "1E-10": "0.0000000001", "0E-10": "0.0000000000", "1E+2": "100",
        "-1234567890123456789012345678901234567890.0123456789": "-1234567890123456789012345678901234567890.0123456789",
    },
}  # fmt: skip


LONG = [
    (20, 2, "1.2345678901234568E16", False), (20, 2, "1.2345678901234567E14", False), (20, 2, "1.0E18", False),
    (20, 0, "1.2345678901234568E16", False), (20, 2, "1234567890123456", False), (38, 18, "0.1234567890123456", False),
    (20, 2, "12345678901234567.89", True), (20, 2, "1234567890123.5", True), (20, 2, "12.5", True),
    (20, 2, "1.0E2", True), (20, 2, "1E+18", True), (20, 2, "12345678901234.56", True), (38, 18, "1.5", True),
    (20, 4, "123456789012.50", True), (38, 18, "123456789012345678.25", True), (38, 4, "1234567890123.500", True),
]  # fmt: skip


@pytest.mark.parametrize(("precision", "scale", "written", "lands"), LONG)
def test_a_number_that_may_be_a_double_lands_only_if_a_schema_tells_that_it_is_none(
    precision: int, scale: int, written: str, lands: bool
) -> None:
    """By decimal.handling.mode=double digits were lost, and what was left landed as the value."""
    column = Typed(source_type_of(f"numeric({precision},{scale})"))
    told, untold = (
        reader_of(column, given, Modes("precise"))([Number(written)]).to_pylist()
        for given in (ConnectType("bytes", DECIMAL, {"scale": str(scale)}), None)
    )
    assert [Decimal(value) for value in told] == [Decimal(written)]
    assert untold == (told if lands else [BAD])


@pytest.mark.parametrize("with_schemas", [True, False])
@pytest.mark.parametrize("kind", NUMBERS)
def test_a_decimal_that_is_written_as_a_number_lands_digit_for_digit(
    monkeypatch: pytest.MonkeyPatch, kind: str, with_schemas: bool
) -> None:
    """As by decimal.format=NUMERIC of Connect's JSON converter: each event with one was a dead letter."""
    scale = kind[:-1].partition(",")[2]
    monkeypatch.setitem(SCHEMAS, kind, SCHEMAS["numeric(12,2)"] | {"parameters": {"scale": scale}})
    monkeypatch.setitem(VALUES, kind, lambda _: encoded(1))
    columns, wanted = {"id": "bigint", "price": kind}, NUMBERS[kind]
    topic = Topic(Chance(1), columns, ("id",), told=True, strange=0.0)
    topic.schema, topic.ops = schema_of(columns) if with_schemas else None, "c"
    for xid in range(700, 730):
        topic.transact(xid)
    events, at = [m for m in topic.messages if m["topic"] == "public.a"], dict[int, str]()
    for event, written in zip(events, (w for w in wanted for _ in range(2)), strict=False):
        value = json.loads(event["value"])
        value.get("payload", value)["after"]["price"] = Bare(written)
        event["value"], at[event["offset"]] = dumped(value), written
    of, lost = table("a", columns), 2 * [*wanted.values()].count(None)
    assert len(at) == 2 * len(wanted)
    assert assert_the_same(monkeypatch, topic.messages, of, settings()) == len(events) - lost
    found = {row["_offset"]: str(row["price"]) for row in read(topic.messages, of, now=LATE).rows["a"]}
    assert {at[offset]: text for offset, text in found.items() if offset in at} == {
        written: text for written, text in wanted.items() if text is not None
    }


def test_ordinary_envelopes_are_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else reading them one by one would hide that nothing else works."""
    chance, columns = Chance(1), {"id": "bigint"} | {f"c{i}": k for i, k in enumerate(VALUES) if not k.endswith("[]")}
    topic = Topic(chance, columns, ("id",), told=True, strange=0.0)
    for xid in range(700, 760):
        topic.transact(xid)
    opened: list[int] = []
    add = gathered.Gathered._add

    def add_one(*given: Any) -> None:
        opened.append(1)
        add(*given)

    monkeypatch.setattr(gathered.Gathered, "_add", add_one)
    found = read(topic.messages, table("a", columns), given=settings(), now=LATE)
    assert sum(map(len, found.rows.values())) > 200 and len(opened) < 5 and not found.unread


def test_what_is_kept_of_messages_that_are_read_one_by_one_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """By their bytes: a few large ones are as much as many small ones. All land, as if nothing had been kept."""
    chance, columns = Chance(3), {"id": "bigint", "big": "text"}
    monkeypatch.setitem(VALUES, "text", lambda c: "\0" + "x" * c.randrange(10_000))
    topic = Topic(chance, columns, ("id",), told=True, strange=0.0)
    for xid in range(700, 730):
        topic.transact(xid)
    kept: list[int] = []
    close = gathered.Gathered.close

    def close_one(of: gathered.Gathered) -> None:
        kept.append(sum(len(of.spool.value(index)) for index in of.opened))
        close(of)

    monkeypatch.setattr(gathered.Gathered, "close", close_one)
    whole = read(topic.messages, table("a", columns), given=settings(), now=LATE)
    monkeypatch.setattr(gathered, "OPENED_BYTES", 50_000)
    bounded = read(topic.messages, table("a", columns), given=settings(), now=LATE)
    assert bounded.rows == whole.rows and len(whole.rows["a"]) > 100 and not bounded.unread
    assert kept[0] > 100_000 and 25_000 < kept[1] <= 50_000


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("again", ["null", '{"id":7}', "7", ""])
def test_inserts_are_read_without_what_was_before(monkeypatch: pytest.MonkeyPatch, seed: int, again: str) -> None:
    """None of them has a row before, whatever is in a row, or a message that says it twice."""
    chance = Chance(seed)
    columns, key = columns_by(chance, [kind for kind in VALUES if not kind.endswith("[]")])
    topic = Topic(chance, columns, key, told=True, strange=0.0)
    topic.ops = "c"
    for xid in range(700, 720):
        topic.transact(xid)
    events = [m for m in topic.messages if m["topic"] == "public.a" and m["value"]]
    assert all(m["value"].startswith('{"before":null,') for m in events)
    if again:
        of = chance.choice(events)
        of["value"] = f'{of["value"][:-1]},"before":{again}}}'
    assert assert_the_same(monkeypatch, topic.messages, table("a", columns, key), settings()) > 40


@pytest.mark.parametrize("depth", [DEPTH - 20, DEPTH - 1, DEPTH, DEPTH + 1, 3 * DEPTH])
def test_what_is_nested_too_deeply_is_read_by_itself(monkeypatch: pytest.MonkeyPatch, depth: int) -> None:
    """Python's reader gives up on it, and Arrow's does not."""
    topic = Topic(Chance(5), {"id": "bigint", "v": "text"}, ("id",), told=True, strange=0.0)
    for xid in range(700, 712):
        topic.transact(xid)
    events = [m for m in topic.messages if m["topic"] == "public.a" and m["value"]]
    for of, bracket in ((events[3], "[]"), (events[9], "{}")):
        nested = "[" * depth + "]" * depth if bracket == "[]" else '{"a":' * depth + "1" + "}" * depth
        of["value"] = f'{of["value"][:-1]},"more":{nested}}}'
    events[12]["value"] = f'{events[12]["value"][:-1]},"more":"{"[" * depth}"}}'
    events[13]["value"] = f'{events[13]["value"][:-1]},"more":{"7" * (depth * 5)}}}'
    assert_the_same(monkeypatch, topic.messages, table("a", {"id": "bigint", "v": "text"}), settings())


@pytest.mark.parametrize("seed", seeds(20, 7))
def test_decimals_are_those_of_one_by_one(seed: int) -> None:
    chance = Chance(seed)
    scale = chance.randrange(39)
    values: list[str | None] = [
        None
        if chance.random() < 0.1
        else encoded(chance.getrandbits(chance.randrange(1, 126)) * chance.choice((1, -1)))
        for _ in range(500)
    ]
    found = decimals(pa.array(["x", *values])[1:], scale)
    assert found is not None
    assert found.to_pylist() == [None if v is None else Decimal(_digits(v, scale)) for v in values]
    for bad in ("", "A", "AA=", "A===", "====", "AA=A", "A!AA", "AAAA====", encoded(1 << 140), "ä", "AAA\n"):
        assert decimals(pa.array([*values, bad]), scale) is None

"""Text as Postgres prints it becomes typed values; what the lake cannot hold follows the policy and is counted."""

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_types_table import numeric

from ingestion.schema.types import SourceType, UnreadableValue, UnrepresentableValue, convert
from ingestion.schema.types.table import RULES

TYPES = {rule.name: SourceType(rule.oid, rule.name) for rule in RULES}
DAY = 86_400_000_000


def values(source: SourceType | str, *texts: str | None, policy: Any = "error") -> list[Any]:
    source = TYPES[source] if isinstance(source, str) else source
    return convert(pa.array(texts, pa.string()), source, policy).array.to_pylist()


@pytest.mark.parametrize(
    ("source", "texts", "expected"),
    [
        ("bool", ["t", None, "f"], [True, None, False]),
        ("int2", ["-32768", None, "32767"], [-32768, None, 32767]),
        ("int8", ["-9223372036854775808", "9223372036854775807"], [-(2**63), 2**63 - 1]),
        ("oid", ["4294967295", "0"], [2**32 - 1, 0]),
        ("date", ["2024-02-29", "0001-01-01", "9999-12-31"], [date(2024, 2, 29), date.min, date.max]),
        ("timestamp", ["2024-01-02 03:04:05.1", "1969-12-31 23:59:59.999999"],
         [datetime(2024, 1, 2, 3, 4, 5, 100000), datetime(1969, 12, 31, 23, 59, 59, 999999)]),
        ("timestamptz", ["2024-01-02 03:04:05+00", None], [datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC), None]),
        ("timestamptz", ["2024-01-02 03:04:05+05:30"], [datetime(2024, 1, 1, 21, 34, 5, tzinfo=UTC)]),
        ("time", ["00:00:00", "24:00:00", "12:34:56.000001", None], [0, DAY, 45_296_000_001, None]),
        ("bytea", ["\\x", "\\x00ff5c", None], [b"", b"\x00\xff\\", None]),
        ("text", ["", None, "\\N", 'q"\'\n\t', "NaN"], ["", None, "\\N", 'q"\'\n\t', "NaN"]),
        ("bpchar", ["ab   "], ["ab   "]),
        ("numeric", ["NaN", "Infinity", "1" * 200], ["NaN", "Infinity", "1" * 200]),
        (numeric(12, 2), ["1.50", "-0.01", None, "9999999999.99"],
         [Decimal("1.50"), Decimal("-0.01"), None, Decimal("9999999999.99")]),
        (numeric(38, 0), ["-" + "9" * 38], [Decimal("-" + "9" * 38)]),
        (numeric(3, -2), ["99900", "-100"], [Decimal(99900), Decimal(-100)]),
        (numeric(3, 5), ["0.00999"], [Decimal("0.00999")]),
    ],
)  # fmt: skip
def test_value(source: SourceType | str, texts: list[str | None], expected: list[Any]) -> None:
    assert values(source, *texts) == expected


@pytest.mark.parametrize("source", ["int2", "int4", "int8", "oid"])
@pytest.mark.parametrize("text", ["0x1F", "0X1f", " 12 ", "+5", "1_0"])
def test_what_postgres_never_prints_for_a_number_is_none(source: str, text: str) -> None:
    """The text `0x1F` of an event landed as 31."""
    with pytest.raises(UnreadableValue):
        values(source, "1", text)


def test_floats_keep_nan_infinities_and_the_sign_of_zero() -> None:
    for source in ("float4", "float8"):
        nan, high, low, zero = values(source, "NaN", "Infinity", "-Infinity", "-0")
        assert math.isnan(nan)
        assert (high, low, zero, math.copysign(1, zero)) == (math.inf, -math.inf, 0, -1)


@given(st.floats(allow_nan=False))
@settings(deadline=None)
def test_every_double_is_read_to_the_bit(number: float) -> None:
    text = {math.inf: "Infinity", -math.inf: "-Infinity"}.get(number, repr(number))
    (read,) = values("float8", text)
    assert (read, math.copysign(1, read)) == (number, math.copysign(1, number))


@given(st.lists(st.one_of(st.none(), st.binary(max_size=20)), max_size=20))
def test_every_bytea_is_read(items: list[bytes | None]) -> None:
    assert values("bytea", *[None if item is None else "\\x" + item.hex() for item in items]) == items
    assert values("bytea", *[None if item is None else "\\x" + item.hex().upper() for item in items]) == items


ODD: dict[str, tuple[str, dict[str, Any]]] = {
    "date": (
        "2024-01-02",
        {"infinity": date.max, "-infinity": date.min, "0044-03-15 BC": date.min, "10000-01-01": date.max},
    ),
    "timestamp": (
        "2024-01-02 03:04:05",
        {"infinity": datetime.max, "-infinity": datetime.min, "0044-03-15 12:00:00.5 BC": datetime.min,
         "294276-12-31 23:59:59.999999": datetime.max},
    ),
    "timestamptz": (
        "2024-01-02 03:04:05+00",
        {"infinity": datetime.max.replace(tzinfo=UTC), "-infinity": datetime.min.replace(tzinfo=UTC),
         "0001-12-31 23:59:59+00 BC": datetime.min.replace(tzinfo=UTC),
         "10000-01-01 00:00:00+00": datetime.max.replace(tzinfo=UTC)},
    ),
    "numeric": ("1.50", {"NaN": None, "Infinity": Decimal("99.99"), "-Infinity": Decimal("-99.99")}),
}  # fmt: skip


def odd_source(name: str) -> SourceType:
    return numeric(4, 2) if name == "numeric" else TYPES[name]


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, (_, odd) in ODD.items() for text in odd])
def test_odd_value_under_each_policy(name: str, text: str) -> None:
    usual, odd = ODD[name]
    column, source = pa.array([usual, None, text, usual, text]), odd_source(name)
    (expected,) = values(source, usual)
    nulled = convert(column, source, "null")
    assert nulled.array.to_pylist() == [expected, None, None, expected, None]
    clamped = convert(column, source, "clamp")
    assert clamped.array.to_pylist() == [expected, None, odd[text], expected, odd[text]]
    for converted in (nulled, clamped):
        assert converted.unrepresentable == 2
        assert (converted.rows.to_pylist(), converted.texts.to_pylist()) == ([2, 4], [text, text])
    with pytest.raises(UnrepresentableValue, match=f"in a column of type {name}") as caught:
        convert(column, source, "error")
    assert caught.value.row == 2


def test_several_odd_kinds_in_one_column_and_the_first_is_named() -> None:
    texts = ["2024-01-02", "0044-03-15 BC", "infinity", "10000-01-01"]
    assert values("date", *texts, policy="clamp") == [date(2024, 1, 2), date.min, date.max, date.max]
    with pytest.raises(UnrepresentableValue, match=r"^a year before 0001"):
        values("date", *texts)


@pytest.mark.parametrize("policy", ["error", "clamp", "null"])
@pytest.mark.parametrize(
    ("source", "good", "bad"),
    [
        ("bool", "t", "true"),
        ("int4", "1", "2147483648"),
        ("int4", "1", ""),
        ("float8", "1", "one"),
        ("date", "2024-01-02", "01/02/2024"),
        ("date", "infinity", "01/02/2024 BC"),
        ("timestamp", "2024-01-02 00:00:00", "Tue 02 Jan 2024"),
        ("timestamptz", "2024-01-02 00:00:00+00", "2024-01-02 00:00:00"),
        ("date", "infinity", "0000-12-31"),
        ("timestamp", "0044-03-15 12:00:00.5 BC", "0000-12-31 23:59:59"),
        ("timestamptz", "infinity", "0000-12-31 23:00:00+00"),
        ("timestamptz", "infinity", "0001-01-01 00:30:00+01"),
        ("timestamptz", "infinity", "9999-12-31 23:30:00-01"),
        ("float4", "Infinity", "1e39"),
        ("float8", "-Infinity", "-1e400"),
        ("time", "24:00:00", "25:00:00"),
        ("bytea", "\\x00", "abc\\000"),
        ("bytea", "\\x00", "\\x0"),
        ("bytea", "\\x00", "\\x0g"),
        (numeric(4, 2), "NaN", "1.234"),
        (numeric(4, 2), "1.23", "123.45"),
    ],
)
def test_a_text_that_postgres_would_not_print_is_refused_under_every_policy(
    source: SourceType | str, good: str, bad: str, policy: Any
) -> None:
    secret = bad
    with pytest.raises(UnreadableValue, match="in a column of type") as caught:
        values(source, None, good, bad, good, policy=policy)
    assert secret == "" or secret not in str(caught.value)


def test_slices_chunks_and_large_strings_are_the_same_column() -> None:
    for name, text, expected in [("bytea", "\\x0102", b"\1\2"), ("date", "2024-01-02", date(2024, 1, 2)),
                                 ("text", "a", "a"), ("time", "24:00:00", DAY), ("bool", "t", True)]:  # fmt: skip
        sliced = pa.array(["?", text, None, text]).slice(1)
        for column in (sliced, sliced.cast(pa.large_string()), pa.chunked_array([sliced.slice(0, 1), sliced.slice(1)])):
            converted = convert(column, TYPES[name])
            assert converted.array.to_pylist() == [expected, None, expected]
            assert converted.array.type == convert(pa.array([text]), TYPES[name]).array.type


def test_empty_and_all_null_columns() -> None:
    for source in TYPES.values():
        assert convert(pa.array([], pa.string()), source).array.to_pylist() == []
        assert convert(pa.nulls(3, pa.string()), source).array.to_pylist() == [None] * 3
        assert convert(pa.chunked_array([], pa.string()), source).array.to_pylist() == []

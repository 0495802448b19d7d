"""Values of Debezium's messages as Postgres prints them, or typed: by what Connect's schema says they stand for.

A type that would lose something, or that does not tell a moment's zone, is refused rather than guessed. Where messages
have no schema, a declared type and the connector's modes tell how its values are written.
"""

import re
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from functools import partial
from typing import Any

import pyarrow as pa

from ingestion.schema.types.model import Form
from ingestion.schema.types.table import target_type
from ingestion.sources.debezium.message.columns import (
    BAD,
    CONNECT,
    TIME,
    Modes,
    Reader,
    Typed,
    Unfit,
    said,
    texts,
    typed_or_text,
    unfit,
)
from ingestion.sources.debezium.message.moments import date_reader, time_reader, timestamp_reader, timestamptz_reader
from ingestion.sources.debezium.message.opened import ConnectType
from ingestion.sources.kafka.unwrapped import forms_of
from ingestion.sources.kafka.values import Number, text

VARIABLE = "io.debezium.data.VariableScaleDecimal"
DECIMAL = CONNECT + "Decimal"
DOUBLE_DIGITS = 15  # that any decimal keeps as a double
MOST_DOUBLE_DIGITS = 17  # that a double is written with
AS_DOUBLE = re.compile(r"[eE]\d")
MOST_DIGITS = 131_072  # before the point, of a numeric of Postgres
BITS = "io.debezium.data.Bits"
PRINTED = (  # what is printed as Postgres does, or as it is written
    None, "io.debezium.data.Enum", "io.debezium.data.EnumSet", "io.debezium.data.Uuid", "io.debezium.data.Json",
    "io.debezium.data.Xml", "io.debezium.data.Ltree", "io.debezium.data.TsVector", TIME + "ZonedTime",
    TIME + "Interval", TIME + "ZonedTimestamp", TIME + "IsoTime", TIME + "IsoDate", TIME + "IsoTimestamp",
)  # fmt: skip
_WIDTHS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
_DECLARED = {"int2": 16, "int4": 32}
_UNTOLD = frozenset({"int8", "int16", "float32", "float64", "boolean"})
_UNTOLD_NAMES = frozenset(
    {"io.debezium.data.Enum", "io.debezium.data.Ltree"}
    | {TIME + name for name in ("ZonedTimestamp", "ZonedTime", "IsoTimestamp", "IsoTime", "IsoDate")}
)


def reader_of(column: Typed, given: ConnectType | None, modes: Modes) -> Reader:
    """How values become those of the column: typed, or as text that its type's reader takes; raises Unfit."""
    is_told, given = given is not None, given or expected(column, modes)
    form = target_type(column.source).form
    if column.source.name == "numeric":
        return partial(texts, _decimal(given, is_told=is_told))
    if column.source.name in ("bit", "varbit"):
        return partial(texts, _bits(given))
    return _READERS[form](column, given, modes)


def expected(column: Typed, modes: Modes) -> ConnectType:
    """What Debezium sends for a column of the type, where the message does not say it."""
    asked = {"numeric": "decimals", "money": "decimals", "timestamp": "times", "time": "times", "bytea": "binary"}
    mode = asked.get(column.source.name)
    if mode and getattr(modes, mode) is None:
        raise Unfit(f"messages have no schema, so `{mode}` of the source has to be set as the connector has it")
    name, precise_ms = column.source.name, column.digits is not None and column.digits <= 3
    iso = modes.times == "isostring"
    if name == "numeric":
        if modes.decimals == "string":
            return ConnectType("string")
        scale = ((column.source.typmod - 4) & 0x7FF ^ 1024) - 1024
        known = column.source.typmod >= 4
        return ConnectType("bytes", DECIMAL, {"scale": str(scale)}) if known else ConnectType("struct", VARIABLE)
    if name == "timestamp":
        return ConnectType("string", TIME + "IsoTimestamp") if iso else ConnectType(
            "int64", TIME + ("Timestamp" if precise_ms else "MicroTimestamp")
        )  # fmt: skip
    if name == "time":
        milli = precise_ms and modes.times == "adaptive"
        return ConnectType("string", TIME + "IsoTime") if iso else ConnectType(
            "int32" if milli else "int64", TIME + ("Time" if milli else "MicroTime")
        )  # fmt: skip
    if name == "date":
        return ConnectType("string", TIME + "IsoDate") if iso else ConnectType("int32", TIME + "Date")
    if name == "timestamptz":
        return ConnectType("string", TIME + "ZonedTimestamp")
    if name in ("bit", "varbit"):
        raise Unfit(f"a column of type {name} is written with its length, which messages without a schema do not have")
    if name == "money" and modes.decimals == "precise":
        return ConnectType("bytes", DECIMAL, {"scale": "2"})
    simple = {"int2": "int16", "int4": "int32", "int8": "int64", "bool": "boolean", "float4": "float32",
              "float8": "float64", "oid": "int64"}  # fmt: skip
    return ConnectType(simple.get(name) or ("bytes" if name == "bytea" and modes.binary != "hex" else "string"))


def placeholders(modes: Modes) -> tuple[Any, ...]:
    """In which forms a value may come that an update did not carry."""
    given = modes.placeholder
    return forms_of(bytes.fromhex(given[4:]) if given.startswith("hex:") else given.encode())


def leaves_empty(given: ConnectType) -> bool:
    """Whether Debezium writes NULL for a value of the type that an update did not carry: arrays for which it has no
    placeholder."""
    of = given.element if given.type == "array" else None
    return of is not None and (of.type in _UNTOLD or of.name in _UNTOLD_NAMES)


def _integer(column: Typed, given: ConnectType, _: Modes) -> Reader:
    width = _WIDTHS.get(given.type)
    if width is None or given.name is not None or width > _DECLARED.get(column.source.name, 64):
        raise unfit(column, given)
    arrow = target_type(column.source).arrow

    def read(values: Sequence[Any]) -> pa.Array:
        return typed_or_text(values, arrow) if all(v is None or type(v) is int for v in values) else texts(text, values)

    return read


def _boolean(column: Typed, given: ConnectType, _: Modes) -> Reader:
    if given.type != "boolean":
        raise unfit(column, given)

    def read(values: Sequence[Any]) -> pa.Array:
        if all(v is None or type(v) is bool for v in values):
            return pa.array(values, pa.bool_())
        return texts(lambda value: ("t" if value else "f") if type(value) is bool else BAD, values)

    return read


def _float(column: Typed, given: ConnectType, _: Modes) -> Reader:
    if given.type not in (("float32",) if column.source.name == "float4" else ("float32", "float64")):
        raise unfit(column, given)
    return partial(texts, text)


def _decimal(given: ConnectType, *, is_told: bool) -> Callable[[Any], str]:
    if given.name == VARIABLE:
        return _variable
    if given.name == DECIMAL:
        scale = int(given.parameters.get("scale", 0))
        exact = None if is_told else scale
        return lambda value: _number(value, exact) if isinstance(value, int | Number) else _digits(value, scale)
    if given.type == "string" and given.name is None:
        return text
    if given.type in ("float32", "float64"):
        raise Unfit("numbers came as floating point, which loses digits: set decimal.handling.mode of the connector")
    raise Unfit(f"values of type {said(given)} came in a column that is declared as numeric")


def _digits(encoded: Any, scale: int) -> str:
    """The number of a big-endian integer and its scale, digit for digit; what is none as it is."""
    try:
        number = int.from_bytes(b64decode(encoded, validate=True), "big", signed=True)
    except (ValueError, TypeError):
        return BAD
    if scale <= 0:
        return str(number * 10**-scale)
    digits = str(abs(number)).rjust(scale + 1, "0")
    return f"{'-' if number < 0 else ''}{digits[:-scale]}.{digits[-scale:]}"


def _number(written: int | Number, scale: int | None) -> str:
    """A number as the JSON converter writes it by `decimal.format=NUMERIC`, without an exponent. Where no schema tells
    that it is one, `scale` is the declared one, and what may be a double that has lost some is none."""
    try:
        number = Decimal(written)
    except InvalidOperation:
        return BAD
    is_one = not isinstance(written, bool) and number.is_finite() and abs(number.adjusted()) <= MOST_DIGITS
    return format(number, "f") if is_one and not _may_be_double(written, number, scale) else BAD


def _may_be_double(written: int | Number, number: Decimal, scale: int | None) -> bool:
    """Whether it may be what is left of a longer number. Java writes the exponent of a decimal with its sign, and that
    of a double of 10,000,000 or more without a plus. Other doubles that have lost digits have 16 or 17 of them, and the
    converter writes decimals with the declared ones behind the point.
    """
    if scale is None or not number:
        return False
    _, digits, exponent = number.as_tuple()
    if isinstance(written, Number) and AS_DOUBLE.search(written):
        return number.adjusted() + 1 + scale > DOUBLE_DIGITS
    count = len("".join(map(str, digits)).rstrip("0"))
    return DOUBLE_DIGITS < count <= MOST_DOUBLE_DIGITS and exponent != -scale


def _variable(value: Any) -> str:
    try:
        return _digits(value["value"], int(value["scale"]))
    except (KeyError, TypeError, ValueError):
        return BAD


def _bits(given: ConnectType) -> Callable[[Any], str]:
    if given.type == "boolean":
        return lambda value: "1" if value is True else "0" if value is False else BAD
    if given.name != BITS or "length" not in given.parameters:
        raise Unfit(f"values of type {said(given)} came in a column of bits")
    length = int(given.parameters["length"])

    def printed(value: Any) -> str:
        try:
            number = int.from_bytes(b64decode(value, validate=True), "little")
        except (ValueError, TypeError):
            return BAD
        return format(number, f"0{length}b") if length < 1 << 20 else format(number, "b")

    return printed


def _bytes(column: Typed, given: ConnectType, modes: Modes) -> Reader:
    if given.name is not None or given.type not in ("bytes", "string"):
        raise unfit(column, given)
    is_hex = given.type == "string" and modes.binary == "hex"
    if given.type == "string" and modes.binary in (None, "bytes"):
        raise Unfit("bytes came as text: set `binary` of the source as binary.handling.mode of the connector")

    def printed(value: Any) -> str:
        try:
            return "\\x" + (bytes.fromhex(value) if is_hex else b64decode(value, validate=True)).hex()
        except (ValueError, TypeError):
            return BAD

    return partial(texts, printed)


def _text(column: Typed, given: ConnectType, _: Modes) -> Reader:
    if given.type == "string" and given.name in PRINTED:
        return partial(_strings, column)
    if given.type in ("array", "map") and _is_plain(given):
        return partial(texts, text)
    if given.name == TIME + "MicroDuration":
        raise Unfit("intervals came as microseconds, which lose months: set interval.handling.mode of the connector")
    if given.name == DECIMAL and column.source.name == "money":
        raise Unfit("amounts of money came as numbers: declare the column as numeric(19,2)")
    raise unfit(column, given)


def _strings(column: Typed, values: Sequence[Any]) -> pa.Array:
    for value in values:
        if value is not None and type(value) is not str:
            raise Unfit(
                f"values that are no text came in a column that is declared as {column.source.name}: let the connector "
                "write messages with schemas, or correct the type"
            )
    return pa.array(values, pa.string())


def _is_plain(given: ConnectType) -> bool:
    element = given.element
    return element is None or (element.type not in ("bytes", "struct") and element.name in PRINTED)


_READERS: Mapping[Form, Callable[[Typed, ConnectType, Modes], Reader]] = {
    Form.INTEGER: _integer, Form.BOOLEAN: _boolean, Form.FLOAT: _float, Form.DATE: date_reader, Form.TEXT: _text,
    Form.TIMESTAMP: timestamp_reader, Form.TIMESTAMPTZ: timestamptz_reader, Form.TIME: time_reader, Form.BYTES: _bytes,
}  # fmt: skip

"""Values of Debezium's messages as Postgres prints them, or typed: by what Connect's schema says they stand for.

A type that would lose something, or that does not tell a moment's zone, is refused rather than guessed. Where messages
have no schema, a declared type and the connector's modes tell how its values are written.
"""

from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from ingestion.schema.types.model import Form, SourceType
from ingestion.schema.types.table import target_type
from ingestion.sources.debezium.opened import ConnectType
from ingestion.sources.kafka.values import text

TIME, CONNECT = "io.debezium.time.", "org.apache.kafka.connect.data."
VARIABLE = "io.debezium.data.VariableScaleDecimal"
DECIMAL = CONNECT + "Decimal"
BITS = "io.debezium.data.Bits"
MICROSECONDS = {  # of one unit, by the name of the schema
    TIME + "Timestamp": 1000, TIME + "MicroTimestamp": 1, TIME + "Time": 1000, TIME + "MicroTime": 1,
    CONNECT + "Timestamp": 1000, CONNECT + "Time": 1000,
}  # fmt: skip
NANO = {TIME + "NanoTimestamp", TIME + "NanoTime"}
IN_CONNECT = "precise to the millisecond only: set time.precision.mode of the connector to adaptive"
FIRST_MOMENT, LAST_MOMENT = -9223372036832400000, 9223372036825200000  # by which the driver counts infinite moments
FIRST_DAY, LAST_DAY = -2_440_588, 2_145_042_905  # of Postgres: what is beyond is how an infinite one is written
FIRST_YEAR, LAST_YEAR = -4713, 5_874_897
DAY = 86_400_000_000
PRINTED = (  # what is printed as Postgres does, or as it is written
    None, "io.debezium.data.Enum", "io.debezium.data.EnumSet", "io.debezium.data.Uuid", "io.debezium.data.Json",
    "io.debezium.data.Xml", "io.debezium.data.Ltree", "io.debezium.data.TsVector", TIME + "ZonedTime",
    TIME + "Interval", TIME + "ZonedTimestamp", TIME + "IsoTime", TIME + "IsoDate", TIME + "IsoTimestamp",
)  # fmt: skip
_WIDTHS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
_DECLARED = {"int2": 16, "int4": 32}


@dataclass(frozen=True)
class Modes:
    """How the connector writes values, as far as it is declared: nothing is guessed where messages have no schema."""

    decimals: Literal["precise", "string"] | None = None
    times: Literal["adaptive", "adaptive_time_microseconds", "isostring"] | None = None
    binary: Literal["bytes", "base64", "hex"] | None = None
    placeholder: str = "__debezium_unavailable_value"


@dataclass(frozen=True)
class Typed:
    """A declared column: its type in pg_type's terms, and the digits of a second that it declares."""

    source: SourceType
    digits: int | None = None


class Unfit(ValueError):
    """Values of a type that the declared one cannot hold as they are; the text says why."""


Reader = Callable[[Sequence[Any]], pa.Array]


def reader_of(column: Typed, given: ConnectType | None, modes: Modes) -> Reader:
    """How values become those of the column: typed, or as text that its type's reader takes; raises Unfit."""
    given = given or expected(column, modes)
    form = target_type(column.source).form
    if column.source.name == "numeric":
        return partial(_texts, _decimal(given))
    if column.source.name in ("bit", "varbit"):
        return partial(_texts, _bits(given))
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
    raw = bytes.fromhex(given[4:]) if given.startswith("hex:") else given.encode()
    said = raw.decode(errors="replace")
    numbers = [byte - 256 if byte > 127 else byte for byte in raw]
    return said, _base64(raw), raw.hex(), [said], numbers, {said: said}


def _base64(raw: bytes) -> str:
    from base64 import b64encode

    return b64encode(raw).decode()


def _texts(printed: Callable[[Any], str], values: Sequence[Any]) -> pa.Array:
    return pa.array([None if value is None else printed(value) for value in values], pa.string())


def _integer(column: Typed, given: ConnectType, _: Modes) -> Reader:
    width = _WIDTHS.get(given.type)
    if width is None or given.name is not None or width > _DECLARED.get(column.source.name, 64):
        raise _unfit(column, given)
    arrow = target_type(column.source).arrow

    def read(values: Sequence[Any]) -> pa.Array:
        return _typed(values, arrow) if all(v is None or type(v) is int for v in values) else _texts(text, values)

    return read


def _typed(values: Sequence[Any], arrow: pa.DataType) -> pa.Array:
    try:
        return pa.array(values, arrow)
    except (pa.ArrowException, OverflowError):
        return _texts(text, values)


def _boolean(column: Typed, given: ConnectType, _: Modes) -> Reader:
    if given.type != "boolean":
        raise _unfit(column, given)

    def read(values: Sequence[Any]) -> pa.Array:
        return _typed(values, pa.bool_()) if all(v is None or type(v) is bool for v in values) else _texts(text, values)

    return read


def _float(column: Typed, given: ConnectType, _: Modes) -> Reader:
    if given.type not in (("float32",) if column.source.name == "float4" else ("float32", "float64")):
        raise _unfit(column, given)
    return partial(_texts, text)


def _decimal(given: ConnectType) -> Callable[[Any], str]:
    if given.name == VARIABLE:
        return lambda value: _digits(value["value"], int(value["scale"])) if isinstance(value, dict) else text(value)
    if given.name == DECIMAL:
        scale = int(given.parameters.get("scale", 0))
        return lambda value: _digits(value, scale)
    if given.type == "string" and given.name is None:
        return text
    if given.type in ("float32", "float64"):
        raise Unfit("numbers came as floating point, which loses digits: set decimal.handling.mode of the connector")
    raise Unfit(f"values of type {_said(given)} came in a column that is declared as numeric")


def _digits(encoded: Any, scale: int) -> str:
    """The number of a big-endian integer and its scale, digit for digit; what is none as it is."""
    try:
        number = int.from_bytes(b64decode(encoded, validate=True), "big", signed=True)
    except (ValueError, TypeError):
        return "no number"
    if scale <= 0:
        return str(number * 10**-scale)
    digits = str(abs(number)).rjust(scale + 1, "0")
    return f"{'-' if number < 0 else ''}{digits[:-scale]}.{digits[-scale:]}"


def _bits(given: ConnectType) -> Callable[[Any], str]:
    if given.type == "boolean":
        return lambda value: "1" if value is True else "0" if value is False else "no bit"
    if given.name != BITS or "length" not in given.parameters:
        raise Unfit(f"values of type {_said(given)} came in a column of bits")
    length = int(given.parameters["length"])

    def printed(value: Any) -> str:
        number = int.from_bytes(b64decode(value), "little")
        return format(number, f"0{length}b") if length < 1 << 20 else format(number, "b")

    return printed


def _date(column: Typed, given: ConnectType, _: Modes) -> Reader:
    if given.type == "string" and given.name == TIME + "IsoDate":
        return partial(_texts, _iso)
    if given.name not in (TIME + "Date", CONNECT + "Date"):
        raise _unfit(column, given)
    return partial(_moments, DAY, pa.date32(), _day)


def _day(moment: str) -> str:
    return moment.partition(" ")[0] + (" BC" if moment.endswith(" BC") else "")


def _timestamp(column: Typed, given: ConnectType, _: Modes) -> Reader:
    if given.type == "string" and given.name == TIME + "IsoTimestamp":
        return partial(_texts, _iso)
    _check_unit(column, given, "Timestamp")
    return partial(_moments, _unit(given), pa.timestamp("us"), lambda said: said)


def _time(column: Typed, given: ConnectType, _: Modes) -> Reader:
    if given.type == "string" and given.name == TIME + "IsoTime":
        return partial(_texts, _iso)
    _check_unit(column, given, "Time")
    unit = _unit(given)

    def read(values: Sequence[Any]) -> pa.Array:
        if not all(v is None or type(v) is int for v in values):
            return _texts(lambda value: "no time", values)
        return _typed([None if v is None else _in_microseconds(v, unit) for v in values], pa.int64())

    return read


def _check_unit(column: Typed, given: ConnectType, ending: str) -> None:
    if (given.name not in MICROSECONDS and given.name not in NANO) or not str(given.name).endswith(ending):
        raise _unfit(column, given)
    if str(given.name).startswith(CONNECT) and (column.digits is None or column.digits > 3):
        raise Unfit(f"values of type {_said(given)} are {IN_CONNECT}")


def _unit(given: ConnectType) -> int:
    """Microseconds of a unit; 0 where a thousand of them are one."""
    return MICROSECONDS.get(str(given.name), 0)


def _in_microseconds(value: int, unit: int) -> int:
    if unit:
        return value * unit
    if value % 1000:
        raise Unfit("values have nanoseconds, which the lake does not hold")
    return value // 1000


def _moments(unit: int, arrow: pa.DataType, shortened: Callable[[str], str], values: Sequence[Any]) -> pa.Array:
    """Days or moments from their count since 1970; as text where the lake's type cannot hold one."""
    if not all(v is None or type(v) is int for v in values):
        return _texts(lambda value: "no moment", values)
    is_day = arrow == pa.date32()
    counts = [None if v is None else v if is_day else _in_microseconds(v, unit) for v in values]
    first, last = (-719_162, 2_932_896) if is_day else (-62_135_596_800_000_000, 253_402_300_799_999_999)
    if all(v is None or first <= v <= last for v in counts):
        return pa.array(counts, pa.int32() if is_day else pa.int64()).view(arrow)
    per_day = 1 if is_day else DAY
    return _texts(lambda count: shortened(_printed(count, per_day)), counts)


def _printed(count: int, per_day: int) -> str:
    """As Postgres prints a timestamp, whatever its year."""
    day, rest = divmod(count, per_day)
    first, last = (FIRST_DAY, LAST_DAY) if per_day == 1 else (FIRST_MOMENT + 1, LAST_MOMENT - 1)
    if not first <= count <= last:
        return "infinity" if day > 0 else "-infinity"
    said = str(np.datetime64(day, "D"))
    time = str(np.datetime64(rest, "us"))[11:] if per_day > 1 else "00:00:00"
    return _with_era(said, f" {time}")


def _with_era(day: str, rest: str) -> str:
    """A day by ISO 8601, whose year may have a sign and any number of digits, as Postgres prints it."""
    year, after = day[: day.index("-", 1)], day[day.index("-", 1) :]
    number = int(year)
    if number > LAST_YEAR or number < FIRST_YEAR:
        return "infinity" if number > 0 else "-infinity"
    return f"{number:04d}{after}{rest}" if number > 0 else f"{1 - number:04d}{after}{rest} BC"


def _timestamptz(column: Typed, given: ConnectType, _: Modes) -> Reader:
    if given.type != "string" or given.name != TIME + "ZonedTimestamp":
        raise Unfit(f"values of type {_said(given)} have no zone, and none is guessed: they are no timestamptz")
    return partial(_texts, _zoned)


def _zoned(value: Any) -> str:
    said = text(value)
    day, _, time = said.partition("T")
    if said[:1] in ("+", "-") and time:
        return _with_era(day, f" {time.replace('Z', '+00')}")
    return said


def _iso(value: Any) -> str:
    """A day, a moment or a time without a zone, after which the converter writes a Z all the same."""
    said = text(value).removesuffix("Z")
    day, _, time = said.partition("T")
    return _with_era(day, f" {time}" if time else "") if said[:1] in ("+", "-") else said


def _bytes(column: Typed, given: ConnectType, modes: Modes) -> Reader:
    if given.name is not None or given.type not in ("bytes", "string"):
        raise _unfit(column, given)
    is_hex = given.type == "string" and modes.binary == "hex"
    if given.type == "string" and modes.binary in (None, "bytes"):
        raise Unfit("bytes came as text: set `binary` of the source as binary.handling.mode of the connector")

    def printed(value: Any) -> str:
        try:
            return "\\x" + (bytes.fromhex(value) if is_hex else b64decode(value, validate=True)).hex()
        except (ValueError, TypeError):
            return "no bytes"

    return partial(_texts, printed)


def _text(column: Typed, given: ConnectType, _: Modes) -> Reader:
    if given.type == "string" and given.name in PRINTED:
        return partial(_strings, column)
    if given.type in ("array", "map") and _is_plain(given):
        return partial(_texts, text)
    if given.name == TIME + "MicroDuration":
        raise Unfit("intervals came as microseconds, which lose months: set interval.handling.mode of the connector")
    if given.name == DECIMAL and column.source.name == "money":
        raise Unfit("amounts of money came as numbers: declare the column as numeric(19,2)")
    raise _unfit(column, given)


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


def _unfit(column: Typed, given: ConnectType) -> Unfit:
    return Unfit(f"values of type {_said(given)} came in a column that is declared as {column.source.name}")


def _said(given: ConnectType) -> str:
    return f"{given.name} ({given.type})" if given.name else given.type


_READERS: Mapping[Form, Callable[[Typed, ConnectType, Modes], Reader]] = {
    Form.INTEGER: _integer, Form.BOOLEAN: _boolean, Form.FLOAT: _float, Form.DATE: _date, Form.TIMESTAMP: _timestamp,
    Form.TIMESTAMPTZ: _timestamptz, Form.TIME: _time, Form.BYTES: _bytes, Form.TEXT: _text,
}  # fmt: skip

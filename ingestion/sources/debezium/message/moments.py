"""Days, moments and times of Debezium: counts of some unit since 1970, or text by ISO 8601, as Postgres has them."""

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ingestion.sources.debezium.message.columns import BAD, CONNECT, TIME, Modes, Reader, Typed, Unfit, texts
from ingestion.sources.debezium.message.columns import said as said_of
from ingestion.sources.debezium.message.columns import unfit as unfit_of
from ingestion.sources.debezium.message.opened import ConnectType
from ingestion.sources.kafka.values import text

MICROSECONDS = {  # of one unit, by the name of the schema
    TIME + "Timestamp": 1000, TIME + "MicroTimestamp": 1, TIME + "Time": 1000, TIME + "MicroTime": 1,
    CONNECT + "Timestamp": 1000, CONNECT + "Time": 1000,
}  # fmt: skip
NANO = {TIME + "NanoTimestamp", TIME + "NanoTime"}
IN_CONNECT = "precise to the millisecond only: set time.precision.mode of the connector to adaptive"
FIRST_MOMENT, LAST_MOMENT = -9223372036832400000, 9223372036825200000  # by which the driver counts infinite moments
FIRST_DAY, LAST_DAY = -2_440_588, 2_145_042_905  # of Postgres: what is beyond is how an infinite one is written
FIRST_YEAR, LAST_YEAR = -4713, 5_874_897
ERA = r"^([+-][0-9]{1,9}|0000)-"  # of a year that Java prints otherwise than Postgres: 0000 is 1 BC
DAY = 86_400_000_000
LAKE_DAYS, LAKE_MOMENTS = (-719_162, 2_932_896), (-62_135_596_800_000_000, 253_402_300_799_999_999)


def date_reader(column: Typed, given: ConnectType, _: Modes) -> Reader:
    """Days."""
    if given.type == "string" and given.name == TIME + "IsoDate":
        return partial(texts, _iso)
    if given.name not in (TIME + "Date", CONNECT + "Date"):
        raise unfit_of(column, given)
    return partial(_moments, DAY, pa.date32(), _day)


def _day(moment: str) -> str:
    return moment.partition(" ")[0] + (" BC" if moment.endswith(" BC") else "")


def timestamp_reader(column: Typed, given: ConnectType, _: Modes) -> Reader:
    """Moments without a zone."""
    if given.type == "string" and given.name == TIME + "IsoTimestamp":
        return partial(texts, _iso)
    _check_unit(column, given, "Timestamp")
    return partial(_moments, _unit(given), pa.timestamp("us"), lambda said: said)


def time_reader(column: Typed, given: ConnectType, _: Modes) -> Reader:
    """Times of a day."""
    if given.type == "string" and given.name == TIME + "IsoTime":
        return partial(texts, _iso)
    _check_unit(column, given, "Time")
    unit = _unit(given)

    def read(values: Sequence[Any]) -> pa.Array:
        counts = [_in_microseconds(v, unit) if type(v) is int else v for v in values]
        if all(v is None or (type(v) is int and 0 <= v <= DAY) for v in counts):
            return pa.array(counts, pa.int64())
        return texts(_time, counts)

    return read


def _time(count: Any) -> str:
    """A count of microseconds as Postgres prints it; what is none is no time."""
    if type(count) is not int or not 0 <= count <= DAY:
        return BAD
    return "24:00:00" if count == DAY else str(np.datetime64(count, "us"))[11:]


def _check_unit(column: Typed, given: ConnectType, ending: str) -> None:
    if (given.name not in MICROSECONDS and given.name not in NANO) or not str(given.name).endswith(ending):
        raise unfit_of(column, given)
    if str(given.name).startswith(CONNECT) and (column.digits is None or column.digits > 3):
        raise Unfit(f"values of type {said_of(given)} are {IN_CONNECT}")


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
    is_day = arrow == pa.date32()
    counts = [_in_microseconds(v, unit) if type(v) is int and not is_day else v for v in values]
    first, last = LAKE_DAYS if is_day else LAKE_MOMENTS
    if all(v is None or (type(v) is int and first <= v <= last) for v in counts):
        return pa.array(counts, pa.int32() if is_day else pa.int64()).view(arrow)
    per_day = 1 if is_day else DAY
    return texts(lambda count: shortened(_printed(count, per_day)) if type(count) is int else BAD, counts)


def is_within(counts: pa.Array, arrow: pa.DataType) -> bool:
    """Whether a type of the lake holds days, moments or times, counted as it counts them."""
    bounds = {pa.int64(): (0, DAY), pa.date32(): LAKE_DAYS}
    first, last = bounds.get(arrow, LAKE_MOMENTS)
    found = pc.min_max(counts)
    return not found["min"].is_valid or (first <= found["min"].as_py() and found["max"].as_py() <= last)


def _printed(count: int, per_day: int) -> str:
    """As Postgres prints a timestamp, whatever its year."""
    day, rest = divmod(count, per_day)
    first, last = (FIRST_DAY, LAST_DAY) if per_day == 1 else (FIRST_MOMENT + 1, LAST_MOMENT - 1)
    if not first <= count <= last:
        return "infinity" if day > 0 else "-infinity"
    said = str(np.datetime64(day, "D"))
    time = str(np.datetime64(rest, "us"))[11:] if per_day > 1 else "00:00:00"
    return _with_era(said, f" {_trimmed(time)}")


def _trimmed(time: str) -> str:
    """A fraction of a second without the zeros at its end, as Postgres prints it."""
    return re.sub(r"\.(\d*?)0+(?!\d)", lambda found: f".{found[1]}" if found[1] else "", time)


def _with_era(day: str, rest: str) -> str:
    """A day by ISO 8601, whose year may have a sign and any number of digits, as Postgres prints it."""
    year, after = day[: day.index("-", 1)], day[day.index("-", 1) :]
    number = int(year)
    if number > LAST_YEAR or number < FIRST_YEAR:
        return "infinity" if number > 0 else "-infinity"
    return f"{number:04d}{after}{rest}" if number > 0 else f"{1 - number:04d}{after}{rest} BC"


def timestamptz_reader(column: Typed, given: ConnectType, _: Modes) -> Reader:
    """Moments: text with a zone; no zone is guessed."""
    if given.type != "string" or given.name != TIME + "ZonedTimestamp":
        raise Unfit(f"values of type {said_of(given)} have no zone, and none is guessed: they are no timestamptz")
    return partial(texts, _zoned)


def _zoned(value: Any) -> str:
    said = text(value)
    day, _, time = said.partition("T")
    if time and re.match(ERA, said):
        return _with_era(day, f" {_trimmed(time).replace('Z', '+00')}")
    return said


def _iso(value: Any) -> str:
    """A day, a moment or a time without a zone, after which the converter writes a Z all the same."""
    said = text(value).removesuffix("Z")
    day, _, time = said.partition("T")
    return _with_era(day, f" {_trimmed(time)}" if time else "") if re.match(ERA, said) else said

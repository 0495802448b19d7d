"""One spelling per value: Trino's values are brought to the text that Postgres prints for the same value.

Only what the two print differently is touched. Nothing is rounded and nothing is trimmed that carries information.
"""

import base64
import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from ingestion.schema.compared import Order

Canonical = Callable[[Any], str]
OrderKey = Callable[[str], Any]

_SECOND = 1_000_000


def identity(text: str) -> str:
    """For what both sides print alike."""
    return text


def lake_form(lake_type: str, source_type: str) -> Canonical:
    """How a value of a Trino type (as the REST protocol carries it) is spelled; `source_type` is Postgres's typname."""
    name = base_name(lake_type)
    if source_type == "time" and name in ("bigint", "time"):
        return _micros_to_time if name == "bigint" else _trim_fraction
    if name in ("tinyint", "smallint", "integer", "bigint"):
        return str
    return _LAKE_FORMS.get(name, identity if name in _ALIKE else str)


def source_form(lake_type: str) -> Canonical:
    """How the text of a source value is spelled for that Trino type: floats have more than one spelling, and a view
    shows 24:00:00 as 00:00:00."""
    return {"real": _float4, "double": _float8, "time": _within_day}.get(base_name(lake_type), identity)


def order_key(lake_type: str) -> OrderKey:
    """What canonical texts sort by, so that Python agrees with the order in which both servers sent the rows."""
    name = base_name(lake_type)
    if name in ("tinyint", "smallint", "integer", "bigint"):
        return int
    return {"decimal": Decimal, "real": float, "double": float}.get(name, identity)


def base_name(lake_type: str) -> str:
    """`timestamp(6) with time zone` → `timestamp with time zone`."""
    head, _, rest = lake_type.partition("(")
    return (head + rest.partition(")")[2]).strip()


def source_order(lake_type: str) -> Order:
    """What the source has to sort by to agree with the lake: the bytes of what is text there, a time within its day."""
    name = base_name(lake_type)
    return "bytes" if name in ("varchar", "char", "uuid", "json") else "time of day" if name == "time" else "value"


def _boolean(value: Any) -> str:
    return "t" if value in (True, "true") else "f"


def _trim_fraction(value: str) -> str:
    return value.rstrip("0").rstrip(".") if "." in value else value


def _instant(value: str) -> str:
    moment, _, zone = value.rpartition(" ")
    return _trim_fraction(moment) + ("+00" if zone in ("UTC", "+00:00", "Z") else zone)


def _micros_to_time(value: int) -> str:
    seconds, micros = divmod(int(value), _SECOND)
    minutes, second = divmod(seconds, 60)
    return _trim_fraction(f"{minutes // 60:02}:{minutes % 60:02}:{second:02}.{micros:06}")


def _within_day(text: str) -> str:
    return "00:00:00" if text == "24:00:00" else text


def _hex(value: str | bytes) -> str:
    return "\\x" + (value if isinstance(value, bytes) else base64.b64decode(value)).hex()


def _float8(value: Any) -> str:
    return repr(float(value))


def _float4(value: Any) -> str:
    return repr(struct.unpack("f", struct.pack("f", float(value)))[0])


_ALIKE = frozenset({"varchar", "char", "uuid", "json", "date", "decimal"})
_LAKE_FORMS: dict[str, Canonical] = {
    "boolean": _boolean,
    "timestamp": _trim_fraction,
    "timestamp with time zone": _instant,
    "varbinary": _hex,
    "real": _float4,
    "double": _float8,
}

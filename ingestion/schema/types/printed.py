"""Typed values as Postgres prints them, so that text made of a value is one however the value came.

The session whose text this is has the settings that `read` names.
"""

from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ingestion.schema.types.convert import convert, unreadable
from ingestion.schema.types.model import ConversionError, Form, SourceType
from ingestion.schema.types.table import target_type

_DAY = 86_400_000_000
_PLAIN_DIGITS = {np.float32: 6, np.float64: 15}  # before the point, from which on Postgres writes an exponent


def printed(values: pa.Array, source: SourceType) -> pa.Array:
    """The text of values in the lake's type, or of any text from which `convert` reads them: what it cannot read, and
    what the type cannot hold, stays the text that it is."""
    form = target_type(source).form
    if not pa.types.is_string(values.type):
        return _PRINTERS.get(form, _cast)(values)
    if form is Form.TEXT:
        return values
    try:
        found = convert(values, source, "null").array
    except ConversionError:
        is_bad = np.isin(np.arange(len(values)), unreadable(values, source))
        found = convert(pc.if_else(pa.array(is_bad), pa.scalar(None, values.type), values), source, "null").array
    return pc.coalesce(printed(found, source), values)


def _cast(values: pa.Array) -> pa.Array:
    return values.cast(pa.string())


def _each(text: Callable[[Any], str], values: pa.Array) -> pa.Array:
    distinct = values.dictionary_encode()
    texts = [None if value is None else text(value) for value in distinct.dictionary.to_pylist()]
    return pa.array(texts, pa.string()).take(distinct.indices)


def _boolean(values: pa.Array) -> pa.Array:
    return pc.if_else(values, "t", "f")


def _float(values: pa.Array) -> pa.Array:
    kind = values.type.to_pandas_dtype()
    return _each(partial(_digits, kind), values)


def _digits(kind: Any, value: float) -> str:
    """The fewest digits that tell the number from all others. One half way between two of them tells neither, for
    Postgres."""
    if value != value:
        return "NaN"
    if value in (np.inf, -np.inf):
        return "Infinity" if value > 0 else "-Infinity"
    number = Decimal(np.format_float_scientific(kind(value), unique=True, trim="-"))
    more = len(number.as_tuple().digits)
    while _is_half_way(kind(value), number):
        number, more = Decimal(format(value, f".{more}e")), more + 1
    exponent = number.adjusted()
    if not number or -4 <= exponent < _PLAIN_DIGITS[kind]:
        return format(number, "f")
    digits = "".join(map(str, number.as_tuple().digits)).rstrip("0")
    point = "." if len(digits) > 1 else ""
    return f"{'-' if value < 0 else ''}{digits[0]}{point}{digits[1:]}e{exponent:+03d}"


def _is_half_way(value: Any, number: Decimal) -> bool:
    exact, told = Fraction(float(value)), Fraction(number)
    if told == exact:
        return False
    with np.errstate(over="ignore"):
        beside = float(np.nextafter(value, type(value)(np.inf if told > exact else -np.inf)))
    return bool(np.isfinite(beside)) and 2 * told == exact + Fraction(beside)


def _decimal(values: pa.Array) -> pa.Array:
    return _each(lambda value: format(value, "f"), values)


def _timestamp(values: pa.Array) -> pa.Array:
    text = values.view(pa.int64()).view(pa.timestamp("us")).cast(pa.string())
    return pc.replace_substring_regex(text, r"\.?0+$", "")


def _timestamptz(values: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(_timestamp(values), "+00", "")


def _time(values: pa.Array) -> pa.Array:
    time = pc.utf8_slice_codeunits(_timestamp(values), len("1970-01-01 "))
    return pc.if_else(pc.equal(values, _DAY), "24:00:00", time)


def _bytes(values: pa.Array) -> pa.Array:
    return pa.array([None if value is None else f"\\x{value.hex()}" for value in values.to_pylist()], pa.string())


_PRINTERS: dict[Form, Callable[[pa.Array], pa.Array]] = {
    Form.BOOLEAN: _boolean, Form.FLOAT: _float, Form.DECIMAL: _decimal, Form.TIMESTAMP: _timestamp,
    Form.TIMESTAMPTZ: _timestamptz, Form.TIME: _time, Form.BYTES: _bytes,
}  # fmt: skip

"""One form for values of keys whose types land as text: producers spell them in many ways, and rows are told apart by
the text."""

import re
from collections.abc import Callable, Mapping
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc

from ingestion.schema.types.model import Form, SourceType
from ingestion.schema.types.table import target_type

_HEX = "[0-9a-f]"
_UUID = rf"^\s*\{{?({_HEX}{{8}})-?({_HEX}{{4}})-?({_HEX}{{4}})-?({_HEX}{{4}})-?({_HEX}{{12}})\}}?\s*$"
_PLAIN_NUMBER = r"^(0|-?[1-9][0-9]*|-?(0|[1-9][0-9]*)\.[0-9]*[1-9])$"
_NUMBER = re.compile(r"\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]{1,9})?\s*", re.ASCII | re.IGNORECASE)
_NO_NUMBERS = {"nan": "NaN"} | {
    sign + word: says for word in ("inf", "infinity")
    for sign, says in (("", "Infinity"), ("+", "Infinity"), ("-", "-Infinity"))
}  # fmt: skip
MOST_DIGITS = 131_072  # of a numeric of Postgres


def in_key_form(values: pa.Array, source: SourceType) -> pa.Array:
    """Values of a column of a key as they tell rows apart: those of uuid and of numeric without bounds as Postgres
    prints them, of the latter without trailing zeros; what is none of the type, and any other type, as it is."""
    return _FORMS[source.name](values) if has_key_form(source) else values


def has_key_form(source: SourceType) -> bool:
    """Whether one value of the type may be written in several ways that land."""
    return source.name in _FORMS and target_type(source).form is Form.TEXT


def _uuids(values: pa.Array) -> pa.Array:
    lower = pc.utf8_lower(values)
    spelled = pc.replace_substring_regex(lower, _UUID, r"\1-\2-\3-\4-\5")
    return pc.if_else(pc.match_substring_regex(lower, _UUID), spelled, values)


def _numbers(values: pa.Array) -> pa.Array:
    is_plain = pc.fill_null(pc.match_substring_regex(values, _PLAIN_NUMBER), True)
    if pc.all(is_plain).as_py() is not False:
        return values
    odd = pc.invert(is_plain)
    spelled = pa.array([_number(value) for value in values.filter(odd).to_pylist()], values.type)
    return pc.replace_with_mask(values, odd, spelled)


def _number(value: str) -> str:
    if not _NUMBER.fullmatch(value):
        return _NO_NUMBERS.get(value.strip().lower(), value)
    number = Decimal(value.strip())
    if not number:
        return "0"
    if abs(number.adjusted()) > MOST_DIGITS:
        return value
    digits = format(number, "f")
    return digits.rstrip("0").rstrip(".") if "." in digits else digits


_FORMS: Mapping[str, Callable[[pa.Array], pa.Array]] = {"uuid": _uuids, "numeric": _numbers}

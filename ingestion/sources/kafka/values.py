"""What the value of an event says, in the terms of JSON: how each format is read, and how a part of it is printed.

Numbers are kept as they are written, whatever their length: a text column of `1.50` says so, and a decimal is exact.
"""

import json
from typing import Any, Protocol

Row = dict[str, Any]


class Number(str):
    """A number with a fraction or an exponent, as it is written."""


class Unread(ValueError):
    """An event that cannot be read; the text says why, never what is in it."""


class Values(Protocol):
    """How the values of a topic are written. Travels by pickle; may hold secrets.

    What is read is made of text, whole numbers, `Number`, booleans, None, lists and dicts. `row` and `key` raise
    Unread, and LakehouseError where it cannot be told at this moment what the bytes mean.
    """

    def row(self, value: bytes) -> Row:
        """The fields of an event."""

    def key(self, key: bytes) -> Any:
        """The key of an event, which may be any value."""


def no_json(value: bytes) -> str:
    """Why a value is not read that should be JSON."""
    is_framed = value[:1] == b"\0"
    return "the value is no JSON" + is_framed * ", but framed as Avro is: declare meta.raw.format: avro"


def text(value: Any) -> str:
    """A value as text: what is text as it is, anything else as JSON writes it."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_quoted(name)}: {nested(part)}" for name, part in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(nested, value)) + "]"
    return _quoted(value)


def nested(value: Any) -> str:
    """A value as JSON writes it within another one."""
    is_text = isinstance(value, str) and not isinstance(value, Number)
    return _quoted(value) if is_text else text(value)


def _quoted(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)

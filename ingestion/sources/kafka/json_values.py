"""Values that are JSON objects."""

import json
import re
from dataclasses import dataclass
from typing import Any

from ingestion.sources.kafka.values import Number, Row, Unread, no_json

DIGITS = 4300  # Python makes no whole number of more
_BINARY = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1b]")  # text has tabs, line ends and the separators of ASCII at most


def _whole(digits: str) -> int | Number:
    return int(digits) if len(digits) <= DIGITS else Number(digits)


_DECODER = json.JSONDecoder(parse_float=Number, parse_constant=Number)
_OF_LONG_NUMBERS = json.JSONDecoder(parse_float=Number, parse_constant=Number, parse_int=_whole)  # takes twice the time


@dataclass(frozen=True)
class JsonValues:
    """JSON, an object in each value; a key may be any JSON, or plain text."""

    def row(self, value: bytes) -> Row:
        """The fields of an event."""
        try:
            row = _parsed(value.decode())
        except RecursionError:
            raise Unread("the value is nested too deeply") from None
        except ValueError:  # no JSON, or no UTF-8
            raise Unread(no_json(value)) from None
        if not isinstance(row, dict):
            raise Unread("the value is no JSON object")
        if b"\\u" in value and not _is_text(row):
            raise Unread("the value has half a surrogate pair, which is no text")
        return row

    def key(self, key: bytes) -> Any:
        """The key of an event."""
        try:
            written = key.decode()
        except UnicodeDecodeError:  # with a stand-in it would be the key of another row
            raise Unread("the key is no UTF-8") from None
        try:
            found = _parsed(written)
        except (ValueError, RecursionError):
            if _BINARY.search(written):  # as text it would be the key of no row
                raise Unread(
                    "the key is neither JSON nor text: its serializer writes bytes, as Avro's and those of numbers do"
                ) from None
            return written
        if b"\\u" in key and not _is_text(found):
            raise Unread("the key has half a surrogate pair, which is no text")
        return found


def _parsed(given: str) -> Any:
    """The JSON value; raises ValueError. Nearly always nothing stands around it."""
    try:
        value, end = _DECODER.raw_decode(given)
    except json.JSONDecodeError:
        end = -1
    except ValueError:  # a whole number of thousands of digits
        return _OF_LONG_NUMBERS.decode(given)
    return value if end == len(given) else _DECODER.decode(given)


def _is_text(found: Any) -> bool:
    try:
        json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True

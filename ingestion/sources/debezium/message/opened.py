"""Bytes of a message to what they say: types by Connect's schemas, where the message has them, and plain values.

This is the seam between how messages are written and what an envelope is: another converter is another `Opener`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from ingestion.sources.kafka.values import Number, Unread, no_json

_DECODER = json.JSONDecoder(parse_float=Number, parse_constant=Number)
AS_CONNECT = {"float": "float32", "double": "float64"}  # what the converter calls otherwise
_NOTHING: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class ConnectType:
    """A type of Kafka Connect: `int64`, with the name that says what it stands for, and that name's parameters.

    `hides_null`: a column of it may be NULL and has a default, which converters write instead unless told otherwise.
    """

    type: str
    name: str | None = None
    parameters: Mapping[str, str] = field(default_factory=lambda: _NOTHING, hash=False)
    element: "ConnectType | None" = None
    hides_null: bool = field(default=False, compare=False)


Types = Mapping[str, ConnectType]


@dataclass(frozen=True)
class Opened:
    """A message: its fields, and the types of a row's columns, None where the message does not tell them.

    Messages of one schema have the same `types` object. Values are those of JSON; numbers keep their digits.
    """

    fields: Mapping[str, Any]
    types: Types | None = None


class Opener(Protocol):
    """Opens messages of one converter. Travels by pickle."""

    def open(self, message: bytes) -> Opened:
        """What a message says; raises Unread."""

    def bodies(self, messages: pa.Array) -> "tuple[Types | None, Bodies] | None":
        """What `open` parses of messages that have one schema all, or none; None where it has to look at each. None of
        them is null, and there is one."""

    def key(self, key: bytes) -> Mapping[str, Any]:
        """The columns of a message's key; raises Unread."""

    def kept(self, message: bytes) -> tuple[str, bytes]:
        """A message as it is kept aside, and the format in which it is."""


class OpenBodies(Protocol):
    """Messages of one schema, whose fields are made columns without JSON."""

    def table(self, schema: pa.Schema) -> pa.Table | None:
        """The fields, a row for each message; None where one of them has to be looked at by itself."""


Bodies: TypeAlias = "pa.Array | OpenBodies"


@dataclass
class JsonOpener:
    """Connect's JSON converter, with schemas and without; a schema that comes again is read once."""

    _head: bytes = b""
    _types: Types | None = None

    def open(self, message: bytes) -> Opened:
        """As the protocol."""
        if self._head and message.startswith(self._head):
            return Opened(_object(parsed(message[len(self._head) : -1])), self._types)
        found = _object(parsed(message))
        if found.keys() != {"schema", "payload"}:
            return Opened(found)
        schema = found["schema"]
        if schema is None:
            return Opened(_object(found["payload"]))
        self._types, head = types_of(schema), _head_of(message)
        self._head = head if _wraps(head, message) else b""
        return Opened(_object(found["payload"]), self._types)

    def bodies(self, messages: pa.Array) -> tuple[Types | None, pa.Array] | None:
        """As the protocol: JSON."""
        first = messages[0].as_py()
        if not first.startswith(b'{"schema":'):
            return None, messages
        try:
            self.open(first)
        except Unread:
            return None
        head = self._head
        is_wrapped = head and pc.all(pc.and_(pc.starts_with(messages, head), pc.ends_with(messages, b"}"))).as_py()
        return (self._types, pc.binary_slice(messages, len(head), -1)) if is_wrapped else None

    def key(self, key: bytes) -> Mapping[str, Any]:
        """As the protocol."""
        found = _object(parsed(key))
        return _object(found["payload"]) if found.keys() == {"schema", "payload"} else found

    def kept(self, message: bytes) -> tuple[str, bytes]:
        """As the protocol."""
        return "json", message


def types_of(schema: Any) -> Types:
    """The types of the columns, as the schema of an envelope has them: of the row after, or before."""
    try:
        fields = {part["field"]: part for part in schema["fields"]}
        row = fields.get("after", fields.get("before", {}))
        return {part["field"]: _type(part) for part in row.get("fields", ())}
    except (KeyError, TypeError, AttributeError):
        raise Unread("the schema is not that of an envelope") from None


def _type(schema: Any) -> ConnectType:
    items, kind = schema.get("items"), schema["type"]
    return ConnectType(
        AS_CONNECT.get(kind, kind),
        schema.get("name"),
        schema.get("parameters") or _NOTHING,
        _type(items) if items else None,
        bool(schema.get("optional")) and schema.get("default") is not None,
    )


def _head_of(message: bytes) -> bytes:
    """What is before the payload in every message of the schema, as the converter writes it: the schema comes first."""
    text = message.decode()
    start = text.find('{"schema":') + len('{"schema":')
    try:
        _, end = _DECODER.raw_decode(text, start)
    except ValueError:
        return b""
    return (text[:end] + ',"payload":').encode()


def _wraps(head: bytes, message: bytes) -> bool:
    return head.startswith(b'{"schema":') and message.startswith(head) and message.endswith(b"}")


def parsed(message: bytes) -> Any:
    """What a message in JSON says, its numbers as they are written; raises Unread."""
    try:
        found = _DECODER.decode(message.decode())
        if b"\\u" in message:
            json.dumps(found, ensure_ascii=False).encode()
        return found
    except RecursionError:
        raise Unread("the value is nested too deeply") from None
    except UnicodeEncodeError:
        raise Unread("the value has half a surrogate pair, which is no text") from None
    except ValueError:  # no JSON, no UTF-8, or a number of thousands of digits
        raise Unread(no_json(message)) from None


def _object(found: Any) -> Mapping[str, Any]:
    if not isinstance(found, dict):
        raise Unread("the value is no JSON object")
    return found

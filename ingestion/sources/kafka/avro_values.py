"""Values in Avro, framed as Confluent's serializers do: a zero byte, the id of the writer's schema, then the datum.

`AvroValues.read` gives the datum as it is, with its schema: whoever reads envelopes has both. A row is made of it in
the terms of JSON: dates, moments and uuids as text in ISO form, bytes in hex, decimals and floats as numbers.
"""

import io
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import fastavro
from fastavro.read import LOGICAL_READERS

from ingestion.sources.kafka.json_values import JsonValues
from ingestion.sources.kafka.registry import Schema, SchemaRegistry, UnknownSchema
from ingestion.sources.kafka.values import Number, Row, Unread

FRAME = struct.Struct(">bI")
LOGICAL_READERS.setdefault("fixed-uuid", lambda data, *_: UUID(bytes=data))  # fastavro reads those in strings alone
BROKEN = (EOFError, LookupError, ValueError, OverflowError, TypeError, MemoryError, RecursionError)
AS_THEY_ARE = frozenset((str, int, bool, type(None)))


@dataclass(frozen=True)
class AvroValues:
    """Avro by the schemas of a registry."""

    registry: SchemaRegistry

    def read(self, framed: bytes) -> tuple[Schema, Any]:
        """The writer's schema, and the datum as fastavro makes it; raises Unread and LakehouseError."""
        schema = self._schema(framed)
        return schema, self._datum(framed, schema, schema.parsed)

    def bare(self, framed: bytes) -> tuple[Schema, Any]:
        """The same without logical types: a decimal is bytes, a moment a number."""
        schema = self._schema(framed)
        return schema, self._datum(framed, schema, schema.bare.root)

    def _schema(self, framed: bytes) -> Schema:
        if len(framed) < FRAME.size or framed[0] != 0:
            raise Unread("the value is not framed Avro: it has no schema id")
        if not (number := FRAME.unpack_from(framed)[1]):
            raise Unread("the value has no schema id in four bytes: let its serializer write one as Confluent's does")
        try:
            return self.registry.schema(number)
        except UnknownSchema as unknown:
            raise Unread(str(unknown)) from None

    def _datum(self, framed: bytes, schema: Schema, parsed: Any) -> Any:
        datum = io.BytesIO(framed)
        datum.seek(FRAME.size)
        try:
            read = fastavro.schemaless_reader(datum, parsed, None)
        except BROKEN:
            raise Unread(f"the value cannot be read by schema {schema.id}") from None
        if datum.tell() != len(framed):
            raise Unread(f"the value goes on behind what schema {schema.id} describes")
        return read

    def row(self, value: bytes) -> Row:
        """The fields of an event."""
        schema, read = self.read(value)
        if not isinstance(read, dict):
            raise Unread(f"the value is no record by schema {schema.id}")
        return {name: part if type(part) in AS_THEY_ARE else plain(part) for name, part in read.items()}

    def key(self, key: bytes) -> Any:
        """The key of an event: framed as a value is, or JSON, or text."""
        return plain(self.read(key)[1]) if key[:1] == b"\0" else JsonValues().key(key)


def plain(value: Any) -> Any:
    """A datum in the terms of JSON."""
    printed = _PRINTED.get(type(value))
    return printed(value) if printed is not None else value


def _digits(value: Decimal) -> Number:
    printed = str(value)
    return Number(printed if "E" not in printed else format(value, "f"))


def _moment(value: datetime | date | time) -> str:
    return value.isoformat()


_PRINTED: Mapping[type, Callable[[Any], Any]] = {
    float: lambda value: Number(repr(value).replace("inf", "Infinity").replace("nan", "NaN")),
    Decimal: _digits,
    bytes: lambda value: "\\x" + value.hex(),
    UUID: str,
    datetime: _moment,
    date: _moment,
    time: _moment,
    list: lambda value: [plain(part) for part in value],
    dict: lambda value: {name: plain(part) for name, part in value.items()},
}

"""Messages of Connect's Avro converters, framed as Confluent's serializers do; also the JSON that a topic had before.

What is opened is what the JSON converter with schemas would have written: the same values, the same types.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ingestion.sources.debezium.message.avro_schema import AvroSchemas, Printer, double_text, short, single_text
from ingestion.sources.debezium.message.opened import ConnectType, JsonOpener, Opened, Opener, Types
from ingestion.sources.kafka.avro_values import AvroValues
from ingestion.sources.kafka.registry import Schema, SchemaRegistry
from ingestion.sources.kafka.values import Unread, text

TOGETHER = 4096  # messages whose data are in memory at once
IN_TEXT = single_text, double_text
AS_NUMBERS = short, None
FRAME = 5
_BROKEN = (pa.ArrowException, TypeError, ValueError, OverflowError, AttributeError)


@dataclass(frozen=True)
class _Plan:
    """How the messages of one schema are opened: `in_text` prints floats, `as_numbers` leaves them to columns."""

    schema: Schema
    types: Types | None
    in_text: Printer | None
    as_numbers: Printer | None


@dataclass
class AvroOpener:
    """Avro by the schemas of a registry; JSON, which never begins with a zero byte, is what was written before."""

    registry: SchemaRegistry
    _json: JsonOpener = field(default_factory=JsonOpener)
    _plans: dict[int, _Plan] = field(default_factory=dict)

    def open(self, message: bytes) -> Opened:
        """As the protocol; raises LakehouseError where it cannot be told at this moment what the bytes mean."""
        if not _is_framed(message):
            return self._json.open(message)
        schema, datum = self._values.bare(message)
        plan = self._plan(schema)
        return Opened(_record(datum if plan.in_text is None else plan.in_text(datum)), plan.types)

    def bodies(self, messages: pa.Array) -> tuple[Types | None, AvroBodies | pa.Array] | None:
        """Messages that have one schema all, as columns are made of them; None where each has to be looked at."""
        first = messages[0].as_py()
        if not _is_framed(first):
            return None if pc.any(pc.starts_with(messages, b"\0")).as_py() else self._json.bodies(messages)
        frame = first[:FRAME]
        if len(frame) < FRAME or not pc.all(pc.starts_with(messages, frame)).as_py():
            return None
        try:
            schema, _ = self._values.bare(first)
        except Unread:
            return None
        plan = self._plan(schema)
        return plan.types, AvroBodies(self._values, plan.as_numbers, messages)

    def key(self, key: bytes) -> Mapping[str, Any]:
        """As the protocol."""
        return self.open(key).fields

    def kept(self, message: bytes) -> tuple[str, bytes]:
        """JSON with a schema, which needs no registry later; as it is, where that cannot be read."""
        if not _is_framed(message):
            return "json", message
        try:
            return "json", as_json(self.open(message))
        except Unread:
            return "avro", message

    @property
    def _values(self) -> AvroValues:
        return AvroValues(self.registry)

    def _plan(self, schema: Schema) -> _Plan:
        known = self._plans.get(schema.id)
        if known is None or known.schema is not schema:
            types = known.types if known is not None and known.schema == schema else _types(schema)
            of, root = AvroSchemas(schema.bare.named), schema.bare.root
            known = _Plan(schema, types, of.printer(root, IN_TEXT), of.printer(root, AS_NUMBERS))
            self._plans[schema.id] = known
        return known


@dataclass(frozen=True)
class AvroBodies:
    """Messages of one schema."""

    values: AvroValues
    printer: Printer | None
    messages: pa.Array

    def table(self, schema: pa.Schema) -> pa.Table | None:
        """Their fields, a row for each; None where one of them has to be looked at by itself."""
        parts = []
        for first in range(0, len(self.messages), TOGETHER):
            try:
                data = [self._datum(message) for message in self.messages[first : first + TOGETHER].to_pylist()]
                arrays = [pa.array([datum.get(item.name) for datum in data], item.type) for item in schema]
            except (Unread, *_BROKEN):
                return None
            parts.append(pa.table(arrays, schema=schema))
        return pa.concat_tables(parts)

    def _datum(self, message: bytes) -> Any:
        datum = self.values.bare(message)[1]
        return datum if self.printer is None else self.printer(datum)


def opener_of(form: str, registry: SchemaRegistry | None) -> Opener:
    """Opens messages of a declared format."""
    assert form == "json" or registry is not None, "a table whose events nothing reads does not begin"
    return AvroOpener(registry) if form == "avro" and registry is not None else JsonOpener()


def as_json(opened: Opened) -> bytes:
    """A message as the JSON converter writes it, with the schema of its row."""
    row = {"type": "struct", "fields": [_said(name, kind) for name, kind in (opened.types or {}).items()]}
    schema = {"type": "struct", "fields": [row | {"field": part, "optional": True} for part in ("before", "after")]}
    head = json.dumps(schema, separators=(",", ":"), ensure_ascii=False)
    return f'{{"schema":{head},"payload":{text(dict(opened.fields))}}}'.encode()


def _said(name: str, kind: ConnectType) -> dict[str, Any]:
    return {"field": name} | _schema_of(kind)


def _schema_of(kind: ConnectType) -> dict[str, Any]:
    said: dict[str, Any] = {"type": kind.type, "optional": True}
    if kind.name is not None:
        said["name"] = kind.name
    if kind.parameters:
        said["parameters"] = dict(kind.parameters)
    return said | ({"items": _schema_of(kind.element)} if kind.element is not None else {})


def _types(schema: Schema) -> Types | None:
    """The types of the row's columns, None for what is no envelope."""
    of = AvroSchemas(schema.bare.named)
    root = of.resolved(schema.bare.root)
    if isinstance(root, list) or root["type"] != "record":
        return None
    rows = (of.field(root, part) for part in ("after", "before"))
    row = next((row for row in rows if isinstance(row, dict) and row["type"] == "record"), None)
    return None if row is None else of.types(row)


def _is_framed(message: bytes) -> bool:
    return message[:1] == b"\0"


def _record(datum: Any) -> Mapping[str, Any]:
    if not isinstance(datum, dict):
        raise Unread("the value is no record")
    return datum

"""Avro schemas as Connect's Avro converters write them: the types of Connect, and data in the terms of its JSON.

A converter keeps Connect's names and parameters beside the types of Avro. Data are read without Avro's own logical
types, so that each value is what the JSON converter would have written: one reading of values serves both.
"""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ingestion.sources.debezium.message.columns import CONNECT
from ingestion.sources.debezium.message.opened import ConnectType
from ingestion.sources.kafka.registry import DEFAULT, LOGICAL
from ingestion.sources.kafka.values import Number

Printer = Callable[[Any], Any]
Named = Mapping[str, Any]
PRIMITIVES = {
    "int": "int32", "long": "int64", "float": "float32", "double": "float64", "boolean": "boolean", "bytes": "bytes",
    "fixed": "bytes", "string": "string", "enum": "string", "array": "array", "map": "map", "record": "struct",
}  # fmt: skip
LOGICALS = {
    "decimal": CONNECT + "Decimal", "date": CONNECT + "Date", "time-millis": CONNECT + "Time",
    "timestamp-millis": CONNECT + "Timestamp",
}  # fmt: skip
ENTRY = "MapEntry"  # of a map whose keys Avro's maps cannot have


@dataclass(frozen=True)
class AvroSchemas:
    """The schemas that a schema may name; those of fastavro, with full names."""

    named: Named

    def resolved(self, schema: Any) -> Any:
        """A schema that is no name, and the one that is there of two of which the other is null."""
        if isinstance(schema, list):
            others = [part for part in schema if part != "null"]
            return self.resolved(others[0]) if len(others) == 1 else schema
        if isinstance(schema, str):
            return self.named.get(schema, {"type": schema})
        inner = schema["type"]
        return schema if isinstance(inner, str) and inner not in self.named else self.resolved(inner)

    def field(self, schema: Any, name: str) -> Any | None:
        """The schema of a record's field, None where there is none."""
        parts = [part["type"] for part in schema.get("fields", ()) if part["name"] == name]
        return self.resolved(parts[0]) if parts else None

    def types(self, record: Any) -> dict[str, ConnectType]:
        """The types of a record's fields."""
        found = {part["name"]: self.type(part["type"]) for part in record["fields"]}
        hiding = [part["name"] for part in record["fields"] if _hides_null(part)]
        return found | {name: replace(found[name], hides_null=True) for name in hiding}

    def type(self, given: Any) -> ConnectType:
        """A type as Connect had it before it was Avro."""
        schema = self.resolved(given)
        if isinstance(schema, list):
            return ConnectType("union")
        kind, logical = schema["type"], schema.get(LOGICAL)
        told = schema.get("connect.parameters") or {}
        if logical == "decimal":
            told = {"scale": str(schema.get("scale", 0))} | told
        name = schema.get("connect.name") or LOGICALS.get(logical) or schema.get("name")
        if kind == "array" and (entry := self._entry(schema)) is not None:
            return ConnectType("map", name, told, self.type(self.field(entry, "value")))
        inner = schema.get("items", schema.get("values"))
        element = None if inner is None else self.type(inner)
        return ConnectType(schema.get("connect.type") or PRIMITIVES[kind], name, told, element)

    def _entry(self, schema: Any) -> Any | None:
        """The record that the entries of a map are."""
        items = self.resolved(schema["items"])
        is_entry = isinstance(items, dict) and items.get("connect.internal.type") == ENTRY
        return items if is_entry else None

    def printer(self, given: Any, floats: tuple[Printer | None, Printer | None]) -> Printer | None:
        """How values become those of JSON, None where they are; `floats` is how those of 32 and of 64 bits do."""
        schema = self.resolved(given)
        if isinstance(schema, list):
            return _any
        kind = schema["type"]
        if kind in ("bytes", "fixed"):
            return _based
        if kind in ("float", "double"):
            return _unless_none(floats[kind == "double"])
        if kind == "record":
            return self._of_record(schema, floats)
        if kind == "array":
            of = self.printer(schema["items"], floats)
            return _map if self._entry(schema) is not None else _each(of)
        if kind == "map":
            of = self.printer(schema["values"], floats)
            return of and (lambda v: None if v is None else {name: of(part) for name, part in v.items()})
        return None

    def _of_record(self, schema: Any, floats: tuple[Printer | None, Printer | None]) -> Printer | None:
        parts = [(part["name"], self.printer(part["type"], floats)) for part in schema["fields"]]
        printers = [(name, printer) for name, printer in parts if printer is not None]
        if not printers:
            return None

        def printed(record: Any) -> Any:
            if record is not None:
                for name, printer in printers:
                    record[name] = printer(record[name])
            return record

        return printed


def _hides_null(field: Any) -> bool:
    kind = field["type"]
    return isinstance(kind, list) and "null" in kind and field.get(DEFAULT) is not None


def _each(of: Printer | None) -> Printer | None:
    if of is None:
        return None
    one = of
    return lambda values: None if values is None else [one(value) for value in values]


def _unless_none(printer: Printer | None) -> Printer | None:
    return printer and (lambda value: None if value is None else printer(value))


def _based(value: bytes | None) -> str | None:
    return None if value is None else b2a_base64(value, newline=False).decode()


def _map(entries: Any) -> Any:
    """A map whose keys may be anything: an object where all are text, pairs otherwise."""
    if entries is None:
        return None
    pairs = [(_any(entry["key"]), _any(entry["value"])) for entry in entries]
    return dict(pairs) if all(type(key) is str for key, _ in pairs) else [[*pair] for pair in pairs]


def _any(value: Any) -> Any:
    """A value of one of several types."""
    if isinstance(value, bytes):
        return _based(value)
    if isinstance(value, float):
        return double_text(value)
    if isinstance(value, list):
        return [_any(part) for part in value]
    return {name: _any(part) for name, part in value.items()} if isinstance(value, dict) else value


def short(value: float) -> float:
    """A number of 32 bits as its shortest text reads in 64."""
    return float(str(np.float32(value)))


def single_text(value: float) -> Any:
    """A number of 32 bits as Connect's JSON has it."""
    return double_text(short(value))


def double_text(value: float) -> Any:
    """A number of 64 bits as Connect's JSON has it, in the way of Java: 1.0E10; what is none is text there."""
    if value != value or value in (float("inf"), float("-inf")):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return Number(repr(value) if "e" not in repr(value) else format(value, "f"))
    digits, _, exponent = repr(value).partition("e")
    sign, digits = ("-", digits[1:]) if digits.startswith("-") else ("", digits)
    whole, _, part = digits.partition(".")
    moved = int(exponent or 0) + len(whole) - 1
    all_digits = (whole + part).lstrip("0")
    moved -= len(whole + part) - len(all_digits)
    rest = all_digits[1:].rstrip("0") or "0"
    return Number(f"{sign}{all_digits[0]}.{rest}E{moved}")

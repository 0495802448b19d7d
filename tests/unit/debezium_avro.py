"""Messages in JSON with schemas as Connect's Avro converter would have written them."""

import io
import json
from base64 import b64decode
from typing import Any

import fastavro

from tests.registry import Registry

Json = dict[str, Any]
PRIMITIVES = {"int8": "int", "int16": "int", "int32": "int", "int64": "long", "float": "float", "double": "double"}
VARIABLE = "io.debezium.data.VariableScaleDecimal"
SOURCE = {
    "version": "string", "ts_ms": "long", "snapshot": "string", "ts_us": "long", "schema": "string", "table": "string",
    "txId": ["null", "long"], "lsn": ["null", "long"],
}  # fmt: skip
TRANSACTION = {"id": "string", "total_order": "long", "data_collection_order": "long"}
PART = {"data_collection": "string", "event_count": "long"}


def _record(name: str, fields: dict[str, Any]) -> Json:
    parts = [{"name": n, "type": kind} for n, kind in fields.items()]
    return {"type": "record", "name": name, "namespace": "shop", "fields": parts, "connect.name": f"shop.{name}"}


END = _record("Block", {
    "status": "string", "id": "string", "ts_ms": "long",
    "data_collections": ["null", {"type": "array", "items": _record("part", PART)}],
})  # fmt: skip


def envelope_schema(schema: Json) -> Json:
    """The schema in Avro of what has this one in JSON."""
    row = next(part for part in schema["fields"] if part["field"] == "after")["fields"]
    value = _record("Value", {part["field"]: ["null", _avro(part)] for part in row})
    return _record("Envelope", {
        "before": ["null", value], "after": ["null", "Value"], "source": _record("Source", SOURCE),
        "transaction": ["null", _record("block", TRANSACTION)], "op": "string", "ts_ms": "long",
    })  # fmt: skip


def _avro(part: Json) -> Any:
    kind, name = part["type"], part.get("name")
    if name == VARIABLE:
        fields = [{"name": "scale", "type": "int"}, {"name": "value", "type": "bytes"}]
        return {"type": "record", "name": f"V_{part['field']}", "fields": fields, "connect.name": VARIABLE}
    if kind == "array":
        return {"type": "array", "items": ["null", _avro(part["items"])]}
    found: Json = {"type": PRIMITIVES.get(kind, kind)}
    if kind in ("int8", "int16"):
        found["connect.type"] = kind
    if name is not None:
        found["connect.name"] = name
    if "parameters" in part:
        found |= {"connect.parameters": part["parameters"], "logicalType": "decimal", "precision": 38}
        found["scale"] = int(part["parameters"]["scale"])
    return found


def _datum(part: Json, value: Any) -> Any:
    """A value of JSON in Avro; raises ValueError and TypeError for what no connector writes."""
    if value is None:
        return None
    kind = part["type"]
    if part.get("name") == VARIABLE:
        return {"scale": value["scale"], "value": b64decode(value["value"], validate=True)}
    if kind == "bytes":
        return b64decode(value, validate=True)
    if kind == "array":
        return [_datum(part["items"], one) for one in value]
    if kind in ("float", "double"):
        if type(value) is bool:
            raise TypeError
        return float(value)
    expected = str if kind == "string" else bool if kind == "boolean" else int
    if type(value) is not expected:
        raise TypeError
    return value


def in_avro(registry: Registry, message: Json) -> Json:
    """A message as an Avro converter writes it; as it is, where none would have."""
    if message["value"] is None:
        return message
    try:
        found = json.loads(message["value"])
        if found.keys() != {"schema", "payload"}:
            return message | {"value": _framed(registry, END, found)}
        row = {part["field"]: part for part in found["schema"]["fields"][0]["fields"]}
        envelope = found["payload"]
        for part in ("before", "after"):
            if envelope[part] is not None:
                given = envelope[part]
                envelope[part] = {n: _datum(one, given.get(n)) for n, one in row.items()}
        return message | {"value": _framed(registry, envelope_schema(found["schema"]), envelope)}
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return message


def _framed(registry: Registry, schema: Json, datum: Any) -> bytes:
    text = json.dumps(schema)
    number = next((n for n, known in registry.schemas.items() if known["schema"] == text), len(registry.schemas) + 1)
    out = io.BytesIO()
    out.write(b"\0" + number.to_bytes(4, "big"))
    bare = json.loads(text.replace('"logicalType"', '"logical"'))
    fastavro.schemaless_writer(out, fastavro.parse_schema(bare), datum, strict=True)
    registry.register(number, text)
    return out.getvalue()

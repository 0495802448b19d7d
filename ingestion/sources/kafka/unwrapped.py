"""Rows that Debezium's transform ExtractNewRecordState has taken out of their envelopes: they come as plain events.

Such a row may lack a value that the update did not carry, and may be a delete which the transform has rewritten.
"""

import json
from base64 import b64encode
from hashlib import md5
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from ingestion.sources.kafka.values import Row

DELETED = "__deleted"  # the field of a rewritten delete, which says "true"
PLACEHOLDER = b"__debezium_unavailable_value"  # as connectors write it that are not told otherwise


def forms_of(placeholder: bytes) -> tuple[Any, ...]:
    """In which forms a value may come that an update did not carry."""
    said = placeholder.decode(errors="replace")
    numbers = [byte - 256 if byte > 127 else byte for byte in placeholder]
    as_map = {said: said}  # of hstore, which the connector writes as JSON unless told otherwise
    as_json = json.dumps(as_map, ensure_ascii=False, separators=(",", ":"))
    as_uuid = str(UUID(bytes=md5(placeholder).digest(), version=3))
    return said, b64encode(placeholder).decode(), placeholder.hex(), as_json, [said], numbers, as_map, [as_uuid]


_FORMS = (*forms_of(PLACEHOLDER), "\\x" + PLACEHOLDER.hex())  # the last one as bytes of Avro are printed
_TEXTS = pa.array([form for form in _FORMS if isinstance(form, str)])


def is_lacking(value: Any) -> bool:
    """Whether a value stands for one that the update did not carry."""
    return isinstance(value, str | list | dict) and value in _FORMS


def may_lack(values: pa.Array) -> bool:
    """Whether one of many values does."""
    return pa.types.is_string(values.type) and pc.any(pc.is_in(values, value_set=_TEXTS)).as_py() is True


def is_delete(row: Row) -> bool:
    """Whether a row is a delete that the transform has rewritten."""
    return row.get(DELETED) is True or row.get(DELETED) == "true"

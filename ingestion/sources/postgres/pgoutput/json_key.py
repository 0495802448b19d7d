"""JSON objects from text columns, without Python per row."""

import json
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc


def json_objects(columns: Mapping[str, pa.StringArray]) -> pa.StringArray:
    """One object per row: {"column":"text",...}, null where a value is null. All values are JSON strings."""
    parts: list[pa.Array | pa.Scalar | str] = []
    for position, (name, values) in enumerate(columns.items()):
        parts.append(("," if position else "{") + json.dumps(name, ensure_ascii=False) + ":")
        parts.append(_json_strings(values))
    return pc.binary_join_element_wise(*parts, "}", "")


def _json_strings(values: pa.StringArray) -> pa.StringArray:
    escaped = pc.replace_substring(pc.replace_substring(values, "\\", "\\\\"), '"', '\\"')
    if pc.any(pc.match_substring_regex(escaped, "[\x01-\x1f]")).as_py():
        for code in range(1, 0x20):
            character = chr(code)
            escaped = pc.replace_substring(escaped, character, json.dumps(character)[1:-1])
    quoted = pc.binary_join_element_wise('"', escaped, '"', "")
    return pc.fill_null(quoted, "null")

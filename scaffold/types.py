"""The Trino type of a column that is declared with a Postgres type, by ingestion's one table of types."""

import re

from ingestion.types import SourceType, target_type
from ingestion.types.table import NUMERIC_OID, RULES

# SQL's own names, where they are not what pg_type calls the type.
_NAMES = {
    "boolean": "bool", "smallint": "int2", "smallserial": "int2", "integer": "int4", "int": "int4", "serial": "int4",
    "bigint": "int8", "bigserial": "int8", "real": "float4", "double precision": "float8", "decimal": "numeric",
    "timestamp without time zone": "timestamp", "timestamp with time zone": "timestamptz",
    "time without time zone": "time",
}  # fmt: skip
_TRINO = {
    "int": "integer", "long": "bigint", "boolean": "boolean", "float": "real", "double": "double", "date": "date",
    "timestamp": "timestamp(6)", "timestamptz": "timestamp(6) with time zone", "binary": "varbinary",
    "string": "varchar",
}  # fmt: skip
_RULES = {rule.name: rule for rule in RULES}


def lake_type(declared: str) -> str:
    """`numeric(10,2)` → `decimal(10,2)`; what has no rule is varchar."""
    name = re.sub(r"\s*\([^)]*\)", "", declared.lower()).strip()
    rule = _RULES.get(_NAMES.get(name, name))
    if rule is None:
        return "varchar"
    digits = re.search(r"\(\s*(\d+)\s*(?:,\s*(-?\d+)\s*)?\)", declared)
    if rule.oid != NUMERIC_OID or digits is None:
        return _TRINO[str(rule.iceberg or "string")]
    typmod = ((int(digits[1]) << 16) | (int(digits[2] or 0) & 0x7FF)) + 4
    iceberg = str(target_type(SourceType(NUMERIC_OID, "numeric", typmod)).iceberg)
    return _TRINO.get(iceberg, iceberg.replace(" ", ""))


def reader_type(declared: str) -> str:
    """The type in the `current_` view, which shows a time of day as one."""
    name = re.sub(r"\s*\([^)]*\)", "", declared.lower()).strip()
    return "time(6)" if _NAMES.get(name, name) == "time" else lake_type(declared)

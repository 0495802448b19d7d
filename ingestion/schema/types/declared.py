"""What a column becomes that is declared with a Postgres type: its Iceberg type, by the one table of types.

The macro `lake_type` of the dbt project says the same in Trino's types.
"""

import re

from pyiceberg.types import IcebergType, StringType

from ingestion.schema.types.model import SourceType
from ingestion.schema.types.table import NUMERIC_OID, RULES, target_type

# What Postgres also calls a type that pg_type has under another name.
_ALIASES = {
    "boolean": "bool", "smallint": "int2", "smallserial": "int2", "serial2": "int2", "integer": "int4", "int": "int4",
    "serial": "int4", "serial4": "int4", "bigint": "int8", "bigserial": "int8", "serial8": "int8", "real": "float4",
    "double precision": "float8", "float": "float8", "decimal": "numeric", "dec": "numeric",
    "timestamp without time zone": "timestamp", "timestamp with time zone": "timestamptz",
    "time without time zone": "time", "time with time zone": "timetz",
}  # fmt: skip
_RULES = {rule.name: rule for rule in RULES}
_SINGLE_PRECISION = 24


def type_name(declared: str) -> str:
    """What pg_type calls a type: `timestamp(3) with time zone` → `timestamptz`; one without an alias as it is."""
    bare = " ".join(re.sub(r"\([^)]*\)", "", declared.lower()).split())
    digits = _digits(declared)
    if bare == "float" and digits and digits[0] <= _SINGLE_PRECISION:
        return "float4"
    return _ALIASES.get(bare, bare)


def is_known(declared: str) -> bool:
    """Whether the table of types has it, by any name."""
    return type_name(declared) in _RULES


def source_type_of(declared: str) -> SourceType:
    """A known type in pg_type's terms: `numeric(10,2)` with its precision and scale."""
    rule, digits = _RULES[type_name(declared)], _digits(declared)
    return SourceType(rule.oid, rule.name, _typmod(digits) if rule.oid == NUMERIC_OID else -1)


def declared_type(declared: str) -> IcebergType:
    """`numeric(10,2)` → decimal(10, 2); what has no rule is a string."""
    rule, digits = _RULES.get(type_name(declared)), _digits(declared)
    if rule is None:
        return StringType()
    if rule.iceberg is not None:
        return rule.iceberg
    return target_type(SourceType(NUMERIC_OID, "numeric", _typmod(digits))).iceberg


def _typmod(digits: tuple[int, int] | None) -> int:
    """How Postgres packs precision and scale."""
    return ((digits[0] << 16) | (digits[1] & 0x7FF)) + 4 if digits else -1


def _digits(declared: str) -> tuple[int, int] | None:
    found = re.search(r"\(\s*(\d+)\s*(?:,\s*(-?\d+)\s*)?\)", declared)
    return (int(found[1]), int(found[2] or 0)) if found else None

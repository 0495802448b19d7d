"""The names that Trino gives to Iceberg's types."""

_NAMES = {
    "int": "integer", "long": "bigint", "boolean": "boolean", "float": "real", "double": "double", "date": "date",
    "timestamp": "timestamp(6)", "timestamptz": "timestamp(6) with time zone", "binary": "varbinary",
    "string": "varchar", "list<string>": "array(varchar)",
}  # fmt: skip


def trino_type(iceberg: str) -> str | None:
    """`long` → `bigint`, `decimal(10, 2)` → `decimal(10,2)`; None for types that no table of ours has."""
    return iceberg.replace(" ", "") if iceberg.startswith("decimal(") else _NAMES.get(iceberg)

"""Trino types of columns that are declared with Postgres types."""

from ingestion.schema.types.declared import declared_type, type_name
from lakehouse.catalog.trino_types import trino_type


def lake_type(declared: str) -> str:
    """`numeric(10,2)` → `decimal(10,2)`; types without a rule become varchar."""
    iceberg = str(declared_type(declared))
    return trino_type(iceberg) or iceberg.replace(" ", "")


def has_several_spellings(declared: str) -> bool:
    """Whether the lake keeps values as different texts that Postgres calls equal, as the macro `one_spelling` does."""
    name = type_name(declared)
    number = name == "numeric" and lake_type(declared) == "varchar"
    return number or name in ("character", "char", "bpchar") or name.rpartition(".")[2] == "citext"


def reader_type(declared: str) -> str:
    """The type in the `current_` view, which shows a time of day as `time`."""
    return "time(6)" if type_name(declared) == "time" else lake_type(declared)

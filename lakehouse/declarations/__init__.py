"""The declarations: one dbt source entry per raw table, with its policies, its vault and who may read it."""

from lakehouse.declarations.declared import Column, Declarations, RawTable, Source, source_and_table
from lakehouse.declarations.metadata_columns import METADATA_COLUMNS, PARSED_METADATA, RESERVED_BY_ICEBERG
from lakehouse.declarations.read import declarations_from, load_declarations

__all__ = [
    "METADATA_COLUMNS",
    "PARSED_METADATA",
    "RESERVED_BY_ICEBERG",
    "Column",
    "Declarations",
    "RawTable",
    "Source",
    "declarations_from",
    "load_declarations",
    "source_and_table",
]

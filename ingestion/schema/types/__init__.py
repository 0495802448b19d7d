"""Postgres types to Iceberg types, and the source's text to typed columns.

`table` is the one module that maps types; `convert` applies it to a column; `docs` prints
it as docs/types.md. A value that the target cannot hold is never changed silently: a policy names what happens and
it is counted.
"""

from ingestion.schema.types.convert import convert, unreadable
from ingestion.schema.types.model import (
    ConversionError,
    Converted,
    Policy,
    SourceType,
    Target,
    UnreadableValue,
    UnrepresentableValue,
)
from ingestion.schema.types.native import NeedsText, arrives_typed, out_of_bounds, typed
from ingestion.schema.types.printed import printed
from ingestion.schema.types.table import target_type

__all__ = [
    "ConversionError",
    "Converted",
    "NeedsText",
    "Policy",
    "SourceType",
    "Target",
    "UnreadableValue",
    "UnrepresentableValue",
    "arrives_typed",
    "convert",
    "out_of_bounds",
    "printed",
    "target_type",
    "typed",
    "unreadable",
]

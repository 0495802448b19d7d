"""The words of type conversion: what a column is in Postgres, what it becomes, and what a conversion gives back."""

from dataclasses import dataclass
from enum import Enum
from typing import Literal

import pyarrow as pa
from pyiceberg.types import IcebergType

Policy = Literal["error", "clamp", "null"]


class Form(Enum):
    """How the text of a type is read."""

    INTEGER = "integer"
    FLOAT = "float"
    DECIMAL = "decimal"
    BOOLEAN = "boolean"
    DATE = "date"
    TIMESTAMP = "timestamp"
    TIMESTAMPTZ = "timestamptz"
    TIME = "time"
    BYTES = "bytes"
    TEXT = "text"


@dataclass(frozen=True)
class SourceType:
    """A column's type in pg_type's terms, with domains already resolved to their base type.

    `oid`, `name` (typname) and `kind` (typtype: b base, c composite, e enum, r range, m multirange) are those of
    the base type; `typmod` is the column's, or the domain's where the column is of a domain.
    """

    oid: int
    name: str
    typmod: int = -1
    kind: str = "b"


@dataclass(frozen=True)
class Target:
    """What a source type becomes: in the table (Iceberg), in memory (Arrow), how it is read, and why."""

    iceberg: IcebergType
    arrow: pa.DataType
    form: Form
    note: str


@dataclass(frozen=True)
class Converted:
    """A converted column. `rows` and `texts` are the positions and the original texts of the values that the type
    cannot hold, so that nothing is lost to the policy; `unrepresentable` is how many they are."""

    array: pa.Array
    rows: pa.Array
    texts: pa.Array

    @property
    def unrepresentable(self) -> int:
        """How many values the policy replaced."""
        return len(self.rows)


class ConversionError(ValueError):
    """A value that cannot be converted. Names its kind, never the value: it may be private. `row` is its place in the
    batch, which tells a person nothing."""

    def __init__(self, source: SourceType, row: int, kind: str) -> None:
        super().__init__(f"{kind} in a column of type {source.name}")
        self.source = source
        self.row = row
        self.kind = kind


class UnrepresentableValue(ConversionError):
    """A proper value of the source type that the Iceberg type cannot hold, under the policy `error`."""


class UnreadableValue(ConversionError):
    """A text that Postgres does not print for this type under the pinned settings: the stream or the type is not what
    the caller believes. No policy applies."""

"""Source text and metadata to rows of a raw table, in columns."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from ingestion.pgoutput.model import Relation
from ingestion.types import ConversionError, SourceType, UnrepresentableValue, convert
from lakehouse.errors import LakehouseError

NUMERIC_OID = 1700


@dataclass(frozen=True)
class TargetColumn:
    """How one source column lands."""

    source_name: str
    lake_name: str
    type: SourceType
    stream_oid: int
    stream_typmod: int
    mask: Literal["null", "sha256"] | None


@dataclass(frozen=True)
class TableTarget:
    """Everything a Spark task needs to write one raw table; travels by pickle."""

    name: str
    relation: tuple[str, str]
    metadata_json: str
    columns: tuple[TargetColumn, ...]
    excluded: frozenset[str]
    key: tuple[str, ...]
    policy: Literal["error", "clamp", "null"]
    from_lsn: int
    epoch: int
    ingested_at: datetime


class SchemaChanged(LakehouseError):
    """The stream carries a column that the raw table does not have yet, or of another type."""


@dataclass
class Counts:
    """Rows by operation, and values the lake cannot hold, by column."""

    operations: dict[str, int] = field(default_factory=dict)
    unrepresentable: dict[str, int] = field(default_factory=dict)

    def add(self, meta: pa.Table) -> None:
        """Counts a batch's operations."""
        for entry in pc.value_counts(meta.column("_op").combine_chunks()).to_pylist():
            self.operations[entry["values"]] = self.operations.get(entry["values"], 0) + entry["counts"]


def raw_rows(
    target: TableTarget, values: Mapping[str, pa.Array] | pa.Table, meta: pa.Table, schema: pa.Schema, counts: Counts
) -> pa.Table:
    """Rows in the raw table's Arrow schema.

    `values` holds text by source column name, `meta` the decoder's metadata columns. Columns the stream does not
    carry become null. Raises LakehouseError naming table, column and value under the policy `error`.
    """
    counts.add(meta)
    by_name: dict[str, pa.Array] = {}
    for column in target.columns:
        text = _column(values, column.source_name)
        if text is not None:
            by_name[column.lake_name] = _land(target, column, text, counts)
    by_name |= {name: meta.column(name) for name in meta.column_names}
    by_name["_epoch"] = pa.repeat(pa.scalar(target.epoch, pa.int32()), meta.num_rows)
    by_name["_ingested_at"] = pa.repeat(pa.scalar(target.ingested_at, pa.timestamp("us", "UTC")), meta.num_rows)
    return pa.table([_as(by_name.get(item.name), item.type, meta.num_rows) for item in schema], schema=schema)


def check_relation(target: TableTarget, relation: Relation) -> None:
    """Raises SchemaChanged when the stream's relation does not fit the types the task was planned with."""
    planned = {column.source_name: column for column in target.columns}
    for column in relation.columns:
        if column.name in target.excluded:
            continue
        known = planned.get(column.name)
        if known is None:
            raise SchemaChanged(f"table {target.name!r}: new column {column.name!r} in the stream")
        same_precision = column.typmod == known.stream_typmod or column.type_oid != NUMERIC_OID
        if column.type_oid != known.stream_oid or not same_precision:
            raise SchemaChanged(f"table {target.name!r}: column {column.name!r} has changed its type in the stream")


def _column(values: Mapping[str, pa.Array] | pa.Table, name: str) -> Any:
    if isinstance(values, pa.Table):
        return values.column(name) if name in values.column_names else None
    return values.get(name)


def _land(target: TableTarget, column: TargetColumn, text: pa.Array, counts: Counts) -> pa.Array:
    if column.mask == "null":
        return None
    if column.mask == "sha256":
        return _sha256(text)
    try:
        converted = convert(_one_chunk(text), column.type, target.policy)
    except UnrepresentableValue as error:
        raise LakehouseError(
            f"table {target.name!r}, column {column.source_name!r}: {error}; declare meta.raw.on_unrepresentable: "
            "clamp or null"
        ) from None
    except ConversionError as error:
        raise LakehouseError(f"table {target.name!r}, column {column.source_name!r}: {error}") from None
    if converted.unrepresentable:
        name = column.lake_name
        counts.unrepresentable[name] = counts.unrepresentable.get(name, 0) + converted.unrepresentable
    return converted.array


def _sha256(text: pa.Array) -> pa.Array:
    from hashlib import sha256

    distinct = _one_chunk(text).dictionary_encode()
    hashed = [None if v is None else sha256(v.encode()).hexdigest() for v in distinct.dictionary.to_pylist()]
    return pa.DictionaryArray.from_arrays(distinct.indices, pa.array(hashed, pa.string())).dictionary_decode()


def _one_chunk(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _as(column: Any, kind: pa.DataType, length: int) -> Any:
    if column is None:
        return pa.nulls(length, kind)
    return column if column.type == kind else column.cast(kind)

"""Source text and metadata to rows of a raw table, in columns."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from ingestion.schema.evolve import source_type
from ingestion.schema.facts import ColumnFacts, TableFacts
from ingestion.schema.problem import TableProblem
from ingestion.schema.types import ConversionError, UnrepresentableValue, convert, printed, typed


@dataclass(frozen=True)
class TableTarget:
    """Everything a Spark task needs to write one raw table; travels by pickle.

    `columns` are those of the newest description, `versions` all descriptions that rows of the stream may be of. `seen`
    is a newer one that the lake does not follow, `is_there` false where there is no relation to look at any more.
    `shares_keys` says that several rows may stand on one key within a transaction, `updates` that rows are changed and
    deleted too.
    """

    source: str
    name: str
    metadata_json: str
    columns: tuple[ColumnFacts, ...]
    versions: tuple[TableFacts, ...]
    excluded: frozenset[str]
    mask: Mapping[str, Literal["null", "sha256"]]
    key: tuple[str, ...]
    policy: Literal["error", "clamp", "null"]
    from_lsn: int
    epoch: int
    ingested_at: datetime
    shares_keys: bool = False
    updates: bool = True
    seen: TableFacts | None = None
    is_there: bool = True

    @property
    def descriptions(self) -> tuple[TableFacts, ...]:
        """How the table was found each time while rows of the stream came."""
        return self.versions if self.seen is None else (*self.versions, self.seen)

    @property
    def lake_key(self) -> tuple[str, ...]:
        """The key as the lake calls it."""
        lake = {column.name: column.lake for column in self.columns}
        return tuple(lake[name] for name in self.key)

    @property
    def oids(self) -> frozenset[int]:
        """By which oids the stream knows the table."""
        return frozenset(facts.oid for facts in self.versions)

    @property
    def withheld(self) -> frozenset[str]:
        """The columns whose values come nowhere into the lake."""
        return self.excluded | {name for name, how in self.mask.items() if how == "null"}


class BadRow(Exception):
    """A value that is not what its type prints: a poisonous row. `row` counts within the batch."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(reason)
        self.row = row


@dataclass
class Counts:
    """Rows by operation, and values the lake cannot hold: how many by column, and their texts with positions."""

    operations: dict[str, int] = field(default_factory=dict)
    unrepresentable: dict[str, int] = field(default_factory=dict)
    texts: list[pa.Table] = field(default_factory=list)

    def add(self, meta: pa.Table) -> None:
        """Counts a batch's operations."""
        for entry in pc.value_counts(meta.column("_op").combine_chunks()).to_pylist():
            self.operations[entry["values"]] = self.operations.get(entry["values"], 0) + entry["counts"]

    def add_texts(self, texts: Iterable[pa.Table]) -> None:
        """Counts values that the lake cannot hold by their texts."""
        for part in texts:
            for entry in pc.value_counts(part.column("column").combine_chunks()).to_pylist():
                self.unrepresentable[entry["values"]] = self.unrepresentable.get(entry["values"], 0) + entry["counts"]
            self.texts.append(part)

    def absorb(self, other: "Counts") -> None:
        """Adds what another one counted."""
        for mine, theirs in ((self.operations, other.operations), (self.unrepresentable, other.unrepresentable)):
            for name, count in theirs.items():
                mine[name] = mine.get(name, 0) + count
        self.texts += other.texts


def raw_rows(
    target: TableTarget,
    values: Mapping[str, pa.Array] | pa.Table,
    meta: pa.Table,
    schema: pa.Schema,
    counts: Counts,
    columns: Sequence[ColumnFacts] | None = None,
) -> pa.Table:
    """Rows in the raw table's Arrow schema.

    `values` holds text, or what arrives typed, by source column name, `meta` the decoder's metadata columns, `columns`
    what the values are (the newest description by default). Columns that are not carried become null. Raises
    TableProblem under the policy `error`, and for values that no column of the lake can hold, naming table and column,
    BadRow for a text that its type never prints, NeedsText for a typed value outside of the lake's type.
    """
    columns = target.columns if columns is None else columns
    by_name: dict[str, pa.Array] = {}
    for column in columns:
        text = _column(values, column.name)
        landed = None if text is None else _land(target, column, text, meta, counts)
        if landed is not None:
            by_name[column.lake] = _as_stored(target, column, landed, schema, by_name.keys())
    counts.add(meta)
    by_name |= {name: meta.column(name) for name in meta.column_names}
    by_name["_unchanged"] = _lake_names(meta.column("_unchanged"), columns)
    by_name["_old_key"] = _lake_keys(meta.column("_old_key"), columns)
    by_name["_epoch"] = pa.repeat(pa.scalar(target.epoch, pa.int32()), meta.num_rows)
    by_name["_ingested_at"] = pa.repeat(pa.scalar(target.ingested_at, pa.timestamp("us", "UTC")), meta.num_rows)
    return pa.table([_as(by_name.get(item.name), item.type, meta.num_rows) for item in schema], schema=schema)


def _column(values: Mapping[str, pa.Array] | pa.Table, name: str) -> Any:
    if isinstance(values, pa.Table):
        return values.column(name) if name in values.column_names else None
    return values.get(name)


def _land(target: TableTarget, column: ColumnFacts, text: pa.Array, meta: pa.Table, counts: Counts) -> pa.Array:
    mask = target.mask.get(column.name)
    if mask == "null":
        return None
    if mask == "sha256":
        return _sha256(printed(_one_chunk(text), source_type(column)))
    if not pa.types.is_string(text.type):
        return typed(_one_chunk(text), source_type(column))
    try:
        converted = convert(_one_chunk(text), source_type(column), target.policy)
    except UnrepresentableValue as error:
        says = f"column {column.name!r}: {error}; declare meta.raw.on_unrepresentable: clamp, or null in quotes"
        raise TableProblem(target.source, target.name, says) from None
    except ConversionError as error:
        raise BadRow(error.row, f"column {column.name!r}: {error}") from None
    if converted.unrepresentable:
        counts.unrepresentable[column.lake] = counts.unrepresentable.get(column.lake, 0) + converted.unrepresentable
        counts.texts.append(_replaced_texts(target, column, converted.rows, converted.texts, meta))
    return converted.array


def _as_stored(target: TableTarget, column: ColumnFacts, landed: Any, schema: pa.Schema, taken: Collection[str]) -> Any:
    """The values in the type of their column in the lake. One that the lake lacks would lose them without a word."""
    index = schema.get_field_index(column.lake)
    if index >= 0 and column.lake not in taken:
        try:
            return _as(landed, schema.field(index).type, len(landed))
        except pa.ArrowException:
            pass
    raise TableProblem(
        target.source,
        target.name,
        f"the values of column {column.name!r} cannot be stored in the "
        f"lake's {column.lake!r}: `lakehouse ingest --resnapshot {target.source}.{target.name}`",
    )


def _replaced_texts(
    target: TableTarget, column: ColumnFacts, rows: pa.Array, texts: pa.Array, meta: pa.Table
) -> pa.Table:
    return pa.table(
        {
            "source": pa.repeat(target.source, len(rows)),
            "table": pa.repeat(target.name, len(rows)),
            "column": pa.repeat(column.lake, len(rows)),
            "epoch": pa.repeat(pa.scalar(target.epoch, pa.int32()), len(rows)),
            "commit_lsn": meta.column("_commit_lsn").take(rows),
            "seq": meta.column("_seq").take(rows),
            "text": texts,
        }
    )


def _lake_names(unchanged: Any, columns: Sequence[ColumnFacts]) -> Any:
    """The columns that a row did not carry, as the lake calls them; those that do not land are not missed in it."""
    lake = {column.name: column.lake for column in columns}
    if all(lake.get(name) == name for name in pc.unique(pc.list_flatten(unchanged)).to_pylist()):
        return unchanged
    named = [[lake[name] for name in names or () if name in lake] or None for names in unchanged.to_pylist()]
    return pa.array(named, pa.list_(pa.string()))


def _lake_keys(old_keys: Any, columns: Sequence[ColumnFacts]) -> Any:
    """The old keys with their columns as the lake calls them: the source may give a name to another one later."""
    lake = {column.name: column.lake for column in columns}
    if all(name == called for name, called in lake.items()):
        return old_keys
    said = (None if text is None else json.loads(text) for text in old_keys.to_pylist())
    named = (old and {lake[name]: value for name, value in old.items() if name in lake} for old in said)
    return pa.array([old and json.dumps(old, ensure_ascii=False, separators=(",", ":")) for old in named], pa.string())


def _sha256(text: pa.Array) -> pa.Array:
    from hashlib import sha256

    distinct = text.dictionary_encode()
    hashed = [None if v is None else sha256(v.encode()).hexdigest() for v in distinct.dictionary.to_pylist()]
    return pa.DictionaryArray.from_arrays(distinct.indices, pa.array(hashed, pa.string())).dictionary_decode()


def _one_chunk(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    if not isinstance(column, pa.ChunkedArray):
        return column
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()  # which copies even a single one


def _as(column: Any, kind: pa.DataType, length: int) -> Any:
    if column is None:
        return pa.nulls(length, kind)
    return column if column.type == kind else column.cast(kind)

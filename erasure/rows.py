"""A subject's rows with their personal columns emptied, or deleted: pure functions over Arrow tables."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from hashlib import md5, sha256
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysFalse, AlwaysTrue, And, BooleanExpression, In, IsNaN, IsNull, Or

from erasure.key_periods import Period, position_text
from erasure.targets import Target

POSITION = ("_epoch", "_commit_lsn", "_seq")
SEQUENCE = "source_seq"
NOTHING, DELETED = "", "\\D"  # what dbt's hash_diff hashes for a row without values, and for a deleted one


@dataclass(frozen=True)
class SubjectRows:
    """The subject in one table: the periods of its keys, or of its hash keys where the table has them."""

    target: Target
    periods: tuple[Period, ...]

    def rows(self, table: pa.Table) -> list[int]:
        """Numbers of the subject's rows. In a table without positions these are all rows of the key that was named."""
        found: set[int] = set()
        if not set(self.target.key) <= set(table.column_names):  # a file of another shape: the table was replaced
            return []
        for period in self.periods:
            mask = pa.repeat(True, table.num_rows)
            for name, value in zip(self.target.key, period.key, strict=True):
                mask = pc.and_(mask, _equals(table.column(name), value))
            numbers = pc.indices_nonzero(mask).to_pylist()
            found.update(n for n, at in zip(numbers, _positions(table, numbers, period), strict=True) if at)
        return sorted(found)

    def holding(self, table: pa.Table) -> list[int]:
        """Those of the rows that contain personal data."""
        rows = self.rows(table)
        if not rows:
            return []
        part = table.take(pa.array(rows, pa.int64()))
        return [row for row, says in zip(rows, self._says(part), strict=True) if says]

    def texts(self, table: pa.Table, rows: Sequence[int]) -> Iterator[str]:
        """The personal values in these rows that are text."""
        yield from texts(table, self.target.personal_among(table.column_names), rows)

    def filter(self) -> BooleanExpression:
        """An expression that prunes files: values of the subject's keys in every key column.

        It is as deep for thousands of keys as for one, and may hold for rows of other keys.
        """
        keys = {period.key for period in self.periods}
        if not keys:
            return AlwaysFalse()
        found: BooleanExpression = AlwaysTrue()
        for number, name in enumerate(self.target.key):
            values = {key[number] for key in keys}
            here: BooleanExpression = In(term=name, literals={v for v in values if v is not None and v == v})
            here = Or(here, IsNull(term=name)) if None in values else here
            found = And(found, Or(here, IsNaN(term=name)) if any(v != v for v in values) else here)
        return found

    def after(self, table: pa.Table, repeats: Collection[tuple[Any, str]] = ()) -> pa.Table:
        """The table with the subject's rows emptied or deleted, without the `repeats` (hash key, position)."""
        rows = self.rows(table)
        if self.target.treatment == "delete":
            return table.filter(pc.invert(_mask(rows, table.num_rows)))
        table = self.emptied(table)
        if not repeats:
            return table
        named = zip(table.column(self.target.key[0]).to_pylist(), table.column(SEQUENCE).to_pylist(), strict=True)
        return table.filter(pa.array([name not in repeats for name in named], pa.bool_()))

    def _says(self, part: pa.Table) -> list[bool]:
        if self.target.treatment == "delete":
            return [True] * part.num_rows
        columns = [part.column(name).is_valid().to_pylist() for name in self.target.personal_among(part.column_names)]
        says = [any(row) for row in zip(*columns, strict=True)] if columns else [False] * part.num_rows
        if self.target.treatment == "collapse" and self.target.hashdiff in part.column_names:
            empty = neutral_hashes(part)
            says = [
                s or d not in empty for s, d in zip(says, part.column(self.target.hashdiff).to_pylist(), strict=True)
            ]
        return says

    def emptied(self, table: pa.Table) -> pa.Table:
        """The table with the subject's personal columns null, and the hashdiffs of rows without values."""
        rows = self.rows(table)
        mask = _mask(rows, table.num_rows)
        for name in self.target.personal_among(table.column_names):
            kind = table.schema.field(name).type
            table = _replaced(table, name, pc.if_else(pc.invert(mask), _one(table.column(name)), pa.scalar(None, kind)))
        if self.target.treatment == "collapse" and self.target.hashdiff is not None:
            nothing, gone = neutral_hashes(table)
            neutral = pc.if_else(_one(table.column("is_deleted")), gone, nothing)
            column = table.column(self.target.hashdiff)
            table = _replaced(table, self.target.hashdiff, pc.if_else(mask, neutral, _one(column)).cast(column.type))
        return table


def repeated(rows: Sequence[tuple[Any, str, str]]) -> set[tuple[Any, str]]:
    """The (key, position) of satellite rows (key, position, hashdiff) whose hashdiff equals that of the row before."""
    before: dict[Any, str] = {}
    gone = set()
    for key, position, hashdiff in sorted(rows):
        if before.get(key) == hashdiff:
            gone.add((key, position))
        before[key] = hashdiff
    return gone


def neutral_hashes(table: pa.Table) -> tuple[str, str]:
    """The hashdiffs of a row without values and of a delete; the length of stored hashes tells the hash function."""
    name = next(name for name in table.column_names if name.startswith("hd_"))
    lengths = {len(value) for value in table.column(name).slice(0, 1).to_pylist() if value}
    function = sha256 if lengths == {64} else md5
    return function(NOTHING.encode()).hexdigest(), function(DELETED.encode()).hexdigest()


def texts(table: pa.Table, columns: Sequence[str], rows: Sequence[int]) -> Iterator[str]:
    """The values of these cells that are text."""
    part = table.take(pa.array(rows, pa.int64()))
    for name in columns:
        if pa.types.is_string(part.schema.field(name).type) or pa.types.is_large_string(part.schema.field(name).type):
            yield from (value for value in part.column(name).to_pylist() if value)


def _positions(table: pa.Table, numbers: list[int], period: Period) -> list[bool]:
    names = table.column_names
    if not numbers or not ({*POSITION} <= set(names) or SEQUENCE in names):
        return [period == Period(period.key)] * len(numbers)
    part = table.take(pa.array(numbers, pa.int64()))
    if SEQUENCE in names:
        start, end = position_text(period.start), position_text(period.end)
        return [start <= at < end for at in part.column(SEQUENCE).to_pylist()]
    return [period.holds(at) for at in zip(*(part.column(name).to_pylist() for name in POSITION), strict=True)]


def _equals(column: pa.ChunkedArray, value: Any) -> pa.Array:
    if isinstance(value, uuid.UUID | bytes):  # a uuid is an extension type, or its bytes, by who wrote the file
        own = _bytes(value)
        return pa.array([v is not None and _bytes(v) == own for v in column.to_pylist()], pa.bool_())
    if value is None:
        return _one(pc.is_null(column))
    if value != value:
        return pc.fill_null(_one(pc.is_nan(column)), False)
    return pc.fill_null(_one(pc.equal(column, pa.scalar(value).cast(column.type))), False)


def _bytes(value: uuid.UUID | bytes) -> bytes:
    return value.bytes if isinstance(value, uuid.UUID) else value


def _mask(rows: Sequence[int], length: int) -> pa.Array:
    chosen = set(rows)
    return pa.array([n in chosen for n in range(length)], pa.bool_())


def _replaced(table: pa.Table, name: str, values: pa.Array) -> pa.Table:
    index = table.schema.get_field_index(name)
    return table.set_column(index, table.schema.field(index), values)


def _one(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column

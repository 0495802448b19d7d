"""Placed envelopes as rows of the raw contract, all at once: what `rows_of` makes of those that are ordinary."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ingestion.schema.changes import Batch
from ingestion.sources.debezium.at_once.readers import ColumnReader, Readers
from ingestion.sources.debezium.message.columns import Unfit
from ingestion.sources.debezium.message.values import placeholders
from ingestion.sources.debezium.rows import SCHEMA, fitted
from ingestion.sources.debezium.shape import Shape


@dataclass(frozen=True)
class Places:
    """Where the envelopes of a table are: each at its own partition, offset, number and place within that."""

    partition: np.ndarray
    offset: np.ndarray
    number: np.ndarray
    place: np.ndarray


@dataclass(frozen=True)
class Rows:
    """A row for each envelope; those that `is_odd` have to be made one by one, whatever is in them here."""

    shape: Shape
    values: pa.Table
    meta: pa.Table
    is_odd: np.ndarray

    def ordinary(self) -> list[Batch]:
        """The rows that are not odd, if there are any."""
        if self.is_odd.all():
            return []
        if not self.is_odd.any():
            return [Batch(self.shape.relation, self.values, self.meta)]
        wanted = pa.array(~self.is_odd)
        return [Batch(self.shape.relation, self.values.filter(wanted), self.meta.filter(wanted))]


def rows_at_once(shape: Shape, readers: Readers, kept: pa.Table, places: Places) -> Rows | None:
    """The rows of envelopes as `scanned` keeps them; None where all have to be made one by one."""
    images = _Images(shape, kept)
    is_odd = images.is_odd(readers)
    columns: dict[str, pa.Array] = {}
    unchanged: list[list[str] | None] = [None] * kept.num_rows
    try:
        for column in shape.columns:
            reader = readers.get(column.name)
            if reader is None:
                columns[column.name] = pa.nulls(kept.num_rows, pa.string())
                continue
            values = images.values(column.name)
            if reader.leaves_empty:
                is_odd |= images.is_update & values.is_null().to_numpy(zero_copy_only=False)
            if (lacking := images.lacks(reader, values)) is not None:
                is_odd |= lacking & images.is_alone
                lacking &= images.is_update
                values = pc.if_else(pa.array(lacking), pa.scalar(None, values.type), values)
                for row in np.flatnonzero(lacking).tolist():
                    unchanged[row] = [*(unchanged[row] or ()), column.name]
            columns[column.name], bad = fitted(reader.read(values), column.typed.source)
            is_odd[bad] = True
    except Unfit:
        return None
    return Rows(shape, pa.table(columns), _meta(shape, kept, places, unchanged), is_odd)


class _Images:
    """The rows before and after, column by column."""

    def __init__(self, shape: Shape, kept: pa.Table) -> None:
        self._shape, self._rows = shape, kept.num_rows
        self._before = _parts(kept, "before") if "before" in kept.column_names else {}
        self._after = _parts(kept, "after")
        op = kept.column("op")
        self._is_delete, self.is_update, is_create, self._is_truncate = (
            pc.fill_null(pc.equal(op, one), False).to_numpy(zero_copy_only=False) for one in "duct"
        )  # a message that is odd may have none
        self.is_alone = is_create & kept.column("alone").to_numpy(zero_copy_only=False)
        self._deletes = pa.array(self._is_delete) if self._is_delete.any() else None
        self._forms = placeholders(shape.modes)

    def values(self, name: str) -> pa.Array:
        """What lands: of a delete the key alone, if there is one."""
        after = self._after[name]
        if self._deletes is None:
            return after
        is_there = bool(self._before) and (not self._shape.key or name in self._shape.key)
        return pc.if_else(self._deletes, self._before[name] if is_there else pa.scalar(None, after.type), after)

    def is_odd(self, readers: Readers) -> np.ndarray:
        """Those without their key, and those whose key changes."""
        found, differs = np.zeros(self._rows, bool), np.zeros(self._rows, bool)
        is_known = self.is_update.copy()
        for name in self._shape.key:
            found |= ~self._is_truncate & self.values(name).is_null().to_numpy(zero_copy_only=False)
            if self._before and is_known.any():
                before = self._before[name]
                is_known &= before.is_valid().to_numpy(zero_copy_only=False)
                differs |= pc.fill_null(pc.not_equal(before, self._after[name]), True).to_numpy(zero_copy_only=False)
        return found | (differs & is_known if self._before else False)

    def lacks(self, reader: ColumnReader, values: pa.Array) -> np.ndarray | None:
        """The rows whose value is the placeholder of one that did not come; None for none."""
        if not (self.is_update.any() or self.is_alone.any()):
            return None
        if reader.is_text:
            forms = pa.array([form for form in self._forms if isinstance(form, str)])
            found = pc.is_in(values, forms).to_numpy(zero_copy_only=False)
        elif pa.types.is_list(reader.raw):
            found = np.array([value is not None and value in self._forms for value in values.to_pylist()], bool)
        else:
            return None
        return found if found.any() else None


def _parts(kept: pa.Table, name: str) -> Mapping[str, pa.Array]:
    column = kept.column(name)
    rows: Any = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    return dict(zip((item.name for item in rows.type), rows.flatten(), strict=True))


def _meta(shape: Shape, kept: pa.Table, places: Places, unchanged: Sequence[list[str] | None]) -> pa.Table:
    rows = kept.num_rows
    given: dict[str, Any] = {
        "_op": kept.column("op"),
        "_commit_lsn": pa.array(places.number),
        "_seq": pa.array(2 * places.place),
        "_xid": kept.column("xid"),
        "_committed_at": kept.column("at"),
        "_unchanged": pa.array(unchanged, pa.list_(pa.string())),
        "_old_key": pa.nulls(rows, pa.string()),
        "_topic": pa.repeat(shape.topic, rows),
        "_topic_partition": pa.array(places.partition, pa.int32()),
        "_offset": pa.array(places.offset),
    }
    return pa.table([given[item.name] for item in SCHEMA], schema=SCHEMA)

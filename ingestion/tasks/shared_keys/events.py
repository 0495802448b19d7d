"""The rows of whole transactions as events of keys; a row is named by its index among all."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from ingestion.schema.changes import Relation
from ingestion.tasks.shared_keys.keys import Positions, key_values
from ingestion.tasks.shared_keys.row_events import AmbiguousRows, Event, RowEvents, events_by_row, is_sequential

_ALTERED = "the table was altered between them"
_LEFT_OUT = "values that did not change were left out"


@dataclass(frozen=True)
class Landing:
    """Rows in the raw table's schema, their images, the relation they came as, and the texts that go with them.

    `alone` says that the relation's replica identity kept any two rows from one key.
    """

    rows: pa.Table
    images: pa.Table
    relation: Relation
    texts: tuple[pa.Table, ...] = ()
    alone: bool = False

    @property
    def nbytes(self) -> int:
        """What it takes in memory."""
        return self.rows.nbytes + self.images.nbytes


class Events:
    """What is known of the rows of some transactions."""

    def __init__(self, parts: list[Landing], key: tuple[str, ...]) -> None:
        self._keys = pa.concat_tables([p.rows.select([*key]) for p in parts])
        self._ops = [op for p in parts for op in p.rows.column("_op").to_pylist()]
        self._parts = parts
        self._part = np.repeat(np.arange(len(parts)), [p.rows.num_rows for p in parts])
        self._key = key
        self._opened, self._beside = -1, dict[int, list[int]]()
        self.lsn, self.seq = (_numbers(parts, name) for name in ("_commit_lsn", "_seq"))
        lacking = pa.chunked_array(c for p in parts for c in p.rows.column("_unchanged").chunks).is_valid()
        self._lacking = set(self.lsn[lacking.to_numpy()].tolist()) if len(self.lsn) else set()

    def shared_keys(self) -> Iterator[tuple[Positions, bool]]:
        """The rows, in order, of each key on which several rows may have stood in a transaction; and whether it was
        surely empty before. What a truncate of the same transaction has emptied is left out."""
        order = np.lexsort((self.seq, self.lsn))
        cuts = np.flatnonzero(np.diff(self.lsn[order])) + 1
        for rows in np.split(order, cuts):
            if len(rows) > 1:
                yield from self._of_transaction(rows)

    def _of_transaction(self, rows: Positions) -> Iterator[tuple[Positions, bool]]:
        by_key, empty = self._by_key(rows)
        for found in by_key:
            of_key = np.array(found)
            if len(found) > 1 and not self._is_plain(of_key, empty=empty):
                yield of_key, empty

    def _by_key(self, rows: Positions) -> tuple[list[list[int]], bool]:
        """The rows of a transaction by key, after its last truncate; and whether there is one."""
        truncates = [index for index, op in enumerate(self._operations(rows)) if op == "t"]
        rows = rows[truncates[-1] + 1 :] if truncates else rows
        found: dict[tuple[object, ...], list[int]] = {}
        for row, value in zip(rows.tolist(), key_values(self._keys.take(rows), self._key), strict=True):
            found.setdefault(value, []).append(row)
        return list(found.values()), bool(truncates)

    def _is_plain(self, rows: Positions, *, empty: bool) -> bool:
        if all(self._parts[part].alone for part in set(self._part[rows].tolist())):
            return True
        return is_sequential("".join(self._operations(rows)), empty=empty)

    def by_row(self, rows: Positions, *, empty: bool) -> RowEvents:
        """Which rows of a key belong together; raises AmbiguousRows."""
        if len({self._parts[part].relation for part in self._part[rows].tolist()}) > 1:
            raise AmbiguousRows(_ALTERED)
        events = [Event(self._ops[row], *self._images[row]) for row in rows.tolist()]
        found = events_by_row(events, empty=empty)
        is_moved = [index for row in found.rows for index in row] != list(range(len(rows))) or not found.land
        if is_moved and self.lsn[rows[0]] in self._lacking:
            raise AmbiguousRows(_LEFT_OUT)
        return found

    def lsn_and_seq(self, row: int) -> tuple[int, int]:
        """Commit LSN and `_seq` of a row."""
        return int(self.lsn[row]), int(self.seq[row])

    def second_halves(self) -> dict[tuple[int, int], int]:
        """The creates of key changes, by LSN and `_seq`."""
        return {self.lsn_and_seq(row): row for row in np.flatnonzero(self.seq % 2).tolist()}

    def beside(self, row: int) -> list[int]:
        """All rows of its key and transaction, in order, itself among them."""
        lsn = int(self.lsn[row])
        if self._opened != lsn:
            rows = np.flatnonzero(self.lsn == lsn)
            by_key, _ = self._by_key(rows[np.argsort(self.seq[rows])])
            self._opened, self._beside = lsn, {member: of_key for of_key in by_key for member in of_key}
        return self._beside[row]

    @cached_property
    def _images(self) -> list[tuple[bytes | None, bytes | None]]:
        """Of all rows, before and after; few transactions need them."""
        tables = [p.images for p in self._parts]
        return [pair for t in tables for pair in zip(*(column.to_pylist() for column in t.columns), strict=True)]

    def _operations(self, rows: Positions) -> list[str]:
        return [self._ops[row] for row in rows.tolist()]


def _numbers(parts: list[Landing], name: str) -> Positions:
    return np.concatenate([part.rows.column(name).to_numpy() for part in parts])

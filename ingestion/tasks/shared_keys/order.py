"""Gives the rows of some transactions the `_seq` that orders them, and leaves out events that cancel each other.

A row that passes through a key without a trace continues as if it came from the key before that one.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ingestion.tasks.shared_keys.events import Events, Landing
from ingestion.tasks.shared_keys.keys import Positions
from ingestion.tasks.shared_keys.positions import MAX_RANK, ranked
from ingestion.tasks.shared_keys.row_events import AmbiguousRows, RowEvents

_GONE = -1
_TOO_MANY = "too many events of one key"


class Order:
    """The new `_seq` of rows, which are named by their index."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._arranged: dict[int, tuple[int, int]] = {}  # row → its rank, and the row whose `_seq` it takes
        self._came_from: dict[int, int] = {}  # row → the one whose `_old_key` it has
        self._passed: dict[int, int] = {}  # last event of a row that is left out → its first
        self._left_out: set[int] = set()

    @property
    def natural(self) -> bool:
        """Whether all rows stay as they are."""
        return not self._arranged and not self._left_out

    def arrange(self, rows: Positions, found: RowEvents) -> None:
        """Orders the events of one key; raises AmbiguousRows."""
        if len(rows) > MAX_RANK:
            raise AmbiguousRows(_TOO_MANY)
        order = [int(rows[index]) for row in found.rows for index in row]
        if not found.land:
            self._left_out.update(order)
            self._passed |= {int(rows[row[-1]]): int(rows[row[0]]) for row in found.rows}
        elif order != rows.tolist():
            self._rank(order)

    def _rank(self, order: Sequence[int]) -> None:
        self._arranged |= {row: (rank, row) for rank, row in enumerate(order, start=1)}

    def landing(self, parts: list[Landing]) -> Landing:
        """All rows that land, as one; the texts of values go with them."""
        self._follow_those_who_passed()
        events = self._events
        seq, keep = events.seq.copy(), np.ones(len(events.seq), np.bool_)
        for row, (rank, other) in self._arranged.items():
            seq[row] = ranked(rank, int(events.seq[other]))
        keep[list(self._left_out)] = False
        rows = pa.concat_tables([part.rows for part in parts])
        rows = _replaced(rows, "_seq", pa.array(seq))
        if self._came_from:
            take = np.arange(len(seq))
            take[list(self._came_from)] = list(self._came_from.values())
            rows = _replaced(rows, "_old_key", rows.column("_old_key").take(pa.array(take)))
        changed = np.flatnonzero((seq != events.seq) | ~keep)
        moved = zip(events.lsn[changed].tolist(), events.seq[changed].tolist(), strict=True)
        moves = dict(zip(moved, np.where(keep, seq, _GONE)[changed].tolist(), strict=True))
        texts = tuple(_moved_texts(text, moves) for part in parts for text in part.texts)
        return Landing(rows.filter(pa.array(keep)), pa.table({}), parts[0].relation, texts)

    def _follow_those_who_passed(self) -> None:
        """Gives a row that left a key without a trace the position and old key with which it came to that key."""
        events = self._events
        coming = {events.lsn_and_seq(row): first for row, first in self._passed.items()}
        arrived = events.second_halves() if coming else {}
        for (lsn, seq), first in coming.items():
            row = arrived.get((lsn, seq + 1))
            if row is None or row in self._left_out:
                continue
            lsn, seq = events.lsn_and_seq(first)
            while seq % 2 and (lsn, seq - 1) in coming:
                first = coming[lsn, seq - 1]
                lsn, seq = events.lsn_and_seq(first)
            if row not in self._arranged:
                self._rank(events.beside(row))
            self._arranged[row] = (self._arranged[row][0], first)
            self._came_from[row] = first


def _replaced(rows: pa.Table, name: str, values: pa.Array | pa.ChunkedArray) -> pa.Table:
    index = rows.schema.get_field_index(name)
    return rows.set_column(index, rows.schema.field(index), values)


def _moved_texts(texts: pa.Table, moves: dict[tuple[int, int], int]) -> pa.Table:
    moved = zip(texts.column("commit_lsn").to_pylist(), texts.column("seq").to_pylist(), strict=True)
    seq = pa.array([moves.get(at, at[1]) for at in moved], pa.int64())
    return _replaced(texts, "seq", seq).filter(pc.not_equal(seq, _GONE))

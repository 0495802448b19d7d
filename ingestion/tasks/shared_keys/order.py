"""Gives the rows of some transactions the `_seq` by which they stand in order, and leaves out what came to nothing.

A row that passes over a key which shows no trace of it goes on as if it had come from where it stood before.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ingestion.tasks.shared_keys.events import Events, Landing
from ingestion.tasks.shared_keys.keys import Positions
from ingestion.tasks.shared_keys.lives import Lives, Untold
from ingestion.tasks.shared_keys.positions import MAX_RANK, ranked

_GONE = -1
_TOO_MANY = "too many events of one key"


class Order:
    """The new `_seq` of rows, which are named by their index."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._arranged: dict[int, tuple[int, int]] = {}  # row → its rank, and the row whose place it has
        self._came_from: dict[int, int] = {}  # row → the one whose `_old_key` it has
        self._passed: dict[int, int] = {}  # last row of a life that is left out → its first
        self._left_out: set[int] = set()

    @property
    def natural(self) -> bool:
        """Whether all rows stay as they are."""
        return not self._arranged and not self._left_out

    def arrange(self, rows: Positions, lives: Lives) -> None:
        """Takes what was found out about the events of a key; raises Untold."""
        if len(rows) > MAX_RANK:
            raise Untold(_TOO_MANY)
        order = [int(rows[index]) for life in lives.rows for index in life]
        if not lives.land:
            self._left_out.update(order)
            self._passed |= {int(rows[life[-1]]): int(rows[life[0]]) for life in lives.rows}
        elif order != rows.tolist():
            self._rank(order)

    def _rank(self, order: Sequence[int]) -> None:
        self._arranged |= {row: (rank, row) for rank, row in enumerate(order, start=1)}

    def landing(self, parts: list[Landing]) -> Landing:
        """All rows that land, as one; the texts of values go with them."""
        self._follow_those_who_passed()
        events = self._events
        seq, keep = events.seq.copy(), np.ones(len(events.seq), np.bool_)
        for row, (rank, place) in self._arranged.items():
            seq[row] = ranked(rank, int(events.seq[place]))
        keep[list(self._left_out)] = False
        rows = pa.concat_tables([part.rows for part in parts])
        rows = _replaced(rows, "_seq", pa.array(seq))
        if self._came_from:
            take = np.arange(len(seq))
            take[list(self._came_from)] = list(self._came_from.values())
            rows = _replaced(rows, "_old_key", rows.column("_old_key").take(pa.array(take)))
        changed = np.flatnonzero((seq != events.seq) | ~keep)
        places = zip(events.lsn[changed].tolist(), events.seq[changed].tolist(), strict=True)
        moves = dict(zip(places, np.where(keep, seq, _GONE)[changed].tolist(), strict=True))
        texts = tuple(_moved_texts(text, moves) for part in parts for text in part.texts)
        return Landing(rows.filter(pa.array(keep)), pa.table({}), parts[0].relation, texts)

    def _follow_those_who_passed(self) -> None:
        """A row that left a key which shows no trace of it takes the place, and the old key, of its coming there."""
        events = self._events
        coming = {events.place(row): first for row, first in self._passed.items()}
        arrived = events.second_halves() if coming else {}
        for (lsn, seq), first in coming.items():
            row = arrived.get((lsn, seq + 1))
            if row is None or row in self._left_out:
                continue
            lsn, seq = events.place(first)
            while seq % 2 and (lsn, seq - 1) in coming:
                first = coming[lsn, seq - 1]
                lsn, seq = events.place(first)
            if row not in self._arranged:
                self._rank(events.beside(row))
            self._arranged[row] = (self._arranged[row][0], first)
            self._came_from[row] = first


def _replaced(rows: pa.Table, name: str, values: pa.Array | pa.ChunkedArray) -> pa.Table:
    index = rows.schema.get_field_index(name)
    return rows.set_column(index, rows.schema.field(index), values)


def _moved_texts(texts: pa.Table, moves: dict[tuple[int, int], int]) -> pa.Table:
    places = zip(texts.column("commit_lsn").to_pylist(), texts.column("seq").to_pylist(), strict=True)
    seq = pa.array([moves.get(place, place[1]) for place in places], pa.int64())
    return _replaced(texts, "seq", seq).filter(pc.not_equal(seq, _GONE))

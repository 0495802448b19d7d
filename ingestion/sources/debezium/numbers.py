"""Numbers about the events of a read: of each a row, a few of them in memory, on disk those that are too many.

A transaction may have any number of events, and none of them lands before its END has come.
"""

import os
from collections.abc import Iterator
from tempfile import TemporaryFile
from typing import IO, Any

import numpy as np

IN_MEMORY = 8 * 1024 * 1024  # of one kind of numbers
WINDOW = 1 << 17  # rows that are looked at together
SHARES = 64  # of the rows that are looked at by their hash
NEAR = 1 << 10  # rows that are at hand around the one that was asked for

_ODD = np.uint64(0x9E3779B97F4A7C15)
_EDGES = np.arange(SHARES, dtype=np.uint64) << np.uint64(64 - SHARES.bit_length() + 1)


class Numbers:
    """Rows of numbers by their index."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = np.dtype(dtype)
        self._tail, self._file = bytearray(), _nothing()
        self._spilled = 0  # rows that are in the file
        self._near = 0, np.zeros(0, self.dtype)

    def __len__(self) -> int:
        return self._spilled + len(self._tail) // self.dtype.itemsize

    def append(self, row: tuple[int, ...]) -> None:
        """Adds a row."""
        self.extend(np.array([row], self.dtype))

    def extend(self, rows: np.ndarray) -> None:
        """Adds rows."""
        self._near = 0, self._near[1][:0]
        self._tail += rows.astype(self.dtype, copy=False).tobytes()
        if len(self._tail) > IN_MEMORY:
            self._spill()

    def _spill(self) -> None:
        if self._file is None:
            self._file = TemporaryFile()  # noqa: SIM115 - closed by whoever made it
        self._file.write(self._tail)
        self._file.flush()
        self._spilled, self._tail = len(self), bytearray()

    def window(self, first: int, end: int) -> np.ndarray:
        """The rows from `first` to before `end`."""
        size, between = self.dtype.itemsize, min(max(first, self._spilled), end)
        data = bytes(self._tail[(between - self._spilled) * size : (end - self._spilled) * size])
        if first < between:
            assert self._file is not None
            data = os.pread(self._file.fileno(), (between - first) * size, first * size) + data
        return np.frombuffer(data, self.dtype)

    def windows(self) -> Iterator[tuple[int, np.ndarray]]:
        """All rows, some at a time, each with the index of the first of them."""
        for first in range(0, len(self), WINDOW):
            yield first, self.window(first, min(first + WINDOW, len(self)))

    def __getitem__(self, index: int) -> Any:
        first, rows = self._near
        if not first <= index < first + len(rows):
            first = index - index % NEAR
            self._near = first, rows = first, self.window(first, min(first + NEAR, len(self)))
        return rows[index - first]

    def close(self) -> None:
        """Deletes them."""
        if self._file is not None:
            self._file.close()


def _nothing() -> IO[bytes] | None:
    return None


class Shared:
    """Rows that have a `hash`, by shares of all hashes: rows that are alike are in one of them."""

    def __init__(self, dtype: Any) -> None:
        self._rows, self._bounds = Numbers(dtype), list[np.ndarray]()

    def add(self, rows: np.ndarray) -> None:
        """Adds rows."""
        ranked = rows[np.argsort(rows["hash"])]
        bounds = np.append(np.searchsorted(ranked["hash"], _EDGES), len(ranked))
        self._bounds.append(len(self._rows) + bounds)
        self._rows.extend(ranked)

    def shares(self) -> Iterator[np.ndarray]:
        """The rows, a share at a time."""
        if len(self._bounds) <= 1:
            yield self._rows.window(0, len(self._rows))
            return
        for share in range(SHARES):
            yield np.concatenate([self._rows.window(of[share], of[share + 1]) for of in self._bounds])

    def close(self) -> None:
        """Deletes them."""
        self._rows.close()


HASHES = np.dtype([("hash", np.uint64)])


def has_twice(shared: Shared) -> bool:
    """Whether two rows have the same hash."""
    for share in shared.shares():
        ranked = np.sort(np.ascontiguousarray(share["hash"]))  # np.unique would take ten times as long
        if (ranked[1:] == ranked[:-1]).any():
            return True
    return False


def twice(shared: Shared) -> np.ndarray:
    """The hashes that more than one row has, in order."""
    found = [np.zeros(0, np.uint64)]
    for share in shared.shares():
        ranked = np.sort(np.ascontiguousarray(share["hash"]))
        found.append(np.unique(ranked[1:][ranked[1:] == ranked[:-1]]))
    return np.concatenate(found)


def mixed(*parts: np.ndarray) -> np.ndarray:
    """A number for each combination, which others may have by chance."""
    found = np.zeros(len(parts[0]), np.uint64)
    for part in parts:
        found = (found ^ part.astype(np.uint64)) * _ODD
        found ^= found >> np.uint64(29)
    return found

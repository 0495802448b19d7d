"""The messages of a read until it is known which of them land: in memory, on disk where they are too many.

Messages of a topic are much alike: to compress them takes less time than to write them as they are.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from tempfile import SpooledTemporaryFile

import numpy as np
import pyarrow as pa

IN_MEMORY = 64 * 1024 * 1024
BLOCK_BYTES = 1024 * 1024  # of messages that are compressed together
CODEC = "lz4"


@dataclass(frozen=True)
class Block:
    """Some messages, compressed; `ends` is where each ends among them."""

    data: pa.Buffer
    ends: np.ndarray


def blocks_of(values: pa.Array) -> Iterator[Block]:
    """Messages as blocks; a null is an empty one."""
    if not len(values):
        return
    _, offset_buffer, data = values.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32)[values.offset : values.offset + len(values) + 1].astype(np.int64)
    numbers = (offsets[1:] - offsets[0] - 1) // BLOCK_BYTES  # a block has the messages that end within it
    bounds = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(values)]
    for first, end in pairwise(bounds):
        size = int(offsets[end] - offsets[first])
        packed = pa.compress(data.slice(int(offsets[first]), size), CODEC) if size else pa.py_buffer(b"")
        yield Block(packed, offsets[first + 1 : end + 1] - offsets[first])


class Spool:
    """Messages by their index."""

    def __init__(self, in_memory: int = IN_MEMORY) -> None:
        self._file = SpooledTemporaryFile(max_size=in_memory)  # noqa: SIM115 - closed by whoever made it
        self._count = 0
        self._firsts = array("q")  # of each block: its first message
        self._starts = array("q", [0])  # of each block: where its messages are, and where their ends within it
        self._open = -1, np.zeros(0, np.int64), b""

    def extend(self, blocks: Sequence[Block]) -> None:
        """Adds messages."""
        for block in blocks:
            self._firsts.append(self._count)
            self._count += len(block.ends)
            for data in (block.data, block.ends.tobytes()):
                self._file.seek(self._starts[-1])
                self._file.write(data)
                self._starts.append(self._starts[-1] + len(data))

    def __len__(self) -> int:
        return self._count

    def value(self, index: int) -> bytes:
        """The bytes of a message."""
        number = bisect_right(self._firsts, index) - 1
        ends, data = self._block(number)
        place = index - self._firsts[number]
        return data[ends[place - 1] if place else 0 : ends[place]]

    def _block(self, number: int) -> tuple[np.ndarray, bytes]:
        """A block as it was; the one that was asked for last is at hand."""
        if self._open[0] != number:
            data, ends = (self._read(part) for part in (2 * number, 2 * number + 1))
            places = np.frombuffer(ends, np.int64)
            size = int(places[-1])
            self._open = number, places, pa.decompress(data, size, CODEC, asbytes=True) if data else b""
        return self._open[1:]

    def _read(self, part: int) -> bytes:
        self._file.seek(self._starts[part])
        return self._file.read(self._starts[part + 1] - self._starts[part])

    def close(self) -> None:
        """Deletes it."""
        self._file.close()


class Tables:
    """Tables by their number: as they are in memory, compressed on disk those that are too many."""

    def __init__(self, in_memory: int = IN_MEMORY) -> None:
        self._left, self._tables = in_memory, dict[int, pa.Table]()
        self._file = SpooledTemporaryFile(max_size=1)  # noqa: SIM115 - closed by whoever made it
        self._starts = array("q", [0])

    def add(self, table: pa.Table) -> None:
        """Adds a table, which shares no memory with others."""
        size = table.get_total_buffer_size()
        data = b"" if size <= self._left else _as_bytes(table)
        if not data:
            self._left -= size
            self._tables[len(self)] = table
        self._file.seek(self._starts[-1])
        self._file.write(data)
        self._starts.append(self._starts[-1] + len(data))

    def __len__(self) -> int:
        return len(self._starts) - 1

    def table(self, number: int) -> pa.Table:
        """One of them."""
        found = self._tables.get(number)
        if found is not None:
            return found
        self._file.seek(self._starts[number])
        return pa.ipc.open_stream(self._file.read(self._starts[number + 1] - self._starts[number])).read_all()

    def close(self) -> None:
        """Deletes them."""
        self._tables = {}
        self._file.close()


def _as_bytes(table: pa.Table) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=CODEC)) as stream:
        stream.write_table(table)
    return sink.getvalue()

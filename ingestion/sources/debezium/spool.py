"""The messages of a read until it is known which of them land: in memory, on disk where they are too many."""

from array import array
from tempfile import SpooledTemporaryFile
from typing import Any

import numpy as np
import pyarrow as pa

IN_MEMORY = 64 * 1024 * 1024


class Spool:
    """Values by the index of their message."""

    def __init__(self, in_memory: int = IN_MEMORY) -> None:
        self._file = SpooledTemporaryFile(max_size=in_memory)  # noqa: SIM115 - closed by whoever made it
        self._starts = array("q", [0])

    def add(self, value: bytes | None) -> None:
        """Adds a message."""
        self._starts.append(self._starts[-1] + len(value or b""))
        if value:
            self._file.seek(self._starts[-2])
            self._file.write(value)

    def __len__(self) -> int:
        return len(self._starts) - 1

    def extend(self, values: pa.Array) -> None:
        """Adds messages in a column."""
        if not len(values):
            return
        _, offset_buffer, data = values.buffers()
        offsets = np.frombuffer(offset_buffer, np.int32)[values.offset : values.offset + len(values) + 1]
        at = self._starts[-1]
        self._starts.frombytes((offsets[1:].astype(np.int64) - int(offsets[0]) + at).tobytes())
        if data is not None and offsets[-1] > offsets[0]:
            self._file.seek(at)
            self._file.write(memoryview(data)[offsets[0] : offsets[-1]])

    def size(self, index: int) -> int:
        """How many bytes a message has."""
        return self._starts[index + 1] - self._starts[index]

    def value(self, index: int) -> bytes:
        """The value of a message."""
        self._file.seek(self._starts[index])
        return self._file.read(self.size(index))

    def close(self) -> None:
        """Deletes it."""
        self._file.close()


class Tables:
    """Tables by their number: as they are in memory, on disk those that are too many."""

    def __init__(self, in_memory: int = IN_MEMORY) -> None:
        self._left, self._tables = in_memory, dict[int, pa.Table]()
        self._others = Spool(1)

    def add(self, table: pa.Table) -> None:
        """Adds a table, which shares no memory with others."""
        size = table.get_total_buffer_size()
        fits = size <= self._left
        if fits:
            self._left -= size
            self._tables[len(self)] = table
        self._others.add(None if fits else _as_bytes(table))

    def __len__(self) -> int:
        return len(self._others)

    def table(self, number: int) -> pa.Table:
        """One of them."""
        found = self._tables.get(number)
        return pa.ipc.open_stream(self._others.value(number)).read_all() if found is None else found

    def close(self) -> None:
        """Deletes them."""
        self._tables = {}
        self._others.close()


def one_chunk(column: pa.ChunkedArray) -> Any:
    """A column as one array."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _as_bytes(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return sink.getvalue().to_pybytes()

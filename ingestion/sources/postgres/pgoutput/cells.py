"""Tuples as columns of cells: find where each value lies, then copy the values of a column out in one go."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ingestion.sources.postgres.pgoutput.model import DecodeError
from ingestion.sources.postgres.pgoutput.wire import Bytes, Mask, Positions, Wire

NULL, UNCHANGED, TEXT, BINARY = b"nutb"


@dataclass(frozen=True)
class Cells:
    """One column of many tuples: what each cell is (null, unchanged, text) and where its text lies."""

    kind: Bytes
    start: Positions
    end: Positions

    def take(self, index: Positions) -> "Cells":
        """The cells at these tuples."""
        return Cells(self.kind[index], self.start[index], self.end[index])


def fail_where(bad: Mask, messages: Positions, reason: str) -> None:
    """Refuse the first message of `messages` that `bad` marks, if it marks any."""
    if bad.any():
        raise DecodeError(int(messages[np.argmax(bad)]), reason)


def parse_tuples(wire: Wire, at: Positions, width: int, messages: Positions) -> tuple[list[Cells], Positions]:
    """Walk the tuples that start at `at`, column by column: their cells, and where each tuple ends."""
    fail_where(wire.u16(at) != width, messages, f"tuple does not have the relation's {width} columns")
    at = at + 2
    columns = []
    for _ in range(width):
        kind = wire.u8(at)
        text = kind == TEXT
        if text.all():
            start = at + 5
            end = start + wire.u32(at + 1)
        else:
            _check_kinds(kind, text, messages)
            start = at + np.where(text, 5, 1)
            end = start + np.where(text, wire.u32(at + 1), 0)
        columns.append(Cells(kind, start, end))
        at = end
    return columns, at


def _check_kinds(kind: Bytes, text: Mask, messages: Positions) -> None:
    fail_where(kind == BINARY, messages, "binary value; the stream must be in text mode")
    fail_where(~(text | (kind == NULL) | (kind == UNCHANGED)), messages, "unknown kind of value in a tuple")


def text_array(wire: Wire, cells: Cells, messages: Positions) -> pa.StringArray:
    """Copy the cells' values into a string array; null where a cell is not text."""
    count = len(cells.kind)
    values = _copy(wire, cells)
    text = cells.kind == TEXT
    validity = None if text.all() else pa.py_buffer(np.packbits(text, bitorder="little"))
    _check_utf8(values, messages)
    _, offsets, data = values.buffers()
    return pa.Array.from_buffers(pa.string(), count, [validity, offsets, data])


def _copy(wire: Wire, cells: Cells) -> pa.Array:
    """The values, compact. Cells of a column follow each other in the stream, so the buffer as it stands is an Arrow
    array of value, gap, value, gap, ...; Arrow copies every second element faster than numpy could."""
    count = len(cells.kind)
    if count == 0:
        return pa.array([], pa.binary())
    if (cells.start[1:] < cells.end[:-1]).any():  # two rows use one value: Arrow wants ascending offsets
        return _copy_any_order(wire, cells)
    offsets = np.empty(2 * count + 1, np.int32)
    offsets[0:-1:2] = cells.start
    offsets[1::2] = cells.end
    offsets[-1] = offsets[-2]
    both = pa.Array.from_buffers(pa.binary(), 2 * count, [None, pa.py_buffer(offsets), pa.py_buffer(wire.data)])
    return both.take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int32)))


def _copy_any_order(wire: Wire, cells: Cells) -> pa.Array:
    length = cells.end - cells.start
    offsets = np.zeros(len(length) + 1, np.int64)
    np.cumsum(length, out=offsets[1:])
    data = wire.data[np.repeat(cells.start - offsets[:-1], length) + np.arange(offsets[-1])]
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(length), buffers)


def _check_utf8(values: pa.Array, messages: Positions) -> None:
    _, _offsets, data = values.buffers()
    if data is None or data.size == 0 or np.frombuffer(data, np.uint8).max() < 0x80:
        return
    try:
        values.cast(pa.string())
    except pa.ArrowInvalid:
        raise DecodeError(int(messages[_first_invalid(values)]), "text is not valid UTF-8") from None


def _first_invalid(values: pa.Array) -> int:
    for position, value in enumerate(values):
        try:
            value.as_py().decode()
        except UnicodeDecodeError:
            return position
    raise AssertionError("Arrow refused UTF-8 that Python accepts")

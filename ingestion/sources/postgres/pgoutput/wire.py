"""Read the bytes of many messages at once.

Positions are int64 arrays into one shared buffer. A position may lie outside the buffer when a length in a corrupt
message lies: reads are clipped instead of checked, and whoever walks a message compares where it ended with
where the message ends. Lengths are unsigned, so a walk only moves forward and one comparison at its end is enough.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ingestion.sources.postgres.pgoutput.model import DecodeError

Positions = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]

_WIDEST = 8
BLOCK_MESSAGES = 1 << 16  # small enough for the CPU's cache, large enough that many tables share it well
BLOCK_BYTES = 1 << 30  # keeps every position of a block within int32, which Arrow's string offsets need


class Wire:
    """The messages of one block: `data`, and where message i starts and ends in it."""

    def __init__(self, data: Bytes, offsets: Positions) -> None:
        self.data = data if len(data) >= _WIDEST else np.pad(data, (0, _WIDEST - len(data)))
        self.start = offsets[:-1]
        self.end = offsets[1:]

    def __len__(self) -> int:
        return len(self.start)

    def message(self, index: int) -> bytes:
        """The bytes of one message."""
        return self.data[self.start[index] : self.end[index]].tobytes()

    def first(self, count: int) -> "Wire":
        """The first messages alone."""
        return Wire(self.data, np.append(self.start[:count], self.start[count]))

    def u8(self, at: Positions) -> Bytes:
        """Bytes."""
        return np.take(self.data, at, mode="clip")

    def u16(self, at: Positions) -> Positions:
        """Unsigned 16-bit integers."""
        return self._integers(at, ">u2")

    def u32(self, at: Positions) -> Positions:
        """Unsigned 32-bit integers."""
        return self._integers(at, ">u4")

    def i64(self, at: Positions) -> Positions:
        """Signed 64-bit integers (an LSN fits: 2^63 bytes of WAL are not reached)."""
        return self._integers(at, ">i8")

    def _integers(self, at: Positions, dtype: str) -> Positions:
        size = len(self.data) - np.dtype(dtype).itemsize + 1
        everywhere = np.ndarray((size,), dtype, self.data.data, strides=(1,))  # one integer per byte position
        return everywhere[np.minimum(at, size - 1)].astype(np.int64)


def blocks(messages: pa.Array) -> Iterator[tuple[int, Wire]]:
    """Cut an array of messages into blocks: (index of the first message, block)."""
    if not (pa.types.is_binary(messages.type) or pa.types.is_large_binary(messages.type)):
        raise TypeError(f"pgoutput messages must be binary or large_binary, not {messages.type}")
    if messages.null_count:
        raise DecodeError(int(np.argmax(messages.is_null().to_numpy(zero_copy_only=False))), "message is null")
    if len(messages) == 0:
        return
    _, offset_buffer, data_buffer = messages.buffers()
    dtype = np.int32 if pa.types.is_binary(messages.type) else np.int64
    offsets = np.frombuffer(offset_buffer, dtype)[messages.offset : messages.offset + len(messages) + 1].astype(
        np.int64
    )
    data = np.frombuffer(data_buffer, np.uint8) if data_buffer is not None else np.empty(0, np.uint8)
    first = 0
    while first < len(messages):
        fits = int(np.searchsorted(offsets, offsets[first] + BLOCK_BYTES, side="right")) - 1
        last = max(first + 1, min(first + BLOCK_MESSAGES, fits))
        base = offsets[first]
        yield first, Wire(data[base : offsets[last]], offsets[first : last + 1] - base)
        first = last

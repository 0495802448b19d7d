"""Transactions that the server sends before they end (protocol version 2), as the whole ones that version 1 sends.

One that outgrows `logical_decoding_work_mem` would else be spilled to the source's disk and read back before the first
message of it comes, which takes four times the CPU of decoding it. Its blocks come as they are decoded instead, and are
held here, on disk once they are many, until it commits; what was rolled back is left out.

Wire format: https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html
"""

import tempfile
from collections.abc import Generator, Iterable, Iterator
from contextlib import ExitStack
from typing import IO

import numpy as np
import pyarrow as pa

from ingestion.pgoutput.wire import blocks

HELD_BYTES = 8 * 1024 * 1024  # of one transaction in memory
_SCHEMA = pa.schema([pa.field("message", pa.binary())])
_MARKS = np.frombuffer(b"SEcA", np.uint8)  # stream start and stop, commit and abort of a streamed transaction
_DESCRIPTIONS = np.frombuffer(b"RY", np.uint8)
_XID = np.arange(1, 5)  # where a message inside of a block has its transaction's id, which version 1 has not


def whole_transactions(arrays: Iterable[pa.Array], folder: str | None = None) -> Generator[pa.Array]:
    """The messages of complete transactions, in the order of their commits.

    `arrays` are messages in pieces cut anywhere; what outgrows memory is held in an unnamed file in `folder`. A
    transaction that has not ended with the last array is left out. Raises OSError when the disk is full.
    """
    with ExitStack() as files:
        held: dict[bytes, _Held] = {}
        block: _Held | None = None
        for messages in arrays:
            done = 0
            for index in _marks(messages):
                piece, done = messages.slice(done, index - done), index + 1
                if block is not None:
                    block.add(piece)
                elif len(piece):
                    yield piece
                mark = messages[index].as_py()
                kind, xid = mark[:1], mark[1:5]
                if kind == b"S":
                    block = held.setdefault(xid, _Held(folder, files))
                elif kind == b"E":
                    block = None
                elif kind == b"c":
                    yield from _whole(held.pop(xid), mark)
                elif mark[5:9] != xid:
                    held[xid].rolled_back.add(int.from_bytes(mark[5:9], "big"))
                else:
                    held.pop(xid).close()
            rest = messages.slice(done)
            if block is not None:
                block.add(rest)
            elif len(rest):
                yield rest


def _marks(messages: pa.Array) -> list[int]:
    found = []
    for first, wire in blocks(messages):
        found += (first + np.flatnonzero(np.isin(wire.u8(wire.start), _MARKS) & (wire.end > wire.start))).tolist()
    return found


def _whole(held: "_Held", commit: bytes) -> Iterator[pa.Array]:
    """Begin, messages and commit; nothing where nothing is left of the transaction."""
    xid, flags, lsn, end_lsn, at = commit[1:5], commit[5:6], commit[6:14], commit[14:22], commit[22:30]
    begun = False
    for piece in held.messages():
        if not begun:
            yield pa.array([b"B" + lsn + at + xid], pa.binary())
            begun = True
        yield piece
    if begun:
        yield pa.array([b"C" + flags + lsn + end_lsn + at], pa.binary())
    held.close()


class _Held:
    """What has come of one transaction; `rolled_back` are its subtransactions that came to nothing."""

    def __init__(self, folder: str | None, files: ExitStack) -> None:
        self._folder = folder
        self._files = files
        self._pieces: list[pa.Array] = []
        self._bytes = 0
        self._file: IO[bytes] | None = None
        self._writer: pa.RecordBatchStreamWriter | None = None
        self.rolled_back: set[int] = set()

    def add(self, piece: pa.Array) -> None:
        """Takes the next messages, as they came."""
        if len(piece):
            self._pieces.append(piece)
            self._bytes += piece.nbytes
        if self._bytes >= HELD_BYTES:
            self._spill()

    def messages(self) -> Iterator[pa.Array]:
        """All that still counts, as version 1 has it."""
        for piece in self._all():
            yield from _as_version_1(piece, self.rolled_back)

    def close(self) -> None:
        """Gives the disk's space back."""
        if self._file is not None:
            self._file.close()

    def _spill(self) -> None:
        if self._writer is None:
            file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115
            self._file = self._files.enter_context(file)
            self._writer = pa.ipc.new_stream(self._file, _SCHEMA)
        for piece in self._pieces:
            self._writer.write_batch(pa.record_batch([piece.cast(pa.binary())], schema=_SCHEMA))
        self._pieces, self._bytes = [], 0

    def _all(self) -> Iterator[pa.Array]:
        if self._writer is not None and self._file is not None:
            self._writer.close()
            self._file.seek(0)
            for batch in pa.ipc.open_stream(self._file):
                yield batch.column(0)
        yield from self._pieces


def _as_version_1(messages: pa.Array, rolled_back: set[int]) -> Iterator[pa.Array]:
    """Messages of a block without their transaction ids, and without those of rolled back subtransactions.

    Descriptions stay: the server counts on them for the rest of the transaction. So do logical messages, which come
    under the id of the transaction itself: in `_seq` they leave a gap.
    """
    for _, wire in blocks(messages):
        size = wire.end - wire.start
        kind = wire.u8(wire.start)
        has_xid = size > _XID[-1]
        keep = kind != ord("O")  # the origin, the one message without an id; the decoder passes over it
        if rolled_back:
            gone = np.isin(wire.u32(wire.start + 1), np.fromiter(rolled_back, np.int64))
            keep &= ~gone | np.isin(kind, _DESCRIPTIONS)
        if not keep.any():
            continue
        kept = np.repeat(keep, size)
        kept[(wire.start[has_xid][:, None] + _XID).ravel()] = False
        ends = np.cumsum((size - len(_XID) * has_xid)[keep])
        offsets = np.concatenate(([0], ends)).astype(np.int32)
        data = wire.data[: len(kept)][kept]
        yield pa.Array.from_buffers(pa.binary(), len(ends), [None, pa.py_buffer(offsets), pa.py_buffer(data)])

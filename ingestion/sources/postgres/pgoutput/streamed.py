"""Transactions that the server sends before they end (protocol version 2), as the whole ones that version 1 sends.

One that outgrows `logical_decoding_work_mem` would else be spilled to the source's disk and read back before the first
message of it comes, which takes four times the CPU of decoding it. Its blocks come as they are decoded instead, and are
held here, on disk once they are many, until it commits; what was rolled back is left out.

Servers do not keep all of the protocol's promises (seen in the source of Postgres 14 to 18): a subtransaction that was
spilled before it was sent is rolled back without a word, so the source is asked about those that are left; and 18
announces the end of what it never sent. A description that was held may be older than one that has come since.

Wire format: https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html
"""

import tempfile
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from contextlib import ExitStack
from typing import IO

import numpy as np
import pyarrow as pa

from ingestion.sources.postgres.pgoutput.wire import blocks

HELD_BYTES = 8 * 1024 * 1024  # of one transaction in memory
_SCHEMA = pa.schema([pa.field("message", pa.binary())])
_MARKS = np.frombuffer(b"SEcAR", np.uint8)  # stream start and stop, its transaction's commit and abort; a description
_DESCRIPTIONS = np.frombuffer(b"RY", np.uint8)
_ORIGIN = ord("O")  # the one message inside of a block without an id
_XID = np.arange(1, 5)  # where a message inside of a block has its transaction's id, which version 1 has not


Aborted = Callable[[Collection[int]], Collection[int]]
"""Which of some subtransactions, by their ids of 32 bits, the source has rolled back."""
_Described = dict[bytes, tuple[int, bytes]]  # by relation: when it was described last, and the message


def whole_transactions(arrays: Iterable[pa.Array], aborted: Aborted, folder: str | None = None) -> Generator[pa.Array]:
    """The messages of complete transactions, in the order of their commits.

    `arrays` are messages in pieces cut anywhere; what outgrows memory is held in an unnamed file in `folder`. A
    transaction that has not ended with the last array is left out. `aborted` is asked about subtransactions of one that
    has committed. Raises OSError when the disk is full.
    """
    with ExitStack() as files:
        held: dict[bytes, _Held] = {}
        block: _Held | None = None
        described: _Described = {}
        time = 0
        for messages in arrays:
            done = 0
            for index in _marks(messages):
                mark = messages[index].as_py()
                kind, xid = mark[:1], mark[1:5]
                if kind == b"R":
                    time += 1
                    if block is not None:
                        block.described[mark[5:9]] = (time, kind + mark[5:])
                    else:
                        described[xid] = (time, mark)  # there is no id of a transaction
                    continue
                piece, done = messages.slice(done, index - done), index + 1
                if block is not None:
                    block.add(piece)
                elif len(piece):
                    yield piece
                if kind == b"S":
                    block = held.setdefault(xid, _Held(xid, folder, files))
                elif kind == b"E":
                    block = None
                elif kind == b"c":
                    yield from _whole(held[xid], mark, aborted)
                    yield from _restored(held.pop(xid).described, described)
                elif xid not in held:
                    pass  # nothing of it was ever sent
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


def _whole(held: "_Held", commit: bytes, aborted: Aborted) -> Iterator[pa.Array]:
    """Begin, messages and commit; without both where no more than descriptions is left of the transaction."""
    xid, flags, lsn, end_lsn, at = commit[1:5], commit[5:6], commit[6:14], commit[14:22], commit[22:30]
    if undecided := held.subtransactions - held.rolled_back:
        held.rolled_back.update(aborted(undecided))
    described: list[pa.Array] | None = []
    for piece in held.messages():
        if described is not None and _only_describes(piece):
            described.append(piece)
            continue
        if described is not None:
            yield from (pa.array([b"B" + lsn + at + xid], pa.binary()), *described)
            described = None
        yield piece
    if described is None:
        yield pa.array([b"C" + flags + lsn + end_lsn + at], pa.binary())
    else:
        yield from described
    held.close()


def _only_describes(messages: pa.Array) -> bool:
    return all(np.isin(wire.u8(wire.start), _DESCRIPTIONS).all() for _, wire in blocks(messages))


def _restored(late: _Described, described: _Described) -> Iterator[pa.Array]:
    """The descriptions in force, where older ones have just been given out; takes note of the others in `described`."""
    newer = [described[oid][1] for oid, (time, _) in late.items() if oid in described and described[oid][0] > time]
    described |= {oid: found for oid, found in late.items() if oid not in described or described[oid][0] < found[0]}
    if newer:
        yield pa.array(newer, pa.binary())


class _Held:
    """What has come of one transaction, and of which subtransactions; `rolled_back` are those that came to nothing."""

    def __init__(self, xid: bytes, folder: str | None, files: ExitStack) -> None:
        self._xid = int.from_bytes(xid, "big")
        self._folder = folder
        self._files = files
        self._pieces: list[pa.Array] = []
        self._bytes = 0
        self._file: IO[bytes] | None = None
        self._writer: pa.RecordBatchStreamWriter | None = None
        self.subtransactions: set[int] = set()
        self.rolled_back: set[int] = set()
        self.described: _Described = {}

    def add(self, piece: pa.Array) -> None:
        """Takes the next messages, as they came."""
        if len(piece):
            self._pieces.append(piece)
            self._bytes += piece.nbytes
            self.subtransactions |= _ids(piece) - {self._xid}
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


def _ids(messages: pa.Array) -> set[int]:
    """The ids of the (sub)transactions that messages of a block are of."""
    found: set[int] = set()
    for _, wire in blocks(messages):
        ids = wire.u32(wire.start + 1)[wire.u8(wire.start) != _ORIGIN]
        found.update(ids[:1].tolist() if (ids == ids[:1]).all() else np.unique(ids).tolist())
    return found


def _as_version_1(messages: pa.Array, rolled_back: set[int]) -> Iterator[pa.Array]:
    """Messages of a block without their transaction ids, and without those of rolled back subtransactions.

    Descriptions stay: the server counts on them for the rest of the transaction. So do logical messages, which come
    under the id of the transaction itself: in `_seq` they leave a gap.
    """
    for _, wire in blocks(messages):
        size = wire.end - wire.start
        kind = wire.u8(wire.start)
        has_xid = size > _XID[-1]
        keep = kind != _ORIGIN  # the decoder passes over it
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

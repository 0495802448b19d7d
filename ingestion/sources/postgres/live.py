"""The stream held open by the follower once it has caught up: START_REPLICATION in text mode, as a peek reads it.

A peek decodes again from `restart_lsn` at every call, so equal cycles cost more and more while an old transaction stays
open; a walsender goes on from where it is. But it sends a packet per message (about 180,000 a second), so a backlog is
peeked. Nothing is confirmed before it is in the lake, and what was received is only held in memory: whenever
anything goes wrong the stream is closed, and a peek reads the same again.

Wire format: https://www.postgresql.org/docs/current/protocol-replication.html
"""

import select
import socket
import struct
import threading
import time
from array import array
from collections import deque
from contextlib import suppress
from dataclasses import dataclass

import psycopg
import pyarrow as pa
from psycopg import pq

from ingestion.schema.positions import Lsn
from ingestion.sources.base import LiveStreamLost
from ingestion.sources.postgres.connection import lsn_text, stream_options
from ingestion.sources.postgres.history.server import check_same_server, started_at
from ingestion.sources.postgres.history.signature import signed
from lakehouse.errors import LakehouseError
from lakehouse.servers.database import SourceConnection
from lakehouse.text.sql import ident, literal

STATUS_SECONDS = 5.0
_PRESSING = (10, 1.0)  # requests for an answer, within so many seconds: otherwise one comes per half wal_sender_timeout
_XLOG_DATA, _KEEPALIVE = b"wk"
_DATA_HEADER = 25
_COMMIT, _RELATION = b"CR"


@dataclass(frozen=True)
class _Transaction:
    """A complete transaction: its commit LSN, and how many messages and bytes have come up to its end."""

    commit_lsn: int
    messages: int
    bytes: int


class Received:
    """What has been received and not been confirmed: messages of complete transactions, and of the one under way."""

    def __init__(self, lsn: int) -> None:
        self.lsn = lsn  # every transaction that commits below has been received
        self._data = bytearray()
        self._ends = array("q")
        self._transactions: list[_Transaction] = []
        self._described: dict[int, bytes] = {}
        self._relations: list[tuple[int, int, bytes]] = []

    def __len__(self) -> int:
        return len(self._data)

    @property
    def has_transactions(self) -> bool:
        """Whether a complete transaction waits."""
        return bool(self._transactions)

    def add(self, message: bytes) -> None:
        """Takes the next pgoutput message."""
        self._data += message
        self._ends.append(len(self._data))
        kind = message[0]
        if kind == _COMMIT:
            commit_lsn, end_lsn = struct.unpack_from(">qq", message, 2)
            self._transactions.append(_Transaction(commit_lsn, len(self._ends), len(self._data)))
            self.lsn = max(self.lsn, end_lsn)
        elif kind == _RELATION:
            self._relations.append((len(self._ends), int.from_bytes(message[1:5], "big"), message))

    def below(self, lsn: int) -> pa.Array:
        """The messages of all transactions that commit below `lsn`, after the descriptions that were in force."""
        until = self._last_below(lsn)
        described = list(self._described.values()) if until else []
        head = b"".join(described)
        ends = [0]
        for message in described:
            ends.append(ends[-1] + len(message))
        offsets = pa.array([*ends, *(len(head) + end for end in self._ends[: until.messages])] if until else [0])
        data = head + bytes(self._data[: until.bytes]) if until else b""
        return pa.Array.from_buffers(
            pa.large_binary(), len(offsets) - 1, [None, offsets.buffers()[1], pa.py_buffer(data)]
        )

    def forget(self, lsn: int) -> None:
        """Drops the transactions that commit below `lsn`: they are in the lake."""
        until = self._last_below(lsn)
        if until is None:
            return
        self._described |= {oid: message for number, oid, message in self._relations if number <= until.messages}
        self._relations = [(n - until.messages, oid, m) for n, oid, m in self._relations if n > until.messages]
        del self._data[: until.bytes]
        self._ends = array("q", (end - until.bytes for end in self._ends[until.messages :]))
        self._transactions = [
            _Transaction(t.commit_lsn, t.messages - until.messages, t.bytes - until.bytes)
            for t in self._transactions
            if t.commit_lsn >= lsn
        ]

    def _last_below(self, lsn: int) -> _Transaction | None:
        """Transactions come in the order of their commits."""
        return next((t for t in reversed(self._transactions) if t.commit_lsn < lsn), None)


class LiveStream:
    """One walsender and the thread that reads it; raises LakehouseError when it cannot be started.

    `server` is when the server was started whose history was checked: no other one may answer.
    """

    def __init__(self, url: str, slot: str, publication: str, lsn: int, max_bytes: int, server: int) -> None:
        self._received = Received(lsn)
        self._confirmed = lsn
        self._max_bytes = max_bytes
        self._changed = threading.Condition()
        self._lost: str | None = None
        self._asked = False  # the reader wants to know how far the server is
        self._due = False  # the server wants to know how far we are
        self._requests: deque[float] = deque(maxlen=_PRESSING[0])
        self._waker, self._wakes = socket.socketpair()
        try:
            self._connection = SourceConnection(psycopg.connect(f"{url}&replication=database", autocommit=True))
        except psycopg.OperationalError as error:
            raise LakehouseError(f"slot {slot}: {str(error).strip().splitlines()[0]}") from None
        try:
            check_same_server(slot, server, started_at(self._connection))
        except (LakehouseError, psycopg.Error):
            self._connection.close()
            raise
        options = ", ".join(f"{name} {literal(value)}" for name, value in stream_options(publication).items())
        command = f"START_REPLICATION SLOT {ident(slot)} LOGICAL {lsn_text(lsn)} ({options})"
        result = self._connection.pgconn.exec_(command.encode())
        if result.status != pq.ExecStatus.COPY_BOTH:
            reason = result.error_message.decode().strip().splitlines()[0]
            self._connection.close()
            raise LakehouseError(f"slot {slot}: {reason}")
        self._thread = threading.Thread(target=self._pump, name=f"stream-{slot}", daemon=True)
        self._thread.start()

    @property
    def position(self) -> Lsn:
        """Every transaction that commits below has been received."""
        with self._changed:
            return Lsn(self._received.lsn)

    @property
    def has_changes(self) -> bool:
        """Whether a complete transaction waits; the server sends none without changes of published tables."""
        with self._changed:
            return self._received.has_transactions

    def reach(self, position: int, seconds: float) -> None:
        """Waits until everything below `position` has been received; raises LiveStreamLost when it takes too long."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while self._received.lsn < position:
                self._check()
                if time.monotonic() > deadline:
                    raise LiveStreamLost(f"nothing up to {lsn_text(position)} within {seconds:.0f} s")
                self._ask()
                self._changed.wait(0.05)

    def wait(self, seconds: float) -> None:
        """Waits for a complete transaction, so long at most; raises LiveStreamLost."""
        with self._changed:
            if not self._received.has_transactions:
                self._ask()
                # Every answer notifies: to ask again at each of them would keep both sides busy with nothing.
                self._changed.wait_for(lambda: self._received.has_transactions or self._lost is not None, seconds)
            self._check()

    def below(self, position: int) -> pa.Array:
        """The messages of all transactions that commit below `position`; they stay until they are confirmed."""
        with self._changed:
            self._check()
            return self._received.below(position)

    def confirm(self, position: int) -> None:
        """Everything below `position` is in the lake."""
        with self._changed:
            self._received.forget(position)
            self._confirmed = max(self._confirmed, position)
        self._wake()

    def close(self) -> None:
        """Ends the stream; the server lets go of the slot soon afterwards."""
        with self._changed:
            self._lost = self._lost or "closed"
        self._wake()
        self._thread.join()
        self._connection.close()
        self._waker.close()
        self._wakes.close()

    def _check(self) -> None:
        if self._lost is not None:
            raise LiveStreamLost(self._lost)

    def _ask(self) -> None:
        self._asked = True
        self._wake()

    def _wake(self) -> None:
        with suppress(OSError):
            self._waker.send(b"\0")

    def _pump(self) -> None:
        """The one thread that touches the connection: reads what comes, and tells what is confirmed."""
        pgconn, told = self._connection.pgconn, (0, 0.0)
        try:
            while True:
                self._read(pgconn)
                with self._changed:
                    if self._lost is not None:
                        return
                    asked, self._asked = self._asked, False
                    due, self._due = self._due or asked, False
                    confirmed = self._confirmed
                if due or confirmed > told[0] or time.monotonic() - told[1] > STATUS_SECONDS:
                    self._tell(confirmed, asked)
                    told = (confirmed, time.monotonic())
                ready, _, _ = select.select([pgconn.socket, self._wakes], [], [], STATUS_SECONDS)
                if self._wakes in ready:
                    self._wakes.recv(4096)
                if pgconn.socket in ready:
                    pgconn.consume_input()
        except (psycopg.Error, OSError, ValueError) as error:
            self._lose(" ".join(str(error).split()) or type(error).__name__)
            self._connection.close()  # a server that shuts down waits for it, whatever the follower is at

    def _read(self, pgconn: pq.abc.PGconn) -> None:
        """Takes everything that has arrived."""
        with self._changed:
            while True:
                size, data = pgconn.get_copy_data(1)
                if size == 0:
                    break
                if size < 0:
                    raise psycopg.OperationalError("the server ended the stream")
                self._take(bytes(data))
                if len(self._received) > self._max_bytes:
                    raise psycopg.OperationalError(f"more than {self._max_bytes >> 20} MiB at once: better peeked")
            self._changed.notify_all()

    def _take(self, data: bytes) -> None:
        if data[0] == _XLOG_DATA:
            self._received.add(data[_DATA_HEADER:])
        elif data[0] == _KEEPALIVE:
            (end,) = struct.unpack_from(">q", data, 1)
            self._received.lsn = max(self._received.lsn, end)
            if data[17]:
                self._due = True
                self._refuse_to_hold_up()

    def _refuse_to_hold_up(self) -> None:
        """Raises OperationalError where the server is shutting down: it asks, answer by answer, until all that it has
        sent is confirmed, and refuses new sessions meanwhile. A signed position never is all."""
        self._requests.append(time.monotonic())
        count, seconds = _PRESSING
        if len(self._requests) == count and self._requests[-1] - self._requests[0] < seconds:
            raise psycopg.OperationalError("the server is shutting down")

    def _tell(self, confirmed: int, ask: bool) -> None:
        """A standby status update. Only what is confirmed counts as flushed: the server may forget that."""
        flushed = signed(confirmed)
        status = b"r" + struct.pack(">qqqqB", self._received.lsn, flushed, flushed, 0, ask)
        self._connection.pgconn.put_copy_data(status)
        self._connection.pgconn.flush()

    def _lose(self, reason: str) -> None:
        with self._changed:
            self._lost = self._lost or reason
            self._changed.notify_all()

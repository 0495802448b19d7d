"""Changes from the slot: read and decoded inside a Spark task.

The slot is only peeked at, never consumed: whatever happens here, the next cycle reads the same changes again.
"""

import os
from collections.abc import Callable, Collection, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial

import numpy as np
import psycopg
import pyarrow as pa

from ingestion.schema.changes import Batch
from ingestion.sources.base import Keys, Landing, Noticed, Piece
from ingestion.sources.postgres.connection import aborted, lock_timeout_seconds, peek
from ingestion.sources.postgres.history.server import STARTED, check_same_server
from ingestion.sources.postgres.history.witness import Witness
from ingestion.sources.postgres.pgoutput import DecodeError, Decoder, whole_transactions, widened
from ingestion.sources.postgres.pgoutput.mentioned import mentioned
from ingestion.sources.postgres.points import Blocked
from ingestion.sources.postgres.points.blockers import spoken, who_alters_types
from lakehouse.errors import LakehouseError
from lakehouse.servers.database import SourceConnection
from lakehouse.text.shown import shortened

WAL_GONE = "has already been removed"
# what Postgres says where its decoder's view of the catalog is wrong: bugs of the server, mostly mended in later minors
UNDECODABLE = ("unexpected duplicate for tablespace", "could not map filenode", "could not map filenumber")
LOCK_TIMEOUT = "due to lock timeout"


@dataclass(frozen=True)
class SlotReader:
    """One read of the slot: everything committed below `upto_lsn`. Travels by pickle; holds secrets.

    `received` are its messages where the live stream has brought them; without them the task peeks at the slot, of the
    `server` whose history was checked, which is known by the moment of its start.
    """

    source: str
    url: str
    server: int
    slot: str
    publication: str
    upto_lsn: int
    xid: int
    received: pa.Array | None
    batch_bytes: int

    @property
    def is_silent(self) -> bool:
        """Whether the live stream has brought nothing."""
        return self.received is not None and not len(self.received)

    @property
    def relations(self) -> frozenset[int] | None:
        """Those named in what the live stream has brought."""
        return None if self.received is None else mentioned(self.received)

    def parts(self) -> "tuple[SlotReader]":
        """All of it: its order is that of the stream."""
        return (self,)

    def read(self, keys: Keys, landing: Landing, imaged: frozenset[int], take: Callable[[Piece], None]) -> Noticed:
        """Gives the pieces of the stream to `take`; raises LakehouseError for a stream that it cannot read."""
        decoder = Decoder(self.xid, keys, landing(), imaged)
        for messages in [self.received] if self.received is not None else self._peeked():
            for piece in pieces(self, decoder, messages, landing):
                take(piece)
        if decoder.in_transaction:
            raise LakehouseError(
                f"source {self.source!r}: the stream ended inside a transaction; nothing was published"
            )
        return Noticed(decoder.carried, _newest(decoder))

    def _peeked(self) -> Iterator[pa.Array]:
        return _one_ahead(whole_transactions(self._messages(), self._aborted, _disk()))

    def _messages(self) -> Generator[pa.Array]:
        import adbc_driver_postgresql.dbapi as adbc

        try:
            with adbc.connect(self.url) as connection, connection.cursor() as cursor:
                cursor.adbc_statement.set_options(**{"adbc.postgresql.batch_size_hint_bytes": str(self.batch_bytes)})
                cursor.execute(STARTED)
                check_same_server(self.source, self.server, cursor.fetchone()[0])
                cursor.execute(f"SELECT data FROM {peek(self.slot, self.publication, self.upto_lsn, unfinished=True)}")
                for batch in cursor.fetch_record_batch():
                    yield batch.column(0)
        except (adbc.Error, pa.ArrowException, OSError) as error:
            reason = _first_line(error)
            if LOCK_TIMEOUT in reason:
                raise self._blocked() from None
            remedy = what_helps(reason, self.source)
            raise LakehouseError(f"source {self.source!r}: reading slot {self.slot}: {reason}{remedy}") from None

    def _blocked(self) -> Blocked:
        """Decoding locks the composite types of columns, so an open ALTER TYPE holds it up."""
        with SourceConnection(psycopg.connect(self.url, autocommit=True)) as connection:
            waited = spoken(lock_timeout_seconds(connection))
            who = "; ".join(who_alters_types(connection)) or "a transaction that has just ended"
        return Blocked(
            f"source {self.source!r}: reading slot {self.slot} waited {waited} for a lock, held up by {who} "
            "(nothing was lost; the next cycle reads on)"
        )

    def _aborted(self, xids: Collection[int]) -> set[int]:
        wide = widened(np.array(sorted(xids), np.int64), self.xid)
        with SourceConnection(psycopg.connect(self.url, autocommit=True)) as connection:
            return {xid & 0xFFFFFFFF for xid in aborted(connection, wide.tolist())}


def pieces(reader: SlotReader, decoder: Decoder, messages: pa.Array, landing: Landing) -> Iterator[Piece]:
    """One array of messages in pieces, past those that cannot be decoded."""
    while len(messages):
        try:
            batches, end = decoder.feed(messages), len(messages)
        except DecodeError as error:
            batches, end = _feed_before(reader, decoder, messages, error), error.index
        piece = messages.slice(0, end)
        yield Piece(batches, partial(decoder.pick, piece))
        decoder.only = landing()
        if end < len(messages):
            yield _unread(reader, decoder, messages[end].as_py(), end)
        messages = messages.slice(end + 1)


def _feed_before(reader: SlotReader, decoder: Decoder, messages: pa.Array, error: DecodeError) -> list[Batch]:
    if messages[error.index].as_py()[:1] not in (b"I", b"U", b"D"):
        raise LakehouseError(f"source {reader.source!r}, slot {reader.slot}: {error}; nothing was published") from None
    return decoder.feed(messages.slice(0, error.index))


def _unread(reader: SlotReader, decoder: Decoder, message: bytes, index: int) -> Piece:
    try:
        decoder.feed(pa.array([message], pa.binary()))
    except DecodeError as error:
        reason = error.reason
    try:
        picked = decoder.skip(message)
    except ValueError:
        raise LakehouseError(
            f"source {reader.source!r}, slot {reader.slot}: message {index}: {reason}; nothing was published"
        ) from None
    place = (picked.column("commit_lsn")[0].as_py(), picked.column("place")[0].as_py())
    oid = picked.column("oid")[0].as_py()
    return Piece([], lambda oids: picked if oid in oids else picked.slice(0, 0), {place: reason})


def _newest(decoder: Decoder) -> Witness | None:
    if decoder.last_commit_lsn is None or decoder.last_commit_at is None:
        return None
    return Witness(decoder.last_commit_lsn, pa.scalar(decoder.last_commit_at, pa.timestamp("us", "UTC")).as_py())


def what_helps(reason: str, source: str) -> str:
    """What to do about an error of the server while it decodes, as the end of its sentence; empty where unknown."""
    recover = f"`lakehouse ingest --recover {source}`"
    if WAL_GONE in reason:
        return f"; nothing was written: {recover}"
    if any(text in reason for text in UNDECODABLE):
        return (
            "; nothing was written: the server cannot decode its own WAL. Update Postgres to its newest minor release; "
            f"if the error stays, {recover} makes the slot anew and compares every table"
        )
    return ""


def _disk() -> str | None:
    """The first of Spark's local folders, where a task holds what is too large for memory."""
    return os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or None


def _one_ahead(arrays: Generator[pa.Array]) -> Iterator[pa.Array]:
    """The same; the next one is received while its predecessor is decoded."""
    with closing(arrays), ThreadPoolExecutor(1) as pool:
        coming = pool.submit(next, arrays, None)
        while (array := coming.result()) is not None:
            coming = pool.submit(next, arrays, None)
            yield array


def _first_line(error: Exception) -> str:
    return shortened(str(error).strip().splitlines()[0], 300)

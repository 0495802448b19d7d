"""Changes from the slot to data files: read, decode and write in one Spark task.

The slot is only peeked at, never consumed: whatever happens here, the next cycle reads the same changes again.
"""

import os
from collections.abc import Collection, Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import psycopg
import pyarrow as pa
from pyiceberg.manifest import DataFile

from ingestion.schema.changes import Batch
from ingestion.sink.rows import TableTarget
from ingestion.sink.writer import Written
from ingestion.sources.postgres.connection import aborted, lock_timeout_seconds, peek
from ingestion.sources.postgres.history.server import STARTED, check_same_server
from ingestion.sources.postgres.history.witness import Witness
from ingestion.sources.postgres.pgoutput import DecodeError, Decoder, whole_transactions, widened
from ingestion.sources.postgres.points import Blocked
from ingestion.sources.postgres.points.blockers import spoken, who_alters_types
from ingestion.tasks.lanes import Kept, Lanes
from lakehouse.catalog.file_io import file_io
from lakehouse.errors import LakehouseError
from lakehouse.servers.database import SourceConnection

WAL_GONE = "has already been removed"
# what Postgres says where its decoder's view of the catalog is wrong: bugs of the server, mostly mended in later minors
UNDECODABLE = ("unexpected duplicate for tablespace", "could not map filenode", "could not map filenumber")
LOCK_TIMEOUT = "due to lock timeout"


@dataclass(frozen=True)
class ChangePlan:
    """One read of the slot: everything committed below `upto_lsn`. Travels by pickle; holds secrets.

    `received` are its messages where the live stream has brought them; without them the task peeks at the slot, of the
    `server` whose history was checked, which is known by the moment of its start.
    `aside` names the targets whose records go to the spool, with the reason; `meta` holds the `meta` tables' metadata.
    """

    source: str
    url: str
    server: int
    slot: str
    publication: str
    upto_lsn: int
    xid: int
    targets: tuple[TableTarget, ...]
    received: pa.Array | None
    aside: Mapping[str, str]
    meta: Mapping[str, str]
    io_properties: dict[str, str]
    batch_bytes: int
    file_bytes: int


@dataclass(frozen=True)
class ChangeResult:
    """The files of every touched table and of `meta`, what was noticed of tables, and the newest transaction."""

    written: tuple[Written, ...]
    meta_files: dict[str, tuple[DataFile, ...]]
    noticed: dict[str, Kept]
    newest: Witness | None


def read_changes(plan: ChangePlan) -> ChangeResult:
    """Decodes the slot's changes and writes them; raises LakehouseError for a stream it cannot read."""
    lanes = Lanes(plan.targets, plan.meta, file_io(plan.io_properties), plan.file_bytes)
    for name, reason in plan.aside.items():
        lanes.set_aside(name, reason)
    keys = {oid: target.key for target in plan.targets if target.key for oid in target.oids}
    decoder = Decoder(plan.xid, keys, lanes.landing, lanes.imaged)
    for messages in [plan.received] if plan.received is not None else _peeked(plan):
        _take(plan, decoder, lanes, messages)
    if decoder.in_transaction:
        raise LakehouseError(f"source {plan.source!r}: the stream ended inside a transaction; nothing was published")
    written, meta_files, noticed = lanes.close(decoder.carried)
    return ChangeResult(written, meta_files, noticed, _newest(decoder))


def _newest(decoder: Decoder) -> Witness | None:
    if decoder.last_commit_lsn is None or decoder.last_commit_at is None:
        return None
    return Witness(decoder.last_commit_lsn, pa.scalar(decoder.last_commit_at, pa.timestamp("us", "UTC")).as_py())


def _take(plan: ChangePlan, decoder: Decoder, lanes: Lanes, messages: pa.Array) -> None:
    """Lands one array of messages, past those that cannot be decoded."""
    while len(messages):
        try:
            batches, end = decoder.feed(messages), len(messages)
        except DecodeError as error:
            batches, end = _feed_before(plan, decoder, messages, error), error.index
        _land(decoder, lanes, messages.slice(0, end), batches)
        if end < len(messages):
            _quarantine(plan, decoder, lanes, messages[end].as_py(), end)
        messages = messages.slice(end + 1)


def _feed_before(plan: ChangePlan, decoder: Decoder, messages: pa.Array, error: DecodeError) -> list[Batch]:
    if messages[error.index].as_py()[:1] not in (b"I", b"U", b"D"):
        raise LakehouseError(f"source {plan.source!r}, slot {plan.slot}: {error}; nothing was published") from None
    return decoder.feed(messages.slice(0, error.index))


def _land(decoder: Decoder, lanes: Lanes, piece: pa.Array, batches: list[Batch]) -> None:
    bad = lanes.land(batches)
    reasons = {place: reason for of_table in bad.values() for place, reason in of_table.items()}
    if reasons:
        lanes.keep("quarantine", decoder.pick(piece, lanes.landing), reasons)
    if lanes.aside:
        lanes.keep("spool", decoder.pick(piece, lanes.aside))
        decoder.only = lanes.landing


def _quarantine(plan: ChangePlan, decoder: Decoder, lanes: Lanes, message: bytes, index: int) -> None:
    try:
        decoder.feed(pa.array([message], pa.binary()))
    except DecodeError as error:
        reason = error.reason
    try:
        picked = decoder.skip(message)
    except ValueError:
        raise LakehouseError(
            f"source {plan.source!r}, slot {plan.slot}: message {index}: {reason}; nothing was published"
        ) from None
    place = (picked.column("commit_lsn")[0].as_py(), picked.column("place")[0].as_py())
    lanes.keep("quarantine", picked, {place: reason})


def _peeked(plan: ChangePlan) -> Iterator[pa.Array]:
    return _one_ahead(whole_transactions(_messages(plan), lambda xids: _aborted(plan, xids), _disk()))


def _messages(plan: ChangePlan) -> Generator[pa.Array]:
    import adbc_driver_postgresql.dbapi as adbc

    try:
        with adbc.connect(plan.url) as connection, connection.cursor() as cursor:
            cursor.adbc_statement.set_options(**{"adbc.postgresql.batch_size_hint_bytes": str(plan.batch_bytes)})
            cursor.execute(STARTED)
            check_same_server(plan.source, plan.server, cursor.fetchone()[0])
            cursor.execute(f"SELECT data FROM {peek(plan.slot, plan.publication, plan.upto_lsn, unfinished=True)}")
            for batch in cursor.fetch_record_batch():
                yield batch.column(0)
    except (adbc.Error, pa.ArrowException, OSError) as error:
        reason = _first_line(error)
        if LOCK_TIMEOUT in reason:
            raise _blocked(plan) from None
        remedy = what_helps(reason, plan.source)
        raise LakehouseError(f"source {plan.source!r}: reading slot {plan.slot}: {reason}{remedy}") from None


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


def _blocked(plan: ChangePlan) -> Blocked:
    """Decoding locks the composite types of columns, so an open ALTER TYPE holds it up."""
    with SourceConnection(psycopg.connect(plan.url, autocommit=True)) as connection:
        waited = spoken(lock_timeout_seconds(connection))
        who = "; ".join(who_alters_types(connection)) or "a transaction that has just ended"
    return Blocked(
        f"source {plan.source!r}: reading slot {plan.slot} waited {waited} for a lock, held up by {who} "
        "(nothing was lost; the next cycle reads on)"
    )


def _aborted(plan: ChangePlan, xids: Collection[int]) -> set[int]:
    wide = widened(np.array(sorted(xids), np.int64), plan.xid)
    with SourceConnection(psycopg.connect(plan.url, autocommit=True)) as connection:
        return {xid & 0xFFFFFFFF for xid in aborted(connection, wide.tolist())}


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
    return str(error).strip().splitlines()[0][:300]

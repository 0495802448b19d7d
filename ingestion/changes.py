"""Changes from the slot to data files: read, decode and write in one Spark task.

The slot is only peeked at, never consumed: whatever happens here, the next cycle reads the same changes again.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io.pyarrow import PyArrowFileIO

from ingestion.pgoutput import Batch, DecodeError, Decoder
from ingestion.rows import Counts, TableTarget, check_relation, raw_rows
from ingestion.source import lsn_text
from ingestion.writer import TableWriter, Written
from lakehouse.errors import LakehouseError
from lakehouse.sql import ident, literal


@dataclass(frozen=True)
class ChangePlan:
    """One read of the slot: everything committed below `upto_lsn`. Travels by pickle; holds secrets."""

    source: str
    url: str
    slot: str
    publication: str
    upto_lsn: int
    xid: int
    targets: tuple[TableTarget, ...]
    io_properties: dict[str, str]
    batch_bytes: int
    file_bytes: int


@dataclass(frozen=True)
class ChangeResult:
    """The files of every touched table, and where the stream stood after them."""

    written: tuple[Written, ...]
    transactions: int
    last_commit_at: datetime | None


def read_changes(plan: ChangePlan) -> ChangeResult:
    """Decodes the slot's changes and writes them; raises LakehouseError for a stream it cannot read."""
    io = PyArrowFileIO(plan.io_properties)
    targets = {target.relation: target for target in plan.targets}
    writers: dict[str, TableWriter] = {}
    counts: dict[str, Counts] = {}
    decoder = Decoder(plan.xid, {target.relation: target.key for target in plan.targets if target.key})
    for messages in _messages(plan):
        for batch in _decode(plan, decoder, messages):
            target = targets.get((batch.relation.schema, batch.relation.name))
            kept = _not_yet_there(batch, target.from_lsn) if target else None
            if target is None or kept is None:
                continue
            check_relation(target, batch.relation)
            if target.name not in writers:
                writers[target.name] = TableWriter(target.metadata_json, io, plan.file_bytes)
                counts[target.name] = Counts()
            writer = writers[target.name]
            writer.add(raw_rows(target, kept.values, kept.meta, writer.schema, counts[target.name]))
    if decoder.in_transaction:
        raise LakehouseError(f"source {plan.source!r}: the stream ended inside a transaction; nothing was published")
    written = tuple(
        Written(name, writer.close(), counts[name].operations, counts[name].unrepresentable)
        for name, writer in writers.items()
    )
    at = decoder.last_commit_at
    last = pa.scalar(at, pa.timestamp("us", "UTC")).as_py() if at is not None else None
    return ChangeResult(written, decoder.transactions, last)


def peek_sql(slot: str, publication: str, upto_lsn: int) -> str:
    """The query that reads the slot without consuming it; it ends with the last commit below `upto_lsn`."""
    options = [("proto_version", "1"), ("publication_names", ident(publication)), ("messages", "true")]
    listed = ", ".join(f"{literal(key)}, {literal(value)}" for key, value in options)
    return (
        f"SELECT data FROM pg_logical_slot_peek_binary_changes({literal(slot)}, {literal(lsn_text(upto_lsn))}, NULL, "
        f"{listed})"
    )


def _messages(plan: ChangePlan) -> Iterator[pa.Array]:
    import adbc_driver_postgresql.dbapi as adbc

    try:
        with adbc.connect(plan.url) as connection, connection.cursor() as cursor:
            cursor.adbc_statement.set_options(**{"adbc.postgresql.batch_size_hint_bytes": str(plan.batch_bytes)})
            cursor.execute(peek_sql(plan.slot, plan.publication, plan.upto_lsn))
            for batch in cursor.fetch_record_batch():
                yield batch.column(0)
    except adbc.Error as error:
        raise LakehouseError(f"source {plan.source!r}: reading slot {plan.slot}: {_first_line(error)}") from None


def _decode(plan: ChangePlan, decoder: Decoder, messages: pa.Array) -> list[Batch]:
    try:
        return decoder.feed(messages)
    except DecodeError as error:
        raise LakehouseError(f"source {plan.source!r}, slot {plan.slot}: {error}; nothing was published") from None


def _not_yet_there(batch: Batch, from_lsn: int) -> Batch | None:
    """The rows of transactions that are not in the lake: after a crash the slot replays published ones."""
    lsns = batch.meta.column("_commit_lsn")
    if batch.meta.num_rows == 0:
        return None
    bounds = pc.min_max(lsns).as_py()
    if bounds["min"] >= from_lsn:
        return batch
    if bounds["max"] < from_lsn:
        return None
    keep = pc.greater_equal(lsns, from_lsn)
    return Batch(batch.relation, batch.values.filter(keep), batch.meta.filter(keep))


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0][:300]

"""Records that are kept as bytes: pgoutput's messages as the slot sent them, and the relation message before them."""

import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow as pa

from ingestion.schema.changes import Batch, Relation
from ingestion.sources.base import Keys, OfAnotherKind, UnreadableRecord
from ingestion.sources.postgres.pgoutput import DecodeError, Decoder
from ingestion.sources.postgres.pgoutput.relations import parse_relation
from ingestion.sources.postgres.pgoutput.tuples import without

_BEFORE = 2  # messages that are made up before the records: a begin, and the relation


@dataclass(frozen=True)
class PgoutputRecords:
    """The base's `Records`."""

    def relation(self, encoded: bytes) -> Relation:
        """The relation of kept records; raises OfAnotherKind for those of topics."""
        if not encoded.startswith(b"R"):
            raise OfAnotherKind
        return parse_relation(encoded, 0)

    def without(self, record: bytes, relation: bytes, gone: Collection[str]) -> bytes:
        """A record with the values of the columns `gone` null."""
        return without(record, _columns(relation), gone)

    def decode(self, relation: bytes, records: pa.Table, keys: Keys, imaged: Collection[int]) -> Iterator[Batch]:
        """The records as one made-up transaction, each row then given back its own place; raises UnreadableRecord."""
        begin = b"B" + struct.pack(">QqI", 1, 0, 1)
        commit = b"C\0" + struct.pack(">QQq", 1, 1, 0)
        messages = pa.array([begin, relation, *records.column("message").to_pylist(), commit], pa.binary())
        try:
            batches = Decoder(0, keys, images=frozenset(imaged)).feed(messages)
        except DecodeError as error:
            raise UnreadableRecord(error.index - _BEFORE, error.reason) from None
        return (_at_its_place(batch, records) for batch in batches)


@lru_cache
def _columns(relation: bytes) -> tuple[str, ...]:
    return tuple(column.name for column in parse_relation(relation, 0).columns)


def _at_its_place(batch: Batch, records: pa.Table) -> Batch:
    made_up = batch.meta.column("_seq").to_numpy()
    own = records.take(pa.array(made_up // 2))
    seq = own.column("seq").to_numpy() + made_up % 2
    given = {
        "_commit_lsn": own.column("commit_lsn"),
        "_seq": pa.array(seq.astype(np.int64)),
        "_xid": own.column("xid"),
        "_committed_at": own.column("committed_at"),
    }
    meta = [given.get(name, batch.meta.column(name)) for name in batch.meta.column_names]
    return Batch(batch.relation, batch.values, pa.table(meta, schema=batch.meta.schema))

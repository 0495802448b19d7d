"""Records that were kept as bytes, landed later: each where its transaction stood, as if it had never waited."""

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask
from pyiceberg.table.metadata import TableMetadataUtil

from ingestion.schema.changes import PICKED_SCHEMA, Batch
from ingestion.sink.rows import TableTarget
from ingestion.sink.writer import Written, merge
from ingestion.sources.postgres.pgoutput import DecodeError, Decoder
from ingestion.tasks.lanes import Kept, Lanes
from lakehouse.catalog.file_io import file_io


@dataclass(frozen=True)
class ReplayPlan:
    """The kept records of one table and epoch, by the data files that hold them. Travels by pickle; holds secrets."""

    metadata_json: str
    tasks: tuple[FileScanTask, ...]
    target: TableTarget
    meta: dict[str, str]
    io_properties: dict[str, str]
    file_bytes: int


@dataclass(frozen=True)
class ReplayResult:
    """What landed, what had to be kept again, and what was noticed."""

    written: tuple[Written, ...]
    meta_files: dict[str, tuple[DataFile, ...]]
    noticed: dict[str, Kept]


def replay(plan: ReplayPlan) -> ReplayResult:
    """Decodes kept records and writes them as rows; those that still cannot be read go to the quarantine again."""
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.io.pyarrow import ArrowScan

    io = file_io(plan.io_properties)
    lanes = Lanes([plan.target], plan.meta, io, plan.file_bytes, in_order=False)
    metadata = TableMetadataUtil.parse_raw(plan.metadata_json)
    scan = ArrowScan(metadata, io, metadata.schema(), AlwaysTrue())
    for batch in scan.to_record_batches(plan.tasks):
        records = pa.Table.from_batches([batch])
        of_table = pc.equal(records.column("table"), plan.target.name)
        records = records.filter(pc.and_(of_table, pc.equal(records.column("epoch"), plan.target.epoch)))
        for relation in pc.unique(records.column("relation")).to_pylist():
            _replay_relation(plan, lanes, relation, records.filter(pc.equal(records.column("relation"), relation)))
    return ReplayResult(*lanes.close())


def merged(parts: Iterable[ReplayResult]) -> ReplayResult:
    """Several results as one."""
    together = ReplayResult((), {}, {})
    for part in parts:
        files = {
            name: together.meta_files.get(name, ()) + part.meta_files.get(name, ())
            for name in together.meta_files.keys() | part.meta_files.keys()
        }
        noticed = together.noticed | part.noticed
        written = tuple(merge((*together.written, *part.written)).values())
        together = ReplayResult(written, files, noticed)
    return together


def _replay_relation(plan: ReplayPlan, lanes: Lanes, relation: bytes, records: pa.Table) -> None:
    records = records.combine_chunks()
    if _oid(relation) not in plan.target.oids:
        of_another = _picked(relation, records, min(plan.target.oids))
        lanes.keep(
            "quarantine", of_another, dict.fromkeys(_places(of_another), "of a relation that the table was before")
        )
        return
    while records.num_rows:
        try:
            batches, end = list(_decoded(plan.target, relation, records)), records.num_rows
        except DecodeError as error:
            end = error.index - 2
            batches = list(_decoded(plan.target, relation, records.slice(0, end)))
            rest = _picked(relation, records.slice(end, 1))
            lanes.keep("quarantine", rest, dict.fromkeys(_places(rest), error.reason))
        bad = lanes.land(batches)
        for reasons in bad.values():
            lanes.keep("quarantine", _picked(relation, records.slice(0, end)), reasons)
        if lanes.aside:
            lanes.keep("spool", _picked(relation, records.slice(0, end)))
        records = records.slice(end + 1 if end < records.num_rows else end)


def _decoded(target: TableTarget, relation: bytes, records: pa.Table) -> Iterator[Batch]:
    """The records as one made-up transaction, each row then given back its own place."""
    begin = b"B" + struct.pack(">QqI", 1, 0, 1)
    commit = b"C\0" + struct.pack(">QQq", 1, 1, 0)
    messages = [begin, relation, *records.column("message").to_pylist(), commit]
    keys = dict.fromkeys(target.oids, target.key) if target.key else {}
    images = target.oids if target.shares_keys else frozenset()
    for batch in Decoder(0, keys, images=images).feed(pa.array(messages, pa.binary())):
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
        yield Batch(batch.relation, batch.values, pa.table(meta, schema=batch.meta.schema))


def _oid(relation: bytes) -> int:
    return int.from_bytes(relation[1:5], "big")


def _picked(relation: bytes, records: pa.Table, oid: int | None = None) -> pa.Table:
    """Records as the decoder picks them, of the relation or, for what must not be lost, as if of another."""
    count = records.num_rows
    columns = {
        "place": pc.divide(records.column("seq"), 2),
        "oid": pa.repeat(pa.scalar(oid or _oid(relation), pa.int64()), count),
    }
    return pa.table([columns.get(f.name, records.column(f.name) if f.name in records.column_names else None)
                     for f in PICKED_SCHEMA], schema=PICKED_SCHEMA)  # fmt: skip


def _places(picked: pa.Table) -> list[tuple[int, int]]:
    return list(zip(picked.column("commit_lsn").to_pylist(), picked.column("place").to_pylist(), strict=True))

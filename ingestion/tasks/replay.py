"""Lands records that were kept as bytes: their rows get the same `_commit_lsn` and `_seq` as if they had not waited."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask
from pyiceberg.table.metadata import TableMetadataUtil

from ingestion.schema.changes import PICKED_SCHEMA, Batch
from ingestion.sink.rows import TableTarget
from ingestion.sink.writer import Written, merge
from ingestion.sources.base import ChecksTogether, NoRecord, OfAnotherKind, Records, UnreadableRecord
from ingestion.tasks.lanes import Findings, Lanes
from lakehouse.catalog.file_io import file_io


@dataclass(frozen=True)
class ReplayPlan:
    """The kept records of one table and epoch, by the data files that hold them, but those kept before `since`. Travels
    by pickle; holds secrets."""

    metadata_json: str
    tasks: tuple[FileScanTask, ...]
    target: TableTarget
    meta: dict[str, str]
    io_properties: dict[str, str]
    file_bytes: int
    records: Records
    since: datetime | None = None
    lets_go: bool = False  # of what is no record of the table


@dataclass(frozen=True)
class ReplayResult:
    """What landed, what had to be kept again, what was noticed, and what was let go."""

    written: tuple[Written, ...]
    meta_files: dict[str, tuple[DataFile, ...]]
    noticed: dict[str, Findings]
    let_go: tuple[str, ...] = ()


def replay(plan: ReplayPlan) -> ReplayResult:
    """Decodes kept records and writes them as rows; those that still cannot be read go to the quarantine again."""
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.io.pyarrow import ArrowScan

    io = file_io(plan.io_properties)
    lanes = Lanes([plan.target], plan.meta, io, plan.file_bytes, plan.records, in_order=False)
    metadata = TableMetadataUtil.parse_raw(plan.metadata_json)
    scan, let_go = ArrowScan(metadata, io, metadata.schema(), AlwaysTrue()), list[str]()
    for batch in scan.to_record_batches(plan.tasks):
        records = pa.Table.from_batches([batch])
        of_table = pc.equal(records.column("table"), plan.target.name)
        records = records.filter(pc.and_(of_table, pc.equal(records.column("epoch"), plan.target.epoch)))
        if plan.since is not None:
            records = records.filter(pc.greater_equal(records.column("kept_at"), pa.scalar(plan.since)))
        for relation in pc.unique(records.column("relation")).to_pylist():
            of_it = records.filter(pc.equal(records.column("relation"), relation))
            let_go += _replay_relation(plan, lanes, relation, of_it)
    if isinstance(plan.records, ChecksTogether):
        for oid, reason in plan.records.problems().items():
            lanes.park(oid, reason)
    return ReplayResult(*lanes.close(), tuple(let_go))


def merged(parts: Iterable[ReplayResult]) -> ReplayResult:
    """Several results as one."""
    together = ReplayResult((), {}, {})
    for part in parts:
        files = {
            name: together.meta_files.get(name, ()) + part.meta_files.get(name, ())
            for name in together.meta_files.keys() | part.meta_files.keys()
        }
        both = together.noticed.keys() & part.noticed.keys()
        noticed = together.noticed | part.noticed | {n: together.noticed[n].join(part.noticed[n]) for n in both}
        written = tuple(merge((*together.written, *part.written)).values())
        together = ReplayResult(written, files, noticed, together.let_go + part.let_go)
    return together


def _replay_relation(plan: ReplayPlan, lanes: Lanes, relation: bytes, records: pa.Table) -> list[str]:
    """Returns what it lets go."""
    records, let_go = records.combine_chunks(), list[str]()
    try:
        oid = plan.records.relation(relation).oid
        reason = None if oid in plan.target.oids else "of a relation that the table was before"
    except OfAnotherKind:
        reason = "of the kind of source that the table was read from before a move, and is not replayed"
    if reason is not None:
        of_another = _picked(relation, records, min(plan.target.oids))
        beside = (_beside(first, reason) for first in records.column("reason").to_pylist())
        lanes.keep("quarantine", of_another, dict(zip(_places(of_another), beside, strict=True)))
        return []
    while records.num_rows:
        try:
            batches, end = _decoded(plan, lanes, relation, records), records.num_rows
        except UnreadableRecord as error:
            end = error.index
            batches = _decoded(plan, lanes, relation, records.slice(0, end))
            rest = _picked(relation, records.slice(end, 1), oid)
            if plan.lets_go and isinstance(error, NoRecord):
                [of] = rest.select(["topic", "partition", "offset"]).to_pylist()
                let_go.append(
                    f"topic {of['topic']}, partition {of['partition']}, offset {of['offset']}: {error.reason}"
                )
            else:
                lanes.keep("quarantine", rest, dict.fromkeys(_places(rest), error.reason))
        bad = lanes.land(batches)
        for reasons in bad.values():
            some = records.slice(0, end)
            lanes.keep("quarantine", _picked(relation, some, oid), _as_kept(reasons, batches, some))
        if lanes.aside:
            lanes.keep("spool", _picked(relation, records.slice(0, end), oid))
        records = records.slice(end + 1 if end < records.num_rows else end)
    return let_go


def _beside(first: str | None, reason: str) -> str:
    """Why a record was kept, and why it is kept again; the first reason is what tells how it went wrong."""
    return first if first and first.endswith(reason) else "; ".join(filter(None, (first, reason)))


def _decoded(plan: ReplayPlan, lanes: Lanes, relation: bytes, records: pa.Table) -> list[Batch]:
    return list(plan.records.decode(relation, records, lanes.key_in, lanes.imaged))


def _picked(relation: bytes, records: pa.Table, oid: int) -> pa.Table:
    """Records as a reader gives them, of the relation or, for what must not be lost, as if of another."""
    count = records.num_rows
    columns = {
        "place": pc.divide(records.column("seq"), 2),
        "oid": pa.repeat(pa.scalar(oid, pa.int64()), count),
    }
    told = [records.schema.field(name) for name in ("topic", "partition", "offset") if name in records.column_names]
    schema = pa.schema([*PICKED_SCHEMA, *told])
    return pa.table([columns.get(f.name, records.column(f.name) if f.name in records.column_names else None)
                     for f in schema], schema=schema)  # fmt: skip


def _as_kept(
    reasons: Mapping[tuple[int, int], str], batches: Iterable[Batch], records: pa.Table
) -> dict[tuple[int, int], str]:  # fmt: skip
    """Reasons by the places at which records are kept: events of topics may tell others once they can be read."""
    moved: dict[tuple[int, int], tuple[int, int]] = {}
    if "offset" in records.column_names:
        offsets = zip(*(records.column(name).to_pylist() for name in ("partition", "offset")), strict=True)
        lsns, seqs = (records.column(name).to_pylist() for name in ("commit_lsn", "seq"))
        at = dict(zip(offsets, ((lsn, seq // 2) for lsn, seq in zip(lsns, seqs, strict=True)), strict=True))
        for meta in (batch.meta for batch in batches if "_offset" in batch.meta.column_names):
            names = ("_commit_lsn", "_seq", "_topic_partition", "_offset")
            for lsn, seq, *offset in zip(*(meta.column(name).to_pylist() for name in names), strict=True):
                moved[lsn, seq // 2] = at.get((offset[0], offset[1]), (lsn, seq // 2))
    return {moved.get(place, place): reason for place, reason in reasons.items()}


def _places(picked: pa.Table) -> list[tuple[int, int]]:
    return list(zip(picked.column("commit_lsn").to_pylist(), picked.column("place").to_pylist(), strict=True))

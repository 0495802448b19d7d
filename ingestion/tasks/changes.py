"""Changes from a source to data files: read, decoded and written in one Spark task, by the reader of the source."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from pyiceberg.manifest import DataFile

from ingestion.sink.rows import TableTarget
from ingestion.sink.writer import Written, merge, merge_files
from ingestion.sources.base import ChangeReader, Noticed, Piece, Records
from ingestion.tasks.lanes import Findings, Lanes
from lakehouse.catalog.file_io import file_io


@dataclass(frozen=True)
class ChangePlan:
    """One read. Travels by pickle; holds secrets.

    `aside` names the targets whose records go to the spool, with the reason; `meta` holds the `meta` tables' metadata.
    """

    source: str
    reader: ChangeReader
    records: Records
    targets: tuple[TableTarget, ...]
    aside: Mapping[str, str]
    meta: Mapping[str, str]
    io_properties: dict[str, str]
    file_bytes: int


@dataclass(frozen=True)
class ChangeResult:
    """The files of every touched table and of `meta`, what was noticed of tables, and what the source has noticed."""

    written: tuple[Written, ...] = ()
    meta_files: dict[str, tuple[DataFile, ...]] = field(default_factory=dict)
    noticed: dict[str, Findings] = field(default_factory=dict)
    by_source: Noticed = field(default_factory=Noticed)


def read_changes(plan: ChangePlan) -> ChangeResult:
    """Lands what the reader reads; raises LakehouseError for a stream that it cannot read."""
    lanes = Lanes(plan.targets, plan.meta, file_io(plan.io_properties), plan.file_bytes, plan.records, plan.aside)
    by_source = plan.reader.read(lanes.key_in, lambda: lanes.landing, lanes.imaged, partial(land_piece, lanes))
    written, meta_files, noticed = lanes.close(by_source.carried)
    return ChangeResult(written, meta_files, noticed, by_source)


def as_one(parts: Sequence[ChangeResult]) -> ChangeResult:
    """What was found by readers that `ChangeReader.parts` gave."""
    if len(parts) == 1:
        return parts[0]
    noticed: dict[str, Findings] = {}
    for part in parts:
        for name, found in part.noticed.items():
            noticed[name] = found.join(noticed.get(name, Findings()))
    written = tuple(merge(w for part in parts for w in part.written).values())
    files = merge_files(part.meta_files for part in parts)
    return ChangeResult(
        written, files, noticed, Noticed(warnings=tuple(w for p in parts for w in p.by_source.warnings))
    )


def land_piece(lanes: Lanes, piece: Piece) -> None:
    """Lands what can, and keeps aside what cannot or must not land."""
    for oid, reason in piece.parks.items():
        lanes.park(oid, reason)
    if piece.unread is not None:
        lanes.keep("quarantine", piece.records(lanes.landing), piece.unread)
    else:
        for name, reasons in lanes.land(piece.batches).items():  # one TRUNCATE may be of several tables
            lanes.keep("quarantine", piece.records(lanes.oids_of(name)), reasons)
    if lanes.aside:
        lanes.keep("spool", piece.records(lanes.aside))

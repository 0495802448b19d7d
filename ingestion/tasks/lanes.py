"""What a task does with the rows of each table: land them, or keep their bytes where they cannot or must not land.

A table whose rows cannot be landed (a type that the lake cannot follow, a value that the policy refuses) is parked from
that piece of the stream on: its records go to `meta.spool` and nothing of the piece lands, so that landed and spooled
records never overlap. A single record that cannot be read goes to `meta.quarantine`, and the rest of its table goes on.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile

from ingestion.schema.changes import IMAGE_COLUMNS, META_SCHEMA, PLACE_SCHEMA, Batch, Carried, Relation, lowest
from ingestion.schema.evolve import NO_TRUNCATES, Truncates
from ingestion.schema.problem import TableProblem
from ingestion.schema.streamed_columns import UnknownRowSchema
from ingestion.sink.rows import BadRow, Counts, TableTarget, raw_rows
from ingestion.sink.writer import TableWriter, Written, fitted
from ingestion.sources.base import OfAnotherKind, Records
from ingestion.tasks.partitions import carried_resync_reason, partitions_of
from ingestion.tasks.row_keys import Key, keeps_key, key_in, lacks_key
from ingestion.tasks.shared_keys.events import Landing
from ingestion.tasks.shared_keys.hold import SPLIT, Held
from ingestion.tasks.withheld import Form, form_of, withheld_in

LANDING = (*META_SCHEMA.names, *PLACE_SCHEMA.names)
BUFFERED_BYTES = 96 * 1024 * 1024  # of Arrow data that waits to be encoded, in all tables of a task
UNKNOWN_SCHEMA = "the schema of these rows matches no recorded version of the table"


@dataclass(frozen=True)
class Findings:
    """Why records of one table were kept aside, the stream's truncates of it, and the oids of partitions with rows,
    each with the lowest id known of a transaction that they came by.
    """

    parked: str | None = None
    stale: str | None = None
    truncates: Truncates = NO_TRUNCATES
    partitions: Mapping[int, int] = field(default_factory=dict)

    def join(self, other: "Findings") -> "Findings":
        """What was noticed of a table in two parts of one read, or in two epochs; truncates are of neither."""
        return Findings(self.parked or other.parked, self.stale or other.stale, NO_TRUNCATES,
                        lowest(self.partitions, other.partitions))  # fmt: skip


@dataclass
class Lane:
    """One table on its way; `aside` is why its records go to the spool, None while they land.

    `held` are rows that wait for the end of their transaction, in a table whose rows may share a key for a while.
    """

    target: TableTarget
    writer: TableWriter
    aside: str | None = None
    counts: Counts = field(default_factory=Counts)
    stale: str | None = None
    truncates: dict[int, bool] = field(default_factory=dict)  # by transaction (32 bits): whether rows followed in it
    held: Held | None = None
    _forms: dict[Relation, Form] = field(default_factory=dict)
    _keys: dict[Relation, Key] = field(default_factory=dict)

    def land(self, batches: Iterable[Batch]) -> dict[tuple[int, int], str]:
        """Lands all batches of a piece of the stream, or none; returns (LSN, place) → reason of the bad records.

        Raises TableProblem when the table has to be parked.
        """
        self.release(ended=False)
        counts = Counts()
        landings: list[Landing] = []
        bad: dict[tuple[int, int], str] = {}
        for batch in batches:
            kept = not_yet_there(batch, self.target.from_lsn)
            if kept is not None:
                self._note_truncates(kept)
                try:
                    form = self._form_of(kept.relation)
                except UnknownRowSchema as reason:
                    self.stale = str(reason)
                    bad |= dict.fromkeys(_places(kept), f"{UNKNOWN_SCHEMA}: {reason}")
                    continue
                if lacks_key(kept, self.key_in(kept.relation)):
                    self.stale = self.stale or "rows were changed under a replica identity without the declared key"
                landings += self._convert(kept, form, counts, bad)
        if self.held is None:
            self.counts.absorb(counts)
        for landing in landings:
            self.writer.add(landing.rows) if self.held is None else self.held.add(landing)
        return bad

    def release(self, *, ended: bool) -> None:
        """Lands the rows that wait no longer."""
        for landing in self.held.release(ended=ended) if self.held is not None else ():
            self.writer.add(landing.rows)
            self.counts.add(landing.rows)
            self.counts.add_texts(landing.texts)
        if self.held is not None:
            self.stale = self.stale or self.held.stale

    def park(self, reason: str) -> None:
        """Sends the records to the spool from here on."""
        self.aside = reason
        if self.held is not None:
            self.stale = self.stale or SPLIT

    def _convert(self, batch: Batch, form: Form, counts: Counts, bad: dict[tuple[int, int], str]) -> list[Landing]:
        """The batch without its bad records."""
        target, columns = form
        while batch.meta.num_rows:
            tried = Counts()
            meta = batch.meta.select([name for name in LANDING if name in batch.meta.column_names])
            try:
                rows = raw_rows(target, batch.values, meta, self.writer.schema, tried, columns)
            except BadRow as error:
                place = _places(batch)[error.row]
                bad[place] = str(error)
                batch = _without(batch, place)
                continue
            counts.absorb(tried)
            images = batch.meta.select([name for name in IMAGE_COLUMNS if name in batch.meta.column_names])
            alone = keeps_key(batch.relation, self.key_in(batch.relation))
            return [Landing(rows, images, batch.relation, tuple(tried.texts), alone)]
        return []

    def _form_of(self, relation: Relation) -> Form:
        if relation not in self._forms:
            self._forms[relation] = form_of(self.target, relation)
        return self._forms[relation]

    def key_in(self, relation: Relation) -> Key:
        """The declared key in the names of a relation."""
        if relation not in self._keys:
            self._keys[relation] = key_in(self.target, relation)
        return self._keys[relation]

    def _note_truncates(self, batch: Batch) -> None:
        is_truncate = pc.equal(batch.meta.column("_op"), "t").to_numpy(zero_copy_only=False)
        if not is_truncate.any() and not self.truncates:
            return
        xids = pc.fill_null(batch.meta.column("_xid"), 0).to_numpy() & 0xFFFFFFFF
        for xid in {*self.truncates, *xids[is_truncate].tolist()}:
            of_it = np.flatnonzero(xids == xid)
            if len(of_it):
                self.truncates[xid] = not is_truncate[of_it[-1]]


class Lanes:
    """All tables of a task, and the records that it keeps aside; those of tables in `aside` from the start."""

    def __init__(
        self,
        targets: Iterable[TableTarget],
        meta: Mapping[str, str],
        io: FileIO,
        file_bytes: int,
        records: Records,
        aside: Mapping[str, str] | None = None,
        *,
        in_order: bool = True,
    ) -> None:
        reasons = aside or {}
        self._lanes = {
            t.name: Lane(t, TableWriter(t.metadata_json, io, file_bytes), reasons.get(t.name), held=_held(t, in_order))
            for t in targets
        }
        self._by_oid = _by_oid(self._lanes.values())
        self._meta = {name: TableWriter(text, io, file_bytes) for name, text in meta.items()}
        self._records = records
        self.parked: dict[str, str] = {}

    def park(self, oid: int, reason: str) -> None:
        """Sends the records of a table to the spool from here on, which cannot go on."""
        lane = self._by_oid[oid]
        if lane.aside is None:
            says = str(TableProblem(lane.target.source, lane.target.name, reason))
            self.parked[lane.target.name] = says
            lane.park(says)

    def oids_of(self, name: str) -> frozenset[int]:
        """Oids whose records are those of a table."""
        return frozenset(oid for oid, lane in self._by_oid.items() if lane.target.name == name)

    @property
    def landing(self) -> frozenset[int]:
        """Oids whose records have to be decoded."""
        return frozenset(oid for oid, lane in self._by_oid.items() if lane.aside is None)

    def key_in(self, relation: Relation) -> Key:
        """The key of the table that a relation's rows are of, in its names; None where they do not carry it."""
        lane = self._by_oid.get(relation.oid)
        return lane.key_in(relation) if lane is not None else None

    @property
    def imaged(self) -> frozenset[int]:
        """Oids whose rows' images are needed."""
        return frozenset(oid for oid, lane in self._by_oid.items() if lane.held is not None)

    @property
    def aside(self) -> frozenset[int]:
        """Oids whose records go to the spool."""
        return frozenset(self._by_oid) - self.landing

    def land(self, batches: Iterable[Batch]) -> dict[str, dict[tuple[int, int], str]]:
        """Lands a piece of the stream; returns the bad records by table. Tables that cannot go on are parked."""
        by_table: dict[str, list[Batch]] = {}
        for batch in batches:
            if (lane := self._by_oid.get(batch.relation.oid)) is not None and lane.aside is None:
                by_table.setdefault(lane.target.name, []).append(batch)
        bad = {}
        for name, of_table in by_table.items():
            try:
                if found := self._lanes[name].land(of_table):
                    bad[name] = found
            except TableProblem as problem:
                self.parked[name] = str(problem)
                self._lanes[name].park(str(problem))
        self._relieve()
        return bad

    def _relieve(self) -> None:
        """Writes out the largest tables while rows of many tables together take too much memory."""
        writers = sorted((lane.writer for lane in self._lanes.values()), key=lambda writer: writer.pending_bytes)
        held = sum(writer.pending_bytes for writer in writers)
        while held > BUFFERED_BYTES:
            largest = writers.pop()
            held -= largest.pending_bytes
            largest.flush()

    def keep(self, where: str, picked: pa.Table, reasons: Mapping[tuple[int, int], str] | None = None) -> None:
        """Writes picked records to `meta.spool` or `meta.quarantine`; with `reasons` only those that it names."""
        writer = self._meta[where]
        by_table: dict[str, list[int]] = {}
        for oid in pc.unique(picked.column("oid")).to_pylist():
            if oid in self._by_oid:
                by_table.setdefault(self._by_oid[oid].target.name, []).append(oid)
        for name, oids in by_table.items():
            lane, target = self._lanes[name], self._lanes[name].target
            mine = picked.filter(pc.is_in(picked.column("oid"), pa.array(oids, pa.int64())))
            mine = mine.filter(pc.greater_equal(mine.column("commit_lsn"), target.from_lsn))
            texts: list[str | None] = [lane.aside] * mine.num_rows
            if reasons is not None:
                places = zip(mine.column("commit_lsn").to_pylist(), mine.column("place").to_pylist(), strict=True)
                texts = [reasons.get(place) for place in places]
                mine, texts = (
                    mine.filter(pa.array([t is not None for t in texts], pa.bool_())),
                    [t for t in texts if t is not None],
                )
            if where == "quarantine" and lane.held is not None:
                lane.held.unread.update(mine.column("commit_lsn").to_pylist())
            if mine.num_rows:
                writer.add(_kept(self._records, target, mine, texts, writer.schema))

    def close(
        self, carried: Carried = MappingProxyType({})
    ) -> tuple[tuple[Written, ...], dict[str, tuple[DataFile, ...]], dict[str, Findings]]:
        """Writes the rest: what landed by table, the files of `meta` tables, and what was noticed by table.

        `carried` are partitions with rows as the decoder has noticed them.
        """
        for lane in self._lanes.values():
            lane.release(ended=True)
            for texts in lane.counts.texts:
                self._meta["unrepresentable"].add(fitted(texts, self._meta["unrepresentable"].schema))
        for writer in (*(lane.writer for lane in self._lanes.values()), *self._meta.values()):
            writer.flush()
        landed = tuple(
            Written(name, lane.writer.close(), lane.counts.operations, lane.counts.unrepresentable)
            for name, lane in self._lanes.items()
            if lane.counts.operations
        )
        noticed = {
            name: Findings(
                self.parked.get(name),
                lane.stale or self._went_elsewhere(lane) or carried_resync_reason(lane.target, carried),
                _truncates(lane),
                partitions_of(lane.target, carried),
            )
            for name, lane in self._lanes.items()
        }
        noticed = {name: kept for name, kept in noticed.items() if kept != Findings()}
        files = {name: writer.close() for name, writer in self._meta.items()}
        return landed, {name: made for name, made in files.items() if made}, noticed

    def _went_elsewhere(self, lane: Lane) -> str | None:
        """Why the spool of a table may lack records: another table is declared by the name that its relation has."""
        if lane.aside is None or self._by_oid[lane.target.versions[-1].oid] is lane:
            return None
        return "its relation was declared as another table for a while"


def _by_oid(lanes: Collection[Lane]) -> dict[int, Lane]:
    """The one lane of each relation's records: what a table was before may be declared as another one by now."""
    ranked = sorted(
        ((lane.aside is None, facts is lane.target.versions[-1], facts.oid, lane)
         for lane in lanes for facts in lane.target.versions),
        key=lambda found: found[:2],
    )  # fmt: skip
    return {oid: lane for *_, oid, lane in ranked}


def _truncates(lane: Lane) -> Truncates:
    return Truncates(frozenset(lane.truncates), frozenset(xid for xid, refilled in lane.truncates.items() if refilled))


def _held(target: TableTarget, in_order: bool) -> Held | None:
    return Held(target.lake_key, in_order) if target.shares_keys else None


def not_yet_there(batch: Batch, from_lsn: int) -> Batch | None:
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


def _places(batch: Batch) -> list[tuple[int, int]]:
    lsns, seqs = (batch.meta.column(name).to_pylist() for name in ("_commit_lsn", "_seq"))
    return [(lsn, seq // 2) for lsn, seq in zip(lsns, seqs, strict=True)]


def _without(batch: Batch, place: tuple[int, int]) -> Batch:
    """Both rows of a key change go when one of them is bad."""
    keep = pa.array([found != place for found in _places(batch)], pa.bool_())
    return Batch(batch.relation, batch.values.filter(keep), batch.meta.filter(keep))


_AS_PICKED = ("commit_lsn", "xid", "committed_at", "relation", "topic", "partition", "offset")


def _kept(
    records: Records, target: TableTarget, picked: pa.Table, reasons: list[str | None], schema: pa.Schema
) -> pa.Table:
    columns = {
        "source": pa.repeat(target.source, picked.num_rows),
        "table": pa.repeat(target.name, picked.num_rows),
        "epoch": pa.repeat(pa.scalar(target.epoch, pa.int32()), picked.num_rows),
        "seq": pc.multiply(picked.column("place"), 2),
        "reason": pa.array(reasons, pa.string()),
        "kept_at": _moment(target.ingested_at, picked.num_rows),
        "message": _messages(records, picked, target),
    } | {name: picked.column(name) for name in picked.column_names if name in _AS_PICKED}
    return fitted(pa.table(columns), schema)


def _messages(records: Records, picked: pa.Table, target: TableTarget) -> pa.Array | pa.ChunkedArray:
    """As the source sent them, but for values that must not land."""
    if not target.excluded and not target.mask:
        return picked.column("message")
    found, known = [], dict[bytes, frozenset[str]]()
    for encoded, message in zip(*(picked.column(name).to_pylist() for name in ("relation", "message")), strict=True):
        if encoded not in known:
            try:
                known[encoded] = withheld_in(target, records.relation(encoded))
            except OfAnotherKind:  # which was kept without them already
                known[encoded] = frozenset()
        gone = known[encoded]
        found.append(records.without(message, encoded, gone) if gone else message)
    return pa.array(found, pa.binary())


def _moment(at: datetime, rows: int) -> pa.Array:
    return pa.repeat(pa.scalar(at, pa.timestamp("us", "UTC")), rows)

"""What a batch of messages is, in columns: which are ordinary, and of these what their places depend on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ingestion.sources.debezium.at_once.parsed import envelopes
from ingestion.sources.debezium.at_once.readers import Readers
from ingestion.sources.debezium.join.heads import EVENT, LOOSE, SNAPSHOT, identity_of
from ingestion.sources.debezium.message.envelope import Origin
from ingestion.sources.debezium.message.opened import Bodies
from ingestion.sources.debezium.shape import Shape

BEGINS = ("first", "first_in_data_collection")
LAST_MOMENT = 253_402_300_799_999_999
Columns = Mapping[str, pa.Array]
_XID = r"^(?P<xid>[0-9]{1,18})(?::|$)"


@dataclass(frozen=True)
class Scanned:
    """Envelopes of one topic. `kept` has of each what its row is made of; the arrays have what `Heads` has.

    `is_odd` are those that have to be looked at one by one. `read_to` is the last position at which rows of snapshots
    were read, 0 where there are none, `ends_snapshot` whether one of them is the last of a snapshot. `writes_defaults`
    as `Envelope` has it, and `origins`, that of the last one behind the others.
    """

    kept: pa.Table
    is_odd: np.ndarray
    kind: np.ndarray
    xid: np.ndarray
    lsn: np.ndarray
    order: np.ndarray
    in_table: np.ndarray
    op: np.ndarray
    identity: np.ndarray
    versions: Sequence[str]
    origins: Sequence[Origin]
    read_to: int
    ends_snapshot: bool
    writes_defaults: bool

    def without_before(self) -> np.ndarray:
        """The ordinary updates that do not tell the row before."""
        lacks = (self.op == ord("u")) & ~self.is_odd
        if "before" in self.kept.column_names:
            lacks &= _flags(_whole(self.kept.column("before")).is_null())
        return np.flatnonzero(lacks)

    def with_values(self) -> list[str]:
        """The columns that have a value in one of the rows after."""
        after = _whole(self.kept.column("after"))
        parts = zip(after.type, after.flatten(), strict=True)
        return [item.name for item, column in parts if len(column) > column.null_count]

    def outermost(self) -> list[int]:
        """The first and the last ordinary row with an image after."""
        after = _flags(_whole(self.kept.column("after")).is_valid())
        rows = np.flatnonzero(after & ~self.is_odd)
        return [*rows[:1].tolist(), *rows[-1:].tolist()]


def scanned(shape: Shape, readers: Readers, values: Bodies, *, told: bool, alone: bool) -> Scanned | None:
    """Messages in columns; None where they are not alike.

    `told`: transactions are, and every change has to be of one; else none may be. `alone`: truncates are odd.
    """
    table = envelopes(readers, values)
    if table is None:
        return None
    op, source, transaction = (_whole(table.column(name)) for name in ("op", "source", "transaction"))
    of = dict(zip((f.name for f in source.type), source.flatten(), strict=True))
    place = dict(zip((f.name for f in transaction.type), transaction.flatten(), strict=True))
    in_one = _flags(transaction.is_valid())
    ops = _ops(op)
    xid = pc.if_else(transaction.is_valid(), _xids(place["id"]), _unless_read(of["txId"], ops))
    at = pc.coalesce(of["ts_us"], _milliseconds(of["ts_ms"]))
    before, after = (_whole(table.column(name)) for name in ("before", "after"))
    is_odd = _is_odd(shape, ops, of, place, in_one, xid, at)
    is_odd |= (~in_one & (ops != ord("r"))) if told else in_one
    is_odd |= (ops == ord("t")) & (alone | _flags(after.is_valid()))
    is_odd |= (ops != ord("t")) & _flags(pc.if_else(pa.array(ops == ord("d")), before, after).is_null())
    loose = np.where(_flags(pc.equal(of["snapshot"], "incremental")), LOOSE, SNAPSHOT)
    moments = at.view(pa.timestamp("us", "UTC"))
    kept = {"op": op, "xid": xid, "at": moments, "alone": transaction.is_null(), "after": after}
    if before.null_count < len(before):
        kept["before"] = before
    is_event = in_one if told else np.ones(len(ops), bool)
    return Scanned(
        kept=pa.table(kept), is_odd=is_odd, kind=np.where(is_event, EVENT, loose).astype(np.int8),
        xid=_numbers(xid, is_event), lsn=_numbers(of["lsn"], is_event),
        order=_numbers(place["total_order"], is_event), in_table=_numbers(place["data_collection_order"], is_event),
        op=np.where(is_event, ops, ord(" ")).astype(np.int8),
        identity=_identities(shape, before, after, ops, is_event & ~is_odd) if told else np.zeros(len(ops), np.int64),
        versions=[str(version) for version in pc.unique(of["version"].filter(pa.array(~is_odd))).to_pylist()],
        origins=_origins(of["name"], of["db"], is_odd),
        read_to=int(_numbers(of["lsn"], ~is_event).max(initial=0)),
        ends_snapshot=bool((_flags(pc.equal(of["snapshot"], "last")) & ~is_event).any()),
        writes_defaults=bool((_flags(pc.equal(of["snapshot"], "false")) & ~is_odd).any()),
    )  # fmt: skip


def _is_odd(
    shape: Shape, ops: np.ndarray, of: Columns, place: Columns, in_one: np.ndarray, xid: pa.Array, at: pa.Array
) -> np.ndarray:
    """Those whose operation, source block or transaction is not that of a change, and the first rows of a snapshot."""
    found = ops == ord(" ")
    for part, named in zip(("schema", "table"), shape.of, strict=True):
        found |= ~_flags(pc.equal(of[part], named))
    found |= ~_flags(pc.and_(pc.greater_equal(at, 0), pc.less_equal(at, LAST_MOMENT)))
    found |= _is_negative(of["lsn"]) | _is_negative(xid)
    for part in (xid, of["lsn"], place["total_order"], place["data_collection_order"]):
        found |= in_one & ~_flags(pc.greater_equal(part, 0))
    return found | (_flags(pc.is_in(of["snapshot"], pa.array(BEGINS))) & (ops == ord("r")))


def _origins(names: pa.Array, databases: pa.Array, is_odd: np.ndarray) -> list[Origin]:
    """The origins of those that are not odd, each once."""
    told = pa.table({"name": names, "database": databases}).filter(pa.array(~is_odd))
    if not told.num_rows:
        return []
    last = told.slice(told.num_rows - 1)
    if any(column.null_count or len(pc.unique(column)) > 1 for column in told.columns):
        last = pa.concat_tables([told.group_by(told.column_names).aggregate([]), last])
    pairs = ((str(row["name"]), str(row["database"])) for row in last.to_pylist())
    return [*dict.fromkeys(reversed([*pairs]))][::-1]


def _whole(column: pa.ChunkedArray) -> Any:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _flags(values: pa.Array) -> np.ndarray:
    """Of truth values; what is not known is not true."""
    return pc.fill_null(values, False).to_numpy(zero_copy_only=False)


def _ops(op: pa.Array) -> np.ndarray:
    """The operations as characters, a space for what is none."""
    found = np.full(len(op), ord(" "), np.int8)
    for one in "rcudt":
        found[_flags(pc.equal(op, one))] = ord(one)
    return found


def _xids(ids: pa.Array) -> pa.Array:
    return pc.struct_field(pc.extract_regex(ids, _XID), "xid").cast(pa.int64())


def _unless_read(xids: pa.Array, ops: np.ndarray) -> pa.Array:
    return pc.if_else(pa.array(ops == ord("r")), pa.scalar(None, pa.int64()), xids)


def _milliseconds(at: pa.Array) -> pa.Array:
    is_within = pc.and_(pc.greater_equal(at, 0), pc.less_equal(at, LAST_MOMENT // 1000))
    return pc.multiply(pc.if_else(is_within, at, pa.scalar(None, pa.int64())), 1000)


def _is_negative(numbers: pa.Array) -> np.ndarray:
    return _flags(pc.less(numbers, 0))


def _numbers(numbers: pa.Array, wanted: np.ndarray) -> np.ndarray:
    return np.where(wanted, pc.fill_null(numbers, 0).to_numpy(zero_copy_only=False), 0)


def _identities(shape: Shape, before: pa.Array, after: pa.Array, ops: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The numbers of the keys, as `identity_of` makes them of the rows."""
    found = np.zeros(len(ops), np.int64)
    if not shape.key or not wanted.any():
        return found
    names = [item.name for item in after.type]
    parts = []
    for name in shape.key:
        index = names.index(name)
        values, is_delete = after.flatten()[index], ops == ord("d")
        if is_delete.any():
            values = pc.if_else(pa.array(is_delete), before.flatten()[index], values)
        parts.append(values)
    if len(parts) == 1 and pa.types.is_integer(parts[0].type):
        there = _flags(parts[0].is_valid())
        found[there] = pc.fill_null(parts[0], 0).cast(pa.int64()).to_numpy()[there]
        found[~there] = identity_of((None,))
        return found
    for index, key in enumerate(zip(*(part.to_pylist() for part in parts), strict=True)):
        found[index] = identity_of(key)
    return found

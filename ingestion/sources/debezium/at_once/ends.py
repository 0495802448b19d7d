"""The ends of transactions, a batch of the transaction topic at a time, where each is as Debezium writes it."""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from ingestion.sources.debezium.join.joined import Told
from ingestion.sources.debezium.message.envelope import End
from ingestion.sources.debezium.message.moments import LAKE_MOMENTS
from ingestion.sources.debezium.message.opened import Opener
from ingestion.sources.kafka.events import one_chunk
from ingestion.sources.kafka.json_columns import json_table

_PART = pa.struct([("data_collection", pa.string()), ("event_count", pa.int64())])
_SCHEMA = pa.schema(
    [("status", pa.string()), ("id", pa.string()), ("ts_ms", pa.int64()), ("data_collections", pa.list_(_PART))]
)
_ID = r"^(?P<xid>[0-9]{1,18}):(?P<lsn>[0-9]{1,18})$"
_SIZE = 1_800  # of a message that is looked at by itself, since Python's parser may give it up


def ends_at_once(opener: Opener, messages: pa.Table) -> Iterator[Told] | None:
    """The ENDs among messages; None where one of them has to be looked at by itself."""
    messages = messages.filter(messages.column("value").is_valid())
    values = one_chunk(messages.column("value"))
    opened = opener.bodies(values) if len(values) else None
    if opened is None:
        return None
    bodies = opened[1]
    if not isinstance(bodies, pa.Array):
        table = bodies.table(_SCHEMA)
    else:
        is_short = pc.max(pc.binary_length(bodies)).as_py() <= _SIZE
        table = json_table(_SCHEMA, bodies, without=b"\\u0000") if is_short else None
    if table is None:
        return None
    is_end = pc.equal(table.column("status"), "END")
    is_begin = pc.equal(table.column("status"), "BEGIN")
    if not _all(pc.or_(is_end, is_begin)):
        return None
    return _ends(table.filter(is_end).combine_chunks(), messages.filter(is_end))


def _ends(table: pa.Table, messages: pa.Table) -> Iterator[Told] | None:
    parts, at, ids = (table.column(name) for name in ("data_collections", "ts_ms", "id"))
    flat = pc.list_flatten(parts)
    names, counts = (pc.struct_field(flat, name) for name in ("data_collection", "event_count"))
    is_moment = pc.and_(pc.greater_equal(at, 0), pc.less_equal(at, LAKE_MOMENTS[1] // 1000))
    is_plain = (is_moment, pc.match_substring_regex(ids, _ID), parts.is_valid(), names.is_valid())
    if not all(map(_all, is_plain)) or not _all(pc.greater_equal(counts, 0)):
        return None
    found = pc.extract_regex(ids, _ID)
    xids, lsns = (pc.struct_field(found, name).cast(pa.int64()).to_pylist() for name in ("xid", "lsn"))
    at = pc.multiply(at, 1000).cast(pa.timestamp("us", "UTC"))
    columns = (messages.column("offset"), messages.column("at"), at, pc.list_value_length(parts))
    named = iter(zip(names.to_pylist(), counts.to_pylist(), strict=True))
    known: dict[tuple[tuple[str, int], ...], dict[str, int]] = {}  # most transactions are like others

    def counted(length: int) -> dict[str, int]:
        found = tuple(next(named) for _ in range(length))
        return known.setdefault(found, dict(found))

    return (
        Told(offset, came, End(xid, lsn, moment, counted(length)))
        for offset, came, moment, length, xid, lsn in zip(
            *(column.to_pylist() for column in columns), xids, lsns, strict=True
        )
    )


def _all(flags: pa.ChunkedArray) -> bool:
    """Whether all are true, and none is unknown."""
    return pc.all(flags, skip_nulls=False, min_count=0).as_py() is True

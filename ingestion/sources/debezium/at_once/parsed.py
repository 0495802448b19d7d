"""Messages of one topic to a table of envelopes by Arrow's JSON reader, which says what `envelope_of` would.

Where it cannot, which is so for messages that are no envelopes at all, no table is made.
"""

import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ingestion.sources.debezium.at_once.readers import Readers
from ingestion.sources.debezium.message.opened import Bodies
from ingestion.sources.kafka.json_columns import json_table

DEPTH = 900  # Python's parser gives up on nesting that is little deeper
DIGITS = 4_300  # and on whole numbers that are longer
_LONG = re.compile(rb"[0-9]{%d}" % DIGITS)
_WITHOUT_BEFORE = b'{"before":null,'  # of an insert, as the converter begins it
_SOURCE = pa.struct(
    [(name, pa.string()) for name in ("version", "name", "db", "schema", "table", "snapshot")]
    + [(name, pa.int64()) for name in ("txId", "lsn", "ts_ms", "ts_us")]
)
_TRANSACTION = pa.struct([("id", pa.string()), ("total_order", pa.int64()), ("data_collection_order", pa.int64())])


def envelopes(readers: Readers, values: Bodies) -> pa.Table | None:
    """The envelopes: `op`, `source`, `transaction`, and the rows `before` and `after` as JSON has their values."""
    row = pa.struct([(name, reader.raw) for name, reader in readers.items()])
    lacks_before = isinstance(values, pa.Array) and pc.all(pc.starts_with(values, _WITHOUT_BEFORE)).as_py()
    before = pa.null() if lacks_before else row  # a null of a row costs as much as its columns
    parts = {"op": pa.string(), "source": _SOURCE, "transaction": _TRANSACTION, "before": before, "after": row}
    found = _table(pa.schema(list(parts.items())), values)
    if found is None or not lacks_before:
        return found
    return found.set_column(found.column_names.index("before"), "before", pa.nulls(found.num_rows, row))


def _table(schema: pa.Schema, values: Bodies) -> pa.Table | None:
    if not isinstance(values, pa.Array):
        found = values.table(schema)
    elif _has_odd(values):
        return None
    else:
        found = json_table(schema, values, without=b"\\u0000", one_thread=True)
    return None if found is None else found.combine_chunks()


def _has_odd(values: pa.Array) -> bool:
    """Whether one of them may be more than Python's parser takes."""
    long = values.filter(pc.greater(pc.binary_length(values), 2 * DEPTH))
    if not len(long):
        return False
    _, offsets, data = long.buffers()
    text, ends = np.frombuffer(data, np.uint8), np.frombuffer(offsets, np.int32)[1:]
    brackets = np.flatnonzero((text == ord("[")) | (text == ord("{")))
    if np.bincount(np.searchsorted(ends, brackets, side="right")).max(initial=0) > DEPTH:
        return True
    longer = long.filter(pc.greater(pc.binary_length(long), DIGITS))
    return any(_LONG.search(value.as_buffer()) is not None for value in longer)

"""Messages of one topic to a table of envelopes by Arrow's JSON reader, which says what `envelope_of` would.

Where it cannot, which is so for messages that are no envelopes at all, no table is made.
"""

import re
from collections.abc import Sequence

import pyarrow as pa

from ingestion.sources.debezium.at_once.readers import Readers
from ingestion.sources.debezium.opened import Bodies
from ingestion.sources.kafka.json_columns import json_table

DEPTH = 900  # Python's parser gives up on nesting that is little deeper
DIGITS = 4_300  # and on whole numbers that are longer
_LONG = re.compile(rb"[0-9]{%d}" % DIGITS)
_SOURCE = pa.struct(
    [(name, pa.string()) for name in ("version", "schema", "table", "snapshot")]
    + [(name, pa.int64()) for name in ("txId", "lsn", "ts_ms", "ts_us")]
)
_TRANSACTION = pa.struct([("id", pa.string()), ("total_order", pa.int64()), ("data_collection_order", pa.int64())])


def envelopes(readers: Readers, values: Bodies) -> pa.Table | None:
    """The envelopes: `op`, `source`, `transaction`, and the rows `before` and `after` as JSON has their values."""
    row = pa.struct([(name, reader.raw) for name, reader in readers.items()])
    parts = {"op": pa.string(), "source": _SOURCE, "transaction": _TRANSACTION, "before": row, "after": row}
    schema = pa.schema(list(parts.items()))
    if not isinstance(values, Sequence):
        found = values.table(schema)
    elif max(map(len, values)) > 2 * DEPTH and any(map(_is_odd, values)):
        return None
    else:
        found = json_table(schema, values, without=b"\\u0000")
    return None if found is None else found.combine_chunks()


def _is_odd(value: bytes) -> bool:
    if value.count(b"[") + value.count(b"{") > DEPTH:
        return True
    return len(value) > DIGITS and _LONG.search(value) is not None

"""JSON objects to columns, all at once, where they are ordinary: Arrow reads them many times as fast as Python.

What is read so is what `JsonValues` would read, or nothing is: Arrow refuses numbers where text is expected and the
other way round, a field that is there twice, and a digit behind the point too many; those before it, it lets pass, and
a full validation finds them. Events are joined by line ends. No object goes on
over one, since JSON has none within its text and wants a comma between two objects: each event begins and ends with a
brace, and has exactly one object if there are as many rows as events.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.json as pj

from ingestion.schema.types.model import Form, SourceType
from ingestion.schema.types.table import target_type
from ingestion.sources.kafka.shape import Shape

TYPED = (
    Form.INTEGER,
    Form.BOOLEAN,
    Form.FLOAT,
    Form.DECIMAL,
)  # the others come as text

BLOCK_BYTES = 2 * 1024 * 1024  # that are parsed in a thread of their own


def json_columns(shape: Shape, values: Sequence[bytes]) -> dict[str, pa.Array] | None:
    """The declared columns, typed or as text; None if they have to be read one by one."""
    if not values or not shape.fields:
        return None
    schema = pa.schema([(field.name, _arrow(field.source_type)) for field in shape.fields])
    table = json_table(schema, values)
    if table is None:
        return None
    try:
        table.select([name for name in schema.names if pa.types.is_decimal(schema.field(name).type)]).validate(
            full=True
        )
    except pa.ArrowException:
        return None
    return {name: table.column(name).combine_chunks() for name in schema.names}


def json_table(schema: pa.Schema, values: Sequence[bytes], without: bytes | None = None) -> pa.Table | None:
    """The fields of a schema, a row for each value; None if Arrow cannot tell them, or `without`, an escape, is in a
    value."""
    joined = b"\n".join(values)
    lengths = np.fromiter(map(len, values), np.int64, len(values))
    if not _is_bounded(joined, lengths) or not _is_plain(joined, without):
        return None
    is_line_each = joined.count(b"\n") == len(values) - 1  # else a part that begins at a line may not begin at an event
    size = max(BLOCK_BYTES, 2 * int(lengths.max())) if is_line_each else len(joined) + 1
    options = pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    try:
        block = pj.ReadOptions(use_threads=is_line_each, block_size=size)
        table = pj.read_json(pa.BufferReader(joined), block, options)
    except (pa.ArrowException, OverflowError):
        return None
    return table.select(schema.names) if table.num_rows == len(values) else None


def _is_bounded(joined: bytes, lengths: np.ndarray) -> bool:
    """Whether each event begins and ends with a brace."""
    if (lengths < 2).any():
        return False
    text, ends = np.frombuffer(joined, np.uint8), np.cumsum(lengths + 1) - 1
    return bool((text[ends - lengths] == ord("{")).all() and (text[ends - 1] == ord("}")).all())


def _is_plain(joined: bytes, without: bytes | None) -> bool:
    """Whether it is text, without a surrogate: Arrow looks at neither."""
    if b"\\u" in joined and any(escape in joined for escape in (b"\\ud", b"\\uD", without) if escape is not None):
        return False
    ends = pa.array([0, len(joined)], pa.int64()).buffers()[1]
    try:
        pa.Array.from_buffers(pa.large_string(), 1, [None, ends, pa.py_buffer(joined)]).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _arrow(source: SourceType) -> pa.DataType:
    target = target_type(source)
    return target.arrow if target.form in TYPED else pa.string()

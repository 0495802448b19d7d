"""JSON objects to columns, all at once, where they are ordinary: Arrow reads them many times as fast as Python.

What is read so is what `JsonValues` would read, or nothing is: Arrow refuses numbers where text is expected and the
other way round, a field that is there twice, and a digit behind the point too many; those before it, it lets pass, and
a full validation finds them. Events are joined by line ends. No object goes on
over one, since JSON has none within its text and wants a comma between two objects: each event begins and ends with a
brace, and has exactly one object if there are as many rows as events.
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from ingestion.schema.types.model import Form, SourceType
from ingestion.schema.types.table import target_type
from ingestion.sources.kafka.shape import Shape
from ingestion.sources.kafka.unwrapped import DELETED

TYPED = (
    Form.INTEGER,
    Form.BOOLEAN,
    Form.FLOAT,
    Form.DECIMAL,
)  # the others come as text

BLOCK_BYTES = 2 * 1024 * 1024  # that are parsed in a thread of their own
PART_BYTES = 128 * 1024  # that are looked at before they leave the cache of a core
MOST_BYTES = (1 << 31) - 2  # of an array with offsets of 32 bits


def json_columns(shape: Shape, values: pa.Array) -> dict[str, pa.Array] | None:
    """The declared columns, typed or as text, and what marks a delete; None if they have to be read one by one."""
    if not len(values) or not shape.fields:
        return None
    types = {DELETED: pa.string()} | {field.name: _arrow(field.source_type) for field in shape.fields}
    schema = pa.schema(list(types.items()))
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


def json_table(
    schema: pa.Schema, values: pa.Array, without: bytes | None = None, *, one_thread: bool = False
) -> pa.Table | None:
    """The fields of a schema, a row for each value, none of which is null; None if Arrow cannot tell them, or
    `without`, an escape, is in a value. `one_thread`: by the one that asks, beside others, and not by Arrow's."""
    lengths = pc.binary_length(values).to_numpy().astype(np.int64)
    if (lengths < 2).any() or int(lengths.sum()) + len(values) > MOST_BYTES:
        return None
    joined = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values), b"\n")[0]
    text = np.frombuffer(joined.as_buffer(), np.uint8)
    if not _is_bounded(text, lengths) or not _is_plain(joined, text, without):
        return None
    ends = sum(np.count_nonzero(part == ord("\n")) for part in _parts(text))
    is_line_each = ends == len(values) - 1  # else a part that begins at a line may not begin at an event
    size = max(BLOCK_BYTES, 2 * int(lengths.max())) if is_line_each else len(text) + 1
    options = pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    try:
        block = pj.ReadOptions(use_threads=is_line_each and not one_thread, block_size=size)
        table = pj.read_json(pa.BufferReader(joined.as_buffer()), block, options)
    except (pa.ArrowException, OverflowError):
        return None
    return table.select(schema.names) if table.num_rows == len(values) else None


def _is_bounded(text: np.ndarray, lengths: np.ndarray) -> bool:
    """Whether each event begins and ends with a brace."""
    ends = np.cumsum(lengths + 1) - 1
    return bool((text[ends - lengths] == ord("{")).all() and (text[ends - 1] == ord("}")).all())


def _is_plain(joined: pa.Scalar, text: np.ndarray, without: bytes | None) -> bool:
    """Whether it is text, without a surrogate: Arrow looks at neither."""
    if _has(text, b"\\u"):
        said = joined.as_py()
        if any(escape in said for escape in (b"\\ud", b"\\uD", without) if escape is not None):
            return False
    ends = pa.array([0, len(text)], pa.int64()).buffers()[1]
    try:
        pa.Array.from_buffers(pa.large_string(), 1, [None, ends, joined.as_buffer()]).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _has(text: np.ndarray, pair: bytes) -> bool:
    """Whether two bytes are there, one behind the other: Python's own search stops at each that is like the first."""
    first, second = pair
    return any(((part[:-1] == first) & (part[1:] == second)).any() for part in _parts(text, 1))


def _parts(text: np.ndarray, more: int = 0) -> Iterator[np.ndarray]:
    """Parts of it, with some bytes `more` of the next one."""
    return (text[at : at + PART_BYTES + more] for at in range(0, len(text), PART_BYTES))


def _arrow(source: SourceType) -> pa.DataType:
    target = target_type(source)
    return target.arrow if target.form in TYPED else pa.string()

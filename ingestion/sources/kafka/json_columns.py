"""JSON objects to columns, all at once, where they are ordinary: Arrow reads them many times as fast as Python.

What is read so is what `JsonValues` would read, or nothing is: Arrow refuses numbers where text is expected and the
other way round, a field that is there twice, and a digit behind the point too many; those before it, it lets pass, and
a full validation finds them. Events are joined by line ends. No object goes on
over one, since JSON has none within its text and wants a comma between two objects: each event begins and ends with a
brace, and has exactly one object if there are as many rows as events.
"""

from collections.abc import Sequence

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
    """The fields of a schema, a row for each value; None if Arrow cannot tell them, or `without` is in a value."""
    joined = b"\n".join(values)
    if not _is_bounded(joined, values) or not _is_plain(joined) or (without is not None and without in joined):
        return None
    options = pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    block = pj.ReadOptions(use_threads=False, block_size=len(joined) + 1)
    try:
        table = pj.read_json(pa.BufferReader(joined), block, options)
    except (pa.ArrowException, OverflowError):
        return None
    return table.select(schema.names) if table.num_rows == len(values) else None


def _is_bounded(joined: bytes, values: Sequence[bytes]) -> bool:
    """Whether each event begins and ends with a brace; where no event holds a line end, these tell it at once."""
    between = len(values) - 1
    if joined.count(b"\n") == between:
        return joined[:1] == b"{" and joined[-1:] == b"}" and joined.count(b"}\n{") == between
    return all(value[:1] == b"{" and value[-1:] == b"}" for value in values)


def _is_plain(joined: bytes) -> bool:
    """Whether it is text, without a surrogate: Arrow looks at neither."""
    if b"\\ud" in joined or b"\\uD" in joined:
        return False
    try:
        joined.decode()
    except UnicodeDecodeError:
        return False
    return True


def _arrow(source: SourceType) -> pa.DataType:
    target = target_type(source)
    return target.arrow if target.form in TYPED else pa.string()

"""Read the text that Postgres prints for a type, a column at a time. Any other text raises ArrowInvalid.

Pinned settings of the session that produced the text: DateStyle ISO, TimeZone UTC, bytea_output hex,
extra_float_digits 1 or more (every bit of a float is printed then).
"""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ingestion.types.model import Form, Target

Reader = Callable[[pa.Array, pa.DataType], pa.Array]

_DAY = 86_400_000_000
_NIBBLE = np.full(256, 255, np.uint8)
_NIBBLE[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16)


def read(values: pa.Array, target: Target) -> pa.Array:
    """The values in the target's Arrow type."""
    return _READERS[target.form](values, target.arrow)


def _cast(values: pa.Array, arrow: pa.DataType) -> pa.Array:
    return values if values.type == arrow else values.cast(arrow)


def _boolean(values: pa.Array, _: pa.DataType) -> pa.Array:
    true = pc.equal(values, "t")
    if not pc.all(pc.or_(true, pc.equal(values, "f")), min_count=0).as_py():
        raise pa.ArrowInvalid("neither t nor f")
    return true


def _time(values: pa.Array, arrow: pa.DataType) -> pa.Array:
    midnight = pc.equal(values, "24:00:00")
    if pc.any(midnight).as_py():
        rest = pc.if_else(midnight, pa.scalar(None, values.type), values)
        return pc.if_else(midnight, pa.scalar(_DAY, arrow), _time(rest, arrow))
    day = pa.scalar("1970-01-01 ", values.type)
    return pc.binary_join_element_wise(day, values, pa.scalar("", values.type)).cast(pa.timestamp("us")).cast(arrow)


def _bytes(values: pa.Array, arrow: pa.DataType) -> pa.Array:
    if not pc.all(pc.starts_with(values, "\\x"), min_count=0).as_py():
        raise pa.ArrowInvalid("not in hex form")
    hexed = pc.binary_slice(values.cast(arrow), 2)  # a kernel's own output: starts at 0, nulls are empty
    validity, offset_buffer, data = hexed.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32)[: len(hexed) + 1]
    digits = np.frombuffer(data or b"", np.uint8)[: offsets[-1]]
    nibbles = _NIBBLE[digits]
    if (offsets & 1).any() or (nibbles == 255).any():
        raise pa.ArrowInvalid("not hexadecimal")
    packed = (nibbles[0::2] << 4) | nibbles[1::2]
    buffers = [validity, pa.py_buffer(offsets // 2), pa.py_buffer(packed)]
    return pa.Array.from_buffers(arrow, len(hexed), buffers)


_READERS: dict[Form, Reader] = dict.fromkeys(Form, _cast) | {
    Form.BOOLEAN: _boolean,
    Form.TIME: _time,
    Form.BYTES: _bytes,
}

"""Read the text that Postgres prints for a type, a column at a time. Any other text raises ArrowInvalid.

Pinned settings of the session that produced the text: DateStyle ISO, TimeZone UTC, bytea_output hex,
extra_float_digits 1 or more (every bit of a float is printed then).
"""

from collections.abc import Callable
from itertools import product

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ingestion.schema.types.model import Form, Target
from ingestion.schema.types.unrepresentable import BOUNDS, has_other_years

Reader = Callable[[pa.Array, pa.DataType], pa.Array]

_DAY = 86_400_000_000
_DIGITS = [np.frombuffer(digits, np.uint8).astype(np.uint16) for digits in (b"0123456789abcdef", b"0123456789ABCDEF")]
_PREFIX, _NO_PAIR = 256, 257
_PAIRS = np.full(1 << 16, _NO_PAIR, np.uint16)  # two characters, as a little-endian integer, to their byte
for _high, _low in product(_DIGITS, repeat=2):  # Postgres prints lower case, and reads both, as do writers of events
    _PAIRS[_high[:, None] | (_low[None, :] << 8)] = np.arange(256, dtype=np.uint16).reshape(16, 16)
_PAIRS[ord("\\") | (ord("x") << 8)] = _PREFIX


def read(values: pa.Array, target: Target) -> pa.Array:
    """The values in the target's Arrow type."""
    found = _READERS[target.form](values, target.arrow)
    if target.form in BOUNDS and has_other_years(found, target):  # a cast reads a year 0, and others by an offset
        raise pa.ArrowInvalid("a day or a moment that is printed otherwise")
    return found


def _cast(values: pa.Array, arrow: pa.DataType) -> pa.Array:
    return values if values.type == arrow else values.cast(arrow)


def _integer(values: pa.Array, arrow: pa.DataType) -> pa.Array:
    if any(pc.any(pc.starts_with(values, prefix)).as_py() for prefix in ("0x", "0X")):  # which a cast reads
        raise pa.ArrowInvalid("hexadecimal")
    return values.cast(arrow)


def _float(values: pa.Array, arrow: pa.DataType) -> pa.Array:
    found = values.cast(arrow)
    infinite = pc.is_inf(found)
    if pc.any(infinite).as_py() and pc.any(pc.match_substring_regex(values.filter(infinite), "[0-9]")).as_py():
        raise pa.ArrowInvalid("too large a number")
    return found


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
    """Pairs of characters become bytes; the pair of each prefix goes. (Arrow 26's binary_slice fails on nulls.)"""
    valid = values.is_valid().to_numpy(zero_copy_only=False)
    text = pc.fill_null(values.cast(arrow), b"")
    _, offset_buffer, data_buffer = text.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32)[text.offset : text.offset + len(text) + 1]
    data = np.frombuffer(data_buffer or b"", np.uint8)[offsets[0] : offsets[-1]]
    length = np.diff(offsets)
    if (length & 1).any():
        raise pa.ArrowInvalid("an odd number of characters")
    pairs = _PAIRS[data.view("<u2")]
    starts = ((offsets[:-1] - offsets[0]) // 2)[valid]
    is_prefix = pairs == _PREFIX
    if (length[valid] < 2).any() or not is_prefix[starts].all() or is_prefix.sum() != len(starts):
        raise pa.ArrowInvalid("not in hex form")
    if (pairs == _NO_PAIR).any():
        raise pa.ArrowInvalid("not hexadecimal")
    packed = pairs[~is_prefix].astype(np.uint8)
    ends = np.concatenate(([0], np.cumsum(length // 2 - valid))).astype(np.int32)
    buffers = [pa.py_buffer(np.packbits(valid, bitorder="little")), pa.py_buffer(ends), pa.py_buffer(packed)]
    return pa.Array.from_buffers(arrow, len(values), buffers)


_READERS: dict[Form, Reader] = dict.fromkeys(Form, _cast) | {
    Form.INTEGER: _integer,
    Form.FLOAT: _float,
    Form.BOOLEAN: _boolean,
    Form.TIME: _time,
    Form.BYTES: _bytes,
}

"""Decimals of Connect, a column at a time: the base64 of a two's complement integer, whose scale its schema has."""

import numpy as np
import pyarrow as pa

MAX_BYTES = 16  # of a decimal128
MAX_TEXT = 24  # of so many bytes in base64
MAX_DIGITS = 38
_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_NONE = 64
_SIX = np.full(256, _NONE, np.uint8)
_SIX[np.frombuffer(_ALPHABET, np.uint8)] = np.arange(64, dtype=np.uint8)


def decimals(values: pa.Array, scale: int) -> pa.Array | None:
    """The numbers, as decimals of that scale; None where one of them is not written so or has too many digits."""
    if not 0 <= scale <= MAX_DIGITS:
        return None
    valid = values.is_valid().to_numpy(zero_copy_only=False)
    _, offset_buffer, data_buffer = values.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32)[values.offset : values.offset + len(values) + 1]
    data = np.frombuffer(data_buffer or b"", np.uint8)
    lengths = np.where(valid, np.diff(offsets), 0)
    if (lengths[valid] == 0).any() or lengths.max(initial=0) > MAX_TEXT:
        return None
    numbers = np.zeros((len(values), MAX_BYTES), np.uint8)
    for length in np.flatnonzero(np.bincount(lengths[valid])).tolist():
        rows = np.flatnonzero(lengths == length)
        if length % 4 or not _decode(data[offsets[rows][:, None] + np.arange(length)], rows, numbers):
            return None
    buffers = [pa.py_buffer(np.packbits(valid, bitorder="little")), pa.py_buffer(numbers)]
    found = pa.Array.from_buffers(pa.decimal128(MAX_DIGITS, scale), len(values), buffers)
    try:
        found.validate(full=True)
    except pa.ArrowInvalid:
        return None
    return found


def _decode(text: np.ndarray, rows: np.ndarray, numbers: np.ndarray) -> bool:
    """Writes the numbers of texts of one length, in little-endian order; false where one of them is none."""
    padding = (text[:, -2:] == ord("=")).sum(axis=1)
    if (padding == 1).any() and (text[padding == 1, -1] != ord("=")).any():
        return False
    six = _SIX[text]
    six[:, -2:][text[:, -2:] == ord("=")] = 0
    if (six == _NONE).any():
        return False
    a, b, c, d = (six[:, first::4] for first in range(4))
    count = text.shape[1] // 4
    decoded = np.empty((len(text), count, 3), np.uint8)
    decoded[:, :, 0], decoded[:, :, 1], decoded[:, :, 2] = a << 2 | b >> 4, b << 4 | c >> 2, c << 6 | d
    decoded = decoded.reshape(len(text), 3 * count)
    for missing in range(3):
        of = np.flatnonzero(padding == missing)
        size = 3 * count - missing
        if len(of) and size > MAX_BYTES:
            return False
        if len(of):
            filled = np.repeat(np.where(decoded[of, :1] & 0x80, 0xFF, 0).astype(np.uint8), MAX_BYTES, axis=1)
            filled[:, :size] = decoded[of, :size][:, ::-1]
            numbers[rows[of]] = filled
    return True

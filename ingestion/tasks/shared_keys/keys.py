"""The values of a key in rows that are about to land, as Python can compare them."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Positions = npt.NDArray[np.int64]


def key_values(rows: pa.Table, key: tuple[str, ...]) -> list[tuple[object, ...]]:
    """The key of each row, with the values that the lake stores: there two spellings of one number are equal."""
    return list(zip(*(_values(rows.column(name)) for name in key), strict=True))


def _values(column: pa.ChunkedArray) -> list[object]:
    kind = column.type
    if pa.types.is_temporal(kind):  # Python knows fewer moments
        column = column.cast(pa.int32() if kind.bit_width == 32 else pa.int64())
    values = column.to_pylist()
    if pa.types.is_floating(kind):
        return ["NaN" if value != value else value for value in values]
    return [repr(value) for value in values] if pa.types.is_nested(kind) else values

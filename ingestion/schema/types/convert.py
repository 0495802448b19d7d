"""Text columns to typed columns, with a policy for the values that the target type cannot hold.

A column is read in one pass as if all its values were representable; only where that fails are the others searched for.
"""

from collections.abc import Iterator
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

from ingestion.schema.types.model import Converted, Policy, SourceType, Target, UnreadableValue, UnrepresentableValue
from ingestion.schema.types.read import read
from ingestion.schema.types.table import target_type
from ingestion.schema.types.unrepresentable import find_unrepresentable, stand_in


def convert(values: pa.Array | pa.ChunkedArray, source: SourceType, policy: Policy = "error") -> Converted:
    """Convert a column of text as Postgres prints it. Raises UnrepresentableValue under the policy `error`."""
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks() if values.num_chunks != 1 else values.chunk(0)
    target = target_type(source)
    try:
        return Converted(read(values, target), pa.array([], pa.int64()), pa.array([], pa.string()))
    except pa.ArrowInvalid:
        return _convert_unrepresentable(values, source, target, policy)


def unreadable(values: pa.Array, source: SourceType) -> list[int]:
    """The rows that `convert` cannot read under any policy, all of them at once."""
    target = target_type(source)
    bad = reduce(pc.or_, (mask for _, mask in find_unrepresentable(values, target)), pa.repeat(False, len(values)))
    return list(_unreadable(pc.if_else(bad, pa.scalar(None, values.type), values), target, 0))


def _unreadable(values: pa.Array, target: Target, first: int) -> Iterator[int]:
    """By halving: the time goes with the number of bad rows, not with that of all."""
    try:
        read(values, target)
        return
    except pa.ArrowInvalid:
        if len(values) == 1:
            yield first
            return
    middle = len(values) // 2
    yield from _unreadable(values.slice(0, middle), target, first)
    yield from _unreadable(values.slice(middle), target, first + middle)


def _convert_unrepresentable(values: pa.Array, source: SourceType, target: Target, policy: Policy) -> Converted:
    found = list(find_unrepresentable(values, target))
    bad = reduce(pc.or_, (mask for _, mask in found), pa.repeat(False, len(values)))
    regular = pc.if_else(bad, pa.scalar(None, values.type), values)
    try:
        array = read(regular, target)
    except pa.ArrowInvalid:
        raise UnreadableValue(source, _first_unreadable(regular, target), "a text of unknown form") from None
    rows = pc.indices_nonzero(bad).cast(pa.int64())
    if policy == "error":
        first = rows[0].as_py()
        raise UnrepresentableValue(source, first, next(kind.name for kind, mask in found if mask[first].as_py()))
    if policy == "clamp":
        for kind, mask in found:
            array = pc.if_else(mask, stand_in(kind, target), array)
    return Converted(array, rows, values.take(rows).cast(pa.string()))


def _first_unreadable(values: pa.Array, target: Target) -> int:
    """The first row that cannot be read, by halving."""
    first, last = 0, len(values)
    while last - first > 1:
        middle = (first + last) // 2
        try:
            read(values.slice(first, middle - first), target)
            first = middle
        except pa.ArrowInvalid:
            last = middle
    return first

"""Snapshot columns that Postgres sends in binary: neither side converts them to text and back.

The lake cannot store all of their values. The driver counts time from 1970, and infinity overflows to a moment
outside of the years 0001 to 9999. It passes a numeric on digit for digit, but for NaN and infinities. A range that
contains such a value is read again as text, which has a word for each.
"""

import pyarrow as pa
import pyarrow.compute as pc

from ingestion.schema.types.model import Form, SourceType
from ingestion.schema.types.table import target_type
from ingestion.schema.types.unrepresentable import BOUNDS, counted_bounds, counts, has_other_years

_OIDS = frozenset((16, 17, 20, 21, 23, 25, 700, 701, 1043, 1082, 1114, 1184))


class NeedsText(Exception):
    """A value that can only be read as text."""


def arrives_typed(source: SourceType) -> bool:
    """Whether binary values of the type become the target's values, but for those that raise NeedsText."""
    return source.oid in _OIDS or target_type(source).form is Form.DECIMAL


def typed(values: pa.Array, source: SourceType) -> pa.Array:
    """Values as a driver made them of binary ones, or in the target's type already; raises NeedsText."""
    target = target_type(source)
    if target.form is Form.DECIMAL and values.type != target.arrow:
        return _decimal(values.storage, target.arrow)
    if target.form in BOUNDS and has_other_years(values, target):
        raise NeedsText
    return values if values.type == target.arrow else values.cast(target.arrow)


def out_of_bounds(values: pa.Array, source: SourceType) -> list[int]:
    """The rows for which `typed` raises NeedsText: days and moments outside of the years 0001 to 9999."""
    target = target_type(source)
    numbers, (first, last) = counts(values, target), counted_bounds(target)
    outside = pc.or_(pc.less(numbers, first), pc.greater(numbers, last))
    return pc.indices_nonzero(pc.fill_null(outside, False)).to_pylist()


def _decimal(printed: pa.Array, arrow: pa.DataType) -> pa.Array:
    try:
        return printed.cast(arrow)
    except pa.ArrowInvalid:
        raise NeedsText from None

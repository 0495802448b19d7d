"""Snapshot columns that Postgres sends in binary: neither side converts them to text and back.

The lake cannot store all of their values. The driver counts time from 1970, and infinity overflows to a moment
outside of the years 0001 to 9999. It passes a numeric on digit for digit, but for NaN and infinities. A range that
contains such a value is read again as text, which has a word for each.
"""

from datetime import UTC

import pyarrow as pa
import pyarrow.compute as pc

from ingestion.schema.types.model import Form, SourceType
from ingestion.schema.types.table import target_type
from ingestion.schema.types.unrepresentable import FIRST_DAY, FIRST_INSTANT, LAST_DAY, LAST_INSTANT

_OIDS = frozenset((16, 17, 20, 21, 23, 25, 700, 701, 1043, 1082, 1114, 1184))
_BOUNDS = {
    Form.DATE: (FIRST_DAY, LAST_DAY),
    Form.TIMESTAMP: (FIRST_INSTANT, LAST_INSTANT),
    Form.TIMESTAMPTZ: (FIRST_INSTANT.replace(tzinfo=UTC), LAST_INSTANT.replace(tzinfo=UTC)),
}


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
    if target.form in _BOUNDS:
        first, last = (pa.scalar(bound, target.arrow).value for bound in _BOUNDS[target.form])
        found = pc.min_max(values.view(pa.int32() if target.form is Form.DATE else pa.int64()))
        if found["min"].is_valid and not (first <= found["min"].as_py() and found["max"].as_py() <= last):
            raise NeedsText
    return values if values.type == target.arrow else values.cast(target.arrow)


def out_of_bounds(values: pa.Array, source: SourceType) -> list[int]:
    """The rows for which `typed` raises NeedsText: days and moments outside of the years 0001 to 9999."""
    target = target_type(source)
    numbers = values.view(pa.int32() if target.form is Form.DATE else pa.int64())
    first, last = (pa.scalar(bound, target.arrow).value for bound in _BOUNDS[target.form])
    outside = pc.or_(pc.less(numbers, first), pc.greater(numbers, last))
    return pc.indices_nonzero(pc.fill_null(outside, False)).to_pylist()


def _decimal(printed: pa.Array, arrow: pa.DataType) -> pa.Array:
    try:
        return printed.cast(arrow)
    except pa.ArrowInvalid:
        raise NeedsText from None

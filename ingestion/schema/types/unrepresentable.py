"""Postgres values that no Iceberg type can hold: how they are found in a column, and what `clamp` writes instead."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc

from ingestion.schema.types.model import Form, Target

FIRST_DAY, LAST_DAY = date(1, 1, 1), date(9999, 12, 31)
FIRST_INSTANT, LAST_INSTANT = datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999)

BOUNDS = {
    Form.DATE: (FIRST_DAY, LAST_DAY),
    Form.TIMESTAMP: (FIRST_INSTANT, LAST_INSTANT),
    Form.TIMESTAMPTZ: (FIRST_INSTANT.replace(tzinfo=UTC), LAST_INSTANT.replace(tzinfo=UTC)),
}

_DAY_PATTERN = r"^\d{4,}-\d\d-\d\d"
_LONG_YEAR = r"^\d{5,}-\d\d-\d\d"
_REST = r"( \d\d:\d\d:\d\d(\.\d+)?([+-]\d\d(:\d\d)*)?)?"


@dataclass(frozen=True)
class UnrepresentableKind:
    """One kind of value that the target type cannot hold; `clamp` says which bound replaces it, if any."""

    name: str
    found: Callable[[pa.Array], pa.Array]
    clamp: str  # lowest, highest or null


def _equals(text: str) -> Callable[[pa.Array], pa.Array]:
    return lambda values: pc.equal(values, text)


def _matches(pattern: str) -> Callable[[pa.Array], pa.Array]:
    return lambda values: pc.match_substring_regex(values, pattern)


_TEMPORAL = (
    UnrepresentableKind("infinity", _equals("infinity"), "highest"),
    UnrepresentableKind("-infinity", _equals("-infinity"), "lowest"),
    UnrepresentableKind("a year before 0001", _matches(_DAY_PATTERN + _REST + " BC$"), "lowest"),
    UnrepresentableKind("a year after 9999", _matches(_LONG_YEAR + _REST + "$"), "highest"),
)
_NUMERIC = (
    UnrepresentableKind("NaN", _equals("NaN"), "null"),
    UnrepresentableKind("Infinity", _equals("Infinity"), "highest"),
    UnrepresentableKind("-Infinity", _equals("-Infinity"), "lowest"),
)
KINDS: dict[Form, tuple[UnrepresentableKind, ...]] = {
    Form.DATE: _TEMPORAL,
    Form.TIMESTAMP: _TEMPORAL,
    Form.TIMESTAMPTZ: _TEMPORAL,
    Form.DECIMAL: _NUMERIC,
}


def find_unrepresentable(values: pa.Array, target: Target) -> Iterator[tuple[UnrepresentableKind, pa.Array]]:
    """The kinds of unrepresentable values that occur, each with a mask (false where null)."""
    for kind in KINDS.get(target.form, ()):
        mask = pc.fill_null(kind.found(values), False)
        if pc.any(mask).as_py():
            yield kind, mask


def stand_in(kind: UnrepresentableKind, target: Target) -> pa.Scalar:
    """The value that replaces an unrepresentable one under `clamp`."""
    if kind.clamp == "null":
        return pa.scalar(None, target.arrow)
    lowest, highest = _bounds(target)
    return pa.scalar(lowest if kind.clamp == "lowest" else highest, target.arrow)


def _bounds(target: Target) -> tuple[object, object]:
    if target.form is Form.DECIMAL:
        nines = (9,) * target.arrow.precision
        return Decimal((1, nines, -target.arrow.scale)), Decimal((0, nines, -target.arrow.scale))
    return BOUNDS[target.form]


def has_other_years(values: pa.Array, target: Target) -> bool:
    """Whether typed days or moments are outside of the years 0001 to 9999."""
    first, last = counted_bounds(target)
    found = pc.min_max(counts(values, target))
    return found["min"].is_valid and not (first <= found["min"].as_py() and found["max"].as_py() <= last)


def counted_bounds(target: Target) -> tuple[int, int]:
    """The first and the last day or moment, as the target's type counts them."""
    first, last = (pa.scalar(bound, target.arrow).value for bound in BOUNDS[target.form])
    return first, last


def counts(values: pa.Array, target: Target) -> pa.Array:
    """Days or moments as their type counts them."""
    return values.view(pa.int32() if target.form is Form.DATE else pa.int64())

"""What a comparison of a table with its raw log is about, as both sides know it: the columns, a range of keys.

Each side writes the canonical form of its own values (SQL of its own), so that nothing passes through ingestion's
conversion. A value is `<length>:<canonical form>`, and `n` where it is null. The values of a row's columns in a row, as
MD5 in hex, are its `line`, those of its key columns its `key`; BUCKET_DIGITS digits of the key's MD5 are its `bucket`.
"""

from dataclasses import dataclass
from typing import Literal

from pyiceberg.types import IcebergType, LongType

from ingestion.schema.facts import ColumnFacts
from ingestion.schema.types import Policy

Order = Literal["value", "bytes", "time of day"]
"""What rows are sorted by: a value in its type's order, the bytes of its text, a time of day with 24:00 as 00:00."""

BUCKET_DIGITS = 3
TIME_OID = 1083
# What Postgres prints for values that dates, timestamps and decimals of the lake cannot hold; of those with a precision
# it has NaN alone.
LOWER, HIGHER, NO_NUMBER = r"-infinity|.* BC", r"infinity|\d{5,}-\d\d-\d\d[^B]*", "NaN"
StandIns = tuple[tuple[str, str | None], ...]
"""What is printed for such values, and the spelling of what the lake has instead; None is null."""


@dataclass(frozen=True)
class ComparedColumn:
    """A column on both sides."""

    source: ColumnFacts
    lake_type: IcebergType
    mask: Literal["null", "sha256"] | None

    @property
    def is_time(self) -> bool:
        """Whether it is a time of day, which the lake keeps as microseconds."""
        return self.source.type_oid == TIME_OID and isinstance(self.lake_type, LongType) and self.mask is None


@dataclass(frozen=True)
class KeyRange:
    """[first, end) of the leading key column, as Postgres prints its values; None is open."""

    first: str | None
    end: str | None


def stand_ins(policy: Policy, lake_type: str) -> StandIns:
    """What a table's policy makes of the values that a column's type, as Trino or Iceberg calls it, cannot hold."""
    if policy == "error":
        return ()
    if lake_type.startswith("decimal"):
        return ((NO_NUMBER, None),)
    if not lake_type.startswith(("date", "timestamp")):
        return ()
    if policy == "null":
        return ((LOWER, None), (HIGHER, None))
    zone = "+00" if lake_type.endswith(("tz", "with time zone")) else ""
    times = ("", "") if lake_type == "date" else (" 00:00:00" + zone, " 23:59:59.999999" + zone)
    return ((LOWER, "0001-01-01" + times[0]), (HIGHER, "9999-12-31" + times[1]))

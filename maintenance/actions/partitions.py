"""A partition as an SQL condition on the table's columns, for procedures with a `where` argument."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from lakehouse.text.sql import spark_ident, spark_literal

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionField
    from pyiceberg.table import Table
    from pyiceberg.typedef import Record
    from pyiceberg.types import IcebergType

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def condition(table: Table, spec_id: int, partition: Record) -> str | None:
    """A condition in Spark's SQL that exactly the rows of the partition meet.

    Empty for a table without partitions; None for buckets, truncated values, and types without a supported literal.
    """
    fields = table.specs()[spec_id].fields
    parts = [_of_field(table, field, partition[index]) for index, field in enumerate(fields)]
    return None if None in parts else " AND ".join(part for part in parts if part)


def _of_field(table: Table, field: PartitionField, value: Any) -> str | None:
    from pyiceberg.exceptions import ValidationError

    name = str(field.transform)
    if name == "void":
        return ""
    try:
        source = table.schema().find_field(field.source_id)
    except (ValueError, ValidationError):  # the column was dropped
        return None
    column, kind = spark_ident(source.name), source.field_type
    if value is None:
        return f"{column} IS NULL"
    if name == "identity" and str(kind) != "date":
        return None if (literal := _literal(kind, value)) is None else f"{column} = {literal}"
    if (bounds := _period(name, value)) is None:
        return None
    first, last = (_moment(kind, bound) for bound in bounds)
    return None if first is None else f"{column} >= {first} AND {column} < {last}"


def _period(transform: str, value: Any) -> tuple[datetime, datetime] | None:
    """The start of a year, month, day or hour, and of the next one."""
    if transform in ("day", "identity"):  # of a date
        start = _day(value)
        return start, start + timedelta(days=1)
    if transform == "hour":
        start = EPOCH + timedelta(hours=value)
        return start, start + timedelta(hours=1)
    if transform in ("month", "year"):
        months = value if transform == "month" else value * 12
        return _month(months), _month(months + (1 if transform == "month" else 12))
    return None


def _month(number: int) -> datetime:
    return datetime(1970 + number // 12, number % 12 + 1, 1, tzinfo=UTC)


def _day(value: Any) -> datetime:
    return EPOCH + (timedelta(days=value) if isinstance(value, int) else value - EPOCH.date())


def _moment(kind: IcebergType, moment: datetime) -> str | None:
    text = f"{moment:%Y-%m-%d %H:%M:%S}"
    spelled = {"date": f"DATE '{moment:%Y-%m-%d}'", "timestamp": f"TIMESTAMP_NTZ '{text}'"}
    return (spelled | {"timestamptz": f"TIMESTAMP '{text} UTC'"}).get(str(kind))


def _literal(kind: IcebergType, value: Any) -> str | None:
    name = str(kind)
    if name == "string":
        return spark_literal(value)
    if name in ("int", "long"):
        return str(value)
    if name == "boolean":
        return str(value).lower()
    return None

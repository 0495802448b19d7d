"""The spelling of lake values in Python is that of Postgres and Spark."""

import struct
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
)

from ingestion.pipeline.repair.small_side import spelled

NOON = datetime(2026, 5, 4, 12, 0, 0)


@pytest.mark.parametrize(
    ("value", "lake_type", "text"),
    [
        (True, BooleanType(), "t"),
        (False, BooleanType(), "f"),
        (-7, LongType(), "-7"),
        (Decimal("0.0000001"), DecimalType(12, 7), "0.0000001"),
        (Decimal("1E+3").quantize(Decimal("1.00")), DecimalType(12, 2), "1000.00"),
        (date(44, 3, 15), DateType(), "0044-03-15"),
        (NOON, TimestampType(), "2026-05-04 12:00:00"),
        (NOON.replace(microsecond=120), TimestampType(), "2026-05-04 12:00:00.00012"),
        (NOON.replace(microsecond=500000, tzinfo=UTC), TimestamptzType(), "2026-05-04 12:00:00.5+00"),
        (b"\x00\xff", BinaryType(), "\\x00ff"),
        ("é\n", StringType(), "é\n"),
        (float("nan"), DoubleType(), "NaN"),
        (-0.0, DoubleType(), str(-(2**63))),
        (1.5, DoubleType(), str(struct.unpack(">q", struct.pack(">d", 1.5))[0])),
        (-0.0, FloatType(), str(-(2**31))),
    ],
)
def test_a_value_is_spelled_as_postgres_spells_it(value: Any, lake_type: IcebergType, text: str) -> None:
    assert spelled(value, lake_type) == text

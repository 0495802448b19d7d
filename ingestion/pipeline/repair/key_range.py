"""A range of the leading key column in Spark's SQL."""

from collections.abc import Iterable

from pyiceberg.types import BinaryType, DecimalType, IcebergType

from lakehouse.text.sql import spark_literal

_SPARK_TYPES = {"long": "bigint", "timestamp": "timestamp_ntz", "timestamptz": "timestamp"}


def within(value: str, lake_type: IcebergType, bounds: Iterable[tuple[str, str]]) -> list[str]:
    """The conditions that keep a lake value in the range; `bounds` are operators, each with a canonical form."""
    return [f"{value} {operator} {_bound(lake_type, text)}" for operator, text in bounds]


def _bound(lake_type: IcebergType, text: str) -> str:
    if isinstance(lake_type, BinaryType):
        return f"unhex({spark_literal(text[2:])})"
    if isinstance(lake_type, DecimalType):
        return f"{text}BD"
    return f"CAST({spark_literal(text)} AS {_SPARK_TYPES.get(str(lake_type), str(lake_type))})"

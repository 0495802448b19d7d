"""What reading the values of a column goes by: its declared type, the connector's modes, and what a reader gives."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from ingestion.schema.types.model import SourceType
from ingestion.sources.debezium.message.opened import ConnectType
from ingestion.sources.kafka.values import text

TIME, CONNECT = "io.debezium.time.", "org.apache.kafka.connect.data."
BAD = "\0"  # stands for a value that cannot be read: no text of Postgres has this character


@dataclass(frozen=True)
class Modes:
    """How the connector writes values, as far as it is declared: nothing is guessed where messages have no schema."""

    decimals: Literal["precise", "string"] | None = None
    times: Literal["adaptive", "adaptive_time_microseconds", "isostring"] | None = None
    binary: Literal["bytes", "base64", "hex"] | None = None
    placeholder: str = "__debezium_unavailable_value"


@dataclass(frozen=True)
class Typed:
    """A declared column: its type in pg_type's terms, and the digits of a second that it declares."""

    source: SourceType
    digits: int | None = None


class Unfit(ValueError):
    """Values of a type that the declared one cannot hold as they are; the text says why."""


Reader = Callable[[Sequence[Any]], pa.Array]


def texts(printed: Callable[[Any], str], values: Sequence[Any]) -> pa.Array:
    """Values as text."""
    return pa.array([None if value is None else printed(value) for value in values], pa.string())


def typed_or_text(values: Sequence[Any], arrow: pa.DataType) -> pa.Array:
    """Values of a type; as text where one is too large for it."""
    try:
        return pa.array(values, arrow)
    except (pa.ArrowException, OverflowError):
        return texts(text, values)


def unfit(column: Typed, given: ConnectType) -> Unfit:
    """The error for a type that a column cannot hold."""
    return Unfit(f"values of type {said(given)} came in a column that is declared as {column.source.name}")


def said(given: ConnectType) -> str:
    """A type for people."""
    return f"{given.name} ({given.type})" if given.name else given.type

"""A range of the leading key column, as Postgres orders it, in the words of both sides."""

from dataclasses import dataclass

import psycopg
import pyarrow as pa
from pyiceberg.types import BinaryType, DecimalType, DoubleType, FloatType, StringType

from ingestion.pipeline.repair.spelling import SpelledColumn
from ingestion.schema.evolve import source_type
from ingestion.schema.types import ConversionError, convert
from lakehouse.errors import LakehouseError
from lakehouse.servers.database import SourceConnection
from lakehouse.text.sql import ident, literal, spark_literal

# Whether a text column is ordered by its bytes: the built-in provider does that whatever the locale, libc in C alone.
_BYTE_ORDER = """
SELECT CASE WHEN l.collprovider = 'd' THEN d.datlocprovider ELSE l.collprovider END = 'b'
  OR CASE WHEN l.collprovider <> 'd' THEN l.collcollate WHEN d.datlocprovider = 'c' THEN d.datcollate END
    IN ('C', 'POSIX')
FROM pg_attribute a JOIN pg_collation l ON l.oid = a.attcollation, pg_database d
WHERE a.attrelid = %s AND a.attnum = %s AND d.datname = current_database()
"""


@dataclass(frozen=True)
class KeyRange:
    """[first, end) of the leading key column, as Postgres prints its values; None is open."""

    first: str | None
    end: str | None


@dataclass(frozen=True)
class Bounds:
    """Conditions that keep to a range: one for Postgres on the column itself, one for Spark on `{value}`."""

    source: tuple[str, ...] = ()
    lake: tuple[tuple[str, str], ...] = ()

    def on_lake(self, value: str) -> list[str]:
        """The conditions on a lake value; SQL for Spark."""
        return [f"{value} {operator} {bound}" for operator, bound in self.lake]


def bounds(
    connection: SourceConnection, oid: int, column: SpelledColumn, key_range: KeyRange | None, where: str
) -> Bounds:
    """The range in the words of both sides; raises LakehouseError for a bound or an order that one of them lacks."""
    ends = ((">=", key_range.first), ("<", key_range.end)) if key_range else ()
    given = [(operator, text) for operator, text in ends if text is not None]
    if given and isinstance(column.lake_type, StringType):
        _check_text_order(connection, oid, column, where)
    texts = [(operator, _printed(connection, column, text, where)) for operator, text in given]
    return Bounds(
        source=tuple(f"{ident(column.source.name)} {operator} {literal(text)}" for operator, text in given),
        lake=tuple((operator, _lake_bound(column, text)) for operator, text in texts),
    )


def _check_text_order(connection: SourceConnection, oid: int, column: SpelledColumn, where: str) -> None:
    if column.source.type_name in ("uuid", "name"):
        return
    row = connection.execute(_BYTE_ORDER, (oid, column.source.number)).fetchone()
    if column.source.type_name not in ("text", "varchar") or row is None or not row[0]:
        raise LakehouseError(
            f"{where}: no range of key column {column.source.name!r} ({column.source.declared_type}): the lake cannot "
            "follow its order in Postgres; leave the range out"
        )


def _printed(connection: SourceConnection, column: SpelledColumn, text: str, where: str) -> str:
    """The bound as Postgres spells it, without the column's precision: it is compared, not stored."""
    value = f"SELECT {literal(text)}::pg_catalog.{ident(column.source.type_name)} AS {ident(column.source.name)}"
    floats = isinstance(column.lake_type, FloatType | DoubleType)
    try:
        query = f"SELECT {column.printed}, {column.source_text} FROM ({value}) AS bound"
        row = connection.execute(query.encode()).fetchone()
        assert row is not None
        convert(pa.array([row[0]], pa.string()), source_type(column.source), "error")
    except (psycopg.DataError, ConversionError):
        raise LakehouseError(
            f"{where}: {text!r} is no bound for key column {column.source.name!r} ({column.source.declared_type})"
        ) from None
    return str(row[0] if floats else row[1])


def _lake_bound(column: SpelledColumn, text: str) -> str:
    if isinstance(column.lake_type, BinaryType):
        return f"unhex({spark_literal(text[2:])})"
    if isinstance(column.lake_type, DecimalType):
        return f"{text}BD"
    return f"CAST({spark_literal(text)} AS {_SPARK_TYPES.get(str(column.lake_type), str(column.lake_type))})"


_SPARK_TYPES = {"long": "bigint", "timestamp": "timestamp_ntz", "timestamptz": "timestamp"}

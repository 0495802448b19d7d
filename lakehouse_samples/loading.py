"""Creates the tables of a sample with their initial rows, once."""

from dataclasses import dataclass
from pathlib import Path

import psycopg

from lakehouse.errors import LakehouseError
from lakehouse.text.sql import ident
from lakehouse_samples.database import session

SAMPLES: dict[str, tuple[str, ...]] = {
    "retail": ("stores", "products", "customers", "transactions", "transaction_items"),
    "bank": ("users", "accounts"),
    "payroll": ("employee",),
}
# Two concurrent loads of a sample must not both find it missing.
LOAD_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended('lakehouse sample', 0))"


@dataclass(frozen=True)
class LoadReport:
    """The row counts of a sample, or of its topics the events; `loaded` is false if it existed before."""

    source: str
    loaded: bool
    rows: dict[str, int]


def schema_sql(source: str) -> str:
    """The DDL and initial rows of a sample; idempotent."""
    return (Path(__file__).parent / source / "schema.sql").read_text(encoding="utf-8")


def load(url: str, source: str) -> LoadReport:
    """Loads a sample in one transaction, unless its tables exist.

    Raises LakehouseError for database errors, or if only some of the tables exist.
    """
    tables = _tables(source)
    with session(url, source) as connection, connection.transaction():
        connection.execute(LOAD_LOCK)
        present = [table for table in tables if _exists(connection, table)]
        if present and len(present) < len(tables):
            raise LakehouseError(
                f"source {source!r}: the database has {', '.join(present)} but not the rest of the sample, "
                "so it belongs to something else: use an empty database"
            )
        if not present:
            connection.execute(schema_sql(source).encode())
        return LoadReport(source, not present, {table: _count(connection, table) for table in tables})


def _tables(source: str) -> tuple[str, ...]:
    try:
        return SAMPLES[source]
    except KeyError:
        raise LakehouseError(f"there is no sample {source!r}: choose from {', '.join(SAMPLES)}") from None


def _exists(connection: psycopg.Connection, table: str) -> bool:
    row = connection.execute("SELECT to_regclass(%s) IS NOT NULL", [ident(table)]).fetchone()
    return bool(row and row[0])


def _count(connection: psycopg.Connection, table: str) -> int:
    row = connection.execute(f"SELECT count(*) FROM {ident(table)}".encode()).fetchone()
    return int(row[0]) if row else 0

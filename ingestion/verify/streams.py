"""The two streams of rows: the source's text from Postgres, the lake's values from Trino, in one key order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg

from ingestion.schema.facts import ColumnFacts
from ingestion.sources.postgres.catalog.describe import describe
from ingestion.sources.postgres.connection import connect_source
from ingestion.sources.postgres.snapshot import check_readable
from ingestion.verify.canonical import Canonical, is_text, lake_form, source_form
from ingestion.verify.compare import Row
from lakehouse.declarations import RawTable
from lakehouse.errors import LakehouseError
from lakehouse.servers.database import SourceConnection
from lakehouse.servers.trino import answering, connect
from lakehouse.settings import Settings
from lakehouse.text.sql import ident, relation

if TYPE_CHECKING:
    from trino.dbapi import Connection

ROWS_AT_A_TIME = 10_000


@dataclass(frozen=True)
class Pair:
    """A column on both sides."""

    source: ColumnFacts
    lake_name: str
    lake_type: str


@contextmanager
def source_snapshot(settings: Settings, source: str) -> Iterator[SourceConnection]:
    """A read-only connection that sees one moment of the source; row-level security is an error, not a filter."""
    with connect_source(settings, source) as connection:
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            yield connection
        except psycopg.Error as error:
            raise LakehouseError(f"source {source!r}: {str(error).strip().splitlines()[0]}") from None


@contextmanager
def lake_session(settings: Settings) -> Iterator[Connection]:
    """A connection to Trino whose failures are one line with the remedy."""
    from trino.exceptions import TrinoQueryError

    connection = connect(settings)
    try:
        with answering(settings):
            yield connection
    except TrinoQueryError as error:
        where = f"Trino at {settings.trino.host}:{settings.trino.port}"
        raise LakehouseError(f"{where}: {error.message.splitlines()[0]}{_remedy(error.error_name)}") from None
    finally:
        connection.close()


def _remedy(error_name: str | None) -> str:
    missing = error_name in ("TABLE_NOT_FOUND", "SCHEMA_NOT_FOUND")
    return ": it has not been built yet: run `lakehouse run` with the source's load job" if missing else ""


def view_of(table: RawTable) -> str:
    """The view that shows the table as the source has it, quoted."""
    return relation("parsed", f"current_{table.source}__{table.name}")


def pair_columns(
    lake: Connection, source: SourceConnection, table: RawTable, publication: str
) -> tuple[list[Pair], tuple[str, ...]]:
    """The columns to compare, and those of the source that the lake does not have.

    Columns excluded or masked by declaration are on neither list.
    """
    cursor = lake.cursor()
    cursor.execute(f"SELECT * FROM {view_of(table)} LIMIT 0")
    cursor.fetchall()
    types = {column.name.lower(): column.type_code for column in cursor.description}  # a view keeps capitals
    pairs, absent = [], []
    facts = describe(source, table, publication)
    check_readable(source, table, facts)
    for column in facts.columns:
        name = table.raw.alias.get(column.name, column.name).lower()
        if column.name in table.raw.mask:
            continue
        if name in types:
            pairs.append(Pair(column, name, types[name]))
        else:
            absent.append(column.name)
    return pairs, tuple(absent)


def source_rows(connection: SourceConnection, table: RawTable, pairs: list[Pair], key: list[Pair]) -> Iterator[Row]:
    """The source's rows in key order, each value as its type's output function prints it."""
    forms = [source_form(pair.lake_type) for pair in pairs]
    query = (
        f"SELECT {', '.join(pair.source.printed for pair in pairs)} FROM {relation(*table.relation)} "
        f"ORDER BY {', '.join(_source_order(pair) for pair in key)}"
    )
    with connection.cursor(name="reconcile") as cursor:
        cursor.itersize = ROWS_AT_A_TIME
        cursor.execute(query.encode())
        for row in cursor:
            yield _spelled(forms, row)


def lake_rows(lake: Connection, table: RawTable, pairs: list[Pair], key: list[Pair]) -> Iterator[Row]:
    """The lake's rows in key order, each value spelled as Postgres prints it."""
    forms = [lake_form(pair.lake_type, pair.source.type_name) for pair in pairs]
    columns = ", ".join(ident(pair.lake_name) for pair in pairs)
    order = ", ".join(ident(pair.lake_name) for pair in key)
    cursor = lake.cursor(legacy_primitive_types=True)  # the protocol's own text: no detour over Python's dates
    cursor.execute(f"SELECT {columns} FROM {view_of(table)} ORDER BY {order}")
    while rows := cursor.fetchmany(ROWS_AT_A_TIME):
        for row in rows:
            yield _spelled(forms, row)


def _spelled(forms: list[Canonical], row: Any) -> Row:
    return tuple(None if value is None else form(value) for form, value in zip(forms, row, strict=True))


def _source_order(pair: Pair) -> str:
    return f'{pair.source.printed} COLLATE "C"' if is_text(pair.lake_type) else ident(pair.source.name)

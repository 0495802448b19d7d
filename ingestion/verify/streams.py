"""The two streams of rows: the source's text from Postgres, the lake's values from Trino, in one key order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ingestion.schema.facts import ColumnFacts, TableFacts
from ingestion.schema.problem import TableProblem
from ingestion.sources.base import OpenSource
from ingestion.verify.canonical import Canonical, lake_form, source_form, source_order
from ingestion.verify.compare import Row
from lakehouse.declarations import RawTable
from lakehouse.errors import LakehouseError
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


def pair_columns(lake: Connection, source: OpenSource, table: RawTable) -> tuple[list[Pair], tuple[str, ...]]:
    """The columns to compare, and those of the source that the lake does not have.

    Columns excluded or masked by declaration are on neither list.
    """
    cursor = lake.cursor()
    cursor.execute(f"SELECT * FROM {view_of(table)} LIMIT 0")
    cursor.fetchall()
    types = {column.name.lower(): column.type_code for column in cursor.description}  # a view keeps capitals
    pairs, absent = [], []
    for column in _described(source, table).columns:
        if table.kind != "postgres" and column.name not in table.landed:  # of an envelope what is declared lands
            continue
        name = table.raw.alias.get(column.name, column.name).lower()
        if column.name in table.raw.mask:
            continue
        if name in types:
            pairs.append(Pair(column, name, types[name]))
        else:
            absent.append(column.name)
    return pairs, tuple(absent)


def _described(source: OpenSource, table: RawTable) -> TableFacts:
    facts, problem = source.inspect(table.behind, None)
    if facts is None or (problem is not None and table.kind == "postgres"):  # else how it is published is others' care
        raise problem or TableProblem(table.source, table.name, "it cannot be described")
    source.check_readable(table, facts)
    return facts


def source_rows(source: OpenSource, table: RawTable, pairs: list[Pair], key: list[Pair]) -> Iterator[Row]:
    """The source's rows in key order, each value in canonical form."""
    forms = [source_form(pair.lake_type) for pair in pairs]
    order = [(pair.source, source_order(pair.lake_type)) for pair in key]
    for row in source.ordered_rows(table.behind, [pair.source for pair in pairs], order):
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

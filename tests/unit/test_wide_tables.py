"""A comparison of tables with as many columns as Postgres allows, and of texts as the lake counts them."""

from typing import Any, cast

import psycopg
import pytest
from pyiceberg.types import DoubleType, IcebergType, IntegerType, StringType

from ingestion.schema.compared import ComparedColumn
from ingestion.schema.facts import ColumnFacts, TableFacts
from ingestion.schema.problem import TableProblem
from ingestion.sources.postgres.comparison import StatementReader, canonical, characters_sql, digest_sql, rows_sql
from ingestion.sources.postgres.snapshot import plan_chunks

COLUMNS = 1_600
pytestmark = pytest.mark.stack


@pytest.fixture
def source(cluster: str) -> Any:
    with psycopg.connect(cluster, autocommit=True) as connection:
        yield connection


def made(source: psycopg.Connection[Any], type_: str, lake: IcebergType, count: int) -> tuple[Any, list[Any]]:
    """A table of so many columns of a type, with one row, and what is compared of it."""
    source.execute("DROP TABLE IF EXISTS wide")
    source.execute(f"CREATE TABLE wide ({', '.join(f'c{i} {type_}' for i in range(count))})".encode())
    source.execute(f"INSERT INTO wide VALUES ({', '.join(map(str, range(count)))})".encode())
    columns = tuple(
        ColumnFacts(f"c{i}", i + 1, type_, 0, type_, "b", -1, 0, -1, f"pg_catalog.{type_}out", lake=f"c{i}")
        for i in range(count)
    )
    row = source.execute("SELECT oid FROM pg_class WHERE relname = 'wide'").fetchone()
    assert row is not None
    facts = TableFacts(row[0], row[0], "r", "d", ("c0",), columns, ("public", "wide"))
    [chunk] = plan_chunks(cast(Any, source), "shop", facts, 1 << 20)
    return chunk, [ComparedColumn(column, lake, None) for column in columns]


@pytest.mark.parametrize("printed", [False, True])
def test_a_table_with_as_many_columns_as_there_can_be_is_compared(
    source: psycopg.Connection[Any], printed: bool
) -> None:
    """From 833 columns on each comparison failed, and the tables behind it waited."""
    chunk, columns = made(source, "int4", IntegerType(), COLUMNS)
    assert len(source.execute(digest_sql(columns, columns[:1], chunk, []).encode()).fetchall()) == 1
    shown = [column.source.printed if printed else canonical(column) for column in columns]
    (row,) = source.execute(rows_sql(columns, columns[:1], shown, chunk, [], None).encode()).fetchall()
    assert row[2:] == tuple(map(str, range(COLUMNS)))


def test_what_is_shown_otherwise_than_it_is_hashed_is_read_beside_it(source: psycopg.Connection[Any]) -> None:
    chunk, columns = made(source, "float8", DoubleType(), 800)
    shown = [column.source.printed for column in columns]
    (row,) = source.execute(rows_sql(columns, columns[:1], shown, chunk, [], None).encode()).fetchall()
    assert row[2:] == tuple(map(str, range(800)))


def test_what_postgres_cannot_list_is_a_problem_of_its_table(cluster: str, source: psycopg.Connection[Any]) -> None:
    chunk, columns = made(source, "float8", DoubleType(), 900)
    shown = [column.source.printed for column in columns]
    statement = rows_sql(columns, columns[:1], shown, chunk, [], None)
    source.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    snapshot = cast(Any, source.execute("SELECT pg_export_snapshot()").fetchone())[0]
    reader = StatementReader("shop", "wide", cluster, snapshot, 1 << 20, (statement,))
    with pytest.raises(TableProblem, match=r"1664 entries: `lakehouse ingest --resnapshot shop\.wide` reads it"):
        list(reader.batches())


def test_a_database_in_sql_ascii_counts_characters_as_the_lake_does(
    cluster: str, source: psycopg.Connection[Any]
) -> None:
    """It counted the bytes of a text, and each row with another letter was different for ever."""
    source.execute("DROP DATABASE IF EXISTS bytes")
    source.execute("CREATE DATABASE bytes ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0")
    found = []
    for database in ("postgres", "bytes"):
        of = psycopg.conninfo.make_conninfo(cluster, dbname=database, options="-c client_encoding=UTF8")
        with psycopg.connect(of, autocommit=True) as connection:
            chunk, columns = made(connection, "text", StringType(), 2)
            connection.execute("UPDATE wide SET c0 = 'Zoë', c1 = 'naïve 𝄞'")
            characters = characters_sql(connection.info.parameter_status("server_encoding"))
            shown = [canonical(column) for column in columns]
            digests = digest_sql(columns, columns[:1], chunk, [], characters).encode()
            rows = rows_sql(columns, columns[:1], shown, chunk, [], None, characters).encode()
            found.append((connection.execute(digests).fetchall(), connection.execute(rows).fetchall()))
    assert found[0] == found[1] and found[0][1][0][0] == "3:Zoë"
    source.execute("DROP DATABASE bytes")

"""The source's side of a comparison: digests that Postgres itself computes, and the rows of the ranges that differ.

The heap is read in page ranges by Spark tasks, each on the point's exported snapshot.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import psycopg
import pyarrow as pa
from pyiceberg.types import DoubleType, FloatType, StringType

from ingestion.schema.compared import BUCKET_DIGITS, ComparedColumn, KeyRange
from ingestion.schema.evolve import source_type
from ingestion.schema.facts import TableFacts
from ingestion.schema.types import ConversionError, convert
from ingestion.sources.postgres.snapshot import (
    from_sql,
    in_the_way,
    is_for_a_lock,
    is_of_the_table,
    on_snapshot,
    reason_of,
    refused,
)
from ingestion.state.chunks import Chunk
from lakehouse.errors import LakehouseError
from lakehouse.servers.database import SourceConnection
from lakehouse.text.sql import ident, literal

MAX_TASKS = 64
CHARACTERS = "length({0})"
# Whether a text column is ordered by its bytes: the built-in provider does that whatever the locale, libc in C alone.
_BYTE_ORDER = """
SELECT CASE WHEN l.collprovider = 'd' THEN d.datlocprovider ELSE l.collprovider END = 'b'
  OR CASE WHEN l.collprovider <> 'd' THEN l.collcollate WHEN d.datlocprovider = 'c' THEN d.datcollate END
    IN ('C', 'POSIX')
FROM pg_attribute a JOIN pg_collation l ON l.oid = a.attcollation, pg_database d
WHERE a.attrelid = %s AND a.attnum = %s AND d.datname = current_database()
"""


@dataclass(frozen=True)
class StatementReader:
    """Runs statements on the point's snapshot. Travels by pickle; holds secrets."""

    source: str
    table: str
    url: str
    snapshot: str
    batch_bytes: int
    statements: tuple[str, ...] = ()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Their rows; raises TableProblem for what is the table's own, LakehouseError."""
        import adbc_driver_postgresql.dbapi as adbc

        try:
            with on_snapshot(self.url, self.snapshot, self.batch_bytes) as cursor:
                for statement in self.statements:
                    cursor.execute(statement)
                    yield from cursor.fetch_record_batch()
        except adbc.Error as error:
            if is_for_a_lock(error):
                raise in_the_way(self.source, self.table) from None
            reason = reason_of(error)
            if is_of_the_table(error):
                if (error.sqlstate or "")[:2] == "54":
                    reason += f": `lakehouse ingest --resnapshot {self.source}.{self.table}` reads it without one"
                raise refused(self.source, self.table, f"a comparison: {reason}", error) from None
            raise LakehouseError(f"source {self.source!r}: reading it for a comparison: {reason}") from None


@dataclass(frozen=True)
class ComparedHeap:
    """One table at a point. Holds secrets."""

    reader: StatementReader
    columns: tuple[ComparedColumn, ...]
    key: tuple[ComparedColumn, ...]
    chunks: tuple[Chunk, ...]
    conditions: tuple[str, ...]
    bounds: tuple[tuple[str, str], ...]
    characters: str

    def digests(self) -> list[StatementReader]:
        """`bucket`, `rows` and the `total` of their 64-bit hashes."""
        return self._spread(
            [digest_sql(self.columns, self.key, chunk, self.conditions, self.characters) for chunk in self.chunks]
        )

    def rows(self, buckets: Sequence[str] | None, *, printed: bool) -> list[StatementReader]:
        """`key`, `line` and `s0` … of the rows in the buckets, or of all."""
        shown = [column.source.printed if printed else canonical(column) for column in self.columns]
        return self._spread(
            [
                rows_sql(self.columns, self.key, shown, chunk, self.conditions, buckets, self.characters)
                for chunk in self.chunks
            ]
        )

    def _spread(self, statements: Sequence[str]) -> list[StatementReader]:
        """The statements over at most MAX_TASKS readers."""
        tasks = min(MAX_TASKS, len(statements))
        return [replace(self.reader, statements=tuple(statements[first::tasks])) for first in range(tasks)]


def canonical(column: ComparedColumn) -> str:
    """The canonical form of a column's value; SQL."""
    if column.mask == "null":
        return "NULL::text"
    if column.mask == "sha256":
        return f"encode(sha256(convert_to({column.source.printed}, 'UTF8')), 'hex')"
    name = ident(column.source.name)
    if isinstance(column.lake_type, DoubleType):
        return _bits(name, "float8", 64, "bigint")
    if isinstance(column.lake_type, FloatType):
        return _bits(name, "float4", 32, "integer")
    return f"(extract(epoch FROM {name}) * 1000000)::bigint::text" if column.is_time else column.source.printed


def characters_sql(encoding: str | None) -> str:
    """How many characters a text has as UTF-8, as the lake counts them; SQL with a place for the text.

    A database in SQL_ASCII counts its bytes.
    """
    return "length(convert_to({0}, 'UTF8'), 'UTF8')" if encoding == "SQL_ASCII" else CHARACTERS


def digest_sql(
    columns: Sequence[ComparedColumn],
    key: Sequence[ComparedColumn],
    chunk: Chunk,
    conditions: Sequence[str],
    characters: str = CHARACTERS,
) -> str:
    """Rows and the sum of their 64-bit hashes in each bucket of the key's hash."""
    number = "sum(('x' || substr(line, 1, 16))::bit(64)::bigint)::text"
    return (
        f"SELECT substr(md5(convert_to(key, 'UTF8')), 1, {BUCKET_DIGITS}) AS bucket, count(*) AS rows,"
        f" {number} AS total FROM ({_lines(columns, key, (), chunk, conditions, characters)}) AS lines GROUP BY 1"
    )


def rows_sql(
    columns: Sequence[ComparedColumn],
    key: Sequence[ComparedColumn],
    shown: Sequence[str],
    chunk: Chunk,
    conditions: Sequence[str],
    buckets: Sequence[str] | None,
    characters: str = CHARACTERS,
) -> str:
    """Key, hash and the `shown` expressions (`s0`, `s1` …) of the rows in the buckets; of all when they are None."""
    if buckets is None:
        return _lines(columns, key, shown, chunk, conditions, characters)
    listed = ", ".join(map(literal, buckets))
    of_key = " || ".join(_cell(canonical(column), characters) for column in key)
    bucket = f"substr(md5(convert_to({of_key}, 'UTF8')), 1, {BUCKET_DIGITS}) IN ({listed})"
    return _lines(columns, key, shown, chunk, [*conditions, bucket], characters)


def _lines(
    columns: Sequence[ComparedColumn],
    key: Sequence[ComparedColumn],
    shown: Sequence[str],
    chunk: Chunk,
    conditions: Sequence[str],
    characters: str,
) -> str:
    """`OFFSET 0` keeps Postgres from printing a value once for every place that uses it.

    What is shown as it is hashed is there already: a table has up to 1,600 columns, and a list of them 1,664 entries.
    """
    hashed = [canonical(column) for column in columns]
    is_there = [expression == text for expression, text in zip(shown, hashed, strict=False)]
    texts = [f"{text} AS c{i}" for i, text in enumerate(hashed)]
    texts += [f"{expression} AS s{i}" for i, expression in enumerate(shown) if not is_there[i]]
    relations, pages = from_sql(chunk)
    where = " AND ".join([*pages, *conditions]) or "true"
    inner = f"SELECT {', '.join(texts)} FROM {relations} WHERE {where} OFFSET 0"
    cells = " || ".join(_cell(f"c{i}", characters) for i in range(len(columns)))
    keys = " || ".join(_cell(f"c{columns.index(column)}", characters) for column in key)
    outer = "".join(f", c{i} AS s{i}" if there else f", s{i}" for i, there in enumerate(is_there))
    return f"SELECT {keys} AS key, md5(convert_to({cells}, 'UTF8')) AS line{outer} FROM ({inner}) AS printed"


def _cell(text: str, characters: str) -> str:
    return f"coalesce({characters.format(text)} || ':' || {text}, 'n')"


def _bits(column: str, kind: str, bits: int, integer: str) -> str:
    sent = f"('x' || encode({kind}send({column}::{kind}), 'hex'))::bit({bits})::{integer}::text"
    return f"CASE WHEN {column}::{kind} = 'NaN' THEN 'NaN' ELSE {sent} END"


def key_bounds(
    connection: SourceConnection, facts: TableFacts, column: ComparedColumn, key_range: KeyRange | None, where: str
) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """The range as conditions in SQL, and as operators with the canonical form of each bound.

    Raises LakehouseError for a bound that is no value of the column, or an order that the lake does not have.
    """
    ends = ((">=", key_range.first), ("<", key_range.end)) if key_range else ()
    given = [(operator, text) for operator, text in ends if text is not None]
    if given and isinstance(column.lake_type, StringType):
        _check_text_order(connection, facts.oid, column, where)
    return (
        tuple(f"{ident(column.source.name)} {operator} {literal(text)}" for operator, text in given),
        tuple((operator, _printed(connection, column, text, where)) for operator, text in given),
    )


def _check_text_order(connection: SourceConnection, oid: int, column: ComparedColumn, where: str) -> None:
    if column.source.type_name in ("uuid", "name"):
        return
    row = connection.execute(_BYTE_ORDER, (oid, column.source.number)).fetchone()
    if column.source.type_name not in ("text", "varchar") or row is None or not row[0]:
        raise LakehouseError(
            f"{where}: no range of key column {column.source.name!r} ({column.source.declared_type}): the lake cannot "
            "follow its order in Postgres; leave the range out"
        )


def _printed(connection: SourceConnection, column: ComparedColumn, text: str, where: str) -> str:
    """The bound without the column's precision: it is compared, not stored."""
    value = f"SELECT {literal(text)}::pg_catalog.{ident(column.source.type_name)} AS {ident(column.source.name)}"
    floats = isinstance(column.lake_type, FloatType | DoubleType)
    try:
        query = f"SELECT {column.source.printed}, {canonical(column)} FROM ({value}) AS bound"
        row = connection.execute(query.encode()).fetchone()
        assert row is not None
        convert(pa.array([row[0]], pa.string()), source_type(column.source), "error")
    except (psycopg.DataError, ConversionError):
        raise LakehouseError(
            f"{where}: {text!r} is no bound for key column {column.source.name!r} ({column.source.declared_type})"
        ) from None
    return str(row[0] if floats else row[1])

"""The rows of a table at a consistent point, in ranges of its heap that are read by themselves."""

from collections.abc import Collection, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
import pyarrow as pa

from ingestion.schema.compared import Order
from ingestion.schema.evolve import source_type
from ingestion.schema.facts import ColumnFacts, TableFacts
from ingestion.schema.problem import TableProblem
from ingestion.schema.types import arrives_typed
from ingestion.sources.base import InTheWay
from ingestion.sources.postgres.points.point import BRIEFLY
from ingestion.sources.postgres.points.together import PAGE_BYTES
from ingestion.state.chunks import Chunk
from lakehouse.declarations import RawTable
from lakehouse.errors import LakehouseError
from lakehouse.servers.database import SourceConnection
from lakehouse.text.shown import shortened
from lakehouse.text.sql import ident, literal, relation

ROWS_AT_A_TIME = 10_000
NO_LOCK = "55P03"  # lock_not_available
_ORDERED: dict[Order, str] = {
    "value": "{name}", "bytes": '{printed} COLLATE "C"', "time of day": "{name} + interval '0'"
}  # fmt: skip


@dataclass(frozen=True)
class HeapReader:
    """Reads one range on the snapshot of a point. Travels by pickle; holds secrets."""

    source: str
    table: str
    url: str
    chunk: Chunk
    select: str
    select_text: str
    snapshot: str
    batch_bytes: int

    def rows(self, *, as_text: bool) -> Generator[pa.Table]:
        """The rows, values typed where their types allow that; raises TableProblem, LakehouseError."""
        import adbc_driver_postgresql.dbapi as adbc

        try:
            with on_snapshot(self.url, self.snapshot, self.batch_bytes) as cursor:
                cursor.execute(self.select_text if as_text else self.select)
                for batch in cursor.fetch_record_batch():
                    yield pa.Table.from_batches([batch])
        except (adbc.Error, OSError) as error:
            if is_for_a_lock(error):
                raise in_the_way(self.source, self.table) from None
            reason = reason_of(error)
            if "invalid byte sequence" in reason or is_of_the_table(error):
                raise refused(self.source, self.table, f"snapshot: {reason}", error) from None
            where = f"source {self.source!r}: snapshot of {'.'.join(self.chunk.relation)}"
            raise LakehouseError(f"{where}: {reason}") from None


@contextmanager
def on_snapshot(url: str, snapshot: str, batch_bytes: int) -> Iterator[Any]:
    """A cursor of ADBC whose statements see an exported snapshot.

    They wait for locks of tables for a moment alone. The point keeps the tables from being altered, so whoever is to
    be waited for waits for the point.
    """
    import adbc_driver_postgresql.dbapi as adbc

    with adbc.connect(url) as connection, connection.cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        cursor.execute(f"SET TRANSACTION SNAPSHOT {literal(snapshot)}")
        cursor.execute(BRIEFLY)
        cursor.adbc_statement.set_options(**{"adbc.postgresql.batch_size_hint_bytes": str(batch_bytes)})
        yield cursor


def is_for_a_lock(error: Exception) -> bool:
    """Whether a lock was not to be had in time."""
    return getattr(error, "sqlstate", None) == NO_LOCK


def in_the_way(source: str, table: str) -> InTheWay:
    """The error of a read at a point that waits for a lock."""
    return InTheWay(
        f"source {source!r}: {table} is read, and somebody waits to alter or to empty it: they go first; then run this "
        "again (nothing was lost)"
    )


def from_sql(chunk: Chunk) -> tuple[str, list[str]]:
    """What follows FROM, and the conditions that follow WHERE."""
    if chunk.first_page < 0:
        return relation(*chunk.relation), []
    bounds = [f"ctid >= {literal(f'({chunk.first_page},0)')}::tid"]
    if chunk.end_page is not None:
        bounds.append(f"ctid < {literal(f'({chunk.end_page},0)')}::tid")
    return f"ONLY {relation(*chunk.relation)}", bounds


def plan_chunks(connection: SourceConnection, source: str, facts: TableFacts, chunk_bytes: int) -> list[Chunk]:
    """Splits a table, or the leaves of a partitioned one, into page ranges of about `chunk_bytes`.

    Where the role may read the root alone (a partition that was attached later), or may not read `ctid`, the root is
    read in one piece; so is a root without partitions, for what a first chunk does beside reading. Raises InTheWay.
    """
    try:
        leaves = _leaves(connection, facts)
    except psycopg.errors.LockNotAvailable:
        raise in_the_way(source, ".".join(facts.relation)) from None
    if not leaves or not all(readable for *_, readable in leaves):
        return [Chunk(0, facts.relation, -1, None)]
    ranges = [(schema, name, *pages) for schema, name, size, _ in leaves for pages in page_ranges(size, chunk_bytes)]
    return [Chunk(number, (schema, name), first, end) for number, (schema, name, first, end) in enumerate(ranges)]


def _leaves(connection: SourceConnection, facts: TableFacts) -> list[tuple[str, str, int, bool]]:
    """Schema, name and bytes of each heap, and whether the role may read all of it; the size waits for locks."""
    with connection.transaction():
        connection.execute(BRIEFLY)
        return connection.execute(
            "SELECT n.nspname, c.relname, pg_relation_size(c.oid), (SELECT count(*) FROM pg_attribute a WHERE"
            " a.attrelid = c.oid AND a.attname = ANY(%(columns)s) AND has_column_privilege(c.oid, a.attnum, 'SELECT'))"
            " = cardinality(%(columns)s::text[]) FROM pg_class c JOIN pg_namespace n"
            " ON n.oid = c.relnamespace WHERE c.oid = %(oid)s AND c.relkind = 'r'"
            " OR c.oid IN (SELECT relid FROM pg_partition_tree(%(oid)s) WHERE isleaf) ORDER BY c.oid",
            {"oid": facts.oid, "columns": ["ctid", *(column.name for column in facts.columns)]},
        ).fetchall()


def check_readable(connection: SourceConnection, table: RawTable, facts: TableFacts) -> None:
    """Raises TableProblem for columns that the role may not read; those that came after `prepare`, as a rule."""
    found = connection.execute(
        "SELECT attname FROM pg_attribute WHERE attrelid = %s AND attname = ANY(%s)"
        " AND NOT has_column_privilege(attrelid, attnum, 'SELECT') ORDER BY attnum",
        (facts.oid, [column.name for column in facts.columns]),
    ).fetchall()
    if found:
        raise TableProblem(
            table.source,
            table.name,
            f"no SELECT right on column {', '.join(name for (name,) in found)} of {table.raw.relation}: run "
            f"`lakehouse prepare {table.source}`",
        )


def page_ranges(size: int, chunk_bytes: int) -> list[tuple[int, int | None]]:
    """Equal page ranges [first, end) that cover a heap of `size` bytes, of `chunk_bytes` at most; the last is open."""
    pages = max(1, size // PAGE_BYTES)
    count = -(-pages // max(1, chunk_bytes // PAGE_BYTES))
    starts = list(range(0, pages, -(-pages // count)))
    return [(first, starts[i + 1] if i + 1 < len(starts) else None) for i, first in enumerate(starts)]


def select_sql(facts: TableFacts, chunk: Chunk, typed: Collection[str] = ()) -> str:
    """The rows of a chunk, every value as the stream carries it; the columns named in `typed` come as they are."""
    columns = ", ".join(f"{ident(c.name) if c.name in typed else c.printed} AS {ident(c.name)}" for c in facts.columns)
    relations, bounds = from_sql(chunk)
    return f"SELECT {columns} FROM {relations} WHERE {' AND '.join(bounds) or 'true'}"


def ordered_rows(
    connection: SourceConnection,
    relation_name: tuple[str, str],
    columns: Sequence[ColumnFacts],
    order: Sequence[tuple[ColumnFacts, Order]],
) -> Iterator[Sequence[str | None]]:
    """All rows of a relation as text, in the order of some columns."""
    listed = ", ".join(column.printed for column in columns)
    by = ", ".join(_ORDERED[how].format(name=ident(column.name), printed=column.printed) for column, how in order)
    with connection.cursor(name="ordered") as cursor:
        cursor.itersize = ROWS_AT_A_TIME
        cursor.execute(f"SELECT {listed} FROM {relation(*relation_name)} ORDER BY {by}".encode())
        yield from cursor


def typed_columns(facts: TableFacts, masked: Collection[str]) -> frozenset[str]:
    """The columns that can arrive typed: of a built-in type itself, not of a domain, and landing as they are."""
    return frozenset(
        column.name
        for column in facts.columns
        if column.name not in masked and column.stream_oid == column.type_oid and arrives_typed(source_type(column))
    )


def is_of_the_table(error: Exception) -> bool:
    """Whether Postgres refuses this table alone: its data (SQLSTATE class 22), a right (42), or its size (54)."""
    return (getattr(error, "sqlstate", None) or "")[:2] in ("22", "42", "54")


def reason_of(error: Exception) -> str:
    """Postgres' own words, without what the driver puts before them."""
    first = str(error).strip().splitlines()[0]
    return shortened(first.rpartition("ERROR:")[2].strip(), 300)


def refused(source: str, table: str, what: str, error: Exception) -> TableProblem:
    """What to tell of it; a right that the role lacks, or a policy, may have come while the table was read."""
    if getattr(error, "sqlstate", None) == "42501":
        check, resume = f"`lakehouse prepare {source} --check`", f"`lakehouse ingest --resume {source}.{table}`"
        what = f"{what}: {check} says what the role needs; then {resume}"
    return TableProblem(source, table, what)

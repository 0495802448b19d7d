"""The benchmark's tables, their changes, and the comparison with the lake after each run.

Tables named `narrow...` have three columns, those named `wide...` have twenty of common types.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import psycopg

from lakehouse.declarations import Column, Declarations, RawTable, Source
from lakehouse.declarations.policies import LoadPolicy, RawPolicy
from lakehouse.errors import LakehouseError
from lakehouse.servers.trino import query
from lakehouse.settings import Settings

VERIFIED_AT_ONCE = 500_000
SOURCE = "payroll"  # the sample database that the benchmark's tables live in


@dataclass(frozen=True)
class BenchColumn:
    """A column: its type, its value for row `i`, and expressions that give the same text in Postgres and Trino."""

    name: str
    type: str
    value: str
    postgres: str
    trino: str


def _plain(name: str, type_: str, value: str) -> BenchColumn:
    return BenchColumn(name, type_, value, f"{name}::text", f"cast({name} as varchar)")


def _moment(name: str, type_: str, value: str) -> BenchColumn:
    millis = f"(extract(epoch from {name}) * 1000)::bigint::text"
    at = f"{name} at time zone 'UTC'" if type_ == "timestamptz" else name
    return BenchColumn(
        name, type_, value, millis,
        f"cast(date_diff('millisecond', timestamp '1970-01-01 00:00:00', cast({at} as timestamp(6))) as varchar)",
    )  # fmt: skip


NARROW = (
    _plain("id", "bigint", "i"),
    _plain("name", "text", "'name ' || i"),
    _plain("amount", "numeric(12,2)", "i * 0.01"),
)
WIDE = (
    _plain("id", "bigint", "i"),
    _plain("a1", "int", "(i * 7) % 100000"),
    _plain("a2", "int", "i % 97"),
    _plain("a3", "bigint", "i * 1000003"),
    _plain("a4", "smallint", "i % 30000"),
    _plain("n1", "numeric(12,2)", "i * 0.01"),
    _plain("n2", "numeric(12,2)", "(i * 3) % 99999 * 0.01"),
    _plain("n3", "numeric(18,4)", "i * 0.0001"),
    _plain("n4", "numeric(10,3)", "(i % 1000000) * 0.001"),
    _moment("t1", "timestamptz", "timestamptz '2024-01-01Z' + i * interval '1 second'"),
    _moment("t2", "timestamp", "timestamp '2023-01-01' + i * interval '1 minute'"),
    _moment("t3", "timestamptz", "timestamptz '2025-01-01Z' + i * interval '17 ms'"),
    _plain("d1", "date", "date '2020-01-01' + (i % 2000)::int"),
    _plain("b1", "boolean", "i % 2 = 0"),
    _plain("s1", "text", "'name ' || i"),
    _plain("s2", "text", "'city ' || i % 500"),
    _plain("s3", "varchar(40)", "'code-' || i % 10000"),
    _plain("s4", "text", "'a somewhat longer text of row ' || i || ' with words'"),
    _plain("u1", "uuid", "md5(i::text)::uuid"),
    BenchColumn("f1", "double precision", "i / 7.0::float8", "floor(f1 * 1000)::bigint::text",
            "cast(cast(floor(f1 * 1000) as bigint) as varchar)"),
)  # fmt: skip


def columns_of(table: str) -> tuple[BenchColumn, ...]:
    """The columns of one of the benchmark's tables."""
    return NARROW if table.startswith("narrow") else WIDE


def create(table: str) -> str:
    """The DDL of a table with a primary key."""
    listed = ", ".join(f"{c.name} {c.type}{' PRIMARY KEY' if c.name == 'id' else ''}" for c in columns_of(table))
    return f"CREATE TABLE {table} ({listed})"


def insert(table: str, first: int, last: int) -> str:
    """A statement that inserts the rows first to last, inclusive."""
    values = ", ".join(c.value for c in columns_of(table))
    return f"INSERT INTO {table} SELECT {values} FROM generate_series({first}::bigint, {last}::bigint) i"


def mixed(tables: Sequence[str], first: int, transactions: int) -> str:
    """A statement that changes wide tables in turn: transactions of six inserts, three updates and one delete."""
    cases = " ".join(
        f"WHEN {number} THEN {insert(table, 0, 5).replace('0::bigint, 5::bigint', 'k, k + 5')}; "
        f"UPDATE {table} SET n1 = n1 + 1, s1 = s1 || 'x', t3 = t3 + interval '1 s' WHERE id BETWEEN k AND k + 2; "
        f"DELETE FROM {table} WHERE id = k + 5;"
        for number, table in enumerate(tables)
    )
    return (
        f"DO $$ DECLARE k bigint; BEGIN FOR x IN 0..{transactions - 1} LOOP k := {first} + x * 6;"
        f" CASE x % {len(tables)} {cases} END CASE; COMMIT; END LOOP; END $$"
    )


def declared(keys: Mapping[str, tuple[str, ...]]) -> Declarations:
    """A declaration of tables with these keys in the sample database."""
    raw = tuple(
        RawTable(
            source=SOURCE, name=name, description="",
            columns=tuple(Column(name=column, data_type=None, description="") for column in key),
            raw=RawPolicy(relation=f"public.{name}", key=key), load=LoadPolicy(), maintenance=None, owners=(),
        )
        for name, key in keys.items()
    )  # fmt: skip
    return Declarations(sources=(Source(name=SOURCE, description="", load=LoadPolicy(), tables=raw),))


def verify(settings: Settings, connection: psycopg.Connection, *tables: str) -> None:
    """Compares all columns of the newest version of each key in the raw layer with the source table.

    Compares counts and sums of 32 bits of each row's md5, in ranges of ids that fit into Trino's memory. Raises
    LakehouseError that names the table and range that differ.
    """
    for table in tables:
        last = connection.execute(f"SELECT coalesce(max(id), 0) FROM {table}").fetchone()
        assert last is not None
        for first in range(0, last[0] + 1, VERIFIED_AT_ONCE):
            _verify_range(settings, connection, table, f"id BETWEEN {first} AND {first + VERIFIED_AT_ONCE - 1}")


def _verify_range(settings: Settings, connection: psycopg.Connection, table: str, ids: str) -> None:
    columns = columns_of(table)
    source_text, lake_text = (", ".join(getattr(c, side) for c in columns) for side in ("postgres", "trino"))
    expected = connection.execute(
        f"SELECT count(*), coalesce(sum(('x' || left(md5(concat_ws('|', {source_text})), 8))::bit(32)::bigint), 0)"
        f" FROM {table} WHERE {ids}"
    ).fetchone()
    assert expected is not None
    events = (
        f"SELECT *, row_number() OVER (PARTITION BY id ORDER BY _commit_lsn DESC, _seq DESC) AS n,"
        f" count(*) OVER (PARTITION BY id, _commit_lsn, _seq) AS times FROM raw_{SOURCE}.{table} WHERE {ids}"
    )
    hashed = f"from_base(substr(lower(to_hex(md5(to_utf8(concat_ws('|', {lake_text}))))), 1, 8), 16)"
    kept = "n = 1 AND _op <> 'd'"
    rows, digest, times = query(
        settings,
        f"SELECT count_if({kept}), coalesce(sum({hashed}) FILTER (WHERE {kept}), 0), coalesce(max(times), 1)"
        f" FROM ({events})",
    )[0]
    if (int(rows), int(digest)) != tuple(map(int, expected)) or times != 1:
        raise LakehouseError(
            f"{table}, {ids}: the source has {tuple(expected)}, the lake {(rows, digest)}, {times} times"
        )

"""What the worker writes of rows that Trino has read, against what Trino writes itself."""

from collections.abc import Iterator
from contextlib import closing
from types import SimpleNamespace

import pyarrow as pa
import pytest
from trino.exceptions import TrinoQueryError

from lakehouse.catalog.open import open_catalog
from lakehouse.catalog.writing.appending import Append, append_all
from lakehouse.servers.database import connect_catalog
from lakehouse.servers.trino import query
from lakehouse.settings import Settings
from orchestration.worker.loads.loads import columns_of
from orchestration.worker.loads.rows import Rows, one_statement, relation_of, texts, values
from tests.unit.dbt_macros import macro

pytestmark = pytest.mark.stack
SCHEMA = "small_loads"
TYPES = {
    "t": "varchar", "i": "integer", "n": "bigint", "b": "boolean", "r": "real", "x": "double", "d": "decimal(38, 10)",
    "day": "date", "at": "timestamp(6) with time zone", "local": "timestamp(6)", "raw": "varbinary",
    "list": "array(varchar)",
}  # fmt: skip
ROWS = [
    ["'it''s \\ \"ü\" 😀' || chr(10) || chr(0)", "2147483647", "9223372036854775807", "true", "real '0.1'", "0.1e0",
     "9999999999999999999999999999.9999999999", "date '9999-12-31'", "timestamp '9999-12-31 23:59:59.999999 UTC'",
     "timestamp '9999-12-31 23:59:59.999999'", "X'00ff27'", "array['a', null, '\"']"],
    ["''", "-2147483648", "-9223372036854775807 - 1", "false", "real '-3.4028235E38'", "4.9e-324",
     "-0.0000000001", "date '0001-01-01'", "timestamp '2026-11-24 01:02:03.000004 Europe/Berlin'",
     "timestamp '0001-01-01 00:00:00.000000'", "X''", "array[]"],
    ["'3'", "0", "0", "null", "cast(nan() as real)", "infinity()", "0", "date '1969-12-31'",
     "timestamp '1969-12-31 23:59:59.5 UTC'", "timestamp '1970-01-01 00:00:00.000001'", "null", "null"],
    ["'4'", *["null"] * (len(TYPES) - 1)],
]  # fmt: skip


@pytest.fixture
def schema(settings: Settings) -> Iterator[str]:
    """A schema with two tables of all types, `trino` and `worker`."""
    query(settings, f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}")
    for table in ("trino", "worker"):
        columns = ", ".join(f"{name} {kind}" for name, kind in TYPES.items())
        query(
            settings, f"CREATE OR REPLACE TABLE {SCHEMA}.{table} ({columns}) WITH (partitioning = ARRAY['month(at)'])"
        )
    yield SCHEMA
    query(settings, f"DROP SCHEMA {SCHEMA} CASCADE")


def assert_same(settings: Settings, *queries: str) -> None:
    for one, other in (queries, queries[::-1]):
        assert not query(settings, f"({one}) EXCEPT ({other})")


def test_values_of_every_type_are_written_and_handed_over_as_trino_has_them(settings: Settings, schema: str) -> None:
    rows = ", ".join(f"({', '.join(row)})" for row in ROWS)
    read = f"SELECT * FROM (VALUES {rows}) AS v ({', '.join(TYPES)})"
    query(settings, f"INSERT INTO {schema}.trino {read}")
    with closing(open_catalog(settings)) as catalog, closing(connect_catalog(settings)) as connection:
        table = catalog.load_table((schema, "worker"))
        columns = [(name, kind) for name, kind, _ in columns_of({(schema, "worker"): table})[f"{schema}.worker"]]
        found = [row for _, row in query(settings, one_statement({"all": (read, columns)}))]
        stored = texts(columns, catalog.load_table((schema, "trino")).scan().to_arrow().to_pylist())
        for text in (found, stored):
            handed = relation_of(Rows(columns, text))
            assert_same(settings, f"TABLE {schema}.trino", handed)
            types = ", ".join(f"typeof({name})" for name, _ in columns)
            assert query(settings, f"SELECT {types} FROM ({handed})")[0] == [kind for _, kind in columns]
        made = pa.Table.from_pydict(values(columns, found), schema=table.schema().as_arrow())
        assert append_all(connection, catalog, [Append(table, made)])
    assert_same(settings, f"TABLE {schema}.trino", f"TABLE {schema}.worker")
    counted = 'SELECT json_format(cast(partition AS json)), record_count FROM {}."{}$partitions" ORDER BY 1, 2'
    assert query(settings, counted.format(schema, "worker")) == query(settings, counted.format(schema, "trino"))


class Relation(SimpleNamespace):
    """As dbt's: SQL has its name."""

    def __str__(self) -> str:
        return f"{self.schema}.{self.identifier}"


def test_a_statement_refuses_a_batch_that_breaks_a_test_and_inserts_none_of_it(settings: Settings, schema: str) -> None:
    """It would be in the vault, and marts would wait, until somebody mended it."""
    relation = Relation(schema=schema, identifier="sat")
    columns = [SimpleNamespace(name="hk", type="varchar"), SimpleNamespace(name="source_seq", type="varchar")]
    checks = {"once": [["hk", "source_seq"]], "given": ["hk"]}

    def insert(rows: str) -> None:
        batch = macro("refusing_batch")(relation, checks, f"SELECT * FROM (VALUES {rows}) AS t (hk, source_seq)")
        query(settings, macro("insert_columns")(relation, columns, batch))

    query(settings, f"CREATE TABLE {relation} (hk varchar, source_seq varchar)")
    insert("('x', '1'), ('x', '2'), ('y', '1')")
    for rows, problem in {
        "('z', '1'), (NULL, '1')": "hk is not given",
        "('z', '1'), ('z', '1')": "twice: z, 1",
    }.items():
        with pytest.raises(TrinoQueryError, match=f"no new row gets into {schema}.sat, because one has .*{problem}"):
            insert(rows)
    assert query(settings, f"SELECT count(*) FROM {relation}") == [[3]]

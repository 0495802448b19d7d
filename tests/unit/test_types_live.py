"""Values of every type through a real Postgres 18 and the decoder, against what the database itself says they are.

The oracle is not the text: the database computes typed values (days, microseconds, numbers, bytes) and psycopg reads
them in binary. Types that stay text are compared with what the type's output function prints in a query.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import psycopg
import pyarrow as pa
import pytest
from pgoutput_record import PINNED, SLOT, peek, scratch_database
from pgoutput_support import decode
from throwaway_postgres import throwaway_postgres

from ingestion.schema.types import SourceType, convert, printed, target_type
from ingestion.schema.types.model import Form
from ingestion.schema.types.table import RULES
from tests.type_values import ORACLE, SETUP, VALUES, exact, plain

pytestmark = pytest.mark.stack

RESOLVE = """
WITH RECURSIVE step(oid, typmod) AS (
    SELECT atttypid, atttypmod FROM pg_attribute WHERE attrelid = %s::regclass AND attname = 'v'
    UNION ALL
    SELECT t.typbasetype, t.typtypmod FROM step JOIN pg_type t ON t.oid = step.oid WHERE t.typtype = 'd'
)
SELECT t.oid, t.typname, step.typmod, t.typtype::text
FROM step JOIN pg_type t ON t.oid = step.oid WHERE t.typtype <> 'd'
"""


@dataclass(frozen=True)
class Seen:
    """A type's column as the decoder gave it, its facts, and a connection to ask the oracle."""

    texts: pa.Array
    source: SourceType
    table: str
    connection: psycopg.Connection


@pytest.fixture(scope="module")
def seen() -> Iterator[dict[str, Seen]]:
    with (
        throwaway_postgres() as url,
        scratch_database(url) as database,
        psycopg.connect(database, autocommit=True) as connection,
    ):
        for statement in SETUP:
            connection.execute(statement)
        connection.execute("CREATE PUBLICATION p FOR TABLES IN SCHEMA s")
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [SLOT])
        for number, (name, expressions) in enumerate(VALUES.items()):
            connection.execute(f"CREATE TABLE s.t{number} (id serial PRIMARY KEY, v {name})")
            for expression in [*expressions, "NULL"]:
                connection.execute(f"INSERT INTO s.t{number} (v) SELECT ({expression})::{name}")
        batches = {batch.relation.name: batch for batch in decode(peek(connection))}
        yield {
            name: Seen(
                batches[f"t{number}"].values.column("v").combine_chunks(),
                _source(connection, f"s.t{number}"),
                f"s.t{number}",
                connection,
            )
            for number, name in enumerate(VALUES)
        }


def _source(connection: psycopg.Connection, table: str) -> SourceType:
    return SourceType(*connection.execute(RESOLVE, [table]).fetchone())  # type: ignore[misc]


@pytest.mark.parametrize("name", VALUES)
def test_value_in_the_lake_is_the_value_in_the_source(name: str, seen: dict[str, Seen]) -> None:
    case = seen[name]
    target = target_type(case.source)
    converted = convert(case.texts, case.source, "null")
    assert converted.array.type == target.arrow
    query = f"SELECT {ORACLE[target.form]} FROM {case.table} ORDER BY id"
    expected = [row[0] for row in case.connection.execute(query, binary=target.form is not Form.TEXT)]
    assert len(expected) == len(VALUES[name]) + 1
    assert [exact(value) for value in plain(converted.array)] == [exact(value) for value in expected]


def test_a_domain_brings_its_precision(seen: dict[str, Seen]) -> None:
    assert str(target_type(seen["s.dear"].source).iceberg) == "decimal(12, 2)"
    converted = convert(seen["s.price"].texts, seen["s.price"].source, "null")
    assert (converted.unrepresentable, converted.texts.to_pylist()) == (1, ["NaN"])


def test_every_rule_is_what_postgres_calls_the_type(seen: dict[str, Seen]) -> None:
    connection = seen["text"].connection
    names = dict(connection.execute("SELECT oid, typname FROM pg_type WHERE oid < 16384").fetchall())
    assert {rule.oid: names[rule.oid] for rule in RULES} == {rule.oid: rule.name for rule in RULES}


def test_every_rule_but_xml_has_values_here(seen: dict[str, Seen]) -> None:
    """The packaged Postgres is built without libxml."""
    assert {rule.oid for rule in RULES} - {case.source.oid for case in seen.values()} == {142}


@pytest.mark.parametrize("name", ["date", "timestamp", "timestamptz"])
def test_random_and_odd_days_clamp_to_the_nearest_bound(name: str, seen: dict[str, Seen]) -> None:
    connection = seen[name].connection
    days = "(date '4713-01-01 BC' + (random(0, 20000000) || ' days')::interval)"
    odd = "'infinity', '-infinity', '0001-12-31 BC', '10000-01-01', '4713-01-01 BC'"
    rows = connection.execute(
        f"""WITH v AS MATERIALIZED (SELECT {days}::{name} AS v FROM generate_series(1, 3000)
                       UNION ALL SELECT unnest(ARRAY[{odd}]::{name}[]))
            SELECT v::text, least(greatest(v, '0001-01-01 00:00+00'::{name}), '9999-12-31 23:59:59.999999+00'::{name}),
                   v < '0001-01-01 00:00+00' OR v > '9999-12-31 23:59:59.999999+00' FROM v"""
    ).fetchall()
    converted = convert(pa.array([row[0] for row in rows]), seen[name].source, "clamp")
    assert converted.array.to_pylist() == [row[1] for row in rows]
    assert converted.rows.to_pylist() == [index for index, row in enumerate(rows) if row[2]]
    assert 0 < converted.unrepresentable < 3000


def test_random_numbers(seen: dict[str, Seen]) -> None:
    connection = seen["text"].connection
    rows = connection.execute(
        """SELECT n::text, n, f::text, f, r::text, r::float8 FROM (
             SELECT (random() * 10 ^ random(-5, 25))::numeric(38,10) AS n, random() * 10 ^ random(-300, 300) AS f,
                    (random() * 10 ^ random(-35, 35))::real AS r FROM generate_series(1, 3000)) x"""
    ).fetchall()
    numeric = SourceType(1700, "numeric", ((38 << 16) | 10) + 4)
    for source, text, value in ((numeric, 0, 1), (SourceType(701, "float8"), 2, 3), (SourceType(700, "float4"), 4, 5)):
        read = convert(pa.array([row[text] for row in rows]), source).array
        assert read.to_pylist() == [row[value] for row in rows]


def test_the_pinned_settings_are_those_the_reader_expects() -> None:
    for setting in ("datestyle=ISO", "timezone=UTC", "bytea_output=hex", "extra_float_digits=1"):
        assert f"-c {setting}" in PINNED


@pytest.mark.parametrize("name", VALUES)
def test_a_typed_value_is_printed_as_the_source_printed_it(name: str, seen: dict[str, Seen]) -> None:
    case = seen[name]
    converted = convert(case.texts, case.source, "null")
    replaced = set(converted.rows.to_pylist())
    texts = [None if n in replaced else text for n, text in enumerate(case.texts.to_pylist())]
    assert printed(converted.array, case.source).to_pylist() == texts
    assert printed(case.texts, case.source).to_pylist() == case.texts.to_pylist()


@pytest.mark.parametrize("kind", ["real", "double precision"])
def test_random_numbers_are_printed_as_postgres_prints_them(kind: str, seen: dict[str, Seen]) -> None:
    """Beyond 2 ^ 24 and 2 ^ 53 a shorter text may lie half way between two numbers, which Postgres does not print."""
    digits, last = (24, 127) if kind == "real" else (53, 1023)
    query = f"""SELECT n::text FROM (
      SELECT (floor(random() * 2.0 ^ {digits}) * 2.0 ^ random(-3, 8))::{kind} AS n FROM generate_series(1, 9999)
      UNION ALL SELECT (random() * 2.0 ^ random(-120, 120))::{kind} FROM generate_series(1, 5000)
      UNION ALL SELECT (2.0::float8 ^ n)::{kind} FROM generate_series(-126, {last}) n) x"""
    rows = seen["text"].connection.execute(query).fetchall()
    texts = pa.array([text for (text,) in rows])
    source = seen[kind].source
    assert printed(convert(texts, source).array, source).equals(texts)

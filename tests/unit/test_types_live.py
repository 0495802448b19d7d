"""Values of every type through a real Postgres 18 and the decoder, against what the database itself says they are.

The oracle is not the text: the database computes typed values (days, microseconds, numbers, bytes) and psycopg reads
them in binary. Types that stay text are compared with what the type's output function prints in a query.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from pgoutput_record import PINNED, SLOT, peek, scratch_database
from pgoutput_support import decode
from throwaway_postgres import throwaway_postgres

from ingestion.types import SourceType, convert, target_type
from ingestion.types.model import Form
from ingestion.types.table import RULES

pytestmark = pytest.mark.stack

# type -> SQL expressions of values; a NULL is added to each
VALUES: dict[str, list[str]] = {
    "boolean": ["true", "false"],
    "smallint": ["-32768", "32767", "0"],
    "integer": ["-2147483648", "2147483647"],
    "bigint": ["-9223372036854775808", "9223372036854775807"],
    "oid": ["4294967295", "0"],
    "xid": ["'4294967295'"],
    "cid": ["'4294967295'"],
    "real": ["'NaN'", "'Infinity'", "'-Infinity'", "'-0'", "3.4028235e38", "1e-45", "0.1", "1234567.9"],
    "double precision": ["'NaN'", "'Infinity'", "'-0'", "1.7976931348623157e308", "5e-324", "0.1", "1e15", "1e16"],
    "numeric": ["'NaN'", "'-Infinity'", "1e100", "0.000000001", "-12.3400"],
    "numeric(12,2)": ["9999999999.99", "-0.01", "0", "1.005"],
    "numeric(38,10)": ["9999999999999999999999999999.9999999999", "-1e-10"],
    "numeric(38,0)": ["99999999999999999999999999999999999999"],
    "numeric(50,5)": ["123456789012345678901234567890123456789012345.12345"],
    "numeric(3,-2)": ["99949", "-150", "49"],
    "numeric(3,5)": ["0.00999", "-0.00001"],
    "date": ["'0001-01-01'", "'9999-12-31'", "'1582-10-10'", "'1970-01-01'", "'2024-02-29'"],
    "timestamp": ["'0001-01-01'", "'9999-12-31 23:59:59.999999'", "'1582-10-10 1:2:3.4'", "'1969-12-31 23:59:59.9'"],
    "timestamp(3)": ["'2024-01-02 03:04:05.678'"],
    "timestamptz": ["'0001-01-01 00:00:00+00'", "'2024-03-31 02:30:00+02'", "'1890-01-01 12:00:00 Europe/Prague'"],
    "time": ["'00:00:00'", "'24:00:00'", "'23:59:59.999999'", "'04:05:06.7'"],
    "timetz": ["'04:05:06.789+05:30'", "'24:00:00-08'"],
    "bytea": ["''", "'\\x00ff5c'", "decode('deadbeef', 'hex')", "convert_to('žluť', 'UTF8')"],
    "text": ["''", "E'\\\\N'", "E'q\"''\\t\\n\\r\\\\'", "'NULL'", "repeat('x', 1000000)", "'🐎 žluť'"],
    "varchar(10)": ["'a '", "''"],
    "char(5)": ["'ab'", "''"],
    '"char"': ["'a'", "''"],
    "name": ["'n'"],
    "uuid": ["'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'"],
    "json": ["""'{"b": 1,  "a": [null, "\\u017e"]}'"""],
    "jsonb": ["""'{"b": 1,  "a": [null, 1.50], "a": 2}'"""],
    "jsonpath": ["'$.a[*] ? (@ > 1)'"],
    "money": ["'-12345.67'"],
    "interval": ["'1 year 2 mons -3 days 04:05:06.789'", "'-1 day'", "'infinity'"],
    "inet": ["'10.1.2.3/8'", "'::1'"],
    "cidr": ["'10.0.0.0/8'"],
    "macaddr": ["'08:00:2b:01:02:03'"],
    "macaddr8": ["'08:00:2b:01:02:03:04:05'"],
    "bit(5)": ["'10101'"],
    "varbit": ["'1'", "''"],
    "tsvector": ["to_tsvector('english', 'the fat cats'' ate')"],
    "tsquery": ["'fat & !rat'"],
    "point": ["'(1.5,-2)'"],
    "lseg": ["'((0,0),(1,1))'"],
    "path": ["'[(0,0),(1,1)]'"],
    "box": ["'((1,1),(0,0))'"],
    "polygon": ["'((0,0),(1,1),(1,0))'"],
    "line": ["'{1,2,3}'"],
    "circle": ["'<(1,2),3>'"],
    "pg_lsn": ["'16/B374D848'"],
    "xid8": ["'18446744073709551615'"],
    "tid": ["'(1,2)'"],
    "txid_snapshot": ["'10:20:10,14'"],
    "pg_snapshot": ["'10:20:10,14'"],
    "integer[]": ["'{{1,NULL},{3,4}}'", "'{}'", "'[2:3]={1,2}'"],
    "text[]": ["ARRAY['a,b', 'q\"', '', NULL, 'NULL']"],
    "numeric(12,2)[]": ["'{1.5,NaN}'"],
    "s.mood": ["'sad'", "'so-so, \"x\"'"],
    "s.mood[]": ["'{sad,sad}'"],
    "s.price": ["1.5", "'NaN'"],
    "s.dear": ["2.25"],
    "s.pair": ["ROW(1, 'a,\"b')", "ROW(NULL, '')"],
    "int4range": ["'[1,5]'", "'empty'", "'(,)'"],
    "tstzrange": ["'[2024-01-01 00:00:00+01,)'"],
    "int4multirange": ["'{[1,3),[5,9)}'"],
}  # fmt: skip
SETUP = (
    "CREATE SCHEMA s",
    "CREATE TYPE s.mood AS ENUM ('sad', 'so-so, \"x\"')",
    "CREATE DOMAIN s.price AS numeric(12,2)",
    "CREATE DOMAIN s.dear AS s.price CHECK (VALUE > 1)",
    "CREATE TYPE s.pair AS (x int, y text)",
)
RESOLVE = """
WITH RECURSIVE step(oid, typmod) AS (
    SELECT atttypid, atttypmod FROM pg_attribute WHERE attrelid = %s::regclass AND attname = 'v'
    UNION ALL
    SELECT t.typbasetype, t.typtypmod FROM step JOIN pg_type t ON t.oid = step.oid WHERE t.typtype = 'd'
)
SELECT t.oid, t.typname, step.typmod, t.typtype::text
FROM step JOIN pg_type t ON t.oid = step.oid WHERE t.typtype <> 'd'
"""
ORACLE = {
    Form.INTEGER: "v::text::bigint",
    Form.FLOAT: "v::float8",
    Form.DECIMAL: "nullif(v, 'NaN')",
    Form.BOOLEAN: "v",
    Form.DATE: "v - date '1970-01-01'",
    Form.TIMESTAMP: "(extract(epoch FROM v) * 1000000)::bigint",
    Form.TIMESTAMPTZ: "(extract(epoch FROM v) * 1000000)::bigint",
    Form.TIME: "(extract(epoch FROM v) * 1000000)::bigint",
    Form.BYTES: "v",
    Form.TEXT: "CASE WHEN num_nulls(v) = 0 THEN format('%s', v) END",  # as printed; a cast may differ: char(n), inet
}


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
    assert [_exact(value) for value in _plain(converted.array)] == [_exact(value) for value in expected]


def _plain(array: pa.Array) -> list[Any]:
    if pa.types.is_date32(array.type):
        return array.cast(pa.int32()).to_pylist()
    if pa.types.is_timestamp(array.type):
        return array.cast(pa.int64()).to_pylist()
    return array.to_pylist()


def _exact(value: Any) -> Any:
    """Floats to the bit, decimals with their digits."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value.hex()
    return Decimal(value).normalize() if isinstance(value, Decimal) else value


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

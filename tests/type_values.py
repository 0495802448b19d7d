"""Values of every type as SQL expressions, and what the database itself says they are in the lake's terms."""

import math
from decimal import Decimal
from typing import Any

import pyarrow as pa

from ingestion.schema.types.model import Form

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
    "s.feeling": ["'sad'", "'so-so, \"x\"'"],
    "s.feeling[]": ["'{sad,NULL}'"],
    "s.moods": ["'{sad,sad}'"],
    "s.span": ["'[1,5]'", "'empty'"],
    "s.couple": ["ROW(1, 'a,\"b')"],
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
    "CREATE DOMAIN s.feeling AS s.mood",
    "CREATE DOMAIN s.moods AS s.mood[]",
    "CREATE DOMAIN s.span AS int4range",
    "CREATE DOMAIN s.couple AS s.pair",
)
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


def plain(array: pa.Array) -> list[Any]:
    if pa.types.is_date32(array.type):
        return array.cast(pa.int32()).to_pylist()
    if pa.types.is_timestamp(array.type):
        return array.cast(pa.int64()).to_pylist()
    return array.to_pylist()


def exact(value: Any) -> Any:
    """Floats to the bit, decimals with their digits."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value.hex()
    return Decimal(value).normalize() if isinstance(value, Decimal) else value

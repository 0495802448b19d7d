"""A table with a column of every type that Debezium sends, and what SQL on the database says the lake has of each."""

import json
import random
from collections.abc import Iterator
from typing import Any

from lakehouse.catalog.open import load_table, open_catalog
from tests.brokers import Topics
from tests.world import World, position

ZOO = {
    "id": "integer", "i2": "smallint", "i8": "bigint", "b": "boolean", "f4": "real", "f8": "double precision",
    "n": "numeric", "n5": "numeric(5,1)", "wide": "numeric(38,10)", "t": "text", "vc": "varchar(10)", "ch": "char(5)",
    "d": "date", "ts": "timestamp", "ts3": "timestamp(3)", "tz": "timestamptz", "tm": "time", "tm3": "time(3)",
    "by": "bytea", "u": "uuid", "j": "json", "jb": "jsonb", "m": "text", "ip": "inet", "o": "oid", "r": "text",
    "bi": "bit(1)", "bs": "bit(9)", "ai": "text", "at": "text", "af": "text", "au": "text",
    "iv": "text", "mo": "numeric(19,2)", "h": "text",
}  # fmt: skip
ZOO_DDL = """
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE TABLE zoo (id int PRIMARY KEY, i2 smallint, i8 bigint, b boolean, f4 real, f8 double precision, n numeric,
    n5 numeric(5,1), wide numeric(38,10), t text NOT NULL DEFAULT 'x"y', vc varchar(10), ch char(5), d date,
    ts timestamp, ts3 timestamp(3), tz timestamptz, tm time, tm3 time(3), by bytea, u uuid, j json, jb jsonb, m mood,
    ip inet, o oid, r int4range, bi bit(1), bs bit(9), ai int[], at text[], af float8[], au uuid[],
    iv interval, mo money, h text)
"""
VALUES = {
    "i2": ("-3", "32767"), "i8": ("9007199254740993", "-9223372036854775808"), "b": ("true", "false"),
    "f4": ("1.1", "3.4e38", "'NaN'", "1e-45", "16777217", "0"), "f8": ("0.1", "1e300", "'-Infinity'", "5e-324", "1e7"),
    "n": ("123456789012345678901234567890.05", "-0.001", "7", "100"), "n5": ("1234.5", "-0.1", "0"),
    "wide": ("1234567890123456789.0123456789", "-1e-10"), "t": ("E'a\"b\\\\\\\\ü\\n'", "''", "repeat('é', 3000)"),
    "vc": ("'vc'",), "ch": ("'ch'",), "d": ("'2026-11-24'", "'infinity'", "'0044-03-15 BC'", "'12026-01-01'"),
    "ts": ("'2026-11-24 01:02:03.123456'", "'-infinity'", "'0044-03-15 01:00 BC'"), "ts3": ("'2026-11-24 01:02:03.5'",),
    "tz": ("'2026-11-24 01:02:03.123456+02'", "'infinity'", "'12026-01-01 00:00+00'"),
    "tm": ("'01:02:03.123456'", "'24:00'"),
    "tm3": ("'01:02:03.123'",), "by": ("'\\x00ff10'", "''"), "u": ("gen_random_uuid()",), "j": ("'{\"a\": 1.50}'",),
    "jb": ("'{\"b\": 1, \"a\": [null, \"é\"]}'",), "m": ("'ok'",), "ip": ("'10.0.0.1/8'",), "o": ("4294967295",),
    "r": ("'[1,5)'",), "bi": ("B'1'", "B'0'"), "bs": ("B'100000001'",),
    "ai": ("'{1,NULL,3}'", "'{}'"),
    "at": ("'{a,NULL,\"b,c\"}'",), "af": ("'{1e10,0.001,1e-5,1234567.5,0.1}'",), "au": ("ARRAY[gen_random_uuid()]",),
    "iv": ("'1 mon 2 days 03:04:05.678'",), "mo": ("12.34::numeric::money",), "h": ("'plain'",),
}  # fmt: skip
_IN_RANGE = "CASE WHEN {0} BETWEEN '0001-01-01' AND '9999-12-31 23:59:59.999999' THEN {1} END"
_JSON = "array_to_json({0})::text"
_PARTS = [f"extract({part} from {{0}})::int || '{letter}'" for part, letter in
          (("year", "Y"), ("month", "M"), ("day", "DT"), ("hour", "H"), ("minute", "M"))]  # fmt: skip
SQL = {  # by column, what Postgres prints of it as the lake has it; those that are not here are the same
    "f4": "{0}::float8", "n": "trim_scale({0})::text", "u": "{0}::text", "j": "{0}::text", "jb": "{0}::text",
    "m": "{0}::text", "ip": "{0}::text", "o": "{0}::bigint", "r": "{0}::text", "bi": "{0}::text", "bs": "{0}::text",
    "mo": "{0}::numeric(19,2)", "tm": "(extract(epoch FROM {0}) * 1000000)::bigint",
    "tm3": "(extract(epoch FROM {0}) * 1000000)::bigint", "d": _IN_RANGE.format("{0}", "{0}::text"),
    "ts": _IN_RANGE.format("{0}", "{0}"), "tz": _IN_RANGE.format("{0}", "{0} AT TIME ZONE 'UTC'"), "ai": _JSON,
    "at": _JSON, "af": _JSON, "au": _JSON,
    "iv": f"'P' || {' || '.join(_PARTS)} || trim_scale(extract(second FROM {{0}}))::text || 'S'",
}  # fmt: skip
OUTSIDE = """
SELECT id, c, v FROM zoo, LATERAL (VALUES ('d', d::text, d < '0001-01-01' OR d > '9999-12-31'),
  ('ts', ts::text, ts < '0001-01-01' OR ts >= '10000-01-01'),
  ('tz', (tz AT TIME ZONE 'UTC')::text || '+00', tz < '0001-01-01+00' OR tz >= '10000-01-01+00')
) AS found (c, v, is_outside) WHERE is_outside
"""


def zoo_rows(count: int, seed: int, first: int = 1, read_first: bool = False) -> Iterator[str]:
    """Statements that insert so many rows. Debezium's first read has a day before Christ as the same day after, and
    `infinity` as a day that is too early: a row that is `read_first` has neither. An array of floats is never NULL:
    where an update says so, Debezium may have left it out."""
    chance = random.Random(seed)
    for number in range(first, first + count):
        chosen = {
            name: chance.choice(values)
            for name, values in VALUES.items()
            if chance.random() < 0.8 or name in ("t", "af")
        }
        if read_first and chosen.get("d", "").endswith((" BC'", "infinity'")):
            del chosen["d"]
        names = ", ".join(["id", *chosen])
        yield f"INSERT INTO zoo ({names}) VALUES ({', '.join([str(number), *chosen.values()])})"


def in_source(world: World) -> list[str]:
    """Every value of every row, as the lake has it, by SQL on the database."""
    listed = ", ".join(SQL.get(column, "{0}").format(f'"{column}"') for column in ZOO)
    return sorted(str(tuple(map(_plain, ZOO, row))) for row in world.rows(f"SELECT {listed} FROM zoo"))


def in_lake(topics: Topics) -> list[str]:
    """The same of the lake."""
    rows = topics.current("zoo").values()
    return sorted(str(tuple(_plain(column, row[column]) for column in ZOO)) for row in rows)


def outside_in_source(world: World) -> set[tuple[Any, ...]]:
    """The values that no type of the lake holds, by key and column, as Postgres prints them."""
    return {(number, column, _without_zone(text)) for number, column, text in world.rows(OUTSIDE)}


def outside_in_lake(topics: Topics) -> set[tuple[Any, ...]]:
    """The same of the lake: they are kept beside the rows, which have NULL."""
    catalog = open_catalog(topics.settings)
    try:
        table = load_table(catalog, "meta", "unrepresentable")
        kept = table.scan().to_arrow().to_pylist() if table else []
    finally:
        catalog.close()
    ids = dict[int, tuple[int, int, int]]()
    for row in topics.raw("zoo"):
        ids[row["id"]] = position(row)
        if row["_op"] == "d":
            del ids[row["id"]]
    numbers = {at: number for number, at in ids.items()}
    found = set()
    for row in kept:
        at = row["epoch"], row["commit_lsn"], row["seq"]
        if row["source"] == topics.source.name and at in numbers:
            found.add((numbers[at], row["column"], _without_zone(row["text"])))
    return found


def _without_zone(text: str) -> str:
    """However many digits of a second are printed, and whether the zone, which is UTC, is."""
    return text.replace("+00", "").replace(".000000", "")


def _plain(column: str, value: Any) -> Any:
    if column == "tz" and value is not None:
        return value.replace(tzinfo=None)
    if column in ("ai", "at", "af", "au") and value is not None:
        return [float(part) if column == "af" else part for part in json.loads(value)]
    return str(value) if column == "d" and value is not None else value

"""Debezium in Avro, by a real converter and a real registry: rows are those of JSON with schemas."""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from lakehouse.declarations.policies import RawPolicy
from lakehouse.settings import RegistrySettings, Settings
from tests.apicurio import Apicurio, running_apicurio
from tests.avro_converter import avro_options, converter_jars
from tests.brokers import Broker, Topics, drop_lake_of
from tests.debezium import Connect, connector, make_debezium, running_connect
from tests.debezium_world import DDL, TABLES, assert_sound
from tests.test_kafka import kept
from tests.world import World, make_world

pytestmark = [pytest.mark.stack, pytest.mark.slow]

ZOO = {
    "id": "integer", "i2": "smallint", "i8": "bigint", "b": "boolean", "f4": "real", "f8": "double precision",
    "n": "numeric", "n5": "numeric(5,1)", "wide": "numeric(38,10)", "t": "text", "vc": "varchar(10)", "ch": "char(5)",
    "d": "date", "ts": "timestamp", "ts3": "timestamp(3)", "tz": "timestamptz", "tm": "time", "tm3": "time(3)",
    "by": "bytea", "u": "uuid", "j": "json", "jb": "jsonb", "m": "text", "ip": "inet", "o": "oid", "r": "text",
    "bi": "bit(1)", "bs": "bit(9)", "vb": "varbit", "ai": "text", "at": "text", "af": "text", "au": "text",
    "iv": "text", "mo": "numeric(19,2)", "h": "text",
}  # fmt: skip
ZOO_DDL = """
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE TABLE zoo (id int PRIMARY KEY, i2 smallint, i8 bigint, b boolean, f4 real, f8 double precision, n numeric,
    n5 numeric(5,1), wide numeric(38,10), t text NOT NULL DEFAULT 'x"y', vc varchar(10), ch char(5), d date,
    ts timestamp, ts3 timestamp(3), tz timestamptz, tm time, tm3 time(3), by bytea, u uuid, j json, jb jsonb, m mood,
    ip inet, o oid, r int4range, bi bit(1), bs bit(9), vb varbit, ai int[], at text[], af float8[], au uuid[],
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
    "tm3": ("'01:02:03.123'",), "by": ("'\\\\x00ff10'", "''"), "u": ("gen_random_uuid()",), "j": ("'{\"a\": 1.50}'",),
    "jb": ("'{\"b\": 1, \"a\": [null, \"é\"]}'",), "m": ("'ok'",), "ip": ("'10.0.0.1/8'",), "o": ("4294967295",),
    "r": ("'[1,5)'",), "bi": ("B'1'", "B'0'"), "bs": ("B'100000001'",), "vb": ("B'10110'",),
    "ai": ("'{1,NULL,3}'", "'{}'"),
    "at": ("'{a,NULL,\"b,c\"}'",), "af": ("'{1e10,0.001,1e-5,1234567.5,0.1}'",), "au": ("ARRAY[gen_random_uuid()]",),
    "iv": ("'1 mon 2 days 03:04:05.678'",), "mo": ("12.34::numeric::money",), "h": ("'plain'",),
}  # fmt: skip
ALL = {**TABLES, "zoo": (("id",), ZOO)}


@pytest.fixture(scope="module")
def apicurio(settings: Settings) -> Iterator[Apicurio]:
    with running_apicurio(settings) as running:
        yield running


@pytest.fixture(scope="module")
def connect(settings: Settings, broker: Broker) -> Iterator[Connect]:
    """A worker that has the Avro converter, too."""
    with running_connect(settings, broker, more=(converter_jars(settings),)) as running:
        yield running


@dataclass
class Both:
    """A database whose changes two connectors write: one in JSON with schemas, the other in Avro."""

    world: World
    json: Topics
    avro: Topics

    def until_equal(self, spark: Any, seconds: float = 90) -> None:
        """Ingests both until each has what the database has."""
        deadline = time.monotonic() + seconds
        while True:
            self.json.ingest(spark)
            self.avro.ingest(spark)
            wanted, found = self._wanted(), (self._found(self.json), self._found(self.avro))
            if found[0] == found[1] == wanted or time.monotonic() > deadline:
                assert found == (wanted, wanted)
                return
            time.sleep(0.3)

    def _wanted(self) -> dict[str, Any]:
        return {name: sorted(map(str, self.world.rows(f"SELECT {_shown(name)} FROM {name}"))) for name in ALL}

    def _found(self, topics: Topics) -> dict[str, Any]:
        return {
            name: sorted(str(tuple(row[c] for c in _compared(name))) for row in topics.current(name).values())
            for name in ALL
        }

    def assert_alike(self) -> None:
        """Row for row, but for where they were, and the numbers that rows of snapshots have."""
        for name in ALL:
            rows = [[_bare(row) for row in topics.raw(name)] for topics in (self.json, self.avro)]
            assert len(rows[0]) == len(rows[1])
            for one, other in zip(*rows, strict=True):
                assert one == other


def _compared(name: str) -> list[str]:
    """The columns whose values Python prints alike, whoever read them; `assert_alike` has all."""
    return [*TABLES[name][1]] if name in TABLES else ["id", "i2", "i8", "b", "n5", "wide", "t", "vc", "u", "m"]


def _shown(name: str) -> str:
    texts = {"u": "u::text", "m": "m::text"}
    return ", ".join(texts.get(column, column) for column in _compared(name))


def _bare(row: dict[str, Any]) -> dict[str, Any]:
    places = {"_topic", "_offset", "_loaded_at", "_run_id"} | ({"_commit_lsn", "_seq"} if row["_op"] == "r" else set())
    return {name: str(value) if value != value else value for name, value in row.items() if name not in places}


@pytest.fixture
def both(settings: Settings, broker: Broker, connect: Connect, apicurio: Apicurio) -> Iterator[Callable[..., Both]]:
    with ExitStack() as stack:

        def make(*before: str, **options: Any) -> Both:
            policies = {name: RawPolicy(relation=f"public.{name}", key=key) for name, (key, _) in ALL.items()}
            world = make_world(settings, DDL + ";" + ZOO_DDL, policies)
            world.sql(*before)
            url = world.settings.source(world.source.name).url.get_secret_value()
            fixed = {"publication.name": "lakehouse", "publication.autocreate.mode": "disabled",
                     "interval.handling.mode": "string"}  # fmt: skip
            made = []
            for form in ("json", "avro"):
                prefix = world.source.name + form[0]
                own = avro_options(apicurio.url) if form == "avro" else {}
                connect.run(prefix, connector(url, prefix, "public.*", schemas=True, **options) | fixed | own)
                stack.callback(connect.asked, "DELETE", f"/connectors/{prefix}")
                slots = f"SELECT 1 FROM pg_replication_slots WHERE slot_name = '{prefix}' AND active"
                connect.until(lambda slots=slots: bool(world.rows(slots)))
                given: dict[str, Any] = {"decimals": None}
                if form == "avro":
                    given["schema_registry"] = RegistrySettings(url=apicurio.url)
                topics = make_debezium(world, broker, ALL, prefix, {"format": form}, **given)
                stack.callback(drop_lake_of, topics)
                topics.until_there(table for table in ALL if world.rows(f"SELECT FROM {table}"))
                made.append(topics)
            return Both(world, *made)

        yield make


def zoo_rows(count: int, seed: int, first: int = 1) -> Iterator[str]:
    chance = random.Random(seed)
    for number in range(first, first + count):
        chosen = {
            name: chance.choice(values) for name, values in VALUES.items() if chance.random() < 0.8 or name == "t"
        }
        names = ", ".join(["id", *chosen])
        yield f"INSERT INTO zoo ({names}) VALUES ({', '.join([str(number), *chosen.values()])})"


def test_rows_are_those_of_json_with_schemas_and_of_the_database(both: Callable[..., Both], spark: Any) -> None:
    """Snapshot, changes, several tables in a transaction, key changes, TOAST, truncates, every type."""
    made = both(
        *zoo_rows(30, 1), "INSERT INTO items VALUES (1, 'one', 1.50), (2, 'two', 2)",
        "INSERT INTO accounts VALUES (0, 'r', 0)",
    )  # fmt: skip
    made.until_equal(spark)
    world = made.world
    world.sql(*zoo_rows(60, 2, 100))
    with psycopg.connect(world.owner_url) as connection:
        connection.execute("INSERT INTO items VALUES (3, 'three', 3, repeat('y', 9000))")
        connection.execute("INSERT INTO accounts VALUES (1, 'x', 10)")
        connection.execute("UPDATE items SET name = 'drei' WHERE id = 3")
        connection.execute("UPDATE items SET id = 30 WHERE id = 3")
    world.sql(
        "DELETE FROM items WHERE id = 2", "UPDATE items SET price = 7 WHERE id = 1", "DELETE FROM zoo WHERE id % 7 = 0",
        "UPDATE zoo SET i2 = 5 WHERE id % 3 = 0", "TRUNCATE accounts", "INSERT INTO accounts VALUES (5, 'after', 1)",
    )  # fmt: skip
    made.until_equal(spark)
    made.assert_alike()
    assert_sound(made.avro)
    rows = [row for row in made.avro.raw("items") if row["_op"] != "r"]
    assert [(r["_op"], r["id"]) for r in rows] == [("c", 3), ("u", 3), ("d", 3), ("c", 30), ("d", 2), ("u", 1)]
    assert rows[1]["_unchanged"] == rows[3]["_unchanged"] == ["big"] and rows[3]["_old_key"] == '{"id":"3"}'
    assert kept(made.avro, "quarantine") == kept(made.json, "quarantine") == []

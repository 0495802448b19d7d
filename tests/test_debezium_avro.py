"""Debezium in Avro, by a real converter and a real registry: rows are those of JSON with schemas."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from ingestion import move_source
from lakehouse.declarations.policies import RawPolicy
from lakehouse.settings import RegistrySettings, Settings
from tests.apicurio import Apicurio, running_apicurio
from tests.avro_converter import avro_options, converter_jars
from tests.brokers import Broker, Topics, drop_lake_of
from tests.debezium import Connect, connector, make_debezium, running_connect
from tests.debezium_world import DDL, TABLES, assert_sound, lake_rows, source_rows
from tests.debezium_zoo import (
    ZOO,
    ZOO_DDL,
    in_lake,
    in_source,
    outside_in_lake,
    outside_in_source,
    zoo_rows,
)
from tests.test_kafka import kept
from tests.world import World, make_world

pytestmark = [pytest.mark.stack, pytest.mark.slow]

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
        """Ingests both until each has what the database has, every value of it; no table may be kept aside."""
        deadline = time.monotonic() + seconds
        while True:
            for topics in (self.json, self.avro):
                assert topics.ingest(spark).aside == ()
            wanted, found = self._wanted(), (self._found(self.json), self._found(self.avro))
            if found[0] == found[1] == wanted or time.monotonic() > deadline:
                assert found == (wanted, wanted)
                break
            time.sleep(0.3)
        for topics in (self.json, self.avro):
            assert outside_in_lake(topics) == outside_in_source(self.world)

    def _wanted(self) -> dict[str, Any]:
        rows = {name: self.world.rows(f"SELECT {', '.join(TABLES[name][1])} FROM {name}") for name in TABLES}
        return {name: sorted(map(str, of)) for name, of in rows.items()} | {"zoo": in_source(self.world)}

    def _found(self, topics: Topics) -> dict[str, Any]:
        found = {
            name: sorted(str(tuple(row[column] for column in columns)) for row in topics.current(name).values())
            for name, (_, columns) in TABLES.items()
        }
        return found | {"zoo": in_lake(topics)}

    def assert_alike(self) -> None:
        """Row for row, but for where they were, and the numbers that rows of snapshots have."""
        for name in ALL:
            rows = [[_bare(row) for row in topics.raw(name)] for topics in (self.json, self.avro)]
            assert len(rows[0]) == len(rows[1])
            for one, other in zip(*rows, strict=True):
                assert one == other


def _bare(row: dict[str, Any]) -> dict[str, Any]:
    places = {"_topic", "_offset", "_ingested_at"}
    places |= {"_commit_lsn", "_seq", "_committed_at"} if row["_op"] == "r" else set()
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
                topics = make_debezium(
                    world, broker, ALL, prefix, {"format": form, "on_unrepresentable": "null"}, **given
                )
                stack.callback(drop_lake_of, topics)
                topics.until_there(table for table in ALL if world.rows(f"SELECT FROM {table}"))
                made.append(topics)
            return Both(world, *made)

        yield make


def test_rows_are_those_of_json_with_schemas_and_of_the_database(both: Callable[..., Both], spark: Any) -> None:
    """Snapshot, changes, several tables in a transaction, key changes, TOAST, truncates, every type."""
    made = both(
        *zoo_rows(30, 1, read_first=True), "INSERT INTO items VALUES (1, 'one', 1.50), (2, 'two', 2)",
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


def test_a_source_is_moved_from_its_slot_to_topics_in_avro(both: Callable[..., Both], spark: Any) -> None:
    """What the slot has brought does not land again, and nothing else is missing; as with JSON."""
    made = both("INSERT INTO items VALUES (1, 'one', 1.50)", "INSERT INTO accounts VALUES (0, 'r', 0)")
    world = made.world.without("zoo")
    world.ingest(spark)
    rows = [f"INSERT INTO items VALUES ({n}, 'n', 1.25, repeat('y', 9000))" for n in range(10, 14)]
    world.sql(*rows, "UPDATE items SET id = 20 WHERE id = 10", "DELETE FROM items WHERE id = 1")
    world.ingest(spark)
    before = {name: world.raw(name) for name in TABLES}
    world.sql("UPDATE items SET price = 7 WHERE id = 11", "INSERT INTO accounts VALUES (1, 'x', 1)")
    topics = _as_source(made.avro.without("zoo"), world)
    assert move_source(topics.settings, topics.declarations, topics.source.name, spark).epoch == 2
    world.sql("UPDATE items SET id = 30 WHERE id = 12", "DELETE FROM items WHERE id = 13")
    deadline = time.monotonic() + 90
    while any(lake_rows(topics, name) != source_rows(world, name) for name in TABLES):
        assert time.monotonic() < deadline
        topics.ingest(spark)
        time.sleep(0.3)
    after = {name: topics.raw(name) for name in TABLES}
    assert [[r["_op"] for r in after[name] if r["_epoch"] == 2] for name in TABLES] == [["u", "d", "c", "d"], ["c"]]
    assert all(len([r for r in after[name] if r["_epoch"] == 1]) == len(before[name]) for name in TABLES)
    assert topics.current("items")[30,]["big"] == "y" * 9000, "of the time before the move"


def _as_source(topics: Any, world: World) -> Topics:
    """The topics as what the world's source is declared as now."""
    name = world.source.name
    tables = tuple(table.model_copy(update={"source": name}) for table in topics.source.tables)
    of = topics.settings.sources[topics.source.name].model_copy(update={"url": world.settings.source(name).url})
    settings = topics.settings.model_copy(update={"sources": {name: of}})
    return Topics(settings, world.source.model_copy(update={"tables": tables}), world.owner_url, topics.broker)

"""Tables and columns with capitals, blanks, quotes, dots and umlauts, through Debezium and Kafka."""

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from lakehouse.declarations.policies import RawPolicy
from lakehouse.settings import Settings
from lakehouse.text.sql import ident, relation
from tests.brokers import Broker, Topics, drop_lake_of
from tests.debezium import Connect, connector, make_debezium
from tests.test_debezium_topics import kept
from tests.world import World, make_world

pytestmark = [pytest.mark.stack, pytest.mark.slow]
Name = tuple[str, str]
COLUMNS = {
    "Kunden Nr": "bigint", "größe.von": "text", 'sag "ja"': "text", "GROSS": "numeric(10,2)", "a.b": "text",
    "straße": "date",
}  # fmt: skip
KEY = ("Kunden Nr", "größe.von")


def topic_of(prefix: str, of: Name) -> str:
    """As Debezium calls it."""
    return re.sub("[^A-Za-z0-9._-]", "_", ".".join((prefix, *of)))


def ddl_of(of: Name) -> str:
    columns = ", ".join(f"{ident(name)} {kind}" for name, kind in COLUMNS.items())
    schema = f"CREATE SCHEMA IF NOT EXISTS {ident(of[0])}"
    return f"{schema}; CREATE TABLE {relation(*of)} ({columns}, PRIMARY KEY ({', '.join(map(ident, KEY))}))"


@contextmanager
def captured(
    settings: Settings, broker: Broker, connect: Connect, declared: Mapping[str, Name]
) -> Iterator[tuple[World, Topics]]:
    """A database with these tables, with a row in each, and a connector that captures all of them."""
    policies = {lake: RawPolicy(relation=relation(*of), key=KEY) for lake, of in declared.items()}
    world = make_world(settings, ";".join(map(ddl_of, declared.values())), policies)
    for of in declared.values():
        insert(world, of, 1)
    prefix = world.source.name
    url = world.settings.source(prefix).url.get_secret_value()
    fixed = {"publication.name": "lakehouse", "publication.autocreate.mode": "disabled"}
    connect.run(prefix, connector(url, prefix, ".*") | fixed)
    active = f"SELECT 1 FROM pg_replication_slots WHERE slot_name = '{prefix}' AND active"
    connect.until(lambda: bool(world.rows(active)))
    given = {"times": "adaptive", "binary": "bytes", "url": url}
    topics = make_debezium(world, broker, dict.fromkeys(declared, (KEY, COLUMNS)), **given)
    for lake, of in declared.items():
        topics = topics.declaring(lake, topic=topic_of(prefix, of), relation=relation(*of))  # type: ignore[assignment]
    try:
        yield world, topics
    finally:
        connect.asked("DELETE", f"/connectors/{prefix}")
        connect.until(lambda: connect.asked("GET", f"/connectors/{prefix}/status") is None)
        drop_lake_of(topics)


def insert(world: World, of: Name, number: int, text: str = "x") -> None:
    with psycopg.connect(world.owner_url) as connection:
        row = (number, "größe", f'sag "{text}"', number, text, "2026-01-02")
        connection.execute(f"INSERT INTO {relation(*of)} VALUES (%s, %s, %s, %s, %s, %s)", row)  # type: ignore[arg-type]


def change(world: World, of: Name) -> None:
    """One transaction with an insert, an update, a change of the key and a delete."""
    place = relation(*of)
    insert(world, of, 2)
    insert(world, of, 3)
    world.sql(
        f"""BEGIN; UPDATE {place} SET "a.b" = 'ü' WHERE "Kunden Nr" = 1;
        UPDATE {place} SET "größe.von" = 'other' WHERE "Kunden Nr" = 2;
        DELETE FROM {place} WHERE "Kunden Nr" = 3; COMMIT"""
    )
    insert(world, of, 4)


def source_rows(world: World, of: Name) -> list[tuple[Any, ...]]:
    return sorted(world.rows(f"SELECT {', '.join(map(ident, COLUMNS))} FROM {relation(*of)}"))


def raw_rows(topics: Topics, lake: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row[name] for name in COLUMNS) for row in topics.current(lake).values())


def until_equal(world: World, topics: Topics, spark: Any, declared: Mapping[str, Name]) -> None:
    """Ingests until raw has what the database has; the last difference is told."""
    topics.until_there(declared)
    deadline = time.monotonic() + 90
    while True:
        topics.ingest(spark)
        told = {lake: raw_rows(topics, lake) for lake in declared}
        wanted = {lake: source_rows(world, of) for lake, of in declared.items()}
        if told == wanted or time.monotonic() > deadline:
            assert told == wanted
            return
        time.sleep(0.3)


@pytest.mark.parametrize("of", [("public", "Große Bestell.ungen"), ("Übersicht.a", "c")], ids=["words", "dot"])
def test_a_table_lands_whatever_it_is_called(
    settings: Settings, broker: Broker, connect: Connect, spark: Any, of: Name
) -> None:
    with captured(settings, broker, connect, {"odd": of}) as (world, topics):
        until_equal(world, topics, spark, {"odd": of})
        change(world, of)
        until_equal(world, topics, spark, {"odd": of})
        assert [row["_op"] for row in topics.raw("odd")] == ["r", "c", "c", "u", "d", "c", "d", "c"]
        assert kept(topics, "quarantine") == []

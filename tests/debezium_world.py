"""A database whose topics Debezium writes, and the oracle: what the database has is what the lake has."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from lakehouse.declarations.policies import RawPolicy
from lakehouse.settings import Settings
from tests.brokers import Broker, Topics, drop_lake_of
from tests.debezium import Connect, connector, make_debezium
from tests.world import World, make_world

DDL = """
CREATE TABLE items (id bigint PRIMARY KEY, name text, price numeric(10,2), big text);
ALTER TABLE items ALTER big SET STORAGE EXTERNAL;
CREATE TABLE accounts (a int, b text, amount bigint NOT NULL, PRIMARY KEY (a, b))
"""
ITEMS = {"id": "bigint", "name": "text", "price": "numeric(10,2)", "big": "text"}
ACCOUNTS = {"a": "integer", "b": "text", "amount": "bigint"}
TABLES = {"items": (("id",), ITEMS), "accounts": (("a", "b"), ACCOUNTS)}
Through = tuple[World, Topics]
Make = Callable[..., Through]


@contextmanager
def through(
    settings: Settings, broker: Broker, connect: Connect, before: tuple[str, ...] = (),
    given: dict[str, Any] | None = None, **options: Any,
) -> Iterator[Through]:  # fmt: skip
    """A database, and the source of the topics that a connector writes of it."""
    policies = {name: RawPolicy(relation=f"public.{name}", key=key) for name, (key, _) in TABLES.items()}
    world = make_world(settings, DDL, policies)
    world.sql(*before)
    prefix = world.source.name
    url = world.settings.source(prefix).url.get_secret_value()
    fixed = {"publication.name": "lakehouse", "publication.autocreate.mode": "disabled"}
    connect.run(prefix, connector(url, prefix, "public.*", **options) | fixed)
    slots = f"SELECT 1 FROM pg_replication_slots WHERE slot_name = '{prefix}' AND active"
    connect.until(lambda: bool(world.rows(slots)))
    topics = make_debezium(world, broker, TABLES, **(given or {}))
    try:
        yield world, topics
    finally:
        connect.asked("DELETE", f"/connectors/{prefix}")
        connect.until(lambda: connect.asked("GET", f"/connectors/{prefix}/status") is None)
        drop_lake_of(topics)


def source_rows(world: World, table: str) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    key, columns = TABLES[table]
    rows = world.rows(f"SELECT {', '.join(columns)} FROM {table}")
    return {row[: len(key)]: row for row in rows}


def lake_rows(topics: Topics, table: str) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    return {key: tuple(row[c] for c in TABLES[table][1]) for key, row in topics.current(table).items()}


def until_there(world: World, topics: Topics) -> None:
    """Waits for the topics of all tables that have rows."""
    topics.until_there(table for table in TABLES if source_rows(world, table))


def until_equal(world: World, topics: Topics, spark: Any, seconds: float = 90) -> None:
    """Ingests until the lake has what the database has; the last difference is told."""
    until_there(world, topics)
    deadline = time.monotonic() + seconds
    while True:
        topics.ingest(spark)
        same = all(source_rows(world, table) == lake_rows(topics, table) for table in TABLES)
        if same or time.monotonic() > deadline:
            for table in TABLES:
                assert source_rows(world, table) == lake_rows(topics, table)
            return
        time.sleep(0.3)


def assert_sound(topics: Topics) -> None:
    """Every row has a place of its own, and no event landed twice."""
    for table in TABLES:
        rows = topics.raw(table)
        assert len({(r["_epoch"], r["_commit_lsn"], r["_seq"]) for r in rows}) == len(rows)
        assert len({(r["_topic_partition"], r["_offset"], r["_seq"] % 2) for r in rows}) == len(rows)


def copy_items(world: World, count: int) -> None:
    with (
        psycopg.connect(world.owner_url) as connection,
        connection.cursor() as cursor,
        cursor.copy("COPY items (id) FROM STDIN") as copy,
    ):
        for number in range(count):
            copy.write_row((number,))

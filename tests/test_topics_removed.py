"""`lakehouse remove` of a source of topics; the same topics declared again land once more, each event once."""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from ingestion import pause, recover_source, resume
from lakehouse.declarations import Declarations
from lakehouse.declarations.policies import RawPolicy
from lakehouse.settings import Settings
from lakehouse_cli.source import remove as command
from tests.brokers import Broker, Topics, drop_lake_of, make_topics
from tests.debezium import events_of
from tests.debezium_world import Make, assert_sound, lake_rows, source_rows, until_equal
from tests.test_kafka import kept

pytestmark = [pytest.mark.stack, pytest.mark.slow]
COLUMNS = {"id": "bigint", "page": "text"}
KEYS = {"clicks": (), "carts": ("id",)}
PLACE = ("_topic", "_topic_partition", "_offset")
OF_A_LIFE = {
    "_epoch",
    "_commit_lsn",
    "_seq",
    "_ingested_at",
    "_cycle_id",
}  # what differs between two that read the same
Remove = Callable[[Topics, bool], None]
POISON = "no event"
both = pytest.mark.parametrize("drop_tables", [False, True])


@pytest.fixture
def remove(monkeypatch: pytest.MonkeyPatch) -> Remove:
    """The command, on a source that nobody declares any more."""

    def one(topics: Topics, drop_tables: bool) -> None:
        monkeypatch.setattr(command, "load_settings", lambda: topics.settings)
        monkeypatch.setattr("scaffold.declared_alone", lambda settings: Declarations(sources=()))
        command.remove(topics.source.name, drop_tables=drop_tables, yes=True)

    return one


@pytest.fixture
def topics(settings: Settings, broker: Broker) -> Iterator[Topics]:
    """Page views without a key, and carts with one."""
    of = {table: f"{table}-{random.randrange(10**9)}" for table in KEYS}
    for topic in of.values():
        broker.create(topic, 3)
    made = make_topics(
        settings, broker, {table: (RawPolicy(topic=of[table], key=key), COLUMNS) for table, key in KEYS.items()},
        lease_seconds=2,
    )  # fmt: skip
    yield made
    drop_lake_of(made)


def declared_again(topics: Topics, spark: Any, drop_tables: bool) -> None:
    """Ingests as a user does: with `--recover` where, and only where, the product asks for it. A table that would begin
    in the middle of its topic has to say so, and no row of it may land before."""
    aside = {one.name: str(one.reason) for one in topics.ingest(spark).aside}
    asked = {name for name, reason in aside.items() if "--recover" in reason}
    assert asked == ({table.name for table in topics.source.tables} if drop_tables else set()), aside
    if drop_tables:
        assert not any(topics.raw(name) for name in asked)
        recover_source(topics.settings, topics.declarations, topics.source.name, spark)


def landed_by_another(topics: Topics, spark: Any) -> dict[str, list[dict[str, Any]]]:
    """What a source that never was removed has of the same topics."""
    name = f"o{topics.source.name}"
    tables = tuple(table.model_copy(update={"source": name}) for table in topics.source.tables)
    sources = {name: topics.settings.connection(topics.source.name)}
    other = replace(
        topics, settings=topics.settings.model_copy(update={"sources": sources}),
        source=topics.source.model_copy(update={"name": name, "tables": tables}),
    )  # fmt: skip
    try:
        other.ingest(spark)
        return {table.name: other.raw(table.name) for table in tables}
    finally:
        drop_lake_of(other)


def plain(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(repr(sorted((n, v) for n, v in row.items() if n not in OF_A_LIFE)) for row in rows)


def assert_each_event_once(topics: Topics, spark: Any, epoch: int | None) -> None:
    """The rows of that epoch, or all, are those that were produced, at their places, and what another source reads."""
    others = landed_by_another(topics, spark)
    for table in topics.source.tables:
        rows = topics.raw(table.name)
        if epoch is not None:
            assert {row["_epoch"] for row in rows} == {epoch}, "behind what vault tables have of it"
        produced = events_of(topics.broker.server, table.raw.topic)
        places = [tuple(row[name] for name in PLACE) for row in rows]
        assert len(set(places)) == len(rows)
        wanted = {(table.raw.topic, e["partition"], e["offset"]) for e in produced if lands(table.kind, e)}
        assert set(places) == wanted
        assert plain(rows) == plain(others[table.name])
        order = [(row["_epoch"], row["_commit_lsn"], row["_seq"]) for row in rows]
        assert len(set(order)) == len(order)


def lands(kind: str, event: dict[str, Any]) -> bool:
    """A connector's tombstone says nothing that the delete before it has not said; poison is kept aside."""
    return event["value"] != POISON if kind == "kafka" else event["value"] is not None


def send(topics: Topics, first: int, count: int) -> None:
    ids = range(first, first + count)
    topics.broker.produce(topics.source.table("clicks").raw.topic, [{"id": i, "page": f"/{i}"} for i in ids], keys=ids)
    carts = [{"id": i % 40, "page": f"/{i}"} if i % 7 else None for i in ids]
    topics.broker.produce(topics.source.table("carts").raw.topic, carts, keys=[i % 40 for i in ids])


@both
def test_topics_of_events_that_were_removed_are_declared_again(
    topics: Topics, remove: Remove, spark: Any, drop_tables: bool
) -> None:
    """Meanwhile events come, one table was paused, and a dead letter is kept aside."""
    send(topics, 0, 100)
    topics.ingest(spark)
    pause(topics.settings, topics.source.table("carts"))
    topics.broker.produce(topics.source.table("clicks").raw.topic, [POISON.encode()], keys=[0])
    send(topics, 100, 50)
    topics.ingest(spark)
    assert len(kept(topics, "quarantine")) == 1 and kept(topics, "spool")

    remove(topics, drop_tables)
    send(topics, 150, 50)
    declared_again(topics, spark, drop_tables)
    if not drop_tables:
        resume(topics.settings, topics.declarations, topics.source.name, ["carts"], spark)
    send(topics, 200, 50)
    topics.ingest(spark)

    clicks = topics.raw("clicks")
    assert sorted(row["id"] for row in clicks) == list(range(250))
    assert len(kept(topics, "quarantine")) == 1
    assert_each_event_once(topics, spark, 2 if drop_tables else 1)


def changed(world: Any, first: int) -> None:
    """Transactions over both tables, with deletes and a change of a key."""
    with psycopg.connect(world.owner_url) as connection:
        for number in range(first, first + 20):
            connection.execute("INSERT INTO items VALUES (%s, 'n', %s)", (number, number))
            connection.execute("INSERT INTO accounts VALUES (%s, 'x', %s)", (number, number))
    with psycopg.connect(world.owner_url) as connection:
        connection.execute("UPDATE items SET name = 'u' WHERE id >= %s", (first + 10,))
        connection.execute("DELETE FROM accounts WHERE a = %s", (first + 3,))
    world.sql(
        f"UPDATE items SET id = id + 100000 WHERE id = {first + 5}", f"DELETE FROM items WHERE id = {first + 6}",
        f"UPDATE accounts SET amount = 0 WHERE a = {first + 7}",
    )  # fmt: skip


@both
def test_topics_of_debezium_that_were_removed_are_declared_again(
    debezium: Make, remove: Remove, spark: Any, drop_tables: bool
) -> None:
    world, topics = debezium(
        before=("INSERT INTO items VALUES (1, 'one', 1.5)", "INSERT INTO accounts VALUES (0,'r',0)")
    )
    changed(world, 100)
    until_equal(world, topics, spark)
    pause(topics.settings, topics.source.table("accounts"))
    changed(world, 200)
    settled(world, topics, spark, ("items",))
    assert kept(topics, "spool")

    remove(topics, drop_tables)
    changed(world, 300)
    declared_again(topics, spark, drop_tables)
    if not drop_tables:
        resume(topics.settings, topics.declarations, topics.source.name, ["accounts"], spark)
    changed(world, 400)
    until_equal(world, topics, spark)

    assert kept(topics, "spool") == [] and kept(topics, "quarantine") == []
    assert_sound(topics)
    assert_each_event_once(topics, spark, 2 if drop_tables else 1)


def settled(world: Any, topics: Topics, spark: Any, tables: tuple[str, ...]) -> None:
    """Ingests until the lake has what the database has of these tables."""
    for _ in range(100):
        topics.ingest(spark)
        if all(source_rows(world, table) == lake_rows(topics, table) for table in tables):
            return
    raise AssertionError(f"{tables} did not come")

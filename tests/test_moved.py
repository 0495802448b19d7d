"""A source that is moved from its slot to Debezium's topics, and back: nothing is lost, and nothing lands twice."""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from ingestion import move_source, pause, refresh_mirrors, replay, resume
from ingestion.sources.kinds import source_of
from ingestion.state import store
from lakehouse.catalog.open import load_table, open_catalog
from lakehouse.declarations.policies import RawPolicy
from lakehouse.errors import LakehouseError
from lakehouse.servers.trino import query
from lakehouse.settings import Settings
from tests.brokers import Broker, Topics, drop_lake_of
from tests.debezium import Connect, connector, make_debezium
from tests.debezium_world import DDL, TABLES, Make, lake_rows, source_rows
from tests.pages import commands
from tests.test_kafka import kept
from tests.world import World, make_world

pytestmark = [pytest.mark.stack, pytest.mark.slow]


def by_topics(world: World, broker: Broker) -> Topics:
    """The same source, declared as the topics that a connector writes of the database."""
    name = world.source.name
    made = make_debezium(world, broker, TABLES, url=world.settings.source(name).url)
    tables = tuple(table.model_copy(update={"source": name}) for table in made.source.tables)
    settings = made.settings.model_copy(update={"sources": {name: made.settings.sources[made.source.name]}})
    return Topics(settings, world.source.model_copy(update={"tables": tables}), world.owner_url, broker)


def move(world: World, spark: Any) -> Any:
    return move_source(world.settings, world.declarations, world.source.name, spark)


def begin_cycle(world: World) -> None:
    """What a follower does first."""
    with source_of(world.settings, world.source.name).open() as source, store.connect_catalog(world.settings) as states:
        source.check(states)


class Changes:
    """Changes of the database, and how many rows they make in raw tables."""

    def __init__(self, world: World, number: int = 10) -> None:
        self._world, self._number = world, number
        self.made: Counter[str] = Counter()

    def make(self, count: int = 4) -> None:
        self._world.sql("DELETE FROM items WHERE id = 1")
        for n in range(self._number + 1, self._number + count + 1):
            with psycopg.connect(self._world.owner_url) as connection:
                connection.execute("INSERT INTO items VALUES (%s, 'n', 1.25, repeat('y', 9000))", (n,))
                connection.execute("INSERT INTO accounts VALUES (%s, 'x', 1)", (n,))
                connection.execute("UPDATE items SET name = name || 'u' WHERE id = %s", (n,))
        self._world.sql("INSERT INTO items VALUES (1)", "UPDATE accounts SET amount = amount + 1 WHERE a = 0")
        self._number += count
        self.made.update(c=2 * count + 1, u=count + 1, d=1)


def ops(world: World, epoch: int) -> Counter[str]:
    return Counter(row["_op"] for table in TABLES for row in world.raw(table) if row["_epoch"] == epoch)


def assert_equal(world: World) -> None:
    for table in TABLES:
        assert lake_rows(world, table) == source_rows(world, table)  # type: ignore[arg-type]
        rows = world.raw(table)
        assert len({(r["_epoch"], r["_commit_lsn"], r["_seq"]) for r in rows}) == len(rows)


def assert_mirrored(world: World) -> None:
    refresh_mirrors(world.settings, world.declarations, world.source.name)
    catalog = open_catalog(world.settings)
    try:
        for table, (_, columns) in TABLES.items():
            mirror = load_table(catalog, f"mirror_{world.source.name}", table)
            assert mirror is not None
            rows = mirror.scan().to_arrow().to_pylist()
            assert {tuple(row[c] for c in columns) for row in rows} == set(source_rows(world, table).values())
    finally:
        catalog.close()


@contextmanager
def current_views(world: World) -> Iterator[None]:
    """What dbt would make over mirrors."""
    name = world.source.name
    query(world.settings, "CREATE SCHEMA IF NOT EXISTS lake.parsed")
    for table in TABLES:
        query(
            world.settings,
            f"CREATE VIEW lake.parsed.current_{name}__{table} AS SELECT * FROM lake.mirror_{name}.{table}",
        )
    yield
    for table in TABLES:
        query(world.settings, f"DROP VIEW lake.parsed.current_{name}__{table}")


def with_columns(world: World, topics: Topics) -> World:
    """The slot's source with the columns that the topics declare: mirrors have those alone."""
    columns = {table.name: table.columns for table in topics.source.tables}
    tables = tuple(t.model_copy(update={"columns": columns[t.name]}) for t in world.source.tables)
    return replace(world, source=world.source.model_copy(update={"tables": tables}))


def slots(world: World) -> list[str]:
    return [
        name for (name,) in world.rows("SELECT slot_name FROM pg_replication_slots WHERE database = current_database()")
    ]


def until_there(topics: Topics, spark: Any) -> None:
    deadline = time.monotonic() + 90
    while any(lake_rows(topics, t) != source_rows(topics, t) for t in TABLES):
        assert time.monotonic() < deadline
        topics.ingest(spark)
        time.sleep(0.3)


def until_quiet(topics: Topics, topic: str, seconds: float = 7) -> int:
    """Where a topic ends that has something, once nothing has come for a while."""
    found, since, deadline = 0, time.monotonic(), time.monotonic() + 90
    while not found or time.monotonic() - since < seconds:
        assert time.monotonic() < deadline
        if (now := topics.broker.count(topic)) != found:
            found, since = now, time.monotonic()
        time.sleep(0.2)
    return found


@pytest.fixture
def moved(debezium: Make, broker: Broker) -> Iterator[tuple[World, Topics]]:
    """A database that a slot was read of, while a connector writes it to topics."""
    world, _ = debezium(before=("INSERT INTO items VALUES (1, 'one', 1.50)", "INSERT INTO accounts VALUES (0, 'r', 0)"))
    topics = by_topics(world, broker)
    yield world, topics
    drop_lake_of(topics)


def test_a_source_is_moved_to_topics_and_back_without_a_gap_or_a_double(
    moved: tuple[World, Topics], spark: Any
) -> None:
    world, topics = moved
    world.ingest(spark)
    changes = Changes(world)
    changes.make()
    world.ingest(spark)
    assert_equal(world)
    before = {table: world.raw(table) for table in TABLES}
    with pytest.raises(LakehouseError, match=r"ingest --move"):
        topics.ingest(spark)
    in_between = Changes(world, 20)
    in_between.make()
    check, to_move, compare = commands("how-to/move-to-topics.md", ("orders", world.source.name))
    checked = topics.command(*check)
    assert checked.returncode == 1 and "ingest --move" in checked.stdout, checked
    done = topics.command(*to_move)
    assert done.returncode == 0 and kind_and_epoch(world) == ("debezium", 2), done
    until_there(topics, spark)
    assert_equal(topics)
    assert {t: [_without_place(r) for r in topics.raw(t) if r["_epoch"] == 1] for t in TABLES} == before
    assert ops(topics, 2) == in_between.made, "each change once, and no row of the snapshot"
    assert slots(world) == [world.source.name], "the connector's alone"
    assert_mirrored(topics)
    with current_views(topics):
        compared = topics.command(*compare)
        assert compared.returncode == 0 and compared.stdout.count("equal") == len(TABLES), compared
    assert move(topics, spark).epoch == 2, "again it does nothing"

    world.sql("UPDATE items SET price = 9 WHERE id = 12", "DELETE FROM accounts WHERE a = 12")
    until_there(topics, spark)
    [toasted] = [r for r in topics.raw("items") if r["id"] == 12 and r["_op"] == "u" and r["price"] == 9]
    assert toasted["_unchanged"] == ["big"] and topics.current("items")[12,]["big"] == "y" * 9000

    for begin in (lambda: world.ingest(spark), lambda: begin_cycle(world)):
        with pytest.raises(LakehouseError, match=r"ingest --move"):
            begin()
    world.sql("UPDATE items SET name = 'unread' WHERE id = 13", "DELETE FROM items WHERE id = 14")
    assert move(world, spark).epoch == 3
    assert_equal(world)
    assert ops(world, 3) == Counter(r=1, d=1), "what differed, and nothing else"
    world.sql("INSERT INTO items VALUES (99, 'by the slot')")
    world.ingest(spark)
    assert move(topics, spark).epoch == 4
    world.sql("INSERT INTO items VALUES (100, 'by topics')")
    until_there(topics, spark)
    assert_equal(topics)
    assert ops(topics, 4) == Counter(c=1)
    assert_mirrored(topics)


def _without_place(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in ("_topic", "_topic_partition", "_offset")}


MOVE, STORE, CONNECTION = "ingestion.run.move", "ingestion.state.store", "ingestion.sources.postgres.connection"
TO_TOPICS = {  # by step of the command, whether the source has moved when it is killed there
    f"{MOVE}:_to_topics:before": False, f"{MOVE}:add_metadata:after": False, f"{STORE}:restart_stream:after": False,
    f"{STORE}:hand_over:after": False, f"{MOVE}:_drop_former_slot:before": True, f"{MOVE}:let_go_of_slot:after": True,
    f"{STORE}:note_slot:after": True, "ingestion.pipeline.load_changes:publish:before": True,
    "ingestion.pipeline.load_changes:publish:after": True,
}  # fmt: skip
TO_SLOT = {
    f"{MOVE}:begin_next_epoch:before": False, f"{STORE}:restart_stream:after": False, f"{STORE}:set_kind:after": False,
    f"{MOVE}:begin_next_epoch:after": True, f"{CONNECTION}:create_slot:before": True,
    f"{CONNECTION}:create_slot:after": True, "ingestion.pipeline.load_tables:publish:before": True,
    "ingestion.pipeline.load_tables:publish:after": True,
}  # fmt: skip


def kind_and_epoch(world: World) -> tuple[str, int]:
    with store.connect_catalog(world.settings) as states:
        stream = store.read_stream(states, world.source.name)
    assert stream is not None
    return stream.kind, stream.epoch


def killed_at_each(steps: dict[str, bool], before: World, after: World, changes: Changes) -> None:
    """The command is killed at each step: what it leaves is the former state or the next one, and rows that are right.

    The database changes between any two of them.
    """
    kind, epoch = kind_and_epoch(before)
    rows = {table: before.raw(table) for table in TABLES}
    for step, has_moved in steps.items():
        changes.make(1)
        killed = after.driver("--move", step)
        assert killed.returncode == -9, f"{step}: {killed.returncode} {killed.stderr[-2000:]}"
        wanted = (after.source.kind, epoch + 1) if has_moved else (kind, epoch)
        assert kind_and_epoch(before) == wanted, step
        if not has_moved:
            assert {table: [*map(_without_place, before.raw(table))] for table in TABLES} == {
                table: [*map(_without_place, rows[table])] for table in TABLES
            }, step


def test_a_move_that_is_killed_at_any_step_is_run_again(moved: tuple[World, Topics], spark: Any) -> None:
    world, topics = moved
    world.ingest(spark)
    changes = Changes(world)
    killed_at_each(TO_TOPICS, world, topics, changes)
    move(topics, spark)
    until_there(topics, spark)
    assert_equal(topics)
    assert ops(topics, 2) == changes.made and not ops(topics, 3)
    assert slots(world) == [world.source.name], "the connector's alone"

    topics.broker.produce(f"{world.source.name}.public.items", [b"{"])
    world.sql("INSERT INTO items VALUES (5000)")
    until_there(topics, spark)
    deadline = time.monotonic() + 60
    while not kept(topics, "quarantine"):
        assert time.monotonic() < deadline
        topics.ingest(spark)
    killed_at_each(TO_SLOT, topics, world, changes)
    move(world, spark)
    assert_equal(world)
    assert kind_and_epoch(world) == ("postgres", 3) and not ops(world, 4)
    assert sorted(slots(world)) == sorted([world.source.name, f"lakehouse_{world.source.name}"])
    world.sql("UPDATE items SET name = 'by the slot' WHERE id = 5000")
    world.ingest(spark)
    assert_equal(world)
    assert_mirrored(with_columns(world, topics))

    [poison] = kept(topics, "quarantine")
    replay(world.settings, world.declarations, world.source.name, ["items"], spark)
    [still] = kept(topics, "quarantine")
    assert still["message"] == poison["message"] and "before a move" in still["reason"], "kept, and told why"
    assert_equal(world)


def test_a_move_that_would_lose_something_is_refused_and_changes_nothing(
    settings: Settings, broker: Broker, connect: Connect, spark: Any
) -> None:
    policies = {name: RawPolicy(relation=f"public.{name}", key=key) for name, (key, _) in TABLES.items()}
    world = make_world(settings, DDL, policies)
    world.sql("INSERT INTO items VALUES (1, 'one', 1.50), (2, 'two', 2)", "INSERT INTO accounts VALUES (0, 'r', 0)")
    world.ingest(spark)
    world.sql("DELETE FROM items WHERE id = 2")  # of which the connector's snapshot will know nothing
    prefix, url = world.source.name, world.settings.source(world.source.name).url.get_secret_value()
    fixed = {"publication.name": "lakehouse", "publication.autocreate.mode": "disabled"}
    connect.run(prefix, connector(url, prefix, "public.*") | fixed)
    topics = by_topics(world, broker)
    try:
        topics.until_there(TABLES)
        connect.until(lambda: broker.count(f"{prefix}.public.accounts") >= 1)
        with pytest.raises(LakehouseError, match="snapshot is newer than what the lake has read by the slot"):
            move(topics, spark)
        world.sql("INSERT INTO items VALUES (3)")
        world.ingest(spark)
        assert_equal(world)
        pause(world.settings, world.source.table("items"))
        with pytest.raises(LakehouseError, match="it is paused: a source is moved while all its tables stream"):
            move(topics, spark)
        resume(world.settings, world.declarations, world.source.name, ["items"], spark)
        alone = topics.without("accounts")
        less = alone.source.table("items")
        fewer = less.model_copy(update={"columns": tuple(c for c in less.columns if c.name != "big")})
        narrow = Topics(alone.settings, alone.source.model_copy(update={"tables": (fewer,)}), "", broker)
        with pytest.raises(LakehouseError, match="column big comes by the slot and is not declared for the topics"):
            move(narrow, spark)
        world.ingest(spark)
        connect.until(lambda: broker.count(f"{prefix}.transaction") >= 2)
        assert move(topics, spark).epoch == 2
        world.sql("INSERT INTO items VALUES (4)")
        until_there(topics, spark)
        assert_equal(topics)
        assert ops(topics, 2) == Counter(c=1)
    finally:
        connect.asked("DELETE", f"/connectors/{prefix}")
        drop_lake_of(topics)


def test_a_move_to_topics_whose_transaction_topic_keeps_less_than_they_do(
    moved: tuple[World, Topics], spark: Any
) -> None:
    """A table that has not changed since then has no END, and its events do not land twice, nor stop what comes."""
    world, topics = moved
    world.ingest(spark)
    changes, told = Changes(world), f"{world.source.name}.transaction"
    changes.make()
    world.ingest(spark)
    end = until_quiet(topics, told)  # and for longer than clocks may differ by
    topics.broker.forget(told, end)
    world.sql("UPDATE items SET price = 8 WHERE id = 12")
    world.ingest(spark)
    world.sql("UPDATE items SET price = 9 WHERE id = 13")
    assert until_quiet(topics, told) > end
    assert move(topics, spark).epoch == 2
    world.sql("UPDATE accounts SET amount = amount + 1 WHERE a = 12")
    until_there(topics, spark)
    assert_equal(topics)
    assert ops(topics, 2) == Counter(u=2), "what the slot had not brought"

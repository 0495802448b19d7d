"""Postgres through Debezium and Kafka: the lake holds what the database has, whatever is killed on the way."""

import json
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from lakehouse.catalog.open import load_table, open_catalog
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings
from tests.brokers import Broker, Topics
from tests.debezium import Connect, events_of, make_debezium, running_connect
from tests.debezium_world import TABLES, Make, Through, assert_sound, copy_items, through, until_equal

pytestmark = [pytest.mark.stack, pytest.mark.slow]


def test_a_snapshot_and_changes_land_with_their_transactions(debezium: Make, spark: Any) -> None:
    world, topics = debezium(
        before=("INSERT INTO items VALUES (1, 'one', 1.50), (2, 'two', 2)", "INSERT INTO accounts VALUES (0, 'r', 0)")
    )
    until_equal(world, topics, spark)
    assert {row["_op"] for row in topics.raw("items")} == {"r"}
    with psycopg.connect(world.owner_url) as connection:
        connection.execute("INSERT INTO items VALUES (3, 'three', 3, repeat('y', 9000))")
        connection.execute("INSERT INTO accounts VALUES (1, 'x', 10)")
        connection.execute("UPDATE items SET name = 'drei' WHERE id = 3")
        connection.execute("UPDATE items SET id = 30 WHERE id = 3")
    world.sql("DELETE FROM items WHERE id = 2", "UPDATE items SET price = 7 WHERE id = 1")
    until_equal(world, topics, spark)
    assert_sound(topics)
    rows = [row for row in topics.raw("items") if row["_op"] != "r"]
    assert [(r["_op"], r["id"]) for r in rows] == [("c", 3), ("u", 3), ("d", 3), ("c", 30), ("d", 2), ("u", 1)]
    first = rows[:4]
    assert len({r["_commit_lsn"] for r in first}) == len({r["_xid"] for r in first}) == 1
    assert first[1]["_unchanged"] == ["big"] and first[1]["big"] is None
    assert first[3]["_old_key"] == '{"id":"3"}' and first[3]["_unchanged"] == ["big"]
    _, account = topics.raw("accounts")
    assert account["_commit_lsn"] == first[0]["_commit_lsn"] and account["_seq"] == 4


class Transfers(threading.Thread):
    """Moves amounts between accounts, and writes items: every transaction leaves the sum of all amounts as it was."""

    def __init__(self, url: str, seed: int) -> None:
        super().__init__()
        self._url, self._chance, self.stopped, self.count = url, random.Random(seed), threading.Event(), 0

    def run(self) -> None:
        chance = self._chance
        with psycopg.connect(self._url, autocommit=True) as connection:
            while not self.stopped.is_set():
                with connection.transaction():
                    self._one(connection, chance)
                self.count += 1
                time.sleep(chance.random() * 0.02)

    def _one(self, connection: psycopg.Connection, chance: random.Random) -> None:
        for _ in range(chance.choice((1, 1, 2, 5))):
            amount = chance.randint(1, 9)
            for sign in (amount, -amount):
                connection.execute(
                    "INSERT INTO accounts VALUES (%s, %s, %s) ON CONFLICT (a, b) DO UPDATE SET amount ="
                    " accounts.amount + excluded.amount", (chance.randint(1, 5), chance.choice("xyz"), sign),
                )  # fmt: skip
            this, other = chance.randint(1, 40), chance.randint(1, 40)
            connection.execute(
                chance.choice((
                    "INSERT INTO items VALUES (%(i)s, 'n', %(i)s, repeat('y', 5000)) ON CONFLICT DO NOTHING",
                    "UPDATE items SET name = name || 'u' WHERE id = %(i)s", "DELETE FROM items WHERE id = %(i)s",
                    "UPDATE items SET id = %(j)s WHERE id = %(i)s AND NOT EXISTS (SELECT FROM items WHERE id = %(j)s)",
                )), {"i": this, "j": other},
            )  # fmt: skip
        if chance.random() < 0.05:
            with connection.cursor() as cursor, cursor.copy("COPY items (id, name) FROM STDIN") as copy:
                first = 1000 + self.count * 100
                for number in range(first, first + 60):
                    copy.write_row((number, "copied"))


@pytest.mark.parametrize("seed", [1, 2])
def test_the_lake_has_what_the_database_has_whatever_is_killed(
    debezium: Make, connect: Connect, broker: Broker, spark: Any, seed: int
) -> None:
    world, topics = debezium(
        before=("INSERT INTO items VALUES (1, 'one', 1.50)", "INSERT INTO accounts VALUES (0, 'r', 0)")
    )
    chance, transfers = random.Random(seed), Transfers(world.owner_url, seed)
    transfers.start()
    follower = topics.start_driver("--follow")
    try:
        for _ in range(6):
            until_published(topics, connect, world.source.name)
            time.sleep(chance.uniform(0, 3))
            what = chance.choice(("connect", "broker", "follower"))
            if what == "follower":
                follower.kill()
                follower.communicate()
                follower = topics.start_driver("--follow")
            else:
                killed: Any = connect if what == "connect" else broker
                killed.kill()
                killed.start()
                connect.until(lambda: connect.healed(world.source.name), 120)
        until_published(topics, connect, world.source.name)
    finally:
        transfers.stopped.set()
        transfers.join()
        follower.kill()
        _, errors = follower.communicate()
    time.sleep(3)
    until_equal(world, topics, spark, 180)
    assert transfers.count > 100, errors
    assert_sound(topics)
    assert_cuts_are_consistent(topics)


def until_published(topics: Topics, connect: Connect, connector: str) -> None:
    """Waits until a follower has published again: one that dies while it starts shows nothing. What of Connect fails a
    while after a kill is started again, since a task that has failed sends nothing; what it was is told."""
    before, deadline = len(cuts_of(topics)), time.monotonic() + 180
    while len(cuts_of(topics)) <= before:
        said = connect.asked("GET", f"/connectors/{connector}/status")
        assert time.monotonic() < deadline, f"the follower publishes nothing; Connect says {said}"
        connect.healed(connector)
        time.sleep(0.3)


def cuts_of(topics: Topics) -> list[dict[str, Any]]:
    catalog = open_catalog(topics.settings)
    table = load_table(catalog, "meta", "cuts")
    cuts = table.scan().to_arrow().to_pylist() if table else []
    catalog.close()
    return [cut for cut in cuts if cut["source"] == topics.source.name]


def assert_cuts_are_consistent(topics: Topics) -> None:
    """At every cut the amounts of all accounts have the sum that each transaction leaves."""
    rows, mine = topics.raw("accounts"), cuts_of(topics)
    for cut in mine:
        state: dict[tuple[Any, ...], int] = {}
        for row in rows:
            if row["_commit_lsn"] <= cut["cut_lsn"]:
                state[row["a"], row["b"]] = row["amount"]
        assert sum(state.values()) == 0
    assert len(mine) > 1


def test_a_truncate_empties_the_table(debezium: Make, spark: Any) -> None:
    world, topics = debezium(before=("INSERT INTO items VALUES (1, 'one', 1.50)",))
    world.sql("INSERT INTO items VALUES (2, 'two', 2)", "TRUNCATE items, accounts", "INSERT INTO items VALUES (3)")
    until_equal(world, topics, spark)
    assert [row["_op"] for row in topics.raw("items")] == ["r", "c", "t", "c"]


def test_a_table_that_is_declared_later_has_its_whole_history(debezium: Make, spark: Any) -> None:
    world, topics = debezium(
        before=("INSERT INTO items VALUES (1, 'one', 1.50)", "INSERT INTO accounts VALUES (1, 'r', 1)")
    )
    world.sql(
        "INSERT INTO accounts VALUES (1, 'x', 10)", "UPDATE accounts SET amount = 11", "INSERT INTO items VALUES (2)"
    )
    alone = topics.without("accounts")
    deadline = time.monotonic() + 60
    while len(alone.raw("items")) < 2:
        alone.ingest(spark)
        assert time.monotonic() < deadline
    until_equal(world, topics, spark)
    assert [row["_op"] for row in topics.raw("accounts")] == ["r", "c", "u", "u"]
    world.sql("DELETE FROM accounts WHERE b = 'x'")
    until_equal(world, topics, spark)
    assert_sound(topics)


def test_a_source_that_is_not_the_one_that_was_read_is_refused(debezium: Make, spark: Any) -> None:
    world, topics = debezium(before=("INSERT INTO items VALUES (1, 'one', 1.50)",))
    world.sql("INSERT INTO items VALUES (2, 'two', 2)")
    until_equal(world, topics, spark)
    other = make_debezium(world, topics.broker, TABLES, transactions=f"{world.source.name}.public.items")
    with pytest.raises(LakehouseError, match="was deleted and created again"):
        other.ingest(spark)


@contextmanager
def killed_within_a_copy(
    settings: Settings, broker: Broker, flush_ms: int, count: int
) -> Iterator[Through]:  # fmt: skip
    """Connect is killed within a COPY, and comes back; `flush_ms` says how often it stores offsets."""
    with (
        running_connect(settings, broker, exactly_once=False, flush_ms=flush_ms) as connect,
        through(settings, broker, connect, given={"delivery": "at_least_once"}) as (world, topics),
    ):
        items = f"{world.source.name}.public.items"
        world.sql("INSERT INTO accounts VALUES (1, 'x', 1)")
        connect.until(lambda: broker.count(f"{world.source.name}.public.accounts") == 1)
        time.sleep(2 * min(flush_ms, 1000) / 1000)
        copy_items(world, count)
        connect.until(lambda: broker.count(items) > count // 8, 180)
        connect.kill()
        assert broker.count(items) < count, "it was not killed within the COPY"
        connect.start()
        connect.until(lambda: connect.healed(world.source.name), 120)
        yield world, topics
        assert broker.count(items) > count, "the restart sent nothing twice"


def test_what_came_twice_lands_once_where_delivery_is_not_exactly_once(
    settings: Settings, broker: Broker, spark: Any
) -> None:
    """Killed within a COPY, Connect sends events again that it had sent, under other numbers."""
    with killed_within_a_copy(settings, broker, 500, 40_000) as (world, topics):
        until_equal(world, topics, spark, 180)
        assert_sound(topics)
        assert [row["_op"] for row in topics.raw("items")] == ["c"] * 40_000


def test_transactions_that_a_restart_sends_again_are_not_taken_for_another_databases(
    settings: Settings, broker: Broker, spark: Any
) -> None:
    """Their ENDs go back, and say what was told before."""
    with (
        running_connect(settings, broker, exactly_once=False, flush_ms=30_000) as connect,
        through(settings, broker, connect, given={"delivery": "at_least_once"}) as (world, topics),
    ):
        world.sql("INSERT INTO items VALUES (0)")
        until_equal(world, topics, spark)
        stored = f"connect-{connect.rest_port}-offset"
        before = len(events_of(broker.server, stored))
        world.sql("INSERT INTO accounts VALUES (0, 'x', 0)")
        connect.until(lambda: len(events_of(broker.server, stored)) > before, 90)
        for number in range(1, 40):
            world.sql(f"INSERT INTO items VALUES ({number}); UPDATE accounts SET amount = {number}")
        until_equal(world, topics, spark)
        connect.kill()
        connect.start()
        connect.until(lambda: connect.healed(world.source.name), 120)
        world.sql("UPDATE items SET name = 'later'")
        until_equal(world, topics, spark)
        assert_sound(topics)
        assert [row["_op"] for row in topics.raw("items")] == [*"c" * 40, *"u" * 40]
        told = [json.loads(m["value"]) for m in events_of(broker.server, f"{world.source.name}.transaction")]
        ends = [one["id"] for one in told if one["status"] == "END"]
        assert len(ends) > len(set(ends)) + 20, "the restart sent nothing twice"


def test_a_connector_that_begins_anew_within_a_transaction_does_not_stop_the_source(
    settings: Settings, broker: Broker, spark: Any
) -> None:
    """It was killed before it had stored offsets: the COPY's rows came as a snapshot, and its END never did."""
    with killed_within_a_copy(settings, broker, 600_000, 40_000) as (world, topics):
        until_equal(world, topics, spark, 180)
        assert_sound(topics)
        rows = topics.raw("items")
        assert [row["_op"] for row in rows].count("r") == 40_000 and {row["_op"] for row in rows} == {"c", "r"}
        world.sql("UPDATE items SET name = 'later' WHERE id < 10", "DELETE FROM items WHERE id = 0")
        until_equal(world, topics, spark)

"""What a source in topics of Debezium has to do, case by case, in one broker and one Connect."""

import signal
import time
from contextlib import closing
from typing import Any

import psycopg
import pytest

from ingestion.sources.debezium.spool import IN_MEMORY
from ingestion.state import lease as leases
from ingestion.state import store
from lakehouse.catalog.open import load_table, open_catalog
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings
from tests.brokers import Broker, Topics
from tests.debezium import NEWEST, Connect, events_of, running_connect
from tests.debezium_world import TABLES, Make, assert_sound, copy_items, through, until_equal
from tests.world import World

pytestmark = [pytest.mark.stack, pytest.mark.slow]

WIDE = {
    "topic_creation_groups": "wide", "topic_creation_wide_include": r".*\.items",
    "topic_creation_wide_partitions": "4", "topic_creation_wide_replication_factor": "1",
}  # fmt: skip


def assert_no_gap(world: World, topics: Topics) -> None:
    """Every event of the topics is a row, and no row is of anything else."""
    for table in TABLES:
        sent = events_of(topics.broker.server, f"{world.source.name}.public.{table}")
        there = {(event["partition"], event["offset"]) for event in sent if event["value"] is not None}
        assert {(r["_topic_partition"], r["_offset"]) for r in topics.raw(table)} == there


def files_of(topics: Topics, table: str) -> list[str]:
    with closing(open_catalog(topics.settings)) as catalog:
        iceberg = load_table(catalog, f"raw_{topics.source.name}", table)
        assert iceberg is not None
        return list(iceberg.inspect.files().column("file_path").to_pylist())


def test_transactions_that_overlap_land_in_the_order_of_their_commits_over_all_topics(
    debezium: Make, spark: Any
) -> None:
    world, topics = debezium()
    with psycopg.connect(world.owner_url) as early, psycopg.connect(world.owner_url) as late:
        early.execute("INSERT INTO items VALUES (1, 'early')")
        late.execute("INSERT INTO items VALUES (2, 'late')")
        late.execute("INSERT INTO accounts VALUES (2, 'late', 2)")
        early.execute("INSERT INTO accounts VALUES (1, 'early', 1)")
        late.commit()
        early.commit()
    until_equal(world, topics, spark)
    items, accounts = topics.raw("items"), topics.raw("accounts")
    assert [r["id"] for r in items] == [2, 1] and [r["a"] for r in accounts] == [2, 1]
    assert [r["_commit_lsn"] for r in items] == [r["_commit_lsn"] for r in accounts]
    assert_no_gap(world, topics)


def test_a_first_read_begins_with_what_the_topics_have_however_old(debezium: Make, spark: Any) -> None:
    world, topics = debezium(before=("INSERT INTO items VALUES (1, 'one', 1.50)",))
    for number in range(2, 30):
        world.sql(f"INSERT INTO items VALUES ({number})", f"UPDATE items SET name = 'n' WHERE id = {number}")
    time.sleep(2)
    until_equal(world, topics, spark)
    assert [r["_op"] for r in topics.raw("items")] == ["r", *["c", "u"] * 28]
    assert_no_gap(world, topics)


def test_deletes_with_the_key_alone_and_keys_that_change_partition_empty_both_places(
    debezium: Make, spark: Any
) -> None:
    """Events of one row are in two partitions once its key has changed."""
    world, topics = debezium(before=("INSERT INTO items SELECT g, 'n', g FROM generate_series(1, 20) AS g",), **WIDE)
    until_equal(world, topics, spark)
    world.sql(
        "UPDATE items SET id = id + 100, name = 'moved'", "DELETE FROM items WHERE id % 3 = 0",
        "UPDATE items SET id = id - 100", "INSERT INTO items SELECT g, 'again' FROM generate_series(30, 40) AS g",
    )  # fmt: skip
    until_equal(world, topics, spark)
    assert_sound(topics)
    assert_no_gap(world, topics)
    rows = topics.raw("items")
    assert len({row["_topic_partition"] for row in rows}) == 4
    assert all(row["name"] is None and row["price"] is None for row in rows if row["_op"] == "d")
    assert sum(row["_old_key"] is not None for row in rows) == 20 + 20 - 7


def test_partitions_in_which_nothing_comes_hold_up_no_cut_of_whole_transactions(debezium: Make, spark: Any) -> None:
    """A topic has four partitions, of which one gets an event now and then, beside a table in steady work."""
    rows = "INSERT INTO items SELECT g, 'n', g FROM generate_series(1, 20) AS g"
    world, topics = debezium(before=(rows, "INSERT INTO accounts VALUES (0, 'x', 0)"), **WIDE)
    until_equal(world, topics, spark)
    for number in range(1, 6):
        changes = [f"UPDATE accounts SET amount = {number}"]
        changes += ["UPDATE items SET price = price + 1 WHERE id = 7"] if number == 3 else []
        world.sql("; ".join(changes))
        until_equal(world, topics, spark)
        with store.connect_catalog(topics.settings) as states:
            stream = store.read_stream(states, topics.source.name)
        assert stream is not None and stream.cut_position is not None
        newest = topics.raw("accounts")[-1]
        assert (newest["amount"], newest["_op"]) == (number, "u")
        assert stream.cut_position.commit_bound > newest["_commit_lsn"], "the cut has the newest transaction"
    rows_of_items = topics.raw("items")
    assert len({row["_topic_partition"] for row in rows_of_items}) > 1
    assert [row["_op"] for row in rows_of_items].count("u") == 1
    assert_no_gap(world, topics)


def counted(topics: Topics, topic: str, least: int) -> int:
    """How many messages a topic has, once there are so many; an AssertionError after a minute."""
    deadline = time.monotonic() + 60
    while (count := topics.broker.count(topic)) < least:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return count


@pytest.mark.parametrize("step", ["ingestion.sink.publish:_swap:before", "ingestion.sink.publish:_swap:after"])
def test_killed_at_its_publish_each_transaction_lands_once(debezium: Make, spark: Any, step: str) -> None:
    world, topics = debezium(before=("INSERT INTO items VALUES (1, 'one', 1.50)",))
    world.sql("INSERT INTO accounts VALUES (1, 'x', 1)")
    until_equal(world, topics, spark)
    transactions = f"{world.source.name}.transaction"
    told = topics.broker.count(transactions)
    world.sql("INSERT INTO items VALUES (2, 'two', 2); UPDATE accounts SET amount = 2")
    counted(topics, transactions, told + 2)
    killed = topics.driver(step)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    until_equal(world, topics, spark)
    assert_sound(topics)
    assert_no_gap(world, topics)


def test_events_that_retention_took_before_they_were_read_stop_the_source(debezium: Make, spark: Any) -> None:
    world, topics = debezium(before=("INSERT INTO items VALUES (1, 'one', 1.50)",))
    world.sql("INSERT INTO accounts VALUES (1, 'x', 1)")
    until_equal(world, topics, spark)
    items = f"{world.source.name}.public.items"
    read = topics.broker.count(items)
    world.sql("INSERT INTO items SELECT g FROM generate_series(2, 21) AS g")
    topics.broker.forget(items, counted(topics, items, read + 20) - 5)
    with pytest.raises(LakehouseError, match="were deleted before the lake had read them"):
        topics.ingest(spark)
    assert [row["id"] for row in topics.raw("items")] == [1]


@pytest.mark.parametrize("version", ["3.6.3.Final", NEWEST])
def test_a_connector_of_a_version_that_loses_rows_is_told_of(
    settings: Settings, broker: Broker, spark: Any, caplog: pytest.LogCaptureFixture, version: str
) -> None:
    with (
        running_connect(settings, broker, version=version) as connect,
        through(settings, broker, connect, before=("INSERT INTO items VALUES (1, 'one', 1.50)",)) as (world, topics),
    ):
        world.sql("INSERT INTO accounts VALUES (1, 'x', 1)", "UPDATE items SET name = 'two'")
        until_equal(world, topics, spark)
        assert_sound(topics)
    assert (f"Debezium {version} may lose rows" in caplog.text) == (version != NEWEST)


def test_several_followers_land_each_event_once_whoever_of_them_is_killed(debezium: Make, spark: Any) -> None:
    """One writes, the other waits for its lease; no consumer group deals partitions out."""
    world, topics = debezium()
    followers = {follower.pid: follower for follower in (topics.start_driver("--follow") for _ in range(2))}
    try:
        for kills in range(3):
            insert_until_more_has_landed(world, topics)
            if kills < 2:
                killed = followers.pop(holder_of(topics))
                killed.kill()
                killed.communicate()
                another = topics.start_driver("--follow")
                followers[another.pid] = another
    finally:
        for follower in followers.values():
            follower.kill()
            follower.communicate()
    until_equal(world, topics, spark)
    assert_sound(topics)
    assert_no_gap(world, topics)
    files = files_of(topics, "items")
    assert len(files) == len(set(files)) > 1, "no file is in the table twice"


def insert_until_more_has_landed(world: World, topics: Topics) -> None:
    before, deadline = len(topics.raw("items")), time.monotonic() + 120
    while len(topics.raw("items")) < before + 10:
        world.sql("INSERT INTO items SELECT count(*) FROM items")
        assert time.monotonic() < deadline
        time.sleep(0.1)


def holder_of(topics: Topics) -> int:
    """The process that writes."""
    with store.connect_catalog(topics.settings) as states:
        held = leases.holder_of(states, topics.source.name)
    assert held is not None
    return int(held[0].split(":")[1])


def test_a_broker_that_is_away_is_told_within_a_bound_and_nothing_is_lost(
    debezium: Make, broker: Broker, connect: Connect, spark: Any
) -> None:
    world, topics = debezium(before=("INSERT INTO items VALUES (1, 'one', 1.50)",))
    until_equal(world, topics, spark)
    broker.kill()
    try:
        began = time.monotonic()
        with pytest.raises(LakehouseError, match="does not answer"):
            topics.ingest(spark)
        assert time.monotonic() - began < 120
    finally:
        broker.start()
    connect.until(lambda: connect.healed(world.source.name), 120)
    world.sql("INSERT INTO items VALUES (2, 'two', 2)")
    until_equal(world, topics, spark, 120)
    assert_no_gap(world, topics)


def test_a_transaction_that_is_larger_than_memory_for_it_lands_whole(debezium: Make, spark: Any) -> None:
    """Its events are more than what is kept in memory; those above wait on disk."""
    world, topics = debezium()
    copy_items(world, 1)
    until_equal(world, topics, spark)
    world.sql("INSERT INTO items SELECT g, repeat(md5(g::text), 100) FROM generate_series(1, 40000) AS g")
    until_equal(world, topics, spark, 240)
    rows = [row for row in topics.raw("items") if row["id"] > 0]
    assert len(rows) == 40_000 and len({row["_commit_lsn"] for row in rows}) == 1
    assert_sound(topics)
    sent = events_of(topics.broker.server, f"{world.source.name}.public.items")
    assert sum(len(event["value"]) for event in sent) > IN_MEMORY


def test_without_transactions_each_table_is_as_the_database_has_it(debezium: Make, spark: Any) -> None:
    world, topics = debezium(
        before=("INSERT INTO items VALUES (1, 'one', 1.50)", "INSERT INTO accounts VALUES (0, 'r', 0)"),
        given={"transactions": None}, provide_transaction_metadata="false",
    )  # fmt: skip
    until_equal(world, topics, spark)
    for number in range(2, 12):
        world.sql(
            f"INSERT INTO items VALUES ({number}, 'n', 1, repeat('y', 9000))",
            f"UPDATE items SET id = {number + 100} WHERE id = {number}",
            f"INSERT INTO accounts VALUES ({number}, 'x', 1)",
            "DELETE FROM items WHERE id IN (103, 105)",
        )  # fmt: skip
    until_equal(world, topics, spark)
    assert_sound(topics)
    assert_no_gap(world, topics)
    rows = topics.raw("items")
    numbers = [row["_commit_lsn"] for row in rows]
    assert numbers == sorted(numbers) and max(numbers) < 1000, "they number publishes"
    assert [row["_offset"] for row in rows] == sorted(row["_offset"] for row in rows)
    assert all((row["_xid"] is None) == (row["_op"] == "r") for row in rows)
    world.sql("TRUNCATE items", "INSERT INTO items VALUES (7)")
    until_equal(world, topics, spark)

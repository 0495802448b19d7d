"""The catalog of a lake of topics is lost and restored from an older backup, with a real broker: what was produced is
there once in each epoch, and nothing is missing that the brokers still have."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ingestion import recover_source
from lakehouse.declarations.policies import RawPolicy
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings
from lakehouse_backup.run import Warehouse, make_backup, restore_backup
from maintenance.inventory.session import Session
from tests.brokers import Broker, Topics, drop_lake_of, make_topics
from tests.debezium_world import TABLES, Make, lake_rows, source_rows, until_equal
from tests.test_backup import destroy_catalog

pytestmark = [pytest.mark.stack, pytest.mark.slow]
EVENT = {"id": "bigint", "page": "text"}
PLACE = ("_topic_partition", "_offset")
Events = Callable[..., Topics]


@pytest.fixture
def events(settings: Settings, broker: Broker) -> Iterator[Events]:
    made: list[Topics] = []

    def one(partitions: int = 3) -> Topics:
        topic = f"events-{random.randrange(10**9)}"
        broker.create(topic, partitions)
        made.append(make_topics(settings, broker, {"events": (RawPolicy(topic=topic), EVENT)}, lease_seconds=2))
        return made[-1]

    yield one
    for topics in made:
        drop_lake_of(topics)


def land(topics: Topics, first: int, end: int, spark: Any) -> None:
    """Produces these events, and reads them in two parts."""
    for some in (range(first, (first + end) // 2), range((first + end) // 2, end)):
        produced = [{"id": number, "page": f"/p{number}"} for number in some]
        topics.broker.produce(topics.source.table("events").raw.topic, produced, keys=some)
        topics.ingest(spark)


def ids(topics: Topics, epoch: int = 1) -> list[int]:
    """The events of an epoch, in no order; each is at a place of its own."""
    rows = [row for row in topics.raw("events") if row["_epoch"] == epoch]
    assert len({tuple(row[name] for name in PLACE) for row in rows}) == len(rows)
    assert len({(row["_commit_lsn"], row["_seq"]) for row in rows}) == len(rows)
    return sorted(row["id"] for row in rows)


def lose_files(topics: Topics, table: str) -> None:
    """All objects of a raw table."""
    session = Session(topics.settings)
    try:
        location = session.catalog.load_table((f"raw_{topics.source.name}", table)).location()
        scheme, authority, path = session.io.parse_location(location, session.io.properties)
        session.io.fs_by_scheme(scheme, authority).delete_dir(path)
    finally:
        session.close()


def recover(topics: Topics, spark: Any) -> None:
    with pytest.raises(LakehouseError, match=r"restored from a backup.*--recover"):
        topics.ingest(spark)
    recover_source(topics.settings, topics.declarations, topics.source.name, spark)
    topics.ingest(spark)


def test_topics_go_on_behind_an_older_backup(events: Events, spark: Any, tmp_path: Path) -> None:
    topics = events()
    land(topics, 0, 100, spark)
    make_backup(topics.settings, tmp_path, catalog_only=True)
    land(topics, 100, 300, spark)
    before = topics.raw("events")
    destroy_catalog(topics.settings)
    done = restore_backup(topics.settings, tmp_path, Warehouse.KEPT)
    assert topics.source.name in done.forward.going_on, done.forward
    land(topics, 300, 400, spark)
    assert ids(topics) == [*range(400)]
    assert topics.raw("events")[:300] == before, "history is what it was, and goes on behind it"


@pytest.mark.parametrize("gone", [0, 150])
def test_events_whose_files_were_lost_are_read_again_as_far_as_the_brokers_have_them(
    events: Events, spark: Any, tmp_path: Path, gone: int
) -> None:
    topics = events(partitions=1)
    land(topics, 0, 100, spark)
    make_backup(topics.settings, tmp_path)
    land(topics, 100, 200, spark)
    lose_files(topics, "events")
    destroy_catalog(topics.settings)
    if gone:
        topics.broker.forget(topics.source.table("events").raw.topic, gone)
    done = restore_backup(topics.settings, tmp_path, Warehouse.LOST)
    assert "lacks files of events" in done.forward.to_recover[topics.source.name], done.forward
    assert ids(topics) == [*range(100)]
    recover(topics, spark)
    land(topics, 200, 250, spark)
    assert (ids(topics), ids(topics, 2)) == ([*range(100)], [*range(max(100, gone), 250)])


def test_what_retention_took_after_a_restore_is_told(events: Events, spark: Any, tmp_path: Path) -> None:
    topics = events(partitions=1)
    land(topics, 0, 100, spark)
    make_backup(topics.settings, tmp_path, catalog_only=True)
    land(topics, 100, 200, spark)
    destroy_catalog(topics.settings)
    restore_backup(topics.settings, tmp_path, Warehouse.KEPT)
    topic = topics.source.table("events").raw.topic
    topics.broker.produce(topic, [{"id": number} for number in range(200, 300)])
    topics.broker.forget(topic, 250)
    with pytest.raises(LakehouseError, match=r"events 200 to 249 were deleted .*--recover"):
        topics.ingest(spark)
    recover_source(topics.settings, topics.declarations, topics.source.name, spark)
    topics.ingest(spark)
    assert (ids(topics), ids(topics, 2)) == ([*range(200)], [*range(250, 300)])


def test_a_source_of_topics_that_was_added_since_the_backup_is_read_anew_in_the_next_epoch(
    events: Events, settings: Settings, spark: Any, tmp_path: Path
) -> None:
    """Nothing in the warehouse says which topics they were, so that nobody knows whether these are still the same."""
    make_backup(settings, tmp_path, catalog_only=True)
    topics = events()
    land(topics, 0, 100, spark)
    before = topics.raw("events")
    destroy_catalog(topics.settings)
    done = restore_backup(topics.settings, tmp_path, Warehouse.KEPT)
    assert done.forward.to_recover[topics.source.name] == "it was added since the backup", done.forward
    recover(topics, spark)
    land(topics, 100, 150, spark)
    assert topics.raw("events")[:100] == before
    assert (ids(topics), ids(topics, 2)) == ([*range(100)], [*range(150)])


@pytest.mark.parametrize("lost", [False, True])
def test_topics_of_debezium_go_on_behind_an_older_backup_in_whole_transactions(
    debezium: Make, spark: Any, tmp_path: Path, lost: bool
) -> None:
    """Where files are lost, the topics of all tables go back together."""
    world, topics = debezium(
        before=("INSERT INTO items VALUES (1, 'one', 1.50)", "INSERT INTO accounts VALUES (0, 'r', 0)")
    )

    def change(number: int) -> None:
        world.sql(
            f"INSERT INTO items VALUES ({number}, 'n{number}', 1); INSERT INTO accounts VALUES ({number}, 'a', 1)",
            f"UPDATE items SET name = 'later' WHERE id = {number - 10}; UPDATE accounts SET amount = amount + 1",
            f"DELETE FROM items WHERE id = {number - 20}",
        )
        until_equal(world, topics, spark)

    for number in (10, 20):
        change(number)
    make_backup(topics.settings, tmp_path, catalog_only=not lost)
    for number in (30, 40):
        change(number)
    before = {table: topics.raw(table) for table in TABLES}
    if lost:
        lose_files(topics, "items")
    destroy_catalog(topics.settings)
    done = restore_backup(topics.settings, tmp_path, Warehouse.LOST if lost else Warehouse.KEPT)
    if lost:
        assert "lacks files of items" in done.forward.to_recover[topics.source.name], done.forward
        recover(topics, spark)
    else:
        assert topics.source.name in done.forward.going_on, done.forward
    change(50)
    for table in TABLES:
        assert source_rows(world, table) == lake_rows(topics, table)
        rows = topics.raw(table)
        places = [(row["_epoch"], *(row[name] for name in PLACE), row["_seq"] % 2) for row in rows]
        assert len(set(places)) == len(rows) and {row["_epoch"] for row in rows} == ({1, 2} if lost else {1})
        assert lost or rows[: len(before[table])] == before[table]

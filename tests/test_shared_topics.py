"""Followers that share topics of a real broker: row for row what was produced, whoever is killed."""

import random
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import Any

import pytest

from ingestion import source_status
from ingestion.run.sharing import follow_shared
from ingestion.state import store
from lakehouse.catalog.open import changes_data, load_table, open_catalog
from lakehouse.declarations.policies import RawPolicy
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings
from tests.brokers import Broker, Topics, drop_lake_of, make_topics
from tests.pages import commands

pytestmark = pytest.mark.stack

EVENT = {"id": "bigint", "page": "text"}
PARTITIONS = 6


@pytest.fixture
def topics(settings: Settings, broker: Broker) -> Iterator[Topics]:
    names = {table: f"{table}-{random.randrange(10**9)}" for table in ("clicks", "views")}
    for topic in names.values():
        broker.create(topic, PARTITIONS)
    tables = {table: (RawPolicy(topic=topic), EVENT) for table, topic in names.items()}
    made = make_topics(settings, broker, tables, lease_seconds=5, flush_interval_seconds=0.3)
    yield made
    drop_lake_of(made)


class Produced:
    """What was sent, and where the broker says that it is."""

    def __init__(self, topics: Topics) -> None:
        self.topics, self.sent = topics, {table.name: 0 for table in topics.source.tables}

    def send(self, table: str, count: int) -> None:
        first = self.sent[table]
        events = [{"id": i, "page": f"/{table}/{i}"} for i in range(first, first + count)]
        self.topics.broker.produce(self.topics.source.table(table).raw.topic, events, keys=range(first, first + count))
        self.sent[table] += count


def position(topics: Topics) -> int:
    with store.connect_catalog(topics.settings) as states:
        stream = store.read_stream(states, topics.source.name)
    return stream.position.commit_bound if stream else 0


def until(done: Callable[[], bool], seconds: float = 150) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def assert_row_for_row(produced: Produced) -> None:
    """Every event once, in its partition's order; ordinals in the order in which rows became visible; whole cuts."""
    topics = produced.topics
    rows = {table: topics.raw(table) for table in produced.sent}
    ordinals: list[tuple[int, int]] = []
    for table, found in rows.items():
        assert sorted((r["id"], r["page"]) for r in found) == [
            (i, f"/{table}/{i}") for i in range(produced.sent[table])
        ]
        for number in range(PARTITIONS):
            offsets = [r["_offset"] for r in found if r["_topic_partition"] == number]
            assert offsets == list(range(len(offsets))), "a gap, a double, or another order"
        order = [(r["_commit_lsn"], r["_seq"]) for r in found]
        assert len(set(order)) == len(order)
        ingested = [r["_ingested_at"] for r in found]
        assert ingested == sorted(ingested)
        ordinals += order
    assert len(set(ordinals)) == len(ordinals), "also between tables"
    with closing(open_catalog(topics.settings)) as catalog:
        cuts = load_table(catalog, "meta", "cuts").scan().to_arrow().to_pylist()
        assert_snapshots_only_add_beyond(catalog, topics)
    mine = sorted((c for c in cuts if c["source"] == topics.source.name), key=lambda c: c["published_at"])
    assert [c["cut_lsn"] for c in mine] == sorted(c["cut_lsn"] for c in mine)
    for cut in mine:
        ends = {(t, int(p)): int(o) for t, p, o in re.findall(r"([^,/]+)/(\d+):(\d+)", cut["position"])}
        for table, _ in cut["snapshots"]:
            topic = topics.source.table(table).raw.topic
            below = {(r["_topic_partition"], r["_offset"]) for r in rows[table] if r["_commit_lsn"] <= cut["cut_lsn"]}
            assert below == {(p, o) for (t, p), end in ends.items() if t == topic for o in range(end)}


def assert_snapshots_only_add_beyond(catalog: Any, topics: Topics) -> None:
    """No snapshot brings a row at or below an ordinal that an earlier one has shown, of any table of the source."""
    tables = [load_table(catalog, f"raw_{topics.source.name}", table.name) for table in topics.source.tables]
    seen = -1
    added = [
        (snapshot.timestamp_ms, entry.data_file)
        for table in tables
        for snapshot in table.metadata.snapshots
        if changes_data(snapshot)  # a merge of small files has rows of several publishes, and brings none
        for manifest in snapshot.manifests(table.io)
        if manifest.added_snapshot_id == snapshot.snapshot_id
        for entry in manifest.fetch_manifest_entry(table.io)
        if entry.snapshot_id == snapshot.snapshot_id
    ]
    field = tables[0].schema().find_field("_commit_lsn").field_id
    by_moment: dict[int, list[int]] = {}
    for moment, file in added:
        bounds = (file.lower_bounds[field], file.upper_bounds[field])
        low, high = (int.from_bytes(bound, "little") for bound in bounds)
        assert low == high, "the rows of a file are of one publish"
        by_moment.setdefault(moment, []).append(low)
    for _, ordinals in sorted(by_moment.items()):
        assert min(ordinals) >= seen
        seen = max(ordinals)


def followers_of(topics: Topics) -> int:
    with suppress(LakehouseError):
        return source_status(topics.settings, topics.source.name).followers
    return 0


def standing(topics: Topics) -> tuple[int, tuple[str, ...], bool, float]:
    """Followers, parts that nobody reads, whether a follower lives, and the lag in seconds."""
    status = source_status(topics.settings, topics.source.name)
    return status.followers, status.unclaimed, status.follower_alive, status.lag_seconds


def two_followers(
    topics: Topics, spark: Any, failures: list[BaseException]
) -> tuple[list[threading.Thread], list[threading.Event]]:
    """Threads that follow once they are started, and what ends each; why one has failed is added to `failures`."""
    stops = [threading.Event(), threading.Event()]

    def follow(stop: threading.Event) -> None:
        try:
            follow_shared(topics.settings, topics.source, spark, stop)
        except BaseException as error:
            failures.append(error)

    return [threading.Thread(target=follow, args=(stop,)) for stop in stops], stops


def test_two_followers_share_a_source_and_one_goes_on_alone(topics: Topics, spark: Any) -> None:
    """In one process: the smallest case against a real broker and a real catalog."""
    produced, failures = Produced(topics), list[BaseException]()
    threads, stops = two_followers(topics, spark, failures)
    produced.send("clicks", 300)
    with store.connect_catalog(topics.settings) as states:
        store.ensure_state(states)
    try:
        for thread in threads:
            thread.start()
        until(lambda: followers_of(topics) == 2 or bool(failures), 60)
        for _ in range(4):
            produced.send("clicks", 300)
            produced.send("views", 300)
            until(lambda: position(topics) >= sum(produced.sent.values()) or bool(failures), 60)
        until(lambda: standing(topics) == (2, (), True, 0.0), 60)
        stops[0].set()
        threads[0].join(60)
        produced.send("clicks", 300)
        until(lambda: position(topics) >= sum(produced.sent.values()) or bool(failures), 60)
    finally:
        for stop in stops:
            stop.set()
        for thread in threads:
            thread.join(60)
    assert failures == []
    assert_row_for_row(produced)
    assert source_status(topics.settings, topics.source.name).follower == "none"


def test_a_topic_that_is_deleted_under_followers_parks_its_table_alone(topics: Topics, spark: Any) -> None:
    """The followers go on with the others, and the status says which table is left behind and why."""
    produced, failures = Produced(topics), list[BaseException]()
    threads, stops = two_followers(topics, spark, failures)
    for table in produced.sent:
        produced.send(table, 300)
    with store.connect_catalog(topics.settings) as states:
        store.ensure_state(states)
    try:
        for thread in threads:
            thread.start()
        until(lambda: (followers_of(topics) == 2 and position(topics) >= 600) or bool(failures), 100)
        topics.broker.delete(topics.source.table("views").raw.topic)

        def parked() -> dict[str, str]:
            return {
                t.name: t.reason or ""
                for t in source_status(topics.settings, topics.source.name).tables
                if t.state == "parked"
            }

        until(lambda: "views" in parked() or bool(failures), 60)
        assert failures == []
        assert "was deleted" in parked()["views"]
        for _ in range(3):
            before = position(topics)
            produced.send("clicks", 300)
            until(lambda before=before: position(topics) >= before + 300 or bool(failures), 60)
    finally:
        for stop in stops:
            stop.set()
        for thread in threads:
            thread.join(60)
    assert failures == []
    assert sorted(row["id"] for row in topics.raw("clicks")) == list(range(produced.sent["clicks"]))
    assert sorted(row["id"] for row in topics.raw("views")) == list(range(300))
    assert [t.name for t in source_status(topics.settings, topics.source.name).tables if t.state == "parked"] == [
        "views"
    ]


@pytest.mark.slow
def test_a_follower_that_is_killed_in_mid_load_is_replaced_and_nothing_is_lost_or_doubled(
    topics: Topics, spark: Any
) -> None:
    produced, stop = Produced(topics), threading.Event()

    def produce() -> None:
        while not stop.wait(0.02):
            produced.send(random.choice(("clicks", "views")), random.randrange(50, 400))

    (follow,) = commands("how-to/share-topics.md", ("clicks", topics.source.name))
    first, second = topics.start_command(*follow), topics.start_command(*follow)
    producer = threading.Thread(target=produce)
    try:
        producer.start()
        until(lambda: followers_of(topics) == 2)
        before = position(topics)
        until(lambda: position(topics) > before + 5_000)
        first.kill()
        first.communicate()
        until(lambda: source_status(topics.settings, topics.source.name).unclaimed == (), 30)
        third = topics.start_command(*follow)
        until(lambda: followers_of(topics) == 2)
        before = position(topics)
        until(lambda: position(topics) > before + 5_000)
        second.kill()
        second.communicate()
        before = position(topics)
        until(lambda: position(topics) > before + 2_000)
    finally:
        stop.set()
        producer.join()
    until(lambda: position(topics) >= sum(produced.sent.values()))
    third.send_signal(signal.SIGTERM)
    output = third.communicate(timeout=60)
    assert third.returncode == 0, output
    assert_row_for_row(produced)
    topics.ingest(spark)
    assert_row_for_row(produced)


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    ["ingestion.pipeline.load_changes:run_tasks:after:3", "ingestion.sink.publish:_stage_all:after:5",
     "ingestion.sink.publish:_swap:before:5", "ingestion.sink.publish:_swap:after:5",
     "ingestion.state.claims:take_turn:after:3", "ingestion.state.claims:end_turn:after:3"],
)  # fmt: skip
def test_killed_at_a_step_beside_another_follower_each_event_lands_once(topics: Topics, spark: Any, fault: str) -> None:
    produced = Produced(topics)
    produced.send("clicks", 500)
    topics.ingest(spark)
    doomed, other = topics.start_driver("--follow", "--share", fault), topics.start_driver("--follow", "--share")
    deadline = time.monotonic() + 150
    while doomed.poll() is None:
        assert time.monotonic() < deadline and other.poll() is None
        produced.send(random.choice(("clicks", "views")), 100)
        time.sleep(0.3)
    assert doomed.returncode == -signal.SIGKILL, doomed.communicate()
    produced.send("views", 500)
    until(lambda: position(topics) >= sum(produced.sent.values()), 60)
    other.send_signal(signal.SIGTERM)
    other.communicate(timeout=60)
    assert_row_for_row(produced)


@pytest.mark.slow
def test_a_follower_that_stalls_and_wakes_up_late_publishes_nothing_of_before(topics: Topics, spark: Any) -> None:
    """SIGSTOP after its files are written; the others go on once its time has run out, and it comes back."""
    produced = Produced(topics)
    produced.send("clicks", 500)
    topics.ingest(spark)
    stalled = topics.start_driver("--follow", "--share", "ingestion.sink.publish:_swap:stall:3")
    until(lambda: followers_of(topics) == 1)
    other = topics.start_driver("--follow", "--share")
    until(lambda: followers_of(topics) == 2)
    import psutil

    process, deadline = psutil.Process(stalled.pid), time.monotonic() + 150
    while process.status() != psutil.STATUS_STOPPED:
        assert time.monotonic() < deadline
        produced.send("clicks", 100)
        time.sleep(0.3)
    produced.send("views", 300)
    until(lambda: position(topics) >= sum(produced.sent.values()), 60)
    process.send_signal(signal.SIGCONT)
    produced.send("clicks", 300)
    until(lambda: followers_of(topics) == 2, 90)
    produced.send("views", 300)
    until(lambda: position(topics) >= sum(produced.sent.values()), 60)
    for follower in (stalled, other):
        follower.send_signal(signal.SIGTERM)
        follower.communicate(timeout=60)
    assert_row_for_row(produced)

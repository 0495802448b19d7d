"""Topics of events, read from a real broker: each event lands once, whatever is killed."""

import json
import random
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ingestion import bring_up, recover_source, refresh_mirrors, replay, resnapshot, resume, source_status
from ingestion.sources.kafka.connection import Brokers
from ingestion.state import store
from ingestion.verify.raw import reconcile_raw
from ingestion.verify.run import EVENTS, reconcile
from lakehouse.catalog.open import load_table, open_catalog
from lakehouse.declarations import load_declarations
from lakehouse.declarations.policies import RawPolicy
from lakehouse.errors import LakehouseError
from lakehouse.settings import KafkaSettings, Settings
from scaffold import apply, models_of, plan
from tests.brokers import Broker, Topics, drop_lake_of, make_topics, running_broker, topic_table
from tests.zoo import Zoo, empty_project

pytestmark = pytest.mark.stack

CLICK = {"id": "bigint", "page": "text", "price": "numeric(10,2)", "at": "timestamptz", "mobile": "boolean"}
PLACE = ("_topic", "_topic_partition", "_offset")
Make = Callable[..., Topics]


@pytest.fixture
def make(settings: Settings, broker: Broker) -> Iterator[Make]:
    made: list[Topics] = []

    def one(partitions: int = 3, key: tuple[str, ...] = (), columns: dict[str, str] = CLICK, **limits: Any) -> Topics:
        topic = f"clicks-{random.randrange(10**9)}"
        broker.create(topic, partitions)
        policy = RawPolicy(topic=topic, key=key)
        made.append(make_topics(settings, broker, {"clicks": (policy, columns)}, lease_seconds=2, **limits))
        return made[-1]

    yield one
    for topics in made:
        drop_lake_of(topics)


def topic_of(topics: Topics, table: str = "clicks") -> str:
    return topics.source.table(table).raw.topic


def clicks(first: int, count: int) -> list[dict[str, Any]]:
    return [
        {"id": i, "page": f"/p{i}", "price": f"{i}.50", "at": "2026-11-24T01:02:03Z", "mobile": i % 2 == 0}
        for i in range(first, first + count)
    ]


def send(topics: Topics, first: int, count: int) -> None:
    events = clicks(first, count)
    topics.broker.produce(topic_of(topics), events, keys=[event["id"] for event in events])


def assert_each_once(topics: Topics, ids: range | list[int], table: str = "clicks") -> list[dict[str, Any]]:
    """The rows of these events are there, each once, at places that nobody else has, in the order of partitions."""
    rows = topics.raw(table)
    assert sorted(row["id"] for row in rows) == sorted(ids)
    assert len({tuple(row[name] for name in PLACE) for row in rows}) == len(rows)
    order = [(row["_epoch"], row["_commit_lsn"], row["_seq"]) for row in rows]
    assert len(set(order)) == len(order)
    for partition in {row["_topic_partition"] for row in rows}:
        offsets = [row["_offset"] for row in rows if row["_topic_partition"] == partition]
        assert offsets == sorted(offsets)
    return rows


def kept(topics: Topics, where: str) -> list[dict[str, Any]]:
    catalog = open_catalog(topics.settings)
    try:
        table = load_table(catalog, "meta", where)
        rows = table.scan().to_arrow().to_pylist() if table else []
    finally:
        catalog.close()
    return [row for row in rows if row["source"] == topics.source.name]


@pytest.mark.slow
def test_events_land_once_from_the_earliest_on_with_their_place(make: Make, spark: Any) -> None:
    topics = make()
    send(topics, 0, 500)
    topics.ingest(spark)
    rows = assert_each_once(topics, range(500))
    assert {row["_topic_partition"] for row in rows} == {0, 1, 2} and {row["_op"] for row in rows} == {"c"}
    first = next(row for row in rows if row["id"] == 7)
    assert (first["page"], str(first["price"]), first["mobile"]) == ("/p7", "7.50", False)
    assert first["at"] == datetime(2026, 11, 24, 1, 2, 3, tzinfo=UTC)
    assert abs((datetime.now(UTC) - first["_committed_at"]).total_seconds()) < 600, "when it was produced"
    send(topics, 500, 100)
    report = topics.ingest(spark)
    assert_each_once(topics, range(600))
    assert report.tables[0].rows == {"c": 100} and report.cut_position.count(topic_of(topics)) == 3
    before = snapshots(topics)
    topics.ingest(spark)
    assert snapshots(topics) == before, "nothing new makes no snapshot"


def snapshots(topics: Topics) -> int:
    catalog = open_catalog(topics.settings)
    try:
        table = load_table(catalog, f"raw_{topics.source.name}", "clicks")
        return len(table.metadata.snapshots) if table else 0
    finally:
        catalog.close()


@pytest.mark.slow
def test_a_cut_names_the_offsets_that_its_rows_have(make: Make, spark: Any) -> None:
    topics = make()
    for first in (0, 200):
        send(topics, first, 200)
        topics.ingest(spark)
    catalog = open_catalog(topics.settings)
    cuts = load_table(catalog, "meta", "cuts").scan().to_arrow().to_pylist()
    catalog.close()
    mine = sorted((c for c in cuts if c["source"] == topics.source.name), key=lambda c: c["published_at"])
    rows = topics.raw("clicks")
    for cut in mine:
        at = {int(p): int(o) for p, o in re.findall(r"/(\d+):(\d+)", cut["position"])}
        below = {(r["_topic_partition"], r["_offset"]) for r in rows if r["_commit_lsn"] <= cut["cut_lsn"]}
        assert below == {(p, o) for p, end in at.items() for o in range(end)}
    assert len(mine) >= 3


@pytest.mark.slow
@pytest.mark.parametrize(
    "step",
    [
        "ingestion.pipeline.load_tables:publish", "ingestion.pipeline.load_changes:run_tasks",
        "ingestion.sink.publish:_stage_all", "ingestion.sink.publish:_swap", "ingestion.pipeline.load_changes:publish",
    ],
)  # fmt: skip
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_a_step_each_event_lands_once(make: Make, spark: Any, step: str, when: str) -> None:
    topics = make()
    send(topics, 0, 300)
    if "load_tables" not in step:
        topics.ingest(spark)
        send(topics, 300, 300)
    killed = topics.driver(f"{step}:{when}")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    last = 300 if "load_tables" in step else 600
    send(topics, last, 50)
    topics.ingest(spark)
    assert_each_once(topics, range(last + 50))


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    ["ingestion.pipeline.load_changes:run_tasks:after", "ingestion.sink.publish:_swap:before",
     "ingestion.pipeline.load_changes:publish:after"],
)  # fmt: skip
def test_killed_when_several_tasks_have_read_each_event_lands_once(make: Make, spark: Any, fault: str) -> None:
    """Each of three tasks has written data files of its own, all of which land or none."""
    topics, several = make(), "ingestion.sources.kafka.reading:EVENTS:set:50"
    send(topics, 0, 300)
    topics.ingest(spark)
    send(topics, 300, 300)
    killed = topics.driver(several, fault)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    landed = 600 if fault.endswith("publish:after") else 300
    assert_each_once(topics, range(landed))
    send(topics, 600, 300)
    done = topics.driver(several)
    assert done.returncode == 0, done.stderr
    assert_each_once(topics, range(900))


@pytest.mark.slow
def test_a_follower_lands_events_within_seconds_and_is_replaced_when_it_is_killed(make: Make, spark: Any) -> None:
    topics, sent = make(), 0
    stop = threading.Event()

    def produce() -> None:
        nonlocal sent
        while not stop.wait(0.05):
            send(topics, sent, 20)
            sent += 20

    producer = threading.Thread(target=produce)
    producer.start()
    try:
        for _ in range(2):
            follower = topics.start_driver("--follow")
            until(lambda: landed(topics) >= sent - 200 > 0, follower)
            follower.kill()
            follower.communicate()
    finally:
        stop.set()
        producer.join()
    topics.ingest(spark)
    assert_each_once(topics, range(sent))


def landed(topics: Topics) -> int:
    with store.connect_catalog(topics.settings) as states:
        stream = store.read_stream(states, topics.source.name)
    return stream.position.commit_bound if stream else 0


def until(done: Callable[[], bool], process: "subprocess.Popen[str]", seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.2)


@pytest.mark.slow
def test_a_broker_that_is_killed_and_comes_back_loses_and_doubles_nothing(make: Make, spark: Any) -> None:
    topics = make()
    send(topics, 0, 300)
    topics.ingest(spark)
    topics.broker.kill()
    try:
        with pytest.raises(LakehouseError, match="does not answer") as failure:
            topics.ingest(spark)
        assert "BOOTSTRAP_SERVERS" in str(failure.value) and "\n" not in str(failure.value)
    finally:
        topics.broker.start()
    send(topics, 300, 100)
    topics.ingest(spark)
    assert_each_once(topics, range(400))


@pytest.mark.slow
def test_only_committed_transactions_land_and_control_records_hold_nothing_up(make: Make, spark: Any) -> None:
    from confluent_kafka import Producer

    topics = make(partitions=1)
    producer = Producer({"bootstrap.servers": topics.broker.server, "transactional.id": topic_of(topics)})
    producer.init_transactions(20)
    for first, commits in ((0, True), (100, False), (200, True)):
        producer.begin_transaction()
        for event in clicks(first, 10):
            producer.produce(topic_of(topics), json.dumps(event).encode())
        producer.commit_transaction(20) if commits else producer.abort_transaction(20)
    topics.ingest(spark)
    assert_each_once(topics, [*range(10), *range(200, 210)])
    producer.begin_transaction()
    for event in clicks(300, 10):
        producer.produce(topic_of(topics), json.dumps(event).encode())
    producer.flush(20)
    topics.ingest(spark)
    assert_each_once(topics, [*range(10), *range(200, 210)])
    producer.commit_transaction(20)
    topics.ingest(spark)
    assert_each_once(topics, [*range(10), *range(200, 210), *range(300, 310)])


@pytest.mark.slow
def test_poison_goes_to_the_quarantine_with_its_place_and_the_others_land(make: Make, spark: Any) -> None:
    topics = make(partitions=1)
    no_json = [b"{", b"[1]", b"null", b"\xff", None]
    no_fit = [{"id": "x"}, {"at": "yesterday"}, {"id": 1.5}, b'{"page": "\\ud800"}', b"", {"mobile": "yes"}]
    events: list[Any] = [*clicks(0, 3), *no_json, *no_fit, b'{"id": 1, "id": 2}', *clicks(3, 3)]
    topics.broker.produce(topic_of(topics), events)
    topics.ingest(spark)
    assert_each_once(topics, [0, 1, 2, 2, 3, 4, 5])
    poison = sorted(kept(topics, "quarantine"), key=lambda row: row["offset"])
    assert [row["offset"] for row in poison] == list(range(3, 14))
    assert {(row["topic"], row["partition"], row["table"]) for row in poison} == {(topic_of(topics), 0, "clicks")}
    assert all(row["reason"] for row in poison) and "yesterday" not in str([row["reason"] for row in poison])
    replay(topics.settings, topics.declarations, topics.source.name, ["clicks"], spark)
    assert [row["offset"] for row in sorted(kept(topics, "quarantine"), key=lambda row: row["offset"])] == [
        row["offset"] for row in poison
    ], "what still cannot be read stays"
    assert_each_once(topics, [0, 1, 2, 2, 3, 4, 5])


@pytest.mark.slow
def test_quarantined_events_land_at_their_place_once_the_declaration_can_take_them(make: Make, spark: Any) -> None:
    topics = make(partitions=1)
    topics.broker.produce(topic_of(topics), [{"id": 1}, {"id": 2, "page": "x", "price": "much"}, {"id": 3}])
    topics.ingest(spark)
    assert len(kept(topics, "quarantine")) == 1
    as_text = declared(topics, CLICK | {"price": "text"})
    as_text.ingest(spark)  # parks the table: its price was a number
    resume(as_text.settings, as_text.declarations, topics.source.name, ["clicks"], spark)
    replay(as_text.settings, as_text.declarations, topics.source.name, ["clicks"], spark)
    rows = assert_each_once(as_text, [1, 2, 3])
    assert kept(topics, "quarantine") == [] and [row["_offset"] for row in rows] == [0, 1, 2]


def declared(topics: Topics, columns: dict[str, str], **policy: Any) -> Topics:
    """The same topic with other columns."""
    table = topics.source.table("clicks")
    changed = topic_table(table.source, table.name, table.raw.model_copy(update=policy), columns)
    return replace(topics, source=topics.source.model_copy(update={"tables": (changed,)}))


@pytest.mark.slow
def test_a_declared_column_that_is_added_lands_from_then_on(make: Make, spark: Any) -> None:
    topics = make(partitions=1)
    topics.broker.produce(topic_of(topics), [{"id": 1, "agent": "a"}])
    topics.ingest(spark)
    topics.broker.produce(topic_of(topics), [{"id": 2, "agent": "b"}])
    wider = declared(topics, {"id": "bigint", "agent": "text", "page": "text"})
    wider.ingest(spark)
    wider.broker.produce(topic_of(topics), [{"id": 3, "agent": "c"}])
    wider.ingest(spark)
    rows = assert_each_once(wider, [1, 2, 3])
    assert [row["agent"] for row in rows] == [None, "b", "c"] and "price" in rows[0]


@pytest.mark.slow
def test_a_type_that_the_lake_cannot_follow_parks_the_table_and_what_comes_waits(make: Make, spark: Any) -> None:
    topics = make(partitions=1)
    topics.broker.produce(topic_of(topics), [{"id": 1, "page": "5"}])
    topics.ingest(spark)
    changed = declared(topics, CLICK | {"page": "integer"})
    changed.broker.produce(topic_of(topics), [{"id": 2, "page": 6}])
    assert changed.ingest(spark).aside[0].state == "parked"
    assert [row["offset"] for row in kept(topics, "spool")] == [1]
    resume(changed.settings, changed.declarations, topics.source.name, ["clicks"], spark)
    rows = assert_each_once(changed, [1, 2])
    assert [row["page"] for row in rows] == [None, 6] and kept(topics, "spool") == []


@pytest.mark.slow
def test_partitions_that_are_added_are_read_from_their_first_event(make: Make, spark: Any) -> None:
    topics = make(partitions=1)
    send(topics, 0, 20)
    topics.ingest(spark)
    topics.broker.widen(topic_of(topics), 3)
    time.sleep(1)
    for partition in (1, 2):
        topics.broker.produce(topic_of(topics), clicks(100 * partition, 5), partition=partition)
    topics.ingest(spark)
    assert_each_once(topics, [*range(20), *range(100, 105), *range(200, 205)])


@pytest.mark.slow
def test_a_topic_that_was_created_again_stops_the_source_and_is_read_in_the_next_epoch(make: Make, spark: Any) -> None:
    topics = make(partitions=1)
    send(topics, 0, 20)
    topics.ingest(spark)
    topics.broker.delete(topic_of(topics))
    topics.broker.create(topic_of(topics), 1)
    send(topics, 1000, 30)
    with pytest.raises(LakehouseError, match=r"created again .*--recover"):
        topics.ingest(spark)
    assert not source_status(topics.settings, topics.source.name).slot_is_sound
    recover_source(topics.settings, topics.declarations, topics.source.name, spark)
    rows = topics.raw("clicks")
    assert sorted((row["_epoch"], row["id"]) for row in rows) == sorted(
        [(1, i) for i in range(20)] + [(2, i) for i in range(1000, 1030)]
    )


@pytest.mark.slow
def test_another_cluster_is_refused_and_no_consumer_group_is_made(make: Make, settings: Settings, spark: Any) -> None:
    topics = make(partitions=1)
    send(topics, 0, 20)
    topics.ingest(spark)
    with running_broker(settings) as other:
        other.create(topic_of(topics), 1)
        of = KafkaSettings(kind="kafka", bootstrap_servers=other.server)
        moved = topics.settings.model_copy(update={"sources": {topics.source.name: of}})
        with pytest.raises(LakehouseError, match="not the Kafka cluster the lake was read from"):
            replace(topics, settings=moved).ingest(spark)
    send(topics, 20, 20)
    topics.ingest(spark)
    assert_each_once(topics, range(40))
    groups = topics.broker.admin.list_consumer_groups().result(20)
    assert "lakehouse" not in {group.group_id for group in groups.valid} and not groups.errors


@pytest.mark.slow
def test_events_that_were_deleted_before_they_were_read_are_told_and_recovery_goes_on(make: Make, spark: Any) -> None:
    from confluent_kafka import TopicPartition

    topics = make(partitions=1)
    send(topics, 0, 20)
    topics.ingest(spark)
    send(topics, 20, 20)
    at = TopicPartition(topic_of(topics), 0, 30)
    topics.broker.admin.delete_records([at])[at].result(20)
    with pytest.raises(LakehouseError, match=r"events 20 to 29 were deleted .*--recover"):
        topics.ingest(spark)
    recover_source(topics.settings, topics.declarations, topics.source.name, spark)
    assert_each_once(topics, [*range(20), *range(30, 40)])


@pytest.mark.slow
def test_a_first_run_begins_with_the_earliest_event_that_is_left(make: Make, spark: Any) -> None:
    from confluent_kafka import TopicPartition

    topics = make(partitions=1)
    send(topics, 0, 20)
    at = TopicPartition(topic_of(topics), 0, 15)
    topics.broker.admin.delete_records([at])[at].result(20)
    topics.ingest(spark)
    assert_each_once(topics, range(15, 20))


@pytest.mark.slow
def test_a_topic_that_is_not_there_keeps_its_own_table_out_and_no_other(make: Make, spark: Any) -> None:
    topics = make()
    missing = topic_table(topics.source.name, "missing", RawPolicy(topic="not-there"), {"id": "bigint"})
    both = replace(topics, source=topics.source.model_copy(update={"tables": (*topics.source.tables, missing)}))
    send(topics, 0, 20)
    report = both.ingest(spark)
    assert [aside.name for aside in report.aside] == ["missing"] and "not-there" in report.aside[0].reason
    assert_each_once(both, range(20))


@pytest.mark.slow
def test_a_topic_that_is_declared_later_is_read_from_its_beginning_and_the_others_go_on(make: Make, spark: Any) -> None:
    topics = make()
    send(topics, 0, 50)
    topics.ingest(spark)
    other = f"{topic_of(topics)}-other"
    topics.broker.create(other, 2)
    topics.broker.produce(other, clicks(0, 30))
    send(topics, 50, 50)
    added = topic_table(topics.source.name, "other", RawPolicy(topic=other), CLICK)
    both = replace(topics, source=topics.source.model_copy(update={"tables": (*topics.source.tables, added)}))
    both.ingest(spark)
    assert_each_once(both, range(100))
    assert_each_once(both, range(30), "other")


@pytest.mark.slow
def test_with_a_key_an_event_without_value_deletes_its_row(make: Make, spark: Any) -> None:
    topics = make(partitions=2, key=("id",))
    topics.broker.produce(topic_of(topics), [{"id": 1, "page": "a"}, {"id": 2, "page": "b"}], keys=[1, 2])
    topics.broker.produce(topic_of(topics), [{"id": 1, "page": "c"}, None], keys=[1, 2])
    topics.ingest(spark)
    assert {key: row["page"] for key, row in topics.current("clicks").items()} == {(1,): "c"}
    assert sorted(row["_op"] for row in topics.raw("clicks")) == ["c", "c", "c", "d"]


def test_brokers_tell_how_long_a_compacted_topic_keeps_deletes(make: Make) -> None:
    topics, hour = make(partitions=1, key=("id",)), 3_600_000
    name, now = f"compact-{random.randrange(10**9)}", datetime.now(UTC)
    topics.broker.create(name, 1, cleanup_policy="compact,delete", delete_retention_ms=hour)
    topics.broker.produce(name, [{"id": 1}], keys=[1], timestamp=int(now.timestamp() * 1000) - 2 * hour)
    topics.broker.produce(name, [{"id": 2}], keys=[2])
    of = Brokers(topics.settings, topics.source.name)
    assert of.compacted([name, topic_of(topics), "not-there"]) == {name: hour}
    since = [of.since([(name, 0)], now + timedelta(hours=hours))[name, 0] for hours in (-3, -1, 1)]
    assert since == [0, 1, -1] and of.ends([(name, 0)])[name, 0] == 2


@pytest.mark.slow
def test_a_backlog_is_published_in_parts(make: Make, spark: Any) -> None:
    topics = make(cycle_max_bytes=256 * 400)
    send(topics, 0, 2000)
    topics.ingest(spark)
    rows = assert_each_once(topics, range(2000))
    assert len({row["_commit_lsn"] for row in rows}) >= 5


@pytest.mark.slow
def test_what_cannot_be_read_again_is_refused(make: Make, spark: Any) -> None:
    topics = make()
    send(topics, 0, 5)
    topics.ingest(spark)
    with pytest.raises(LakehouseError, match="read once"):
        resnapshot(topics.settings, topics.declarations, topics.source.name, ["clicks"], spark)
    assert_each_once(topics, range(5))
    for found in (reconcile(topics.settings, topics.declarations), reconcile_raw(topics.settings, topics.declarations)):
        assert [comparison.aside for comparison in found] == [EVENTS]
    status = source_status(topics.settings, topics.source.name)
    assert status.slot_is_sound and status.behind_bytes == 0 and status.tables[0].state == "streaming"


DECLARED = """
sources:
  - name: {source}
    schema: raw_{source}
    config: {{meta: {{kind: kafka}}}}
    tables:
      - name: clicks
        description: Clicks.
        config:
          meta:
            raw: {{topic: {topic}, key: [id]}}
            vault: {{hub: click_{source}, satellites: {{click_{source}_details: [page, price]}}}}
        data_tests: [cdc_vault.raw_log_is_sound]
        columns:
          - {{name: id, data_type: bigint}}
          - {{name: page, data_type: text}}
          - {{name: price, data_type: "numeric(10,2)"}}
"""


@pytest.mark.slow
def test_a_table_with_a_key_is_parsed_mirrored_and_in_the_vault(make: Make, spark: Any, tmp_path: Path) -> None:
    topics = make(partitions=2, key=("id",))
    source, topic = topics.source.name, topic_of(topics)
    project = empty_project(topics.settings, tmp_path)
    (project / "models/sources" / f"{source}.yml").write_text(DECLARED.format(source=source, topic=topic))
    settings = topics.settings.model_copy(update={"project_dir": tmp_path})
    declarations = load_declarations(settings)
    models = models_of(declarations, source)
    apply(plan(project, source, models))
    folder = project / "models"
    made = tuple(str(path.relative_to(folder).with_suffix("")) for path in folder.glob(f"*/{source}/*.sql"))
    zoo = Zoo(settings, project, source, made)
    try:
        first = [{"id": 1, "page": "a", "price": 1.5}, {"id": 2, "page": "b"}, {"id": 1, "page": "c", "price": 2}]
        for events, keys, current in (
            (first, [1, 2, 1], [[1, "c", "2.00"], [2, "b", None]]),
            ([None, {"id": 3, "page": "d"}], [2, 3], [[1, "c", "2.00"], [3, "d", None]]),
        ):
            topics.broker.produce(topic, events, keys=keys)
            bring_up(settings, declarations, source, spark)
            zoo.dbt("build")
            view = f"select id, page, cast(price as varchar) from parsed.current_{source}__clicks order by id"
            assert zoo.rows(view) == current
            refresh_mirrors(settings, declarations, source, spark)
            assert zoo.rows(view) == current
        parsed = f"select id, _op, _record_source from parsed.parsed_{source}__clicks"
        assert sorted(row[:2] for row in zoo.rows(parsed)) == [[1, "c"], [1, "c"], [2, "c"], [2, "d"], [3, "c"]]
        assert {row[2] for row in zoo.rows(parsed)} == {f"{source}.{topic}"}
        assert zoo.rows(f"select count(*) from vault.hub_click_{source}") == [[3]]
    finally:
        zoo.clear()

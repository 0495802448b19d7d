"""Recorded topics of Debezium in a real broker: what is in the way of them, and what is done about it."""

import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from ingestion import forget, recover_source, resume, source_status
from ingestion import replay as replay_kept
from ingestion.state import store
from lakehouse.catalog.open import load_table, open_catalog
from lakehouse.declarations import Source
from lakehouse.declarations.policies import LoadPolicy, RawPolicy
from lakehouse.errors import LakehouseError
from lakehouse.settings import DebeziumSettings, Settings
from tests.brokers import Broker, Topics, drop_lake_of, topic_table
from tests.unit.debezium_recorded import ITEMS, PAIRS, recorded
from tests.world import replay

pytestmark = [pytest.mark.stack, pytest.mark.slow]
KEYS = {"items": ("id",), "pairs": ("a", "b")}
PLAIN = recorded("plain")
Make = Callable[..., Topics]


@pytest.fixture
def make(settings: Settings, broker: Broker) -> Iterator[Make]:
    made: list[Topics] = []

    def one(**given: Any) -> Topics:
        name = f"r{random.randrange(10**9)}"
        of = {"transactions": f"{name}.transaction", "delivery": "exactly_once", "decimals": "precise"} | given
        columns = {"items": ITEMS, "pairs": PAIRS}
        tables = tuple(_table(name, table, columns[table]) for table in KEYS)
        mine = settings.model_copy(
            update={
                "sources": {name: DebeziumSettings(kind="debezium", bootstrap_servers=broker.server, **of)},
                "ingestion": settings.ingestion.model_copy(update={"lease_seconds": 2}),
            }
        )
        for topic in (*(f"public.{table}" for table in KEYS), "transaction"):
            broker.create(f"{name}.{topic}")
        made.append(Topics(mine, Source(name=name, description="", load=LoadPolicy(), tables=tables), "", broker))
        return made[-1]

    yield one
    for topics in made:
        drop_lake_of(topics)


def _table(source: str, table: str, columns: dict[str, str]) -> Any:
    policy = RawPolicy(topic=f"{source}.public.{table}", key=KEYS[table])
    return topic_table(source, table, policy, columns).model_copy(update={"kind": "debezium"})


def in_order(name: str = "plain") -> list[dict[str, Any]]:
    """A recording, by the moment at which each message came."""
    return sorted(recorded(name), key=lambda m: (m["at"], m["topic"] == "transaction"))


def send(topics: Topics, name: str = "plain", first: int = 0, last: int = 10**9, **options: Any) -> None:
    """What of a recording has a number from `first` on and below `last`; with `timestamp`, as of that moment."""
    messages = in_order(name)
    wanted = {f"public.{table}" for table in KEYS} | {"transaction"}
    for topic in wanted:
        mine = [m for m in messages[first:last] if m["topic"] == topic]
        values = [m["value"] and m["value"].encode() for m in mine]
        keys = [(m["key"] or "").encode() for m in mine]
        topics.broker.produce(f"{topics.source.name}.{topic}", values, keys, **options)


def assert_all(topics: Topics) -> None:
    """What the recorded database had in the end, and no event twice."""
    current = {key: (row["name"], row["price"]) for key, row in topics.current("items").items()}
    assert current == {(600,): ("last", 1)} and topics.current("pairs") == {}
    for table in KEYS:
        rows = topics.raw(table)
        assert len({(r["_epoch"], r["_commit_lsn"], r["_seq"]) for r in rows}) == len(rows)
        assert len({(r["_topic_partition"], r["_offset"], r["_seq"] % 2) for r in rows}) == len(rows)


def kept(topics: Topics, where: str) -> list[dict[str, Any]]:
    catalog = open_catalog(topics.settings)
    try:
        table = load_table(catalog, "meta", where)
        rows = table.scan().to_arrow().to_pylist() if table else []
    finally:
        catalog.close()
    return [row for row in rows if row["source"] == topics.source.name]


def test_what_comes_in_parts_lands_as_if_it_had_come_at_once(make: Make, spark: Any) -> None:
    topics = make()
    for first in range(0, len(PLAIN), 25):
        send(topics, first=first, last=first + 25)
        topics.ingest(spark)
    assert_all(topics)


@pytest.mark.parametrize(
    "step", ["ingestion.sink.publish:_swap:before", "ingestion.pipeline.load_changes:publish:after"]
)
def test_a_publish_that_fails_moves_no_offset(make: Make, spark: Any, step: str) -> None:
    topics = make()
    send(topics, last=60)
    topics.ingest(spark)
    send(topics, first=60)
    killed = topics.driver(step)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    topics.ingest(spark)
    assert_all(topics)


def test_poison_goes_to_the_quarantine_with_its_place_and_the_others_land(make: Make, spark: Any) -> None:
    topics = make()
    topics.broker.produce(f"{topics.source.name}.public.items", [b"no envelope"])
    send(topics)
    topics.ingest(spark)
    [poison] = kept(topics, "quarantine")
    assert (poison["topic"], poison["partition"], poison["offset"]) == (f"{topics.source.name}.public.items", 0, 0)
    assert_all(topics)
    replay_kept(topics.settings, topics.declarations, topics.source.name, ["items"], spark)
    assert len(kept(topics, "quarantine")) == 1, "what still cannot be read stays"


def test_dead_letters_of_a_table_that_was_dropped_do_not_land_in_the_one_that_is_declared_again(
    make: Make, spark: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Its topic is read again from the start: what can be read by now has landed already."""
    topics = make()
    [items] = [table for table in topics.source.tables if table.name == "items"]
    topics.broker.produce(f"{topics.source.name}.public.items", [b"no envelope"])
    send(topics)
    topics.ingest(spark)
    assert len(kept(topics, "quarantine")) == 1
    with closing(open_catalog(topics.settings)) as catalog:
        catalog.drop_table(items.identifier)
    forget(topics.settings, topics.source.name, "items", ())
    recover_source(topics.settings, topics.declarations, topics.source.name, spark)
    topics.ingest(spark)
    assert sorted(row["epoch"] for row in kept(topics, "quarantine")) == [1, 2], (
        "it is read again, and is no envelope yet"
    )
    replay_kept(topics.settings, topics.declarations, topics.source.name, ["items"], spark)
    assert [row["epoch"] for row in kept(topics, "quarantine")] == [2]
    assert "of a table that was dropped" in caplog.text


def test_an_incompatible_type_parks_the_table_until_it_is_corrected(make: Make, spark: Any) -> None:
    topics = make(decimals=None)
    send(topics)
    report = topics.ingest(spark)
    assert [table.state for table in report.aside] == ["parked"] and "`decimals`" in str(report.aside[0].reason)
    assert topics.raw("items") == [] and len(topics.raw("pairs")) == 4, "the others go on"
    assert len(kept(topics, "spool")) > 20
    resume(topics.settings, topics.declarations, topics.source.name, ["items"], spark)
    assert topics.raw("items") == [] and kept(topics, "quarantine") == [], "it is parked again"
    of = topics.settings.debezium(topics.source.name).model_copy(update={"decimals": "precise"})
    right = replace(topics, settings=topics.settings.model_copy(update={"sources": {topics.source.name: of}}))
    resume(right.settings, right.declarations, right.source.name, ["items"], spark)
    assert_all(right)
    assert kept(topics, "spool") == []
    created = next(r for r in right.raw("items") if r["_op"] == "c" and r["id"] == 30)
    assert created["_old_key"] == '{"id":"3"}' and created["_unchanged"] == ["big"]


@pytest.mark.parametrize("which", ["public.items", "transaction"])
def test_a_topic_that_was_created_again_stops_the_source_and_is_read_in_the_next_epoch(
    make: Make, spark: Any, which: str
) -> None:
    topics = make()
    send(topics)
    topics.ingest(spark)
    topics.broker.delete(f"{topics.source.name}.{which}")
    topics.broker.create(f"{topics.source.name}.{which}")
    with pytest.raises(LakehouseError, match="was deleted and created again"):
        topics.ingest(spark)
    with store.connect_catalog(topics.settings) as states:
        store.note_slot(states, topics.source.name, "of_before_a_move")
    recover_source(topics.settings, topics.declarations, topics.source.name, spark)
    status = source_status(topics.settings, topics.source.name)
    assert status.former_slot == "of_before_a_move", "it retains WAL until it is dropped"
    send(topics)
    topics.ingest(spark)
    current = replay([row for row in topics.raw("items") if row["_epoch"] == 2], ("id",))
    assert {key: row["name"] for key, row in current.items()} == {(600,): "last"}


def test_events_that_were_deleted_before_they_were_read_are_told(make: Make, spark: Any) -> None:
    topics = make()
    send(topics, last=60)
    topics.ingest(spark)
    send(topics, first=60)
    topics.broker.forget(f"{topics.source.name}.public.items", 40)
    with pytest.raises(LakehouseError, match="were deleted before the lake had read them"):
        topics.ingest(spark)


def test_what_is_older_than_the_transaction_topic_lands_also_where_its_table_is_quiet(
    make: Make, spark: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Data topics are compacted, the transaction topic keeps a week: a table that has not changed since has no END."""
    topics, now = make(), int(time.time() * 1000)
    [emptied] = [n for n, m in enumerate(in_order()) if ":24771568" in (m["value"] or "") and '"END"' in m["value"]]
    told = f"{topics.source.name}.transaction"
    send(topics, last=emptied + 1, timestamp=now - 3_600_000)
    topics.broker.forget(told, topics.broker.count(told))
    send(topics, first=emptied + 1, timestamp=now - 120_000)
    topics.ingest(spark)
    assert_all(topics)
    assert [row["_op"] for row in topics.raw("pairs")] == ["c", "d", "c", "t"]
    assert "ENDs are not in" in caplog.text and "has lost its beginning" not in caplog.text


def test_a_topic_that_has_lost_its_beginning_is_told_of(
    make: Make, spark: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Rows that have not changed since are nowhere."""
    topics = make()
    send(topics, timestamp=int(time.time() * 1000) - 120_000)
    topics.broker.forget(f"{topics.source.name}.public.items", 3)
    topics.ingest(spark)
    assert f"topic {topics.source.name}.public.items has lost its beginning" in caplog.text
    assert_all(topics)


def test_rows_without_their_envelope_are_refused(make: Make, spark: Any) -> None:
    topics = make()
    topics.broker.produce(f"{topics.source.name}.public.items", [{"id": 1, "name": "flat"}])
    with pytest.raises(LakehouseError, match="ExtractNewRecordState"):
        topics.ingest(spark)


def test_a_topic_of_transactions_with_several_partitions_is_refused(make: Make, spark: Any) -> None:
    topics = make()
    topics.broker.widen(f"{topics.source.name}.transaction", 3)
    with pytest.raises(LakehouseError, match="has 3 partitions, which tell no order of transactions"):
        topics.ingest(spark)

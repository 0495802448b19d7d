"""Twenty thousand events a second, and transactions through Debezium, while everything between is killed in turn.

`STEADY_SECONDS` says how long at least; the lake is compared row for row with what was produced, and with the topic.
"""

import itertools
import json
import os
import pickle
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from lakehouse.catalog.open import load_table, open_catalog, total
from lakehouse.declarations.policies import RawPolicy
from lakehouse.settings import Settings
from tests.brokers import QUIET, Broker, Topics, drop_lake_of, make_topics
from tests.debezium import Connect
from tests.debezium_world import Make, assert_sound, until_equal
from tests.test_debezium import Transfers, assert_cuts_are_consistent
from tests.test_faults import restart
from tests.world import _plain

SECONDS = int(os.environ.get("STEADY_SECONDS", "60"))
pytestmark = [pytest.mark.stack, pytest.mark.slow, pytest.mark.timeout(3 * SECONDS + 1200)]
RATE, GAP = 20_000, 12.0  # events a second; seconds between kills, about
COLUMNS = {"id": "bigint", "name": "text", "amount": "numeric(12,2)"}
KINDS = ("follower", "broker", "jvm", "connect", "catalog")


class Events(threading.Thread):
    """Produces events at a steady rate, each once: the client sends again what a killed broker did not answer."""

    def __init__(self, server: str, topic: str) -> None:
        super().__init__()
        of = {"bootstrap.servers": server, "enable.idempotence": True, "message.timeout.ms": 0, "linger.ms": 20}
        self._producer = Producer(of | {"queue.buffering.max.messages": 5_000_000}, logger=QUIET)
        self._topic, self.stopped, self.sent, self.failed = topic, threading.Event(), 0, 0

    def run(self) -> None:
        begun = time.monotonic()
        while not self.stopped.wait(0.05):
            for number in range(self.sent, int((time.monotonic() - begun) * RATE)):
                value = f'{{"id": {number}, "name": "n{number}", "amount": {number % 1000}.25}}'
                self._producer.produce(self._topic, value, partition=number % 2, on_delivery=self._told)
                self.sent = number + 1
            self._producer.poll(0)

    def finish(self) -> None:
        self.stopped.set()
        self.join()
        assert self._producer.flush(120) == 0 and self.failed == 0

    def _told(self, error: Any, message: Any) -> None:
        self.failed += error is not None


@dataclass
class Site:
    """What is between the events and the lake, and can be killed."""

    stack: Settings
    settings: Settings
    sources: tuple[Any, ...]
    broker: Broker
    connect: Connect
    log: Path
    follower: "subprocess.Popen[bytes] | None" = None
    kills: list[str] = field(default_factory=list)
    cuts: Counter[str] = field(default_factory=Counter)  # of each source, when the last kill was over

    def start(self) -> None:
        plan = self.log.with_suffix(".pickle")
        plan.write_bytes(pickle.dumps((_plain(self.settings), *self.sources)))
        plan.chmod(0o600)
        command, folder = [sys.executable, "-m", "tests.driver", str(plan), "--follow"], Path(__file__).parents[1]
        with self.log.open("ab") as output:
            self.follower = subprocess.Popen(command, stdout=output, stderr=output, cwd=folder)

    def kill(self, kind: str) -> None:
        """Kills one, and has it started again, as a service manager would."""
        self.kills.append(kind)
        assert self.follower is not None
        if kind == "follower":
            self.follower.kill()
        elif kind == "jvm":
            for process in psutil.Process(self.follower.pid).children(recursive=True):
                process.kill()
        elif kind == "catalog":
            with restart(self.stack, "catalog", 0):
                pass
        else:
            killed: Any = self.broker if kind == "broker" else self.connect
            killed.kill()
            killed.start()
            for connector in self.connect.connectors:
                self.connect.until(partial(self.connect.healed, connector), 120)
        if kind in ("follower", "jvm"):
            self.follower.wait(120)
        if self.follower.poll() is not None:
            self.start()
        self.cuts = cuts_of(self.stack)

    def until_published(self) -> None:
        """Waits until every source has published since the last kill: one that dies while it starts shows nothing."""
        begun, names = time.monotonic(), [source.name for source in self.sources]
        while any((now := cuts_of(self.stack))[name] <= self.cuts[name] for name in names):
            assert time.monotonic() - begun < 300, f"{now} after {self.kills}: {self.log.read_text()[-3000:]}"
            time.sleep(0.5)

    def end(self) -> None:
        if self.follower is not None and self.follower.poll() is None:
            self.follower.kill()
            self.follower.wait(60)


@pytest.fixture
def events(settings: Settings, broker: Broker) -> Iterator[Topics]:
    broker.create("steady", 2)
    made = make_topics(settings, broker, {"events": (RawPolicy(topic="steady"), COLUMNS)}, lease_seconds=2)
    yield made
    drop_lake_of(made)


def test_at_a_steady_rate_the_lake_is_row_for_row_what_came_whatever_is_killed(
    settings: Settings, events: Topics, debezium: Make, broker: Broker, connect: Connect, spark: Any
) -> None:
    world, changes = debezium(
        before=("INSERT INTO items VALUES (1, 'one', 1.50)", "INSERT INTO accounts VALUES (0, 'r', 0)")
    )
    both = events.settings.model_copy(update={"sources": events.settings.sources | changes.settings.sources})
    site = Site(settings, both, (events.source, changes.source), broker, connect, settings.home / "logs" / "steady.log")
    sender, transfers, chance = Events(broker.server, "steady"), Transfers(world.owner_url, 1), random.Random(1)
    with ExitStack() as stack:
        stack.callback(site.end)
        site.start()
        for thread in (sender, transfers):
            stack.callback(thread.stopped.set)
            thread.start()
        begun = time.monotonic()
        for kind in itertools.cycle(KINDS):
            time.sleep(GAP * chance.uniform(0.5, 1.5))
            if time.monotonic() - begun > SECONDS and set(site.kills) == set(KINDS):
                break
            site.until_published()
            site.kill(kind)
        sender.finish()
        transfers.stopped.set()
        transfers.join()
        took = caught_up(events, sender.sent, site)
    print(f"{sender.sent:,} events and {transfers.count:,} transactions in {time.monotonic() - begun:.0f} s, killed "
          f"{', '.join(site.kills)}; all there {took:.1f} s after the last")  # fmt: skip
    until_equal(world, changes, spark, 180)
    assert_sound(changes)
    assert_cuts_are_consistent(changes)
    events.ingest(spark)
    assert_equal(events, sender.sent)


def caught_up(topics: Topics, sent: int, site: Site) -> float:
    """Waits until the follower has landed so many events; the seconds."""
    begun = time.monotonic()
    while landed(topics) < sent:
        assert time.monotonic() - begun < 180, site.log.read_text()[-3000:]
        time.sleep(0.2)
    return time.monotonic() - begun


def cuts_of(settings: Settings) -> "Counter[str]":
    """How many cuts each source has."""
    with closing(open_catalog(settings)) as catalog:
        table = load_table(catalog, "meta", "cuts")
        found = table.scan(selected_fields=("source",)).to_arrow() if table else None
    return Counter(found.column("source").to_pylist() if found else ())


def landed(topics: Topics) -> int:
    with closing(open_catalog(topics.settings)) as catalog:
        table = load_table(catalog, f"raw_{topics.source.name}", "events")
        return total(table.current_snapshot() if table else None, "total-records")


def assert_equal(topics: Topics, sent: int) -> None:
    """The rows are the events that were produced, each once, and each where the topic has it."""
    with closing(open_catalog(topics.settings)) as catalog:
        table = load_table(catalog, f"raw_{topics.source.name}", "events")
        assert table is not None
        rows = table.scan().to_arrow()
    assert rows.num_rows == sent
    ids = rows.column("id").to_numpy()
    assert np.array_equal(np.sort(ids), np.arange(sent))
    names = pc.binary_join_element_wise("n", pc.cast(rows.column("id"), pa.string()), "")
    assert pc.all(pc.equal(rows.column("name"), names)).as_py()
    amounts = pc.cast(rows.column("amount"), pa.float64()).to_numpy()
    assert np.array_equal(amounts, ids % 1000 + 0.25)
    places = np.stack([rows.column(name).to_numpy() for name in ("_topic_partition", "_offset", "id")], axis=1)
    assert np.array_equal(places[np.lexsort((places[:, 1], places[:, 0]))], of_topic(topics.broker.server, sent))
    order = np.stack([rows.column(name).to_numpy() for name in ("_commit_lsn", "_seq")], axis=1)
    assert len(np.unique(order, axis=0)) == sent
    for partition in (0, 1):
        mine = rows.column("_topic_partition").to_numpy() == partition
        by_order = np.lexsort((order[mine][:, 1], order[mine][:, 0]))
        assert (np.diff(places[mine][by_order][:, 1]) > 0).all(), "the order of the partition"


def of_topic(server: str, count: int) -> np.ndarray:
    """Partition, offset and id of all that the topic has."""
    given = {"bootstrap.servers": server, "group.id": "tests", "enable.auto.commit": False}
    consumer, parts, left = Consumer(given, logger=QUIET), [], count
    try:
        consumer.assign([TopicPartition("steady", partition, 0) for partition in (0, 1)])
        while left > 0:
            messages = consumer.consume(10_000, 10)
            assert messages, f"{count - left} of {count} events are in the topic"
            parts.append(np.array([(m.partition(), m.offset(), json.loads(m.value())["id"]) for m in messages]))
            left -= len(messages)
        assert left == 0 and not consumer.consume(1, 2), "the topic has more than was sent"
    finally:
        consumer.close()
    found = np.concatenate(parts)
    return found[np.lexsort((found[:, 1], found[:, 0]))]

"""Freshness of a topic: from the broker's acknowledgement of an event until Trino counts it, with a running follower.

Events come one at a time into an idle lake, and then beside a thousand others a second. The same is measured of rows in
a database, which come by its slot: from COMMIT's answer on.
"""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count

import psycopg
from confluent_kafka import Message, Producer

from benchmarks.bench import Bench, Measurement, Results, follower
from benchmarks.peers.broker import as_json, running_broker
from benchmarks.scenarios.freshness import WARM_UP, note_percentiles
from benchmarks.scenarios.topics import COLUMNS, PARTITIONS, declared_as
from benchmarks.workloads import SOURCE as DATABASE
from benchmarks.workloads import insert
from ingestion.schema.offsets import Offsets
from ingestion.state import store
from lakehouse.errors import LakehouseError
from lakehouse.servers.database import CatalogConnection
from lakehouse.servers.trino import connect
from lakehouse.settings import KafkaSettings
from tests.steady_load import Repeated

SAMPLES, RATE, BATCHES = 100, 1000, 10  # rows and batches a second
SOURCE, TABLE, TOPIC, SLOT_TABLE = "bench_visible", "events", "bench.visible", "narrow_visible"
FIRST_OF_OTHERS = 1_000_000
LONGEST = 60.0
Write = Callable[[int, int], None]  # the rows from one id to another, until they are acknowledged


def events_visible(bench: Bench) -> Results:
    """Single events and rows, at random intervals of half a second to two seconds."""
    results: Results = {}
    with running_broker(bench.settings) as broker:
        broker.create(TOPIC, PARTITIONS)
        results |= _of_topic(bench, broker.server)
    with bench.tables(SLOT_TABLE) as (connection, declarations), bench.following(declarations):
        with psycopg.connect(bench.owner_url, autocommit=True) as second:
            published = partial(bench.wait_for_follower, declarations)
            one, other = (partial(_commit, each) for each in (connection, second))
            results |= _measured(bench, f"raw_{DATABASE}.{SLOT_TABLE}", "row by a slot", one, other, published)
        bench.verify(connection, declarations)
    note_percentiles(results)
    return results


def _of_topic(bench: Bench, server: str) -> Results:
    """Its producers end before the broker does."""
    source = KafkaSettings(kind="kafka", bootstrap_servers=server)
    settings = bench.settings.model_copy(update={"sources": bench.settings.sources | {SOURCE: source}})
    declarations = declared_as(SOURCE, TABLE, "kafka", COLUMNS, {"topic": TOPIC})
    mine, others = _Topic(server), _Topic(server)
    with store.connect_catalog(bench.settings) as states:
        store.ensure_state(states)
        with follower(settings, declarations):
            published = partial(_until_published, states, mine)
            return _measured(bench, f"raw_{SOURCE}.{TABLE}", "event", mine.write, others.write, published)


class _Topic:
    """A producer, and where the last of its events is: the next offset of its partition."""

    def __init__(self, server: str) -> None:
        self.end = Offsets.start()
        self._producer = Producer({"bootstrap.servers": server})

    def write(self, first: int, last: int) -> None:
        """Returns when the broker has acknowledged all of them."""
        for number in range(first, last + 1):
            self._producer.produce(TOPIC, as_json(number), partition=number % PARTITIONS, on_delivery=self._delivered)
        if self._producer.flush(30):
            raise LakehouseError(f"topic {TOPIC} takes no events")

    def _delivered(self, error: object, message: Message) -> None:
        if error is not None:
            raise LakehouseError(f"topic {TOPIC} took an event not: {error}")
        partition, offset = message.partition(), message.offset()
        assert partition is not None and offset is not None
        self.end = Offsets.of({(TOPIC, partition): offset + 1})


def _commit(connection: psycopg.Connection, first: int, last: int) -> None:
    connection.execute(insert(SLOT_TABLE, first, last))


def _until_published(states: CatalogConnection, topic: _Topic) -> None:
    """Polling Trino would take CPU from the follower."""
    deadline = time.monotonic() + LONGEST
    while (stream := store.read_stream(states, SOURCE)) is None or not topic.end <= (
        stream.cut_position or Offsets.start()
    ):
        if time.monotonic() > deadline:
            raise LakehouseError(f"no cut has what was in topic {TOPIC} {LONGEST:.0f} s ago")
        time.sleep(0.02)


def _measured(
    bench: Bench, table: str, what: str, write: Write, write_others: Write, until_published: Callable[[], None]
) -> Results:
    """`write` and `write_others` are independent of each other."""
    results: Results = {}
    ids, cursor = count(1), connect(bench.settings).cursor()

    def sample() -> float:
        number = next(ids)
        write(number, number)
        acknowledged = time.monotonic()
        until_published()
        cursor.execute(f"SELECT count(*) FROM {table} WHERE id = {number}")
        if cursor.fetchall() != [[1]]:
            raise LakehouseError(f"{table}: a published cut has row {number} not, or twice")
        return time.monotonic() - acknowledged

    for _ in range(WARM_UP):
        sample()
    for load, pause in ((0, 1.0), (RATE, 0.5)):
        name = f"{what}, {f'{load:,} others a second' if load else 'idle lake'}"
        into = results[name] = Measurement("s", does="from the acknowledgement until Trino counts it")
        with _others(write_others, load):
            for _ in range(max(10, int(SAMPLES * bench.scale))):
                into.add(sample())
                time.sleep(pause * (1.0 + random.random()))
        until_published()
    return results


@contextmanager
def _others(write: Write, rate: int) -> Iterator[None]:
    """Writes so many rows a second during the block."""
    begun, each = time.monotonic(), rate // BATCHES

    def batch(numbers: Iterator[int] = count()) -> None:
        number = next(numbers)
        time.sleep(max(0.0, begun + number / BATCHES - time.monotonic()))
        write(FIRST_OF_OTHERS + number * each, FIRST_OF_OTHERS + (number + 1) * each - 1)

    if not rate:
        yield
        return
    thread = Repeated(batch)
    thread.start()
    try:
        yield
    finally:
        thread.finish()

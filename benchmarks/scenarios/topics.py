"""Throughput in events per second, from topics that were filled before until Trino counts them.

Ours and Spark read the same topic, one after the other, so that neither slows down the other. Avro has its own topic,
and so has Kafka Connect's Iceberg sink, for the same events. As many narrow rows come by a slot, too.
Envelopes of Debezium are in transactions that another topic tells, so that cuts are of whole ones.
"""

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from benchmarks.bench import Bench, Measurement, Results
from benchmarks.peers import broker as brokers
from benchmarks.peers import envelopes, iceberg_connect, spark_kafka
from benchmarks.peers.broker import Broker
from benchmarks.probe import Cost, measured, this_process
from benchmarks.scenarios.changes import NARROW_TRANSACTIONS, until_visible
from benchmarks.workloads import insert
from ingestion import bring_up
from lakehouse.declarations import Column, Declarations, RawTable, Source
from lakehouse.declarations.kinds import Kind
from lakehouse.declarations.policies import LoadPolicy, RawPolicy
from lakehouse.errors import LakehouseError
from lakehouse.servers.trino import query
from lakehouse.settings import DebeziumSettings, KafkaSettings, RegistrySettings, Settings
from lakehouse_stack.control.start_stop import running
from lakehouse_stack.home.config import SERVERS

EVENTS, PARTITIONS = 2_000_000, 2
SOURCE, TOPIC, SINK_TOPIC = "bench_topics", {"json": "bench.json", "avro": "bench.avro"}, "bench.sink"
SLOT_TABLE = "narrow_events"
COLUMNS = {"id": "bigint", "name": "text", "amount": "numeric(12,2)"}
SPARK_EVENT = "struct<id: bigint, name: string, amount: decimal(12,2)>"
DOES = "typed, in a raw table with its place in the topic, each event once"


def narrow_events(bench: Bench) -> Results:
    """Events with three fields in two partitions."""
    size = bench.rows(EVENTS)
    ours, avro = (Measurement("events/s", does=f"{form}: {DOES}") for form in ("JSON", "Avro by a schema registry"))
    peer = Measurement("events/s", does=spark_kafka.DOES.replace("what comes after Debezium: ", ""))
    brokers.check_avro()
    with brokers.running_broker(bench.settings) as broker, brokers.registry() as registry:
        for topic in TOPIC.values():
            broker.create(topic, PARTITIONS)
        settings = _settings(bench.settings, broker, registry)
        _read(bench, settings, "json", ours, broker, size, brokers.as_json)
        _read(bench, settings, "avro", avro, broker, size // 2, brokers.as_avro)
        _by_spark(bench, settings, peer, broker, size, TOPIC["json"], brokers.as_json, SPARK_EVENT)
        sink = _by_connect(bench, broker, size, brokers.as_json, SPARK_EVENT)
    peer.notes = sink.notes = {"events_per_run": size, "partitions": PARTITIONS}
    return {
        "lakehouse, JSON": ours, "Kafka → Spark → Iceberg, JSON": peer, "Kafka → Connect → Iceberg, JSON": sink,
        "lakehouse, Avro": avro, "lakehouse, rows by a slot": _by_slot(bench, size),
    }  # fmt: skip


WIDE, WIDE_TOPIC, TRANSACTIONS = 1_000_000, "bench.public.wide", "bench.transaction"
WIDE_SOURCE = "bench_envelopes"  # the kind of a source stays


def wide_envelopes(bench: Bench) -> Results:
    """Debezium's envelopes of twenty columns in two partitions, in transactions of a thousand."""
    size = max(1, bench.rows(WIDE) // envelopes.PER_TRANSACTION) * envelopes.PER_TRANSACTION
    ours = Measurement("events/s", does=f"JSON without schemas, joined to its transactions: {DOES}")
    peer = Measurement("events/s", does=spark_kafka.DOES)
    with brokers.running_broker(bench.settings) as broker:
        broker.create(WIDE_TOPIC, PARTITIONS)
        broker.create(TRANSACTIONS, 1)
        source = DebeziumSettings(
            kind="debezium", bootstrap_servers=broker.server, transactions=TRANSACTIONS, delivery="exactly_once",
            decimals="precise", times="adaptive", binary="bytes",
        )  # fmt: skip
        settings = bench.settings.model_copy(update={"sources": bench.settings.sources | {WIDE_SOURCE: source}})
        raw = {"topic": WIDE_TOPIC, "key": ("id",)}
        declarations = declared_as(WIDE_SOURCE, "wide", "debezium", envelopes.COLUMNS, raw)
        for run in range(bench.runs + 1):  # the first run is a warm-up
            total = (run + 1) * size
            broker.fill(WIDE_TOPIC, run * size, total, PARTITIONS, envelopes.event)
            of_each = envelopes.PER_TRANSACTION
            broker.fill(TRANSACTIONS, run * size // of_each, total // of_each, 1, envelopes.end)
            cost = _until_counted(bench, settings, declarations, broker, "wide", total)
            if run:
                ours.add(size / cost.seconds, cost)
        _verify_wide(settings, total)
        event = spark_kafka.envelope("wide")
        _by_spark(bench, settings, peer, broker, size, WIDE_TOPIC, envelopes.event, event)
        sink = _by_connect(bench, broker, size, envelopes.event, event)
    ours.notes = peer.notes = sink.notes = {"events_per_run": size, "partitions": PARTITIONS}
    return {"lakehouse": ours, "Kafka → Spark → Iceberg": peer, "Kafka → Connect → Iceberg": sink}


def _verify_wide(settings: Settings, total: int) -> None:
    """Raises LakehouseError if the rows are not all there, once, as they were written."""
    counted = f"count(*), count_if({envelopes.IS_WHOLE}), count(DISTINCT id), min(id), max(id)"
    found = query(settings, f"SELECT {counted} FROM raw_{WIDE_SOURCE}.wide")[0]
    if list(map(int, found)) != [total, total, total, 0, total - 1]:
        raise LakehouseError(f"the lake has {found} of {total} envelopes")


def _read(
    bench: Bench, settings: Settings, form: str, into: Measurement, broker: Broker, size: int, event: brokers.Event
) -> None:
    declarations = _declared(form)
    for run in range(bench.runs + 1):  # the first run is a warm-up
        total = (run + 1) * size
        broker.fill(TOPIC[form], run * size, total, PARTITIONS, event)
        cost = _until_counted(bench, settings, declarations, broker, f"{form}_events", total)
        if run:
            into.add(size / cost.seconds, cost)
    _verify(settings, form, total)
    into.notes = {"events_per_run": size}


def _until_counted(
    bench: Bench, settings: Settings, declarations: Declarations, broker: Broker, table: str, total: int
) -> Cost:
    """What it costs to read topics until Trino counts so many rows."""
    [source] = declarations.sources
    with _cost(bench, broker) as cost:
        bring_up(settings, declarations, source.name, bench.session)
        while query(settings, f"SELECT count(*) FROM raw_{source.name}.{table}")[0][0] < total:
            time.sleep(0.01)
    return cost


def _by_spark(
    bench: Bench, settings: Settings, into: Measurement, broker: Broker, size: int, topic: str, event: brokers.Event,
    spark_event: str,
) -> None:  # fmt: skip
    """Spark begins with what is there and then reads as much again in each run."""
    before = (bench.runs + 1) * size
    with spark_kafka.spark_kafka(settings, broker.server, (topic,), broker.folder, spark_event) as stage:
        for run in range(bench.runs):
            broker.fill(topic, before + run * size, before + (run + 1) * size, PARTITIONS, event)
            with _cost(bench, broker, stage) as cost:
                rows = stage.read_on()
            if rows != before + (run + 1) * size:
                raise LakehouseError(f"Spark wrote {rows} rows for {before + (run + 1) * size} events")
            into.add(size / cost.seconds, cost)


def _by_connect(bench: Bench, broker: Broker, size: int, event: brokers.Event, spark_event: str) -> Measurement:
    """The sink reads a topic of its own; its tasks are paused while the topic is filled.

    It cannot read what Connect's JSON has decimals in: those stay text.
    """
    into = Measurement("events/s", does=iceberg_connect.DOES)
    columns = spark_event if event is brokers.as_json else re.sub(r"decimal\(.*?\)", "string", spark_event)
    table = f"{bench.settings.catalog_name}.meta.{iceberg_connect.TABLE}"
    bench.session.createDataFrame([], columns).writeTo(table).using("iceberg").createOrReplace()
    broker.create(SINK_TOPIC, PARTITIONS)
    with iceberg_connect.iceberg_sink(bench.settings, broker, SINK_TOPIC, PARTITIONS) as sink:
        for run in range(bench.runs + 1):  # the first run is a warm-up
            total = (run + 1) * size
            if run:
                sink.pause()
            broker.fill(SINK_TOPIC, run * size, total, PARTITIONS, event)
            with _cost(bench, broker, sink) as cost:
                if run:
                    sink.resume()
                sink.until_counted(total)
            if run:
                into.add(size / cost.seconds, cost)
        rows = iceberg_connect.rows_in(bench.settings)
    if rows != total:
        raise LakehouseError(f"the Iceberg sink wrote {rows} rows for {total} events")
    return into


def _by_slot(bench: Bench, size: int) -> Measurement:
    """As many narrow rows, committed before, from the slot on."""
    each = size // NARROW_TRANSACTIONS
    into = Measurement("rows/s", does="as many rows of a database, typed, in the order of their commits")
    with bench.tables(SLOT_TABLE) as (connection, declarations):
        bench.bring_up(declarations)
        for run in range(bench.runs + 1):  # the first run is a warm-up
            for first in range(run * NARROW_TRANSACTIONS, (run + 1) * NARROW_TRANSACTIONS):
                connection.execute(insert(SLOT_TABLE, first * each + 1, (first + 1) * each))
            with bench.cost() as cost:
                bench.bring_up(declarations)
                until_visible(bench, declarations, (run + 1) * NARROW_TRANSACTIONS * each)
            if run:
                into.add(NARROW_TRANSACTIONS * each / cost.seconds, cost)
        bench.verify(connection, declarations)
    return into


@contextmanager
def _cost(
    bench: Bench, broker: Broker, stage: spark_kafka.Stage | iceberg_connect.Sink | None = None
) -> Iterator[Cost]:
    servers = {name: server for name in SERVERS if (server := running(bench.settings, name))}
    client = this_process() if stage is None else stage.process
    trees = {"source": (broker.process,), "ingestion": (client,), "store": (servers["s3"],)}
    excluded = (*servers.values(), broker.process)
    with measured(trees, excluded=excluded if stage is None else ()) as cost:
        yield cost


def _settings(settings: Settings, broker: Broker, registry: str) -> Settings:
    schemas = RegistrySettings(url=registry)
    source = KafkaSettings(kind="kafka", bootstrap_servers=broker.server, schema_registry=schemas)
    return settings.model_copy(update={"sources": settings.sources | {SOURCE: source}})


def _declared(form: str) -> Declarations:
    return declared_as(SOURCE, f"{form}_events", "kafka", COLUMNS, {"topic": TOPIC[form], "format": form})


def declared_as(source: str, name: str, kind: Kind, columns: Mapping[str, str], raw: Mapping[str, Any]) -> Declarations:
    """A declaration of one topic."""
    table = RawTable(
        source=source, name=name, description="", kind=kind, load=LoadPolicy(), maintenance=None, owners=(),
        columns=tuple(Column(name=name, data_type=type_, description="") for name, type_ in columns.items()),
        raw=RawPolicy.model_validate(raw),
    )  # fmt: skip
    return Declarations(sources=(Source(name=source, description="", load=LoadPolicy(), tables=(table,)),))


def _verify(settings: Settings, form: str, total: int) -> None:
    """Raises LakehouseError if the events are not all there, once, as they were written.

    Sums of ids and of their squares stand for a count of distinct ones, for which Trino has not the memory.
    """
    table = f"raw_{SOURCE}.{form}_events"
    is_whole = "name = concat('name ', cast(id AS varchar)) AND amount = cast(id AS decimal(12,2)) / 100"
    found = query(
        settings,
        f"SELECT count(*), count_if({is_whole}), sum(id), sum(cast(id AS decimal(38,0)) * id), max(id) FROM {table}",
    )[0]
    ids, squares = total * (total - 1) // 2, (total - 1) * total * (2 * total - 1) // 6
    if list(map(int, found)) != [total, total, ids, squares, total - 1]:
        raise LakehouseError(f"{form}: the lake has {found} of {total} events")
    places = query(
        settings, f"SELECT _topic_partition, count(*), min(_offset), max(_offset) FROM {table} GROUP BY 1 ORDER BY 1"
    )
    each = total // PARTITIONS
    if [list(map(int, place)) for place in places] != [[number, each, 0, each - 1] for number in range(PARTITIONS)]:
        raise LakehouseError(f"{form}: the lake has the offsets {places}")

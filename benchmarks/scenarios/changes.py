"""Throughput in changes per second, from the slot to Trino: narrow inserts, mixed changes, a huge transaction."""

import time
from collections.abc import Callable
from contextlib import ExitStack

import psycopg

from benchmarks.bench import Bench, Measurement, Results
from benchmarks.peers import debezium, recvlogical, spark_kafka
from benchmarks.workloads import SOURCE, insert, mixed
from lakehouse.declarations import Declarations
from lakehouse.errors import LakehouseError
from lakehouse.servers.trino import query

NARROW_ROWS = 2_000_000
NARROW_TRANSACTIONS = 20
MIXED_TABLES = tuple(f"wide_mixed{number}" for number in range(5))
MIXED_TRANSACTIONS = 100_000
HUGE_ROWS = 5_000_000
TUNED_SHARE = 2  # a tuned Debezium gets half of the transactions, which take 20 to 30 s; only rates are compared
SHIPPED_SHARE = 5  # with default settings it takes as long for a fifth
Work = Callable[[psycopg.Connection, int, int], int]  # (source, first transaction, transactions) -> changes


def narrow_inserts(bench: Bench) -> Results:
    """Inserts into (bigint, text, numeric) in 20 transactions."""
    size = bench.rows(NARROW_ROWS) // NARROW_TRANSACTIONS

    def work(connection: psycopg.Connection, begin: int, transactions: int) -> int:
        for first in range(begin * size, (begin + transactions) * size, size):
            connection.execute(insert("narrow_inserts", first + 1, first + size))
        return size * transactions

    return _side_by_side(bench, ("narrow_inserts",), work, NARROW_TRANSACTIONS)


def mixed_changes(bench: Bench) -> Results:
    """60 % inserts, 30 % updates and 10 % deletes in five tables of 20 columns, in transactions of 10 rows."""

    def work(connection: psycopg.Connection, begin: int, transactions: int) -> int:
        connection.execute(mixed(MIXED_TABLES, 1 + begin * 6, transactions))
        return transactions * 10

    return _side_by_side(bench, MIXED_TABLES, work, bench.rows(MIXED_TRANSACTIONS))


def huge_transaction(bench: Bench) -> Results:
    """One transaction of 5,000,000 narrow inserts, with the total memory of ingestion's processes.

    The next cycle is measured separately: the source decodes the transaction again, unless it has logged a record of
    running transactions in between.
    """
    rows, result = bench.rows(HUGE_ROWS), Measurement("changes/s", does="one transaction, slot to published cut")
    with bench.tables("narrow_huge") as (connection, declarations):
        bench.bring_up(declarations)
        peaks, after = [], []
        for run in range(bench.runs):
            connection.execute(insert("narrow_huge", run * rows + 1, (run + 1) * rows))
            with bench.cost(memory=True) as cost:
                bench.bring_up(declarations)
            bench.verify(connection, declarations)
            result.add(rows / cost.seconds, cost)
            peaks.append(round(cost.peak / 2**20))
            with bench.cost() as next_cycle:
                bench.bring_up(declarations)
            after.append(round(next_cycle.seconds, 1))
        result.notes |= {"peak_memory_mib": peaks, "seconds_of_the_next_cycle": after}
    return {"lakehouse": result}


def _side_by_side(bench: Bench, tables: tuple[str, ...], work: Work, transactions: int) -> Results:
    ours = Measurement("changes/s", does="decodes, types, writes Parquet, commits Iceberg; until Trino counts the rows")
    peer = Measurement("changes/s", does=recvlogical.DOES)
    with bench.tables(*tables) as (connection, declarations):
        bench.bring_up(declarations)
        total = 0
        for run in range(bench.runs + 1):  # the first run is a warm-up
            recvlogical.create_slot(bench.settings)
            changes = work(connection, run * transactions, transactions)
            total += changes
            end = connection.execute("SELECT pg_current_wal_lsn()::text").fetchone()
            assert end is not None
            with bench.cost() as received:
                recvlogical.receive(bench.settings, end[0])
            with bench.cost() as cost:
                bench.bring_up(declarations)
                until_visible(bench, declarations, total)
            bench.verify(connection, declarations)
            if run:
                peer.add(changes / received.seconds, received)
                ours.add(changes / cost.seconds, cost)
        begin = (bench.runs + 1) * transactions
        half, fifth = transactions // TUNED_SHARE, transactions // SHIPPED_SHARE
        tuned = _debezium(bench, connection, tables, work, begin, half, tuned=True)
        begin += (bench.runs + 1) * half
        shipped = _debezium(bench, connection, tables, work, begin, fifth, tuned=False)
    return {"lakehouse": ours, "pg_recvlogical > /dev/null": peer, **tuned, **shipped}


def _debezium(
    bench: Bench,
    connection: psycopg.Connection,
    tables: tuple[str, ...],
    work: Work,
    begin: int,
    transactions: int,
    tuned: bool,
) -> Results:
    """Measures Debezium on further transactions, from the start of the connector until Kafka has all events.

    It runs after the other contenders, so that its JVMs do not slow them down. Broker, Connect and Spark are already
    running. Spark then reads the events of the tuned Debezium; running both at once would slow down both.
    """
    result = Measurement("changes/s", does=debezium.DOES if tuned else debezium.DOES_AS_SHIPPED)
    stage = Measurement("changes/s", does=spark_kafka.DOES)
    with debezium.debezium(bench.settings, tables, tuned) as peer, ExitStack() as stack:
        for run in range(bench.runs + 1):  # the first run is a warm-up
            peer.pause()
            before = peer.events()
            changes = work(connection, begin + run * transactions, transactions)
            with bench.cost(*peer.processes) as cost:
                peer.resume()
                peer.until_events(before + changes)
            peer.pause()
            if run:
                result.add(changes / cost.seconds, cost)
            if not tuned:
                continue
            if not run:
                spark = stack.enter_context(
                    spark_kafka.spark_kafka(bench.settings, peer.server, peer.topics, peer.folder)
                )
            with bench.cost(spark.process) as read:
                rows = spark.read_on()
            if rows != before + changes:
                raise LakehouseError(f"Spark wrote {rows} rows for {before + changes} events")
            if run:
                stage.add(changes / read.seconds, read)
        sent = peer.events()
    if sent != changes * (bench.runs + 1):
        raise LakehouseError(f"Debezium sent {sent} events for {changes * (bench.runs + 1)} changes")
    result.notes = {"changes_per_run": changes}
    if not tuned:
        return {"Debezium → Kafka, as shipped": result}
    return {"Debezium → Kafka, tuned": result, "Kafka → Spark → Iceberg": stage}


def until_visible(bench: Bench, declarations: Declarations, rows: int) -> None:
    """Waits until Trino counts so many events in these tables."""
    names = [table.name for table in declarations.sources[0].tables]
    counted = " + ".join(f"(SELECT count(*) FROM raw_{SOURCE}.{name})" for name in names)
    while query(bench.settings, f"SELECT {counted}")[0][0] < rows:
        time.sleep(0.01)

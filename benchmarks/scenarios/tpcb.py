"""pgbench's TPC-B with four clients for ten minutes: lag, CPU and memory of the follower."""

import os
import statistics
import subprocess
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import LiteralString

import psutil
import psycopg

from benchmarks.bench import Bench, Measurement, Results
from benchmarks.workloads import SOURCE, declared
from ingestion.sources.postgres.setup import prepare
from ingestion.state import store
from lakehouse.catalog.open import open_catalog
from lakehouse.declarations import Declarations
from lakehouse.errors import LakehouseError
from lakehouse.servers.trino import query
from lakehouse.text.urls import parse_url
from lakehouse_stack.processes.accounts import packaged_programs

SECONDS, CLIENTS, SCALE = 600, 4, 10
POLL_SECONDS = 0.25
WRITTEN: LiteralString = "SELECT (pg_current_wal_flush_lsn() - '0/0')::bigint"
IN_CUTS: LiteralString = f"SELECT cut_lsn FROM lakehouse.streams WHERE source = '{SOURCE}'"
KEYS = {
    "pgbench_accounts": ("aid",), "pgbench_branches": ("bid",), "pgbench_tellers": ("tid",), "pgbench_history": (),
}  # fmt: skip
SUMS = {"pgbench_accounts": "abalance", "pgbench_branches": "bbalance", "pgbench_tellers": "tbalance"}


def single_row_transactions(bench: Bench) -> Results:
    """Each transaction is three updates and an insert."""
    seconds = max(30, int(SECONDS * bench.scale))
    result = Measurement(
        "transactions/s", does=f"pgbench TPC-B, {CLIENTS} clients, {seconds} s, with --follow beside it"
    )
    with _pgbench_tables(bench) as (connection, declarations), bench.following(declarations):
        process = _pgbench(bench, "-T", str(seconds), "-c", str(CLIENTS), "-j", "2", "-n")
        with bench.cost(excluded=(psutil.Process(process.pid),), memory=True) as cost:
            lags = _lags_until_the_end(bench, connection, process)
            output = process.communicate()[0]
            ended = time.monotonic()
            bench.wait_for_follower(declarations)
            caught_up = time.monotonic() - ended
        _verify(bench, connection)
    result.add(next(float(line.split()[2]) for line in output.splitlines() if line.startswith("tps")), cost)
    worst = max(lag for _, lag in lags)
    result.notes = {
        "lag_seconds": {"median": round(statistics.median(lag for _, lag in lags), 2), "max": round(worst, 2)},
        "seconds_to_catch_up_at_the_end": round(caught_up, 2),
        "memory": _growth(cost.memory_of()),
        **{f"memory of the {name}": _growth(cost.memory_of(name)) for name in sorted(cost.memory[-1][1])},
        "most_files_per_table_and_publish": _most_files(bench),
    }
    memory = [(at, size / 2**20) for at, size in cost.memory_of()]
    result.plots = {"lag in seconds by seconds": _thinned(lags), "memory in MiB by seconds": _thinned(memory)}
    return {"lakehouse": result}


@contextmanager
def _pgbench_tables(bench: Bench) -> Iterator[tuple[psycopg.Connection, Declarations]]:
    declarations = declared(KEYS)
    with psycopg.connect(bench.owner_url, autocommit=True) as connection:
        try:
            if _pgbench(bench, "-i", "-s", str(SCALE), "-q").wait() != 0:
                raise LakehouseError("pgbench -i failed")
            connection.execute("ALTER TABLE pgbench_history REPLICA IDENTITY FULL")  # it has no key
            prepare(bench.settings, declarations.sources[0])
            yield connection, declarations
        finally:
            for name in KEYS:
                connection.execute(f"DROP TABLE IF EXISTS {name}")


def _pgbench(bench: Bench, *arguments: str) -> subprocess.Popen[str]:
    url = parse_url(bench.owner_url)
    server = ["-h", url.host, "-p", str(url.port), "-U", url.user, *arguments, url.database]
    quiet, pipe = subprocess.DEVNULL, subprocess.PIPE
    environment = os.environ | {"PGPASSWORD": url.password}
    return subprocess.Popen(
        [str(packaged_programs() / "pgbench"), *server], stdout=pipe, stderr=quiet, text=True, env=environment
    )


def _lags_until_the_end(
    bench: Bench, connection: psycopg.Connection, process: subprocess.Popen[str]
) -> list[tuple[float, float]]:
    """(seconds, lag) until pgbench ends; the lag is the age of the oldest WAL position that is not in a cut."""
    started = time.monotonic()
    waiting: deque[tuple[float, int]] = deque()
    lags = []
    with store.connect_catalog(bench.settings) as states:
        while process.poll() is None:
            now = time.monotonic() - started
            written, in_cuts = (_number(c, q) for c, q in ((connection, WRITTEN), (states, IN_CUTS)))
            waiting.append((now, written))
            while waiting and waiting[0][1] <= in_cuts:
                waiting.popleft()
            lags.append((now, now - waiting[0][0] if waiting else 0.0))
            time.sleep(POLL_SECONDS)
    return lags


def _number(connection: psycopg.Connection, query: LiteralString) -> int:
    row = connection.execute(query).fetchone()
    assert row is not None
    return int(row[0])


def _verify(bench: Bench, connection: psycopg.Connection) -> None:
    """Compares balances, and row count and sum of the history."""
    for table, column in SUMS.items():
        expected = connection.execute(f"SELECT count(*), sum({column}) FROM {table}").fetchone()
        newest = (
            f"SELECT count(*), sum({column}) FROM (SELECT *, row_number() OVER (PARTITION BY {KEYS[table][0]}"
            f" ORDER BY _commit_lsn DESC, _seq DESC) AS n FROM raw_{SOURCE}.{table}) WHERE n = 1 AND _op <> 'd'"
        )
        if tuple(query(bench.settings, newest)[0]) != expected:
            raise LakehouseError(f"{table} in the lake differs from the source")
    expected = connection.execute("SELECT count(*), sum(delta) FROM pgbench_history").fetchone()
    if tuple(query(bench.settings, f"SELECT count(*), sum(delta) FROM raw_{SOURCE}.pgbench_history")[0]) != expected:
        raise LakehouseError("pgbench_history in the lake differs from the source")


def _most_files(bench: Bench) -> int:
    catalog = open_catalog(bench.settings)
    try:
        tables = catalog.load_tables([(f"raw_{SOURCE}", name) for name in KEYS])
        return max(
            int(snapshot.summary.additional_properties.get("added-data-files", 0))
            for table in tables.values()
            for snapshot in table.metadata.snapshots[1:]
            if snapshot.summary
        )
    finally:
        catalog.close()


def _growth(samples: list[tuple[float, int]]) -> dict[str, float]:
    """Compares the medians of the second and the last minute."""
    end = samples[-1][0]
    early = [size for at, size in samples if 60 <= at < 120] or [size for _, size in samples]
    late = [size for at, size in samples if at >= end - 60]
    first, last = statistics.median(early), statistics.median(late)
    return {
        "mib_in_the_second_minute": round(first / 2**20), "mib_at_the_end": round(last / 2**20),
        "growth_percent": round(100 * (last / max(1, first) - 1), 1),
    }  # fmt: skip


def _thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    return [(round(at), round(value, 2)) for at, value in points[:: max(1, len(points) // 60)]]

"""From the commit of one sale to its rows in raw, parsed, a satellite and a fact: with the worker, and with sensors."""

import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import psycopg

from benchmarks.bench import Bench, Measurement, Results
from benchmarks.pointers import Pointers, reached
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings, load_settings

STAGES = {
    "raw": ("raw_retail", "transactions"),
    "parsed": ("parsed", "parsed_retail__transactions"),
    "satellite": ("vault", "sat_transaction_details"),
    "fact": ("marts", "fct_transactions"),
}
COMMITS, COMMITS_BY_SENSORS, PAUSE = 50, 4, 12.0
LONGEST = 900.0
PERCENTILES = (50, 95, 99)
FIRST_LOADS = ("load_retail", "build_marts")
SALE = (
    "WITH sale AS (INSERT INTO transactions (store_id, total_amount) SELECT min(store_id), 5 FROM stores"
    " RETURNING txn_id) INSERT INTO transaction_items (txn_id, product_id, unit_price, line_total)"
    " SELECT sale.txn_id, (SELECT min(product_id) FROM products), 5, 5 FROM sale"
)


def commit_to_fact(bench: Bench) -> Results:
    """The retail sample with its follower: first the worker, then sensors and runs, on the same data."""
    for command in (("samples",), ("prepare",), ("ingest", "--once"), ("run", *FIRST_LOADS)):
        lakehouse(*command)
    settings = load_settings()
    commits = max(5, int(COMMITS * bench.scale))
    with running("ingest", "--follow"):
        with running("worker"):
            results = sales(settings, "worker", commits, PAUSE)
        with running("dev", "--no-stack", "--no-ingest", "--no-worker"):
            results |= sales(settings, "sensors and runs", max(1, int(COMMITS_BY_SENSORS * bench.scale)), None)
    return results


def sales(settings: Settings, contender: str, commits: int, pause: float | None) -> Results:
    """Sells about every `pause` seconds, or when the sale before has arrived; the seconds to each stage."""
    owner = settings.source("retail").owner_url
    assert owner is not None
    watch = Pointers(settings, list(STAGES.values()))
    watch.start()
    committed = []
    try:
        with psycopg.connect(owner.get_secret_value(), autocommit=True) as source:
            sell(source, watch)  # what is cold gets warm, and this one is not counted
            for _ in range(commits):
                source.execute(SALE)
                committed.append(time.monotonic())
                if pause is None:
                    wait_for(watch, sold(source))
                else:
                    time.sleep(pause * (0.5 + random.random()))
            wait_for(watch, sold(source))
    finally:
        watch.stop()
    return {f"{contender}, {stage}": seconds_to(watch, stage, committed) for stage in STAGES}


def sell(source: psycopg.Connection, watch: Pointers) -> None:
    """One sale, and waits for its fact."""
    source.execute(SALE)
    wait_for(watch, sold(source))


def sold(source: psycopg.Connection) -> int:
    """Sales in the source; nothing is deleted while the benchmark runs."""
    row = source.execute("SELECT count(*) FROM transactions").fetchone()
    assert row is not None
    return int(row[0])


def wait_for(watch: Pointers, facts: int) -> None:
    """Waits until the fact has so many rows; raises LakehouseError if it never has."""
    deadline = time.monotonic() + LONGEST
    while reached(watch.rows_over_time(STAGES["fact"]), facts) is None:
        if time.monotonic() > deadline:
            raise LakehouseError(f"{facts} sales were not in {'.'.join(STAGES['fact'])} within {LONGEST:.0f} s")
        time.sleep(1.0)


def seconds_to(watch: Pointers, stage: str, committed: Sequence[float]) -> Measurement:
    """The seconds from each commit to the moment at which readers of the stage saw it."""
    over_time = watch.rows_over_time(STAGES[stage])
    total = over_time[-1][1]
    found = Measurement("s", does=f"from COMMIT until {'.'.join(STAGES[stage])} shows the sale")
    for number, moment in enumerate(committed, start=1):
        seen = reached(over_time, total - len(committed) + number)
        assert seen is not None
        found.add(seen - moment)
    ordered = sorted(found.runs)
    at = {p: ordered[min(len(ordered) - 1, len(ordered) * p // 100)] for p in PERCENTILES}
    found.notes = {f"p{percent}": round(seconds, 2) for percent, seconds in at.items()}
    return found


def lakehouse(*arguments: str) -> None:
    """Runs a command of ours; raises LakehouseError if it fails."""
    program = str(Path(sys.executable).with_name("lakehouse"))
    if subprocess.run([program, *arguments], stdout=subprocess.DEVNULL).returncode:
        raise LakehouseError(f"`lakehouse {' '.join(arguments)}` failed")


@contextmanager
def running(*arguments: str) -> Iterator[psutil.Process]:
    """A command of ours in the background."""
    program = str(Path(sys.executable).with_name("lakehouse"))
    process = subprocess.Popen([program, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield psutil.Process(process.pid)
    finally:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)
        process.wait(timeout=120)

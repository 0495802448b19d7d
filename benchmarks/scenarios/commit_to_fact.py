"""From the commit of one sale to its rows in raw, parsed, a satellite and a fact: with the worker, and with sensors."""

import random
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial

import psutil
import psycopg

from benchmarks.bench import Bench, Measurement, Results
from benchmarks.pointers import Pointers, reached
from benchmarks.probe import load_recorded, measured
from benchmarks.processes import Trees, children, running, servers
from benchmarks.samples import SALE, load_samples, without_mirrors
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings, load_settings

STAGES = {
    "raw": ("raw_retail", "transactions"),
    "parsed": ("parsed", "parsed_retail__transactions"),
    "satellite": ("vault", "sat_transaction_details"),
    "fact": ("marts", "fct_transactions"),
}
COMMITS, COMMITS_BY_SENSORS, PAUSE = 50, 2, 12.0
LONGEST = 900.0
PERCENTILES = (50, 95, 99)
Seconds = dict[str, list[float]]


def commit_to_fact(bench: Bench) -> Results:
    """Retail under `lakehouse dev`, without mirrors: first with the worker, then by sensors, on the same data."""
    load_samples()
    with without_mirrors(bench.settings):
        return _commit_to_fact(load_settings(), bench)


def _commit_to_fact(settings: Settings, bench: Bench) -> Results:
    commits, by_sensors = max(5, int(COMMITS * bench.scale)), max(1, int(COMMITS_BY_SENSORS * bench.scale))
    results = Results()
    with running("dev", "--no-stack") as dev:
        results |= sales(settings, "one after the other", commits, None, partial(processes, settings, dev))
        results |= sales(settings, "at random moments", commits, PAUSE, partial(processes, settings, dev))
    with running("dev", "--no-stack", "--no-worker") as dev:
        results |= sales(settings, "sensors and runs", by_sensors, None, partial(processes, settings, dev))
    return results


def processes(settings: Settings, dev: psutil.Process) -> Trees:
    """What `lakehouse dev` runs, and the servers; runs of Dagster count with the code server."""
    return {**children(dev), **servers(settings)}


def sales(settings: Settings, contender: str, commits: int, pause: float | None, find: Callable[[], Trees]) -> Results:
    """Sells about every `pause` seconds, or when the sale before has arrived; the seconds to each stage.

    `find` gives the processes whose CPU is told, once all of them run.
    """
    owner = settings.source("retail").owner_url
    assert owner is not None
    watch, busy = Pointers(settings, list(STAGES.values())), dict[str, float]()
    watch.start()
    committed = []
    try:
        with psycopg.connect(owner.get_secret_value(), autocommit=True) as source, ExitStack() as measuring:
            sell(source, watch)  # what is cold gets warm, and this one is not counted
            trees = find()
            measuring.enter_context(load_recorded(busy))
            cost = measuring.enter_context(measured(roots(trees), excluded=tuple(trees.values())))
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
    seconds = {stage: seconds_to(watch, stage, committed) for stage in STAGES}
    results = {f"{contender}, {stage}": measurement(stage, seconds[stage]) for stage in STAGES}
    results[f"{contender}, fact"].notes |= {
        "CPU s per sale": {name: round(spent / commits, 2) for name, spent in cost.cpu.items()},
        "machine": busy | {"CPU s of the above": round(sum(cost.cpu.values()))},
        "where the time goes": ways(seconds),
    }
    return results


def roots(trees: Trees) -> dict[str, tuple[psutil.Process, ...]]:
    """Each tree as the probe takes it."""
    return {name: (process,) for name, process in trees.items()}


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
        time.sleep(0.2)


def seconds_to(watch: Pointers, stage: str, committed: Sequence[float]) -> list[float]:
    """The seconds from each commit to the moment at which readers of the stage saw it."""
    over_time = watch.rows_over_time(STAGES[stage])
    total = over_time[-1][1]
    found = []
    for number, moment in enumerate(committed, start=1):
        seen = reached(over_time, total - len(committed) + number)
        assert seen is not None
        found.append(seen - moment)
    return found


def measurement(stage: str, seconds: Sequence[float]) -> Measurement:
    """The seconds with their percentiles."""
    notes = {f"p{percent}": round(at(seconds, percent), 2) for percent in PERCENTILES}
    return Measurement(
        "s", runs=list(seconds), notes=notes, does=f"from COMMIT until {'.'.join(STAGES[stage])} shows the sale"
    )


def at(seconds: Sequence[float], percent: int) -> float:
    """A percentile."""
    ordered = sorted(seconds)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


def ways(seconds: Seconds) -> list[dict[str, str | float]]:
    """From stage to stage: the seconds of the median sale, of the 95th percentile, and the share of the whole."""
    begun = [0.0] * len(seconds["fact"])
    whole, before = sum(seconds["fact"]), "commit"
    found: list[dict[str, str | float]] = []
    for stage, reached_after in seconds.items():
        taken = [then - since for since, then in zip(begun, reached_after, strict=True)]
        found.append({
            "way": f"{before} → {stage}", "p50 s": round(statistics.median(taken), 2), "p95 s": round(at(taken, 95), 2),
            "share": f"{100 * sum(taken) / whole:.0f} %",
        })  # fmt: skip
        before, begun = stage, reached_after
    return found

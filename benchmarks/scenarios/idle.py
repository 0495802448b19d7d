"""What it costs when nothing happens: ten idle minutes, scaled to an hour, and a load with nothing new."""

import time
from threading import Event

from benchmarks.bench import Bench, Measurement, Results
from benchmarks.probe import load_recorded, measured
from benchmarks.processes import Trees, children, running, servers
from benchmarks.samples import load_samples
from lakehouse.settings import Settings, load_settings
from orchestration.worker.loop import open_worker

MINUTES, SETTLE_SECONDS = 10, 180.0  # the first refresh of mirrors comes within them
LOADS = 50
TARGET = ("worker", "follower", "daemon")


def idle(bench: Bench) -> Results:
    """All sources are up to date and nobody writes: CPU of each process, and the seconds of a load with nothing new."""
    load_samples()
    settings = load_settings()
    results = {"a load with nothing new": loads_with_nothing_new(settings, max(5, int(LOADS * bench.scale)))}
    with running("dev", "--no-stack") as dev:
        time.sleep(SETTLE_SECONDS)
        return results | idle_minutes({**children(dev), **servers(settings)}, max(1, round(MINUTES * bench.scale)))


def loads_with_nothing_new(settings: Settings, count: int) -> Measurement:
    """Rounds of a worker over all tasks, after the one in which it reads what was loaded before."""
    found = Measurement("s", does="a round of the worker over all jobs, woken by a cut that changed no table")
    with open_worker(settings, Event()) as (worker, _, _):
        worker.load_what_is_due()
        for _ in range(count):
            begun = time.monotonic()
            worker.load_what_is_due()
            found.add(time.monotonic() - begun)
    return found


def idle_minutes(trees: Trees, minutes: int) -> Results:
    """Percent of a core of each process, a run per minute; seconds of CPU scaled to an hour."""
    results = {name: Measurement("% of a core", does="CPU while nothing happens") for name in trees}
    results["worker, follower and daemon"] = together = Measurement("% of a core", does="the three together")
    busy = dict[str, float]()
    with load_recorded(busy):
        for _ in range(minutes):
            roots = {name: (process,) for name, process in trees.items()}
            with measured(roots, excluded=tuple(trees.values())) as cost:
                time.sleep(60)
            for name, spent in cost.cpu.items():
                results[name].add(100 * spent / cost.seconds)
            together.add(100 * sum(cost.cpu[name] for name in TARGET) / cost.seconds)
    for result in results.values():
        result.notes["CPU s an hour"] = round(36 * sum(result.runs) / len(result.runs), 1)
    together.notes["machine"] = busy
    return results

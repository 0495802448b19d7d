"""What models cost that nothing happens to: sales with the demo's models, and with ten times as many."""

import os
import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from threading import Event

from benchmarks.bench import Bench, Measurement, Results
from benchmarks.copies import add_copies
from benchmarks.processes import Trees, running
from benchmarks.samples import load_samples, without_mirrors
from benchmarks.scenarios.commit_to_fact import processes, sales
from benchmarks.scenarios.idle import idle_minutes
from lakehouse.declarations.dbt.manifest import ensure_manifest, load_manifest
from lakehouse.errors import LakehouseError
from lakehouse.servers.presence import is_served
from lakehouse.settings import Settings, load_settings
from orchestration.jobs.marts import JOB as MARTS_JOB
from orchestration.worker.loop import open_worker

COPIES, SALES, ROUNDS, IDLE_MINUTES = 13, 20, 20, 5
FIRST_DAY = "LAKEHOUSE_DAGSTER__FIRST_DAY"  # today: to tell Dagster of each day of each table takes minutes
LONGEST, SETTLE_SECONDS = 600.0, 30.0


def many_models(bench: Bench) -> Results:
    """First the demo's project without mirrors, then the same lake with copies of retail that stay idle."""
    os.environ[FIRST_DAY] = datetime.now(UTC).date().isoformat()
    try:
        load_samples()
        with without_mirrors(bench.settings):
            settings = load_settings()
            results = _measured(settings, bench.scale)
            add_copies(settings, COPIES)
            return results | _measured(settings, bench.scale)
    finally:
        del os.environ[FIRST_DAY]


def _measured(settings: Settings, scale: float) -> Results:
    """Parse, start, rounds, sales, memory and idle minutes of the project as it is."""
    changed = _parse(settings)
    nodes = load_manifest(settings)["nodes"].values()
    models = f"{sum(node['resource_type'] == 'model' for node in nodes)} models"
    results = {
        f"{models}, parse": changed,
        f"{models}, nothing new": _rounds(settings, max(5, int(ROUNDS * scale))),
    }
    with running("dev", "--no-stack") as dev:
        results[f"{models}, start"] = _served(settings)
        time.sleep(SETTLE_SECONDS)
        find = partial(processes, settings, dev)
        sold = sales(settings, models, max(3, int(SALES * scale)), None, find)
        sold[f"{models}, fact"].notes["memory MiB"] = _memory(find())
        time.sleep(SETTLE_SECONDS)
        idle = idle_minutes(find(), max(1, round(IDLE_MINUTES * scale)))
    return results | sold | {f"{models}, idle {name}": idle[name] for name in ("worker", "follower", "daemon")}


def _parse(settings: Settings) -> Measurement:
    """What a changed file costs whoever reads the project first."""
    found = Measurement("s", does="dbt parse after a model's file has changed")
    file = next((settings.dbt_project_dir / "models" / "marts").glob("*.sql"))
    ensure_manifest(settings)
    file.touch()
    begun = time.monotonic()
    ensure_manifest(settings)
    found.add(time.monotonic() - begun)
    return found


def _rounds(settings: Settings, count: int) -> Measurement:
    """As `idle` measures them; before them what the worker does when it starts, in a process that has imported all."""
    found, cpu = Measurement("s", does="a round of the worker, woken by a cut that changed no table"), list[float]()
    with open_worker(settings, Event()) as (worker, _, _):
        for what, step in {"reads the project": worker.read_project, "first round": worker.load_what_is_due}.items():
            wall, spent = _timed(step)
            found.notes[what] = {"s": round(wall, 2), "CPU s": round(spent, 2)}
        for _ in range(count):
            wall, spent = _timed(worker.load_what_is_due)
            found.add(wall)
            cpu.append(spent)
    found.notes["CPU s, median"] = round(statistics.median(cpu), 4)
    return found


def _timed(step: Callable[[], None]) -> tuple[float, float]:
    """Its seconds, and its CPU seconds."""
    begun, spent = time.monotonic(), time.process_time()
    step()
    return time.monotonic() - begun, time.process_time() - spent


def _served(settings: Settings) -> Measurement:
    """How long `lakehouse dev`, which has just been started, takes until its worker serves the marts."""
    found, begun = Measurement("s", does="from the start of `lakehouse dev` until its worker serves"), time.monotonic()
    while not is_served(settings, MARTS_JOB):
        if time.monotonic() - begun > LONGEST:
            raise LakehouseError(f"the worker did not serve {MARTS_JOB} within {LONGEST:.0f} s")
        time.sleep(0.2)
    found.add(time.monotonic() - begun)
    return found


def _memory(trees: Trees) -> dict[str, int]:
    """MiB of each process."""
    return {name: process.memory_info().rss >> 20 for name, process in trees.items()}

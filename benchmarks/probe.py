"""What a piece of work costs: CPU seconds and memory of process trees, sampled while it runs."""

import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import psutil

SAMPLE_SECONDS = 1.0  # a sample costs some 50 ms of CPU: the kernel adds up the pages of every process


@dataclass
class Cost:
    """Seconds of wall time; per process tree CPU seconds, and proportional set size as (seconds, bytes)."""

    seconds: float = 0.0
    cpu: dict[str, float] = field(default_factory=dict)
    memory: dict[str, list[tuple[float, int]]] = field(default_factory=dict)

    def peak(self, name: str) -> int:
        """The most memory that a tree had, in bytes."""
        return max((size for _, size in self.memory[name]), default=0)


@contextmanager
def measured(trees: Mapping[str, tuple[psutil.Process, ...]]) -> Iterator[Cost]:
    """Measures the body; the processes of a name count together, with all their children.

    A process that ends between two samples counts up to the one before.
    """
    cost, stop = Cost(), threading.Event()
    begun = time.monotonic()
    before = {name: _cpu(roots) for name, roots in trees.items()}
    seen: dict[str, dict[int, float]] = {name: dict(times) for name, times in before.items()}
    cost.memory = {name: [] for name in trees}

    def sample() -> None:
        while True:
            for name, roots in trees.items():
                seen[name] |= _cpu(roots)
                cost.memory[name].append((time.monotonic() - begun, _memory(roots)))
            if stop.wait(SAMPLE_SECONDS):
                return

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield cost
    finally:
        cost.seconds = time.monotonic() - begun
        for name, roots in trees.items():
            seen[name] |= _cpu(roots)
            cost.cpu[name] = sum(last - before[name].get(pid, 0.0) for pid, last in seen[name].items())
        stop.set()
        thread.join()


def this_process() -> psutil.Process:
    """Ingestion runs in the benchmark's own process: driver, JVM and Python workers are its tree."""
    return psutil.Process(os.getpid())


def _tree(roots: tuple[psutil.Process, ...]) -> list[psutil.Process]:
    found = []
    for root in roots:
        with suppress(psutil.Error):
            found += [root, *root.children(recursive=True)]
    return found


def _cpu(roots: tuple[psutil.Process, ...]) -> dict[int, float]:
    times = {}
    for process in _tree(roots):
        try:
            spent = process.cpu_times()
            times[process.pid] = spent.user + spent.system
        except psutil.Error:
            continue
    return times


def _memory(roots: tuple[psutil.Process, ...]) -> int:
    total = 0
    for process in _tree(roots):
        try:
            total += process.memory_full_info().pss
        except psutil.Error:
            continue
    return total

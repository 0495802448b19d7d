"""Measures CPU seconds and memory of process trees by sampling."""

import os
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import psutil

from lakehouse.servers.spark import WORKERS

SAMPLE_SECONDS = 1.0  # a memory sample costs about 50 ms of CPU


def load_average() -> float:
    """How many processes have wanted a core in the last minute, on average: the figures beside it suffer from more."""
    return round(os.getloadavg()[0], 1)


@contextmanager
def load_recorded(found: dict[str, float]) -> Iterator[None]:
    """Notes how busy the machine was during the block, and how much of it these measurements have not caused.

    Of all CPU seconds of the machine, the caller subtracts its own.
    """
    before, began = psutil.cpu_times(), load_average()
    yield
    after = psutil.cpu_times()
    found["load at the start"], found["load at the end"] = began, load_average()
    found["CPU s of the machine"] = round(_busy(after) - _busy(before))


def _busy(times: Any) -> float:
    return float(sum(times) - times.idle - times.iowait - times.guest - times.guest_nice)


@dataclass
class Cost:
    """Wall time, CPU seconds by process tree, and samples (seconds, proportional set size by program) of one tree."""

    seconds: float = 0.0
    cpu: dict[str, float] = field(default_factory=dict)
    memory: list[tuple[float, dict[str, int]]] = field(default_factory=list)

    @property
    def peak(self) -> int:
        """The peak memory of the tree in bytes."""
        return max((size for _, size in self.memory_of()), default=0)

    def memory_of(self, program: str | None = None) -> list[tuple[float, int]]:
        """(seconds, bytes) of one of the tree's programs, or of all."""
        return [(at, sizes.get(program, 0) if program else sum(sizes.values())) for at, sizes in self.memory]


@contextmanager
def measured(
    trees: Mapping[str, tuple[psutil.Process, ...]], excluded: tuple[psutil.Process, ...] = (), memory_of: str = ""
) -> Iterator[Cost]:
    """Measures the block. `trees` maps names to root processes, counted with all children except those `excluded`.

    Memory is sampled for at most one name, because that is expensive. The CPU time of a process that ends counts up to
    the last sample before its end.
    """
    cost, stop = Cost(), threading.Event()
    started = time.monotonic()
    before = {name: _cpu(_tree(roots, excluded)) for name, roots in trees.items()}
    seen: dict[str, dict[int, float]] = {name: dict(times) for name, times in before.items()}

    def sample() -> None:
        while True:
            for name, roots in trees.items():
                processes = _tree(roots, excluded)
                seen[name] |= _cpu(processes)
                if name == memory_of:
                    cost.memory.append((time.monotonic() - started, _memory(processes)))
            if stop.wait(SAMPLE_SECONDS):
                return

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield cost
    finally:
        cost.seconds = time.monotonic() - started
        for name, roots in trees.items():
            seen[name] |= _cpu(_tree(roots, excluded))
            cost.cpu[name] = sum(last - before[name].get(pid, 0.0) for pid, last in seen[name].items())
        stop.set()
        thread.join()


def this_process() -> psutil.Process:
    """This process, which runs ingestion; the JVM and Python workers are its children."""
    return psutil.Process(os.getpid())


def _tree(roots: tuple[psutil.Process, ...], excluded: tuple[psutil.Process, ...]) -> list[psutil.Process]:
    return _with_children(roots, set(excluded))


def _with_children(processes: Iterable[psutil.Process], excluded: set[psutil.Process]) -> list[psutil.Process]:
    found = []
    for process in processes:
        with suppress(psutil.Error):
            children = [child for child in process.children() if child not in excluded]
            found += [process, *_with_children(children, excluded)]
    return found


def _cpu(processes: Iterable[psutil.Process]) -> dict[int, float]:
    times = {}
    for process in processes:
        try:
            spent = process.cpu_times()
            times[process.pid] = spent.user + spent.system
        except psutil.Error:
            continue
    return times


def _memory(processes: Iterable[psutil.Process]) -> dict[str, int]:
    sizes: Counter[str] = Counter()
    for process in processes:
        with suppress(psutil.Error):
            sizes[_program(process)] += process.memory_full_info().pss
    return dict(sizes)


def _program(process: psutil.Process) -> str:
    if process.name() == "java":
        return "JVM"
    return "Python workers" if WORKERS in process.cmdline() else "Python driver"

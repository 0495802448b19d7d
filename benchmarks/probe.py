"""What a piece of work costs: CPU seconds and memory of process trees, sampled while it runs."""

import os
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import psutil

from lakehouse.servers.spark import WORKERS

SAMPLE_SECONDS = 1.0  # a sample costs some 50 ms of CPU: the kernel adds up the pages of every process


@dataclass
class Cost:
    """Seconds of wall time; per process tree CPU seconds; of one tree (seconds, proportional set size by program)."""

    seconds: float = 0.0
    cpu: dict[str, float] = field(default_factory=dict)
    memory: list[tuple[float, dict[str, int]]] = field(default_factory=list)

    @property
    def peak(self) -> int:
        """The most memory that the tree had, in bytes."""
        return max((size for _, size in self.memory_of()), default=0)

    def memory_of(self, program: str | None = None) -> list[tuple[float, int]]:
        """(seconds, bytes) of one of the tree's programs, or of all together."""
        return [(at, sizes.get(program, 0) if program else sum(sizes.values())) for at, sizes in self.memory]


@contextmanager
def measured(
    trees: Mapping[str, tuple[psutil.Process, ...]], apart: tuple[psutil.Process, ...] = (), memory_of: str = ""
) -> Iterator[Cost]:
    """Measures the body; the processes of a name count together, with all their children but those `apart`.

    Memory is sampled of one name, or of none: it costs more than all else. A process that ends between two samples
    counts up to the one before.
    """
    cost, stop = Cost(), threading.Event()
    begun = time.monotonic()
    before = {name: _cpu(_tree(roots, apart)) for name, roots in trees.items()}
    seen: dict[str, dict[int, float]] = {name: dict(times) for name, times in before.items()}

    def sample() -> None:
        while True:
            for name, roots in trees.items():
                processes = _tree(roots, apart)
                seen[name] |= _cpu(processes)
                if name == memory_of:
                    cost.memory.append((time.monotonic() - begun, _memory(processes)))
            if stop.wait(SAMPLE_SECONDS):
                return

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield cost
    finally:
        cost.seconds = time.monotonic() - begun
        for name, roots in trees.items():
            seen[name] |= _cpu(_tree(roots, apart))
            cost.cpu[name] = sum(last - before[name].get(pid, 0.0) for pid, last in seen[name].items())
        stop.set()
        thread.join()


def this_process() -> psutil.Process:
    """Ingestion runs in the benchmark's own process: driver, JVM and Python workers are its tree."""
    return psutil.Process(os.getpid())


def _tree(roots: tuple[psutil.Process, ...], apart: tuple[psutil.Process, ...]) -> list[psutil.Process]:
    return _with_children(roots, set(apart))


def _with_children(processes: Iterable[psutil.Process], apart: set[psutil.Process]) -> list[psutil.Process]:
    found = []
    for process in processes:
        with suppress(psutil.Error):
            children = [child for child in process.children() if child not in apart]
            found += [process, *_with_children(children, apart)]
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

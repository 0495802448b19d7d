"""Child processes in the foreground: prefixed output, a log each, restarted when they end, all gone at the end."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import IO

import psutil

from lakehouse.files.logs import rotate
from lakehouse.files.private_files import private_dir
from lakehouse.text.shown import visible

ANSI = re.compile(rb"\x1b\[[0-9;]*m")
COLORS = ("36", "35", "33", "32")
PATIENCE = 20.0
FIRST_WAIT = 90.0
LONGEST_PAUSE = 60.0
FIRST_AT_END = 5.0  # for what precedes the end
STEADY = 60.0  # seconds after which a child counts as well, and its next restart is prompt again


@dataclass(frozen=True)
class Command:
    """A child to keep running. At first it is started when the files of `after` are there, or FIRST_WAIT has passed.

    One with `due` is started whenever that says so, and left alone when it has ended. Of one that `ends_noisily`, such
    as with a traceback for each interrupt, what it says once all are to end is in its log alone.
    """

    name: str
    argv: Sequence[str]
    log: Path
    after: Sequence[Path] = ()
    due: Callable[[], bool] | None = None
    ends_noisily: bool = False


@dataclass
class _Child:
    command: Command
    color: str
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    restart_at: float = 0.0
    pause: float = 1.0
    readers: list[threading.Thread] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)


def keep_running(
    commands: Sequence[Command], cwd: Path, env: Mapping[str, str], before_end: Callable[[], None] | None = None
) -> None:
    """Runs the commands until SIGINT or SIGTERM; then ends them and everything they have started.

    `before_end` is called first, and not waited for without end.
    """
    begun = time.monotonic()
    with _stop_signals() as stop:
        children = [_Child(command, COLORS[i % len(COLORS)], stop=stop) for i, command in enumerate(commands)]
        try:
            while not stop.wait(0.5):
                for child in children:
                    if child.started or _may_start(child.command, begun):
                        _tend(child, cwd, env)
        finally:
            if before_end is not None:
                first = threading.Thread(target=before_end, daemon=True)
                first.start()
                first.join(FIRST_AT_END)
            _end(children)


def _may_start(command: Command, begun: float) -> bool:
    return all(file.exists() for file in command.after) or time.monotonic() - begun > FIRST_WAIT


def _tend(child: _Child, cwd: Path, env: Mapping[str, str]) -> None:
    now, due = time.monotonic(), child.command.due
    if child.process is None:
        if now >= child.restart_at and (due is None or due()):
            _start(child, cwd, env)
    elif (status := child.process.poll()) is not None and due is not None:
        child.process = None
    elif status is not None:
        child.pause = 1.0 if now - child.started > STEADY else min(child.pause * 2, LONGEST_PAUSE)
        child.restart_at, child.process = now + child.pause, None
        _say(child, f"ended with status {status}, restarts in {child.pause:.0f} s; see {child.command.log}")


def _start(child: _Child, cwd: Path, env: Mapping[str, str]) -> None:
    private_dir(child.command.log.parent)
    # A session of its own: Ctrl-C on the terminal reaches this process alone, which then ends the others in order.
    child.process = subprocess.Popen(
        child.command.argv,
        cwd=cwd,
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    child.started = time.monotonic()
    reader = threading.Thread(target=_copy, args=(child, child.process.stdout), daemon=True)
    reader.start()
    child.readers.append(reader)


def _copy(child: _Child, output: IO[bytes]) -> None:
    """Reads on even where nothing can be written, as to a full disk: the child would block on a pipe that is full."""
    for line in output:
        text = ANSI.sub(b"", line).decode(errors="replace").rstrip()
        with suppress(OSError):
            rotate(child.command.log)
        with suppress(OSError), child.command.log.open("ab", buffering=0) as log:
            log.write(f"{visible(text)}\n".encode())
        if not (child.command.ends_noisily and child.stop.is_set()):
            _say(child, text)


def _say(child: _Child, text: str) -> None:
    name = f"{child.command.name:<9}"
    prefix = f"\033[{child.color}m{name}\033[0m" if _has_colors() else name
    with suppress(OSError):
        print(f"{prefix} {visible(text)}", flush=True)  # noqa: T201 (the prefix has a color)


def _has_colors() -> bool:
    """Whether output goes to a terminal whose user wants colors (no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _end(children: Sequence[_Child]) -> None:
    """Asks each child to end, then kills what is left of all of them: servers, run workers, JVMs."""
    alive = [psutil.Process(c.process.pid) for c in children if c.process is not None and c.process.poll() is None]
    family = {process.pid: process for parent in alive for process in _with_descendants(parent)}
    for parent in alive:
        with suppress(psutil.NoSuchProcess):
            parent.send_signal(signal.SIGTERM)
    psutil.wait_procs(alive, timeout=PATIENCE)
    left = [process for process in family.values() if process.is_running()]
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    _, stubborn = psutil.wait_procs(left, timeout=5)
    for process in stubborn:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    for child in children:
        for reader in child.readers:
            reader.join(timeout=2)


def _with_descendants(parent: psutil.Process) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        return [parent, *parent.children(recursive=True)]
    return []


@contextmanager
def _stop_signals() -> Iterator[threading.Event]:
    """An event that SIGINT and SIGTERM set; a second Ctrl-C does not interrupt the clean end."""
    stop = threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        stop.set()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

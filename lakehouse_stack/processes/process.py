"""Server processes: started detached, identified by pid and start time, stopped with all their children.

A pid alone does not identify a process: after a reboot another one may have it.
"""

import hashlib
import json
import os
import signal
import subprocess
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

import psutil

from lakehouse.files.logs import rotate
from lakehouse.files.private_files import write_private
from lakehouse.process_start import start_of
from lakehouse_stack.processes.accounts import Account

PERFORMANCE_DATA = "hsperfdata_"  # and the user's name, in /tmp
RELEASE = f"release {version('lakehouse')}"
"""Part of the configuration of our own programs: `up` starts them again after an upgrade."""


@dataclass(frozen=True)
class Launch:
    """The command line and environment of a server process."""

    argv: tuple[str, ...]
    cwd: Path
    log: Path
    env: Mapping[str, str]
    stop_signal: signal.Signals = signal.SIGTERM
    account: Account | None = None
    config: str = ""  # text of its configuration files: a change requires a restart

    def fingerprint(self) -> str:
        """A hash of everything that a restart would apply."""
        parts = [*self.argv, str(self.cwd), json.dumps(dict(self.env), sort_keys=True), self.config]
        parts += [self.account.name] if self.account else []
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@dataclass(frozen=True)
class Record:
    """The contents of a pid file."""

    pid: int
    created: float
    port: int
    fingerprint: str
    started: str | None = None  # what `start_of` says; releases before 0.2 recorded `created` alone


def read_record(path: Path) -> Record | None:
    """The record in a pid file; None if the file is missing or malformed."""
    try:
        return Record(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def find(record: Record | None) -> psutil.Process | None:
    """The running process of a record; None if it has ended."""
    if record is None:
        return None
    _reap(record.pid)
    try:
        process = psutil.Process(record.pid)
        is_same = start_of(record.pid) == record.started if record.started else _is_as_old(process, record)
    except psutil.NoSuchProcess:
        return None
    return process if is_same else None


def works_elsewhere(process: psutil.Process, folders: Iterable[Path]) -> bool:
    """Whether the process works in another folder that is there, as the servers of the home that this is a copy of.

    The folder of a home that was moved is gone, and servers that were just started are in the root folder, or in that
    of Java's performance data, which a JVM tidies up first. `folders` may be links, or other paths to where it works.
    """
    with suppress(psutil.Error, OSError):
        there = Path(process.cwd())
        around = (there, *there.parents)
        return (
            there != Path("/")
            and not there.name.startswith(PERFORMANCE_DATA)
            and there.is_dir()
            and not any(is_same_folder(each, folder) for folder in folders for each in around)
        )
    return False


def is_same_folder(one: Path, other: Path) -> bool:
    """Whether both paths lead to the same folder, by whatever links; of deleted folders, whether they are the same."""
    with suppress(OSError):
        return one.samefile(other)
    return one == other


def _is_as_old(process: psutil.Process, record: Record) -> bool:
    """By the clock, which may have been set since: on Linux, the system's boot moves with it."""
    return abs(process.create_time() - record.created) <= 1 and process.status() != psutil.STATUS_ZOMBIE


def start(launch: Launch, port: int, pid_file: Path) -> psutil.Process:
    """Starts the process in its own session with output to the log, and writes its pid file."""
    launch.log.parent.mkdir(parents=True, exist_ok=True)
    rotate(launch.log)
    account = launch.account
    with os.fdopen(os.open(launch.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab") as log:
        started = subprocess.Popen(
            launch.argv,
            cwd=launch.cwd,
            env={**_base_environment(), **({"HOME": str(launch.cwd)} if account else {}), **launch.env},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            user=account.uid if account else None,
            group=account.gid if account else None,
            extra_groups=[] if account else None,
            umask=0o077,
        )
    process = psutil.Process(started.pid)
    record = Record(started.pid, process.create_time(), port, launch.fingerprint(), start_of(started.pid))
    write_private(pid_file, json.dumps(asdict(record)) + "\n")
    return process


def stop(processes: Iterable[psutil.Process], stop_signal: signal.Signals, patience: float) -> None:
    """Signals the processes, waits, then kills those that remain and their children."""
    first = list(processes)
    everything = {process.pid: process for process in first}
    for process in first:
        with suppress(psutil.NoSuchProcess):
            everything |= {child.pid: child for child in process.children(recursive=True)}
        with suppress(psutil.NoSuchProcess):
            process.send_signal(stop_signal)
    _, alive = psutil.wait_procs(list(everything.values()), timeout=patience)
    for process in alive:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(alive, timeout=10)
    for pid in everything:
        _reap(pid)


def working_in(folder: Path, name: str) -> list[psutil.Process]:
    """Processes of that name with working directory `folder`: finds orphans that have no pid file."""
    found = []
    for process in psutil.process_iter(["name"]):
        with suppress(psutil.Error, OSError):
            if process.info["name"] == name and is_same_folder(Path(process.cwd()), folder):
                found.append(process)
    return found


def listener_has(port: int, variable: str, value: str) -> bool:
    """Whether the process that listens on this port has the variable, which marks it as ours."""
    with suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            listens = connection.status == psutil.CONN_LISTEN and connection.laddr[1:] == (port,)
            if listens and connection.pid:
                return psutil.Process(connection.pid).environ().get(variable) == value
    return False


def last_lines(log: Path, count: int = 3) -> str:
    """The last lines of a log on one line, for an error message."""
    try:
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    except OSError:
        return "no log"
    return " | ".join(line[-200:] for line in lines[-count:]) or "nothing in the log"


def _base_environment() -> dict[str, str]:
    """A minimal environment: servers must not inherit LD_LIBRARY_PATH, PG* or JAVA_TOOL_OPTIONS."""
    return {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR", "TZ") if name in os.environ} | {
        "LANG": "C.UTF-8"
    }


def _reap(pid: int) -> None:
    with suppress(OSError):
        os.waitpid(pid, os.WNOHANG)

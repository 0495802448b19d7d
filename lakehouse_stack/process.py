"""Server processes: started detached, remembered by pid and start time, stopped with all their children.

A pid alone is not enough: after a reboot it may belong to somebody else.
"""

import hashlib
import json
import os
import signal
import subprocess
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from lakehouse.files.private_files import write_private
from lakehouse_stack.accounts import Account

LOG_BYTES = 20 * 1024 * 1024
LOG_COPIES = 3


@dataclass(frozen=True)
class Launch:
    """How a server process is started."""

    argv: tuple[str, ...]
    cwd: Path
    log: Path
    env: Mapping[str, str]
    stop_signal: signal.Signals = signal.SIGTERM
    account: Account | None = None
    config: str = ""  # text of its configuration files: when it changes, the process must be started anew

    def fingerprint(self) -> str:
        """Changes when the process would be started differently."""
        parts = [*self.argv, str(self.cwd), json.dumps(dict(self.env), sort_keys=True), self.config]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@dataclass(frozen=True)
class Record:
    """What is remembered of a started process."""

    pid: int
    created: float
    port: int
    fingerprint: str


def read_record(path: Path) -> Record | None:
    """The record in a pid file; None when there is none or it is damaged."""
    try:
        return Record(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def find(record: Record | None) -> psutil.Process | None:
    """The process the record speaks of, if it is still that one and alive."""
    if record is None:
        return None
    _reap(record.pid)
    try:
        process = psutil.Process(record.pid)
        if abs(process.create_time() - record.created) > 1 or process.status() == psutil.STATUS_ZOMBIE:
            return None
    except psutil.NoSuchProcess:
        return None
    return process


def start(launch: Launch, port: int, pid_file: Path) -> psutil.Process:
    """Starts the process in its own session, its output going to the log, and remembers it."""
    launch.log.parent.mkdir(parents=True, exist_ok=True)
    rotate(launch.log)
    account = launch.account
    with os.fdopen(os.open(launch.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab") as log:
        started = subprocess.Popen(
            launch.argv,
            cwd=launch.cwd,
            env={**_base_environment(), **launch.env},
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
    record = Record(started.pid, process.create_time(), port, launch.fingerprint())
    write_private(pid_file, json.dumps(asdict(record)) + "\n")
    return process


def stop(processes: Iterable[psutil.Process], stop_signal: signal.Signals, patience: float) -> None:
    """Asks the processes to end, waits, then kills them and whatever they had started."""
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
    """Processes of that name whose working directory is `folder`: a dead server's orphans, pid file or not."""
    found = []
    for process in psutil.process_iter(["name"]):
        with suppress(psutil.Error, OSError):
            if process.info["name"] == name and Path(process.cwd()) == folder:
                found.append(process)
    return found


def listener_has(port: int, variable: str, value: str) -> bool:
    """Whether the process that listens on this port has that environment variable: one of ours, or a stranger."""
    with suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            listens = connection.status == psutil.CONN_LISTEN and connection.laddr[1:] == (port,)
            if listens and connection.pid:
                return psutil.Process(connection.pid).environ().get(variable) == value
    return False


def rotate(log: Path, limit: int = LOG_BYTES, copies: int = LOG_COPIES) -> None:
    """Copies a log that has grown past the limit to `.1` (older copies to `.2`, `.3`) and empties it in place.

    In place, because a running server goes on writing to the same file.
    """
    if not log.exists() or log.stat().st_size < limit:
        return
    for number in range(copies - 1, 0, -1):
        older = log.with_name(f"{log.name}.{number}")
        if older.exists():
            older.replace(log.with_name(f"{log.name}.{number + 1}"))
    copy = log.with_name(f"{log.name}.1")
    copy.write_bytes(log.read_bytes())
    copy.chmod(0o600)
    os.truncate(log, 0)


def last_lines(log: Path, count: int = 3) -> str:
    """The end of a log on one line, for an error message."""
    try:
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    except OSError:
        return "no log"
    return " | ".join(line[-200:] for line in lines[-count:]) or "nothing in the log"


def _base_environment() -> dict[str, str]:
    """Only what any program needs: servers must not inherit LD_LIBRARY_PATH, PG* or JAVA_TOOL_OPTIONS by accident."""
    return {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR", "TZ") if name in os.environ} | {
        "LANG": "C.UTF-8"
    }


def _reap(pid: int) -> None:
    with suppress(OSError):
        os.waitpid(pid, os.WNOHANG)

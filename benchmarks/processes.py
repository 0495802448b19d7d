"""Commands of ours as processes of their own, and the servers they work with."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings, load_settings
from lakehouse_stack.control.start_stop import running as running_server
from lakehouse_stack.home.config import SERVERS

Trees = Mapping[str, psutil.Process]
ROLES = {
    "ingest": "follower", "worker": "worker", "up": "keeper", "watch": "watch",
    "dagster": "code server", "orchestration.daemon": "daemon", "orchestration.web": "web server",
}  # fmt: skip


def lakehouse(*arguments: str) -> None:
    """Runs a command of ours; raises LakehouseError if it fails."""
    program = str(Path(sys.executable).with_name("lakehouse"))
    if subprocess.run([program, *arguments], stdout=subprocess.DEVNULL).returncode:
        raise LakehouseError(f"`lakehouse {' '.join(arguments)}` failed")


def dagster(*arguments: str) -> None:
    """Runs one of Dagster's commands; raises LakehouseError if it fails."""
    settings = load_settings()
    command = [str(Path(sys.executable).with_name("dagster")), *arguments]
    environment = {**os.environ, "DAGSTER_HOME": str(settings.dagster_home)}
    if subprocess.run(command, cwd=settings.project_dir, env=environment, capture_output=True).returncode:
        raise LakehouseError(f"`dagster {' '.join(arguments)}` failed")


@contextmanager
def running(*arguments: str) -> Iterator[psutil.Process]:
    """A command of ours in the background."""
    program = str(Path(sys.executable).with_name("lakehouse"))
    process = subprocess.Popen([program, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield psutil.Process(process.pid)
    finally:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)  # a shell without job control lets children ignore SIGINT
        process.wait(timeout=120)


def servers(settings: Settings) -> dict[str, psutil.Process]:
    """The servers of the stack that run, by name."""
    found = {name: running_server(settings, name) for name in SERVERS}
    return {name: psutil.Process(server.pid) for name, server in found.items() if server}


def children(dev: psutil.Process) -> dict[str, psutil.Process]:
    """The processes that `lakehouse dev` keeps running, by what they are."""
    found = {}
    for child in dev.children():
        with suppress(psutil.Error):  # killed, and not yet started again
            words = [Path(word).name for word in child.cmdline()[1:3]]
            role = ROLES.get(words[words[0] in {"lakehouse", "-m"}]) if len(words) == 2 else None
            if role is not None:
                found[role] = child
    return found

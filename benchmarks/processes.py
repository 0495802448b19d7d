"""Commands of ours as processes of their own, and the servers they work with."""

import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings
from lakehouse_stack.control.start_stop import running as running_server
from lakehouse_stack.home.config import SERVERS

Trees = Mapping[str, psutil.Process]


def lakehouse(*arguments: str) -> None:
    """Runs a command of ours; raises LakehouseError if it fails."""
    program = str(Path(sys.executable).with_name("lakehouse"))
    if subprocess.run([program, *arguments], stdout=subprocess.DEVNULL).returncode:
        raise LakehouseError(f"`lakehouse {' '.join(arguments)}` failed")


@contextmanager
def running(*arguments: str) -> Iterator[psutil.Process]:
    """A command of ours in the background."""
    program = str(Path(sys.executable).with_name("lakehouse"))
    process = subprocess.Popen([program, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield psutil.Process(process.pid)
    finally:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)
        process.wait(timeout=120)


def servers(settings: Settings) -> dict[str, psutil.Process]:
    """The servers of the stack that run, by name."""
    found = {name: running_server(settings, name) for name in SERVERS}
    return {name: psutil.Process(server.pid) for name, server in found.items() if server}

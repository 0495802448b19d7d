"""The servers of this machine, and its disk."""

from __future__ import annotations

import shutil
from pathlib import Path

from lakehouse.metrics import sample
from lakehouse.settings import Settings
from lakehouse_stack.control.inspect import inspect
from lakehouse_stack.home.config import stack_settings
from lakehouse_stack.home.pathnames import credentials_file
from lakehouse_stack.processes.accounts import find_server_placement
from lakehouse_watch.alerts import Occasion
from lakehouse_watch.probes.reading import Reading

START_SECONDS = 20.0  # a supervised server that was killed is back by then


def read_servers(settings: Settings) -> Reading:
    """The servers of a home, once `lakehouse up` has given them ports; not all of them listen."""
    servers = inspect(settings)
    if not any(server.port for server in servers):
        return Reading()
    occasions = tuple(
        Occasion(
            f"server/{server.name}", f"the server {server.name} does not work: {server.trouble or 'it is down'}",
            f"see {server.log}, then run `lakehouse up`", patience=START_SECONDS,
        )
        for server in servers if not server.healthy
    )  # fmt: skip
    return Reading(occasions, tuple(sample("lakehouse_server_up", s.healthy, server=s.name) for s in servers))


def read_disk(settings: Settings) -> Reading:
    """Free space where the home is, or the data of its servers, whichever has less."""
    folder = min(_folders(settings), key=lambda each: shutil.disk_usage(each).free)
    free = shutil.disk_usage(folder).free
    samples = (sample("lakehouse_disk_free_bytes", free),)
    if free >= settings.alerts.disk_free_bytes:
        return Reading(samples=samples)
    full = Occasion(
        "disk/home", f"{free:,} bytes are free on the disk of {folder}",
        "make room: a full disk stops Postgres, and with it everything else",
    )  # fmt: skip
    return Reading((full,), samples)


def _folders(settings: Settings) -> tuple[Path, ...]:
    home = _existing(settings.home)
    if not credentials_file(settings).exists():
        return (home,)
    data = _existing(find_server_placement(settings.home, stack_settings().system_dir, make=False).data)
    return home, data, *(folder for folder in data.glob("*") if folder.is_dir())  # which may be links to other disks


def _existing(path: Path) -> Path:
    return path if path.exists() else _existing(path.parent)

"""The servers of this machine, and its disk."""

from __future__ import annotations

import shutil
from pathlib import Path

from lakehouse.metrics import sample
from lakehouse.settings import Settings
from lakehouse_stack.control.inspect import inspect
from lakehouse_watch.alerts import Occasion
from lakehouse_watch.probes.reading import Reading

START_SECONDS = 20.0  # a supervised server that was killed is back by then


def read_servers(settings: Settings) -> Reading:
    """The servers that `lakehouse up` has started."""
    servers = [server for server in inspect(settings) if server.healthy or server.pid is not None or server.port]
    occasions = tuple(
        Occasion(
            f"server/{server.name}", f"the server {server.name} is {server.trouble or 'down'}",
            f"see {server.log}, then run `lakehouse up`", patience=START_SECONDS,
        )
        for server in servers if not server.healthy
    )  # fmt: skip
    return Reading(occasions, tuple(sample("lakehouse_server_up", s.healthy, server=s.name) for s in servers))


def read_disk(settings: Settings) -> Reading:
    """Free space where the home is."""
    free = shutil.disk_usage(_existing(settings.home)).free
    samples = (sample("lakehouse_disk_free_bytes", free),)
    if free >= settings.alerts.disk_free_bytes:
        return Reading(samples=samples)
    full = Occasion(
        "disk/home", f"{free:,} bytes are free on the disk of {settings.home}",
        "make room: a full disk stops Postgres, and with it everything else",
    )  # fmt: skip
    return Reading((full,), samples)


def _existing(path: Path) -> Path:
    return path if path.exists() else _existing(path.parent)

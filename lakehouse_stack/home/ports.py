"""The servers' ports: chosen once, stored in the home, replaced if another process holds one."""

import json
import random
import socket
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from lakehouse.errors import LakehouseError
from lakehouse.files.private_files import write_private

LOOPBACK = "127.0.0.1"
# below Linux's range for outgoing connections, which could otherwise occupy a stored port
RANGE = range(20000, 32000)


def is_free(port: int) -> bool:
    """Whether a server could now listen on this loopback port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def plan_ports(
    names: Iterable[str],
    kept: Mapping[str, int],
    fixed: Mapping[str, int],
    in_use_by_us: Mapping[str, int],
    free: Callable[[int], bool] = is_free,
) -> dict[str, int]:
    """A port for each name: the fixed one, else the stored one, else a new one.

    Raises LakehouseError if another process holds a fixed port.
    """
    ports: dict[str, int] = {}
    for name in names:
        wanted = fixed.get(name, kept.get(name))
        ours = wanted is not None and in_use_by_us.get(name) == wanted
        if wanted is not None and (ours or (wanted not in ports.values() and free(wanted))):
            ports[name] = wanted
        elif name in fixed:
            raise LakehouseError(
                f"port {wanted} for {name} is taken by another process: "
                f"stop that one or change LAKEHOUSE_STACK_{name.upper()}_PORT"
            )
        else:
            ports[name] = _new_port({*ports.values(), *kept.values(), *fixed.values()}, free)
    return ports


def read_ports(path: Path) -> dict[str, int]:
    """The stored ports; empty if the file is missing or malformed."""
    try:
        return {str(name): int(port) for name, port in json.loads(path.read_text()).items()}
    except (OSError, ValueError, AttributeError):
        return {}


def write_ports(path: Path, ports: Mapping[str, int]) -> None:
    """Stores the ports for the next start."""
    write_private(path, json.dumps(dict(ports), indent=2) + "\n")


def _new_port(taken: set[int], free: Callable[[int], bool]) -> int:
    for port in random.sample(RANGE, len(RANGE)):
        if port not in taken and free(port):
            return port
    raise LakehouseError(f"no free port between {RANGE.start} and {RANGE.stop}")

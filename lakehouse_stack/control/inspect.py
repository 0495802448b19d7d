"""The state of the servers, for `lakehouse status`; read-only."""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from lakehouse.settings import Settings
from lakehouse_stack.control.plan import build_servers
from lakehouse_stack.control.start_stop import running
from lakehouse_stack.home.config import KAFKA_SERVERS, SERVERS, stack_settings
from lakehouse_stack.home.credentials import ensure_credentials
from lakehouse_stack.home.pathnames import credentials_file, pid_file, ports_file
from lakehouse_stack.home.ports import LOOPBACK, read_ports
from lakehouse_stack.servers.server import Server


@dataclass(frozen=True)
class ServerStatus:
    """The state of one server."""

    name: str
    pid: int | None
    port: int | None
    healthy: bool
    trouble: str | None
    uptime_seconds: int | None
    log: Path


def inspect(settings: Settings) -> tuple[ServerStatus, ...]:
    """The state of each server of this home.

    Before the first `up` all are down; there are none if the settings name servers outside the stack.
    """
    ports = read_ports(ports_file(settings))
    if not set(SERVERS) <= set(ports) or not credentials_file(settings).exists():
        if settings.catalog_url is not None:
            return ()
        return tuple(
            ServerStatus(name, None, ports.get(name), False, "down", None, settings.home / "logs" / f"{name}.log")
            for name in SERVERS
        )
    if not any(pid_file(settings, name).exists() for name in KAFKA_SERVERS):
        ports = {name: port for name, port in ports.items() if name not in KAFKA_SERVERS}
    credentials = ensure_credentials(credentials_file(settings))
    servers = build_servers(settings, stack_settings(), ports, credentials, make=False)
    with ThreadPoolExecutor(len(servers)) as pool:  # in parallel: a hanging server must not delay the others
        return tuple(pool.map(lambda server: _status(server, settings), servers))


def connect_address(settings: Settings) -> str | None:
    """The URL of the stack's Kafka Connect, if it runs."""
    port = read_ports(ports_file(settings)).get("connect")
    return f"http://{LOOPBACK}:{port}" if port and running(settings, "connect") else None


def _status(server: Server, settings: Settings) -> ServerStatus:
    process = running(settings, server.name)
    trouble = server.check_health() if process else "down"
    return ServerStatus(
        name=server.name,
        pid=process.pid if process else None,
        port=server.port or None,
        healthy=trouble is None,
        trouble=trouble,
        uptime_seconds=int(time.time() - process.create_time()) if process else None,
        log=server.launch.log,
    )

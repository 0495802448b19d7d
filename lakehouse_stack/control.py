"""Starts and stops the servers of one home.

`up` may be called at any time: it starts what is missing and leaves alone what runs. All servers start at once.
"""

import fcntl
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from lakehouse.declarations import load_declarations
from lakehouse.declarations.manifest import manifest_path
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings, load_settings
from lakehouse_stack import process
from lakehouse_stack.config import SERVERS, StackSettings, stack_settings
from lakehouse_stack.credentials import ensure_credentials
from lakehouse_stack.download import Progress, ensure_artifacts
from lakehouse_stack.endpoints import write_endpoints
from lakehouse_stack.majors import refuse_other_majors
from lakehouse_stack.pathnames import credentials_file, pid_file, ports_file, run_dir
from lakehouse_stack.plan import build_servers
from lakehouse_stack.ports import is_free, plan_ports, read_ports, write_ports
from lakehouse_stack.servers import Server
from lakehouse_stack.trino import ensure_access

Report = Callable[[str, str, float], None]  # server, what happens to it, seconds since the servers are started
PATIENCE = 20.0  # seconds a server has to end by itself


def up(
    settings: Settings,
    report: Report = lambda *_: None,
    progress: Progress = lambda *_: None,
) -> None:
    """Downloads what is missing, starts what does not run, and writes the endpoints.

    Raises LakehouseError; what was started by then keeps running, and the next `up` goes on from there.
    """
    stack = stack_settings()
    with alone(settings):
        refuse_other_majors(settings, stack)
        ensure_artifacts(settings, progress)
        credentials = ensure_credentials(credentials_file(settings))
        ensure_access(settings.home, credentials)
        ports = _choose_ports(settings, stack)
        servers = build_servers(settings, stack, ports, credentials)
        _bring_up_all(servers, settings, stack.start_seconds, report)
        write_endpoints(settings, ports, credentials)
        _renew_rules(load_settings(home=settings.home))


def _renew_rules(settings: Settings) -> None:
    """What readers may see follows the declarations; a home that has read none yet has nothing to show."""
    if manifest_path(settings).exists():
        with suppress(
            LakehouseError
        ):  # a mistake in a declaration is told by what needs it; the rules stay as they were
            load_declarations(settings)


def down(settings: Settings) -> list[str]:
    """Stops every server of this home and whatever they left behind; returns the names of those that ran."""
    if not run_dir(settings).exists():
        return _stop_leftovers(settings)
    with alone(settings):
        ports = dict.fromkeys(SERVERS, 0) | read_ports(ports_file(settings))
        credentials = ensure_credentials(credentials_file(settings))
        servers = build_servers(settings, stack_settings(), ports, credentials)
        with ThreadPoolExecutor(len(servers)) as pool:
            stopped = list(pool.map(lambda server: _stop(server, settings), servers))
    return [server.name for server, ran in zip(servers, stopped, strict=True) if ran]


def running(settings: Settings, name: str) -> psutil.Process | None:
    """The process of a server, if it is alive."""
    return process.find(process.read_record(pid_file(settings, name)))


def _bring_up_all(servers: tuple[Server, ...], settings: Settings, patience: float, report: Report) -> None:
    """Raises the first failure; the other servers are then left to start by themselves."""
    begun, given_up = time.monotonic(), threading.Event()
    failures: list[Exception] = []

    def bring_up(server: Server) -> None:
        def tell(what: str) -> None:
            report(server.name, what, time.monotonic() - begun)

        try:
            _bring_up(server, settings, begun + patience, given_up, tell)
        except Exception as error:
            failures.append(error)
            given_up.set()
            tell("failed")

    with ThreadPoolExecutor(len(servers)) as pool:
        try:
            list(pool.map(bring_up, servers))
        except BaseException:
            given_up.set()
            raise
    if failures:
        raise failures[0]


def _bring_up(
    server: Server, settings: Settings, deadline: float, given_up: threading.Event, tell: Callable[[str], None]
) -> None:
    record = process.read_record(pid_file(settings, server.name))
    alive = process.find(record)
    keep = alive is not None and record is not None and record.fingerprint == server.launch.fingerprint()
    if keep:
        process.rotate(server.launch.log)
    else:
        _stop(server, settings)
        tell("starting")
        server.prepare()
        process.start(server.launch, server.port, pid_file(settings, server.name))
    while (trouble := server.trouble()) is not None:
        if running(settings, server.name) is None:
            raise LakehouseError(
                f"{server.name} ended while starting: {process.last_lines(server.launch.log)}; "
                f"see {server.launch.log}, then run `lakehouse up` again"
            )
        if given_up.is_set():
            return
        if time.monotonic() > deadline:
            raise LakehouseError(
                f"{server.name} (port {server.port}) does not serve: {trouble[-300:]}; see {server.launch.log}, "
                "run `lakehouse down` and `lakehouse up`, or raise LAKEHOUSE_STACK_START_SECONDS"
            )
        time.sleep(0.1)
    server.follow_up()
    tell("running" if keep else "started")


def _stop(server: Server, settings: Settings) -> bool:
    """Ends the server and what a killed one left; True when anything was there."""
    known = running(settings, server.name)
    if known is not None:
        process.stop([known], server.launch.stop_signal, PATIENCE)
    orphans = process.working_in(server.works_in, server.program)
    process.stop(orphans, server.launch.stop_signal, 5.0)
    pid_file(settings, server.name).unlink(missing_ok=True)
    return known is not None or bool(orphans)


def _stop_leftovers(settings: Settings) -> list[str]:
    """For a home that was deleted under its running servers: they still work in its folders."""
    found = {
        name: [
            *process.working_in(settings.home / "data" / name, "postgres"),
            *process.working_in(settings.home / "data" / name, "java"),
        ]
        for name in SERVERS
    }
    for leftovers in found.values():
        process.stop(leftovers, signal.SIGTERM, 5.0)
    return [name for name, leftovers in found.items() if leftovers]


def _choose_ports(settings: Settings, stack: StackSettings) -> dict[str, int]:
    ours = {}
    for name in SERVERS:
        record = process.read_record(pid_file(settings, name))
        if record is not None and process.find(record) is not None:
            ours[name] = record.port
    kept = read_ports(ports_file(settings))
    _wait_for_the_dead({port for name, port in kept.items() if name not in ours and name != "dagster"})
    if "dagster" in kept and process.listener_has(kept["dagster"], "DAGSTER_HOME", str(settings.dagster_home)):
        ours["dagster"] = kept["dagster"]
    ports = plan_ports((*SERVERS, "dagster"), kept, stack.fixed_ports(), ours)
    write_ports(ports_file(settings), ports)
    return ports


def _wait_for_the_dead(ports: set[int], patience: float = 3.0) -> None:
    """A server killed a moment ago may still hold its port; only after this a holder counts as a stranger."""
    deadline = time.monotonic() + patience
    while not all(map(is_free, ports)) and time.monotonic() < deadline:
        time.sleep(0.05)


@contextmanager
def alone(settings: Settings) -> Iterator[None]:
    """One `up` or `down` at a time in a home; the second waits for the first."""
    folder = run_dir(settings)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _protect(settings.home)
        lock = (folder / "lock").open("w")
    except OSError as error:
        raise LakehouseError(
            f"the home {settings.home} cannot be written: {error.strerror}; set LAKEHOUSE_HOME to another folder"
        ) from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _protect(home: Path) -> None:
    """Others may pass through the home (Postgres may run as another user) but not look into it."""
    home.chmod(0o711)
    for name in ("run", "logs", "dagster", "erasures"):  # 0.1 left the records of erasures open to all
        (home / name).mkdir(exist_ok=True)
        (home / name).chmod(0o700)

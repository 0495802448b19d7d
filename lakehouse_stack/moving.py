"""Moves a cluster to another major version of Postgres: dumped by the new programs, restored, compared, exchanged.

By dump and not by `pg_upgrade`, which wants the same checksums and locale provider on both sides and, from 17 on,
replication slots that have nothing left to send; ours do not outlive the move anyway, as the cluster is another one.
Until the new cluster has every row, the old one is where it was; then it stands beside it as `<name>.postgres<major>`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any, LiteralString

import psycopg
from psycopg import sql

from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings
from lakehouse_stack.accounts import Placement, can_enter, copy_programs, hand_over, place
from lakehouse_stack.config import stack_settings
from lakehouse_stack.control import alone, down
from lakehouse_stack.credentials import ensure_credentials
from lakehouse_stack.majors import OldCluster, finish_move, moved, old_clusters, programs_for
from lakehouse_stack.pathnames import credentials_file
from lakehouse_stack.ports import LOOPBACK, plan_ports
from lakehouse_stack.postgres import CONFIG_FILE, forget_dead, initialize

Say = Callable[[str], None]
ALONE = "-c listen_addresses=127.0.0.1 -c unix_socket_directories=''"
RELATIONS = """SELECT n.nspname, c.relname, c.relkind::text
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  WHERE n.nspname !~ '^pg_' AND n.nspname <> 'information_schema' AND c.relkind IN ('r', 'p', 'v', 'm', 'S', 'i', 'I')
  ORDER BY 1, 2"""
DATABASES = "SELECT datname FROM pg_database WHERE datallowconn AND datname <> 'template1' ORDER BY 1"
ASKED: dict[str, LiteralString] = dict.fromkeys("rm", "SELECT count(*) FROM {}")  # by kind of relation
ASKED["S"] = "SELECT last_value, is_called FROM {}"
ROLES = "SELECT rolname, rolpassword FROM pg_authid WHERE rolname !~ '^pg_' ORDER BY 1"


def move_clusters(settings: Settings, say: Say) -> tuple[OldCluster, ...]:
    """Stops this home's servers and moves the clusters that have to be; returns those. Raises LakehouseError."""
    system_dir = stack_settings().system_dir
    where = place(settings.home, system_dir)
    for old in (found := old_clusters(where)):
        programs_for(old.major)  # before anything is stopped
    if found:
        down(settings)
        with alone(settings):
            passwords = ensure_credentials(credentials_file(settings))
            for old in found:
                kept = move(old, where, system_dir, passwords[f"{old.name}_superuser"], say)
                say(f"{old.name}: is of Postgres {old.wanted} now; delete the old data in your own time: {kept}")
    return found


def aside(old: OldCluster) -> Path:
    """Where the old data is kept."""
    return old.data.with_name(f"{old.name}.postgres{old.major}")


def move(old: OldCluster, where: Placement, system_dir: Path, password: str, say: Say) -> Path:
    """Moves a cluster that is stopped; returns where the old data is kept. Raises LakehouseError, nothing changed."""
    kept, fresh = aside(old), old.data.with_name(f"{old.name}.moving")
    if kept.exists():
        raise LakehouseError(f"{kept} is there from an earlier upgrade: remove it, then run this again")
    former = replace(where, programs=_reachable(programs_for(old.major), where, system_dir / f"postgres{old.major}"))
    shutil.rmtree(fresh, ignore_errors=True)
    initialize(fresh, where, password)
    for file in (fresh / CONFIG_FILE, fresh / "pg_hba.conf"):
        shutil.copyfile(old.data / file.name, file)
        hand_over(file, where.account)
    forget_dead(old.data)
    ports = plan_ports(("old", "new"), {}, {}, {})
    with _serving(old.data, former, ports["old"]), _serving(fresh, where, ports["new"]):
        say(f"{old.name}: copying from Postgres {old.major} to {old.wanted}")
        _copy(where.programs, ports, password)
        say(f"{old.name}: comparing")
        if differs := _difference(*(_content(ports[side], password) for side in ("old", "new"))):
            raise LakehouseError(f"{old.name}: not everything arrived ({differs}): the old cluster is as it was")
    fresh.rename(moved(old.data))
    old.data.rename(kept)
    finish_move(old.data)
    return kept


def _reachable(programs: Path, where: Placement, copies: Path) -> Path:
    account = where.account
    return programs if account is None or can_enter(programs, account) else copy_programs(programs, copies)


@contextmanager
def _serving(data: Path, where: Placement, port: int) -> Iterator[None]:
    """The cluster, on loopback at that port alone, while the block runs."""
    log = data / "move.log"
    control = (str(where.programs / "pg_ctl"), "-w", "-D", str(data))
    _run(where, *control, "-l", str(log), "-o", f"-p {port} {ALONE}", "start", log=log)
    try:
        yield
    finally:
        _run(where, *control, "-m", "fast", "stop", log=log)


def _run(where: Placement, *command: str, log: Path) -> None:
    account = where.account
    done = subprocess.run(
        command,
        cwd="/",
        env=_environment({}),
        stdout=subprocess.DEVNULL,  # the server keeps what it inherits: a pipe would not end before it
        stderr=subprocess.DEVNULL,
        user=account.uid if account else None,
        group=account.gid if account else None,
        extra_groups=[] if account else None,
    )
    if done.returncode:
        told = log.read_text(errors="replace").splitlines() if log.exists() else []
        raise LakehouseError(f"{' '.join(command[-1:])} of {log.parent} failed: {told[-1] if told else 'no log'}")


def _copy(programs: Path, ports: Mapping[str, int], password: str) -> None:
    env = _environment({"PGPASSWORD": password})
    at = {side: ["--host", LOOPBACK, "--port", str(port), "--username", "postgres"] for side, port in ports.items()}
    dumps = [str(programs / "pg_dumpall"), *at["old"]]
    restores = [str(programs / "psql"), *at["new"], "--dbname=postgres", "--no-psqlrc", "--quiet"]
    restores += ["--set=ON_ERROR_STOP=1", "--output=/dev/null"]
    with tempfile.TemporaryFile() as of_dump, tempfile.TemporaryFile() as of_restore:
        dump = subprocess.Popen(dumps, env=env, stdout=subprocess.PIPE, stderr=of_dump)
        restore = subprocess.Popen(restores, env=env, stdin=subprocess.PIPE, stderr=of_restore)
        assert dump.stdout and restore.stdin
        with suppress(BrokenPipeError), dump.stdout, restore.stdin:
            restore.stdin.writelines(_without_superuser(dump.stdout))
        for name, program, log in (("psql", restore, of_restore), ("pg_dumpall", dump, of_dump)):
            if program.wait():
                log.seek(0)
                told = " ".join(log.read().decode(errors="replace").split())[:400]
                raise LakehouseError(f"{name}: {told}; the old cluster is as it was")


def _without_superuser(script: Iterable[bytes]) -> Iterator[bytes]:
    """The dump without the statement that makes `postgres`, whom initdb has made; it comes before any data."""
    lines = iter(script)
    yield from takewhile(lambda line: line != b"CREATE ROLE postgres;\n", lines)
    yield from lines


def _content(port: int, password: str) -> dict[str, Any]:
    """Roles, and by database every relation, tables with how many rows, sequences with where they stand."""
    content: dict[str, Any] = {}
    with _connect(port, password, "postgres") as admin:
        content["roles"] = admin.execute(ROLES).fetchall()
        databases = [name for (name,) in admin.execute(DATABASES).fetchall()]
    for database in databases:
        with _connect(port, password, database) as connection:
            for schema, name, kind in connection.execute(RELATIONS).fetchall():
                asked = ASKED.get(kind)
                of_it = sql.SQL(asked).format(sql.Identifier(schema, name)) if asked else None
                content[f"{database}: {schema}.{name}"] = kind, connection.execute(of_it).fetchone() if of_it else None
    return content


def _difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    return ", ".join([name for name in old.keys() | new.keys() if old.get(name) != new.get(name)][:5])


def _connect(port: int, password: str, database: str) -> psycopg.Connection[Any]:
    return psycopg.connect(
        host=LOOPBACK, port=port, user="postgres", password=password, dbname=database, autocommit=True
    )


def _environment(more: Mapping[str, str]) -> dict[str, str]:
    return {"PATH": os.environ.get("PATH", ""), "LANG": "C.UTF-8", **more}

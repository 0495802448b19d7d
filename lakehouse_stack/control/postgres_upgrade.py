"""Upgrades a cluster to another major version of Postgres: dump, restore, compare, swap.

`pg_upgrade` is not used: it requires equal checksums and locale providers and, since version 17, replication slots
without pending changes. Slots do not survive this upgrade, because the result is a new cluster. The old cluster stays
in place until the new one has all rows, and is then kept as `<name>.postgres<major>`.
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
from lakehouse.text.shown import shortened
from lakehouse_stack.control.start_stop import down, locked_home
from lakehouse_stack.home.config import stack_settings
from lakehouse_stack.home.credentials import ensure_credentials
from lakehouse_stack.home.pathnames import credentials_file
from lakehouse_stack.home.ports import LOOPBACK, plan_ports
from lakehouse_stack.processes.accounts import Placement, can_enter, copy_programs, find_placement, run_as, write_as
from lakehouse_stack.servers.postgres import CONFIG_FILE, initialize, remove_stale_lock
from lakehouse_stack.servers.postgres_versions import (
    OldCluster,
    finish_upgrade,
    old_clusters,
    programs_for,
    upgraded_path,
)

Say = Callable[[str], None]
PRIVATE_OPTIONS = "-c listen_addresses=127.0.0.1 -c unix_socket_directories=''"
RELATIONS = """SELECT n.nspname, c.relname, c.relkind::text
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  WHERE n.nspname !~ '^pg_' AND n.nspname <> 'information_schema' AND c.relkind IN ('r', 'p', 'v', 'm', 'S', 'i', 'I')
  ORDER BY 1, 2"""
DATABASES = "SELECT datname FROM pg_database WHERE datallowconn AND datname <> 'template1' ORDER BY 1"
CONTENT_QUERIES: dict[str, LiteralString] = dict.fromkeys("rm", "SELECT count(*) FROM {}")  # by kind of relation
CONTENT_QUERIES["S"] = "SELECT last_value, is_called FROM {}"
AUTO_FILE = "postgresql.auto.conf"
ALTER_SYSTEM = f"SELECT name, setting FROM pg_file_settings WHERE sourcefile LIKE '%/{AUTO_FILE}' ORDER BY seqno"
ROLES = "SELECT rolname, rolpassword FROM pg_authid WHERE rolname !~ '^pg_' ORDER BY 1"


def upgrade_clusters(settings: Settings, say: Say) -> tuple[OldCluster, ...]:
    """Stops this home's servers and upgrades its outdated clusters; returns them. Raises LakehouseError."""
    system_dir = stack_settings().system_dir
    placement = find_placement(settings.home, system_dir)
    for old in (found := old_clusters(placement)):
        programs_for(old.major)  # raises before anything is stopped
    if found:
        down(settings)
        with locked_home(settings):
            passwords = ensure_credentials(credentials_file(settings))
            for old in found:
                kept = upgrade_cluster(old, placement, system_dir, passwords[f"{old.name}_superuser"], say)
                say(f"{old.name}: is of Postgres {old.wanted} now; delete the old data in your own time: {kept}")
    return found


def old_data_path(old: OldCluster) -> Path:
    """The path at which the old data is kept, beside the cluster, and not beside a link that leads to it."""
    return old.data.resolve().with_name(f"{old.name}.postgres{old.major}")


def upgrade_cluster(old: OldCluster, placement: Placement, system_dir: Path, password: str, say: Say) -> Path:
    """Upgrades a stopped cluster; returns the path of the old data. Raises LakehouseError before any change."""
    place, kept = old.data.resolve(), old_data_path(old)
    fresh = kept.with_name(f"{old.name}.moving")
    if kept.exists():
        raise LakehouseError(f"{kept} is there from an earlier upgrade: remove it, then run this again")
    if place.is_mount():
        raise LakehouseError(
            f"{place} is where a volume is mounted, and the new cluster would not be on it: move the data into a "
            f"folder of the volume, have {old.data} lead there, then run this again"
        )
    former = replace(
        placement, programs=_reachable(programs_for(old.major), placement, system_dir / f"postgres{old.major}")
    )
    for unfinished in (fresh, upgraded_path(old.data)):  # of one that was killed while the old cluster was in place
        shutil.rmtree(unfinished, ignore_errors=True)
    initialize(fresh, placement, password)
    for file in (fresh / CONFIG_FILE, fresh / "pg_hba.conf", fresh / "pg_ident.conf"):
        if placement.account is None:
            shutil.copyfile(old.data / file.name, file)
        else:
            run_as(placement.account, 'cat -- "$1" > "$2"', old.data / file.name, file)
    remove_stale_lock(old.data)
    ports = plan_ports(("old", "new"), {}, {}, {})
    with _serving(old.data, former, ports["old"]), _serving(fresh, placement, ports["new"]):
        say(f"{old.name}: copying from Postgres {old.major} to {old.wanted}")
        _copy(placement.programs, ports, password)
        say(f"{old.name}: comparing")
        if differs := _difference(*(_content(ports[side], password) for side in ("old", "new"))):
            raise LakehouseError(f"{old.name}: not everything arrived ({differs}): the old cluster is as it was")
        with _connect(ports["old"], password, "postgres") as connection:
            settings = connection.execute(ALTER_SYSTEM).fetchall()
    for left_out in _keep_settings(settings, fresh, placement, ports["new"]):
        say(f"{old.name}: {left_out}, set by ALTER SYSTEM, is left out: Postgres {old.wanted} does not start with it")
    fresh.rename(upgraded_path(old.data))
    place.rename(kept)
    finish_upgrade(old.data)
    return kept


def _keep_settings(settings: Iterable[tuple[str, str]], data: Path, placement: Placement, port: int) -> list[str]:
    """Takes over what ALTER SYSTEM has set; returns the names of settings that the stopped cluster does not start
    with: they are left out."""
    kept, left_out = "", []
    for name, value in settings:
        text = value.replace("\\", "\\\\").replace("'", "''")
        write_as(placement.account, data / AUTO_FILE, f"{kept}{name} = '{text}'\n")
        try:
            with _serving(data, placement, port):
                kept += f"{name} = '{text}'\n"
        except LakehouseError:
            left_out.append(name)
    write_as(placement.account, data / AUTO_FILE, kept)
    return left_out


def identify(settings: Settings, cluster: str, port: int) -> str:
    """The system identifier of a cluster of this home, which a migrated one has anew. Raises LakehouseError."""
    password = ensure_credentials(credentials_file(settings))[f"{cluster}_superuser"]
    try:
        with _connect(port, password, "postgres") as connection:
            row = connection.execute("SELECT system_identifier::text FROM pg_control_system()").fetchone()
    except psycopg.OperationalError as error:
        reason = str(error).strip().splitlines()[0]
        raise LakehouseError(f"{cluster}: {reason}; run `lakehouse up`, then this again") from None
    assert row is not None
    return str(row[0])


def _reachable(programs: Path, placement: Placement, copies: Path) -> Path:
    account = placement.account
    return programs if account is None or can_enter(programs, account) else copy_programs(programs, copies)


@contextmanager
def _serving(data: Path, placement: Placement, port: int) -> Iterator[None]:
    """Runs the cluster on this loopback port while the block runs."""
    log = data / "move.log"
    control = (str(placement.programs / "pg_ctl"), "-w", "-D", str(data))
    _run(placement, *control, "-l", str(log), "-o", f"-p {port} {PRIVATE_OPTIONS}", "start", log=log)
    try:
        yield
    finally:
        _run(placement, *control, "-m", "fast", "stop", log=log)


def _run(placement: Placement, *command: str, log: Path) -> None:
    account = placement.account
    done = subprocess.run(
        command,
        cwd="/",
        env=_environment({}),
        stdout=subprocess.DEVNULL,  # the server inherits it: a pipe would stay open as long as the server runs
        stderr=subprocess.DEVNULL,
        user=account.uid if account else None,
        group=account.gid if account else None,
        extra_groups=[] if account else None,
    )
    if done.returncode:
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        raise LakehouseError(f"{' '.join(command[-1:])} of {log.parent} failed: {lines[-1] if lines else 'no log'}")


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
                message = shortened(" ".join(log.read().decode(errors="replace").split()), 400)
                raise LakehouseError(f"{name}: {message}; the old cluster is as it was")


def _without_superuser(script: Iterable[bytes]) -> Iterator[bytes]:
    """The dump without the statement that creates `postgres`, which initdb has created; it precedes all data."""
    lines = iter(script)
    yield from takewhile(lambda line: line != b"CREATE ROLE postgres;\n", lines)
    yield from lines


def _content(port: int, password: str) -> dict[str, Any]:
    """All roles and relations, with the row counts of tables and the values of sequences."""
    content: dict[str, Any] = {}
    with _connect(port, password, "postgres") as admin:
        content["roles"] = admin.execute(ROLES).fetchall()
        databases = [name for (name,) in admin.execute(DATABASES).fetchall()]
    for database in databases:
        with _connect(port, password, database) as connection:
            for schema, name, kind in connection.execute(RELATIONS).fetchall():
                text = CONTENT_QUERIES.get(kind)
                query = sql.SQL(text).format(sql.Identifier(schema, name)) if text else None
                content[f"{database}: {schema}.{name}"] = kind, connection.execute(query).fetchone() if query else None
    return content


def _difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    return ", ".join([name for name in old.keys() | new.keys() if old.get(name) != new.get(name)][:5])


def _connect(port: int, password: str, database: str) -> psycopg.Connection[Any]:
    return psycopg.connect(
        host=LOOPBACK, port=port, user="postgres", password=password, dbname=database, autocommit=True
    )


def _environment(more: Mapping[str, str]) -> dict[str, str]:
    return {"PATH": os.environ.get("PATH", ""), "LANG": "C.UTF-8", **more}

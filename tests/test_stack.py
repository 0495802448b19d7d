"""The stack survives what happens to servers: kills, taken ports, impatient users, deleted homes, neighbours."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from tests.marks import slow

pytestmark = pytest.mark.stack

COMMAND = str(Path(sys.executable).with_name("lakehouse"))
SERVERS = ("sources", "catalog", "s3", "trino", "serve")


class Home:
    """A home of its own, driven by the commands a user types."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="lakehouse-stack-"))
        self.path.chmod(0o711)
        self.env = {name: value for name, value in os.environ.items() if not name.startswith("LAKEHOUSE_STACK_")}
        self.env |= {
            "LAKEHOUSE_HOME": str(self.path),
            "LAKEHOUSE_CONFIG": os.devnull,
            "LAKEHOUSE_STACK_TRINO_HEAP_MB": "1024",
        }

    def start(self, *command: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [COMMAND, *command], env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def run(self, *command: str, status: int = 0) -> str:
        process = self.start(*command)
        output, errors = process.communicate(timeout=300)
        assert process.returncode == status, output + errors
        return output if status == 0 else errors

    def servers(self, status: int = 0) -> dict[str, dict[str, Any]]:
        process = self.start("status", "--json")
        output, errors = process.communicate(timeout=300)
        assert process.returncode == status, output + errors
        return {server["name"]: server for server in json.loads(output)["servers"]}

    def pids(self) -> dict[str, int]:
        return {name: server["pid"] for name, server in self.servers().items()}

    def environment(self) -> dict[str, Any]:
        return json.loads(self.run("env", "--json"))

    def processes(self) -> list[str]:
        """Everything that runs for this home: by command line, or by working directory (Postgres's children)."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.status() != psutil.STATUS_ZOMBIE and (
                    str(self.path) in " ".join(process.cmdline()) or Path(process.cwd()).is_relative_to(self.path)
                ):
                    found.append(f"{process.pid} {' '.join(process.cmdline())}")
            except psutil.Error:
                continue
        return found

    def remove(self) -> None:
        self.run("down")
        shutil.rmtree(self.path, ignore_errors=True)


@pytest.fixture(scope="module")
def running() -> Iterator[Home]:
    home = Home()
    try:
        home.run("up")
        yield home
    finally:
        home.remove()


@pytest.fixture
def home(running: Home) -> Home:
    """The module's home with everything up."""
    running.run("up")
    return running


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def binds(server: socket.socket, port: int) -> bool:
    try:
        server.bind(("127.0.0.1", port))
    except OSError:  # the killed server is still on its way out
        return False
    return True


def trino(home: Home, sql: str) -> list[list[Any]]:
    return trino_as(home.environment(), sql)


def trino_as(address: dict[str, Any], sql: str, user: str = "trino") -> list[list[Any]]:
    """As any client gets there by what `lakehouse env` says."""
    import requests
    from trino.auth import BasicAuthentication
    from trino.dbapi import connect

    name, session = address[f"{user}_user"], requests.Session()
    session.trust_env, session.verify = False, address["trino_ca"]  # REQUESTS_CA_BUNDLE would win
    cursor = connect(
        host=address["trino_host"], port=address["trino_port"], user=name, catalog=address["trino_catalog"],
        http_scheme=address["trino_http_scheme"], auth=BasicAuthentication(name, address[f"{user}_password"]),
        http_session=session,
    ).cursor()  # fmt: skip
    return cursor.execute(sql).fetchall()


def test_up_is_idempotent(home: Home) -> None:
    before = home.pids()
    home.run("up")
    assert home.pids() == before


@pytest.mark.parametrize("victim", [slow(server) for server in SERVERS])
def test_after_kill_9_only_the_missing_server_is_started(home: Home, victim: str) -> None:
    before = home.servers()
    os.kill(before[victim]["pid"], signal.SIGKILL)
    assert not home.servers(status=1)[victim]["healthy"]
    home.run("up")
    after = home.servers()
    assert {name for name in SERVERS if after[name]["pid"] != before[name]["pid"]} == {victim}
    assert after[victim]["port"] == before[victim]["port"]


@pytest.mark.slow
def test_two_ups_at_the_same_time_start_each_server_once(home: Home) -> None:
    os.kill(home.pids()["s3"], signal.SIGKILL)
    both = [home.start("up"), home.start("up")]
    assert [process.wait(120) for process in both] == [0, 0]
    for process in both:
        process.communicate()
    assert len([line for line in home.processes() if "s3proxy" in line]) == 1


@pytest.mark.slow
def test_trino_and_the_object_store_work_together(home: Home) -> None:
    trino(home, "CREATE SCHEMA IF NOT EXISTS smoke")
    trino(home, "CREATE TABLE IF NOT EXISTS smoke.t AS SELECT 1 AS id, timestamp '2026-01-02 03:04:05.000006' AS at")
    trino(home, "CREATE OR REPLACE VIEW smoke.v AS SELECT id FROM smoke.t")
    assert trino(home, "SELECT id FROM smoke.v") == [[1]]
    trino(home, "DROP VIEW smoke.v")
    trino(home, "DROP TABLE smoke.t")
    trino(home, "DROP SCHEMA smoke")


def test_roles_may_do_what_they_need_and_no_more(home: Home) -> None:
    credentials = json.loads((home.path / "run" / "credentials.json").read_text())
    address = home.environment()
    catalog = psycopg.conninfo.conninfo_to_dict(address["catalog_url"])
    as_trino = psycopg.conninfo.make_conninfo(**{**catalog, "user": "trino", "password": credentials["trino"]})
    with psycopg.connect(address["catalog_url"], autocommit=True) as lakehouse:
        lakehouse.execute("CREATE TABLE IF NOT EXISTS lakehouse.probe (id int)")
    with psycopg.connect(as_trino, autocommit=True) as connection:
        connection.execute("SELECT * FROM iceberg_tables")
        for forbidden in ("SELECT * FROM lakehouse.probe", "CREATE TABLE public.t (id int)"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(forbidden)
    retail = psycopg.conninfo.conninfo_to_dict(address["sources"]["retail"])
    retail |= {"user": "lakehouse_ingest", "password": credentials["lakehouse_ingest"]}
    with psycopg.connect(psycopg.conninfo.make_conninfo(**retail), autocommit=True) as connection:
        assert connection.execute("SHOW wal_level").fetchone() == ("logical",)
        for forbidden in ("CREATE TABLE public.t (id int)", "CREATE PUBLICATION p", "CREATE DATABASE d"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(forbidden)
    with psycopg.connect(address["catalog_url"], autocommit=True) as lakehouse:
        lakehouse.execute("DROP TABLE lakehouse.probe")


def test_nobody_gets_in_without_a_password(home: Home) -> None:
    port = home.servers()["catalog"]["port"]
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(host="127.0.0.1", port=port, user="postgres", dbname="lake")


@pytest.mark.slow
def test_a_second_home_runs_beside_the_first(home: Home) -> None:
    before, other = home.pids(), Home()
    try:
        other.run("up")
        ours, theirs = home.environment(), other.environment()
        assert {ours[key] for key in ("trino_port", "s3_endpoint", "dagster_url", "s3_secret_key")}.isdisjoint(
            theirs[key] for key in ("trino_port", "s3_endpoint", "dagster_url", "s3_secret_key")
        )
        trino(home, "CREATE SCHEMA IF NOT EXISTS only_here")
        assert ["only_here"] not in trino(other, "SHOW SCHEMAS")
    finally:
        other.remove()
    assert home.pids() == before


@pytest.mark.slow
def test_a_taken_port_is_replaced_everywhere_and_a_fixed_one_refused(home: Home) -> None:
    port = home.servers()["s3"]["port"]
    os.kill(home.pids()["s3"], signal.SIGKILL)
    with socket.socket() as stranger:
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        until(lambda: binds(stranger, port))
        stranger.listen()
        fixed = home.env | {"LAKEHOUSE_STACK_S3_PORT": str(port)}
        refused = subprocess.run([COMMAND, "up"], env=fixed, capture_output=True, text=True)
        assert refused.returncode == 1
        assert f"error: port {port} for s3 is taken" in refused.stderr
        assert len(refused.stderr.splitlines()) == 1
        home.run("up")
        assert home.environment()["s3_endpoint"] != f"http://127.0.0.1:{port}"
        test_trino_and_the_object_store_work_together(home)


@pytest.mark.slow
def test_a_stale_pid_file_does_not_hide_a_dead_server(home: Home) -> None:
    pid_file = home.path / "run" / "s3.json"
    record = json.loads(pid_file.read_text())
    os.kill(record["pid"], signal.SIGKILL)
    pid_file.write_text(json.dumps(record | {"pid": os.getpid()}))
    home.run("up")
    assert home.pids()["s3"] != os.getpid()


@pytest.mark.slow
def test_a_lost_pid_file_does_not_start_a_second_postgres_on_the_same_data(home: Home) -> None:
    (home.path / "run" / "catalog.json").unlink()
    home.run("up")
    postmasters = [line for line in home.processes() if "-D" in line and "catalog" in line]
    assert len(postmasters) == 1


@pytest.mark.slow
def test_an_interrupted_up_is_continued_by_the_next_one() -> None:
    home = Home()
    try:
        for progress in ("run/lock", "run/trino.json"):
            impatient = home.start("up")
            until(lambda: (home.path / progress).exists())  # noqa: B023
            impatient.send_signal(signal.SIGINT)
            _, errors = impatient.communicate(timeout=300)
            assert "Traceback" not in errors
        home.run("up")
        assert all(server["healthy"] for server in home.servers().values())
        shutil.rmtree(home.path)  # a home that is deleted under its servers
        home.path.mkdir(mode=0o711)
        home.run("down")
        assert home.processes() == []
    finally:
        home.remove()


@pytest.mark.slow
def test_down_leaves_no_process_and_the_data_stays(home: Home) -> None:
    database = home.environment()["sources"]["bank"]
    with psycopg.connect(database) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS kept (id int)")
    with psycopg.connect(database):  # an open session must not delay the stop
        begun = time.monotonic()
        home.run("down")
        assert time.monotonic() - begun < 20
    assert home.processes() == []
    assert home.run("down") == "nothing was running\n"
    assert "no such" not in home.run("up")
    with psycopg.connect(database) as connection:
        connection.execute("SELECT * FROM kept")


def test_status_and_env_of_a_home_without_a_stack_say_what_to_do() -> None:
    home = Home()
    try:
        assert not any(server["healthy"] for server in home.servers(status=1).values())
        assert "run `lakehouse up`" in home.run("env", status=1)
    finally:
        home.remove()


@pytest.mark.slow
def test_a_home_of_another_postgres_is_upgraded_by_one_command() -> None:
    """`lakehouse up` told of it in a server's log."""
    from lakehouse_stack.control import postgres_upgrade
    from lakehouse_stack.processes.accounts import find_placement
    from tests.clusters import former_cluster, former_programs, one_port

    home = Home()
    try:
        where = find_placement(home.path, Path("/var/lib/lakehouse"))
        passwords = {f"{name}_superuser": f"secret-{name}" for name in ("sources", "catalog")}
        (home.path / "run").mkdir()
        (home.path / "run" / "credentials.json").write_text(json.dumps(passwords))
        for name in ("sources", "catalog"):
            data = former_cluster(where, name, passwords[f"{name}_superuser"])
            with postgres_upgrade._serving(data, former_programs(where), port := one_port()):
                postgres_upgrade._connect(port, f"secret-{name}", "postgres").execute(
                    "CREATE TABLE kept AS SELECT 42 AS n"
                )
        assert "sources: its data is of Postgres 16" in home.run("up", status=1)
        assert "stop the servers, migrate it" in home.start("upgrade", "--check").communicate(timeout=300)[0]
        home.run("upgrade")
        for name, server in home.servers().items():
            assert server["healthy"], server
            if name in ("sources", "catalog"):
                with postgres_upgrade._connect(server["port"], f"secret-{name}", "postgres") as connection:
                    assert connection.execute("SELECT n FROM kept").fetchall() == [(42,)]
        assert home.run("upgrade", "--check") == "nothing to do\n"
    finally:
        home.remove()
    assert home.processes() == []

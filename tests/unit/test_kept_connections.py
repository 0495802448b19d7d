"""Dagster's daemon and web server, as `lakehouse dev` and the containers run them: they keep their connections."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen

import psycopg
import pytest

from lakehouse_stack.home.instance import with_driver
from tests.ports import free_port
from tests.unit.throwaway_postgres import throwaway_postgres

SECRET = "s" * 43
DAGSTER_YAML = """
storage:
  postgres:
    postgres_url: {url}
telemetry:
  enabled: false
"""
PIDS = "SELECT pid FROM pg_stat_activity WHERE datname = 'dagster' AND pid <> pg_backend_pid()"
BREAK = PIDS.replace("pid FROM", "pg_terminate_backend(pid)::int FROM") + " AND state = 'idle'"
QUESTIONS = "SELECT sum(xact_commit), sum(sessions) FROM pg_stat_database WHERE datname = 'dagster'"


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    with throwaway_postgres() as url:
        with psycopg.connect(url, autocommit=True) as admin:
            admin.execute("CREATE DATABASE dagster")
        yield f"{url.removesuffix('/postgres')}/dagster"


@contextmanager
def running(module: str, home: Path, database: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    (home / "empty.py").write_text("import dagster as dg\n\ndefs = dg.Definitions()\n")
    (home / "workspace.yaml").write_text("load_from:\n  - python_file: empty.py\n")
    (home / "dagster.yaml").write_text(DAGSTER_YAML.format(url=with_driver(database)))
    command = [sys.executable, "-m", module, "--workspace", "workspace.yaml", *arguments]
    own = {"DAGSTER_HOME": str(home), "LAKEHOUSE_HOME": str(home), "LAKEHOUSE_DAGSTER__UI_SECRET": SECRET}
    with (home / "log").open("w") as log:
        process = subprocess.Popen(command, cwd=home, env={**os.environ, **own}, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.terminate()
        try:
            status = process.wait(120)
        finally:
            process.kill()
    assert status == 0, (home / "log").read_text()


def numbers(database: str, query: str) -> list[int]:
    with psycopg.connect(database) as asking:
        return [int(number) for row in asking.execute(query) for number in row]


def beats(database: str, seconds: float = 120) -> None:
    """Returns once each daemon has a heartbeat that is younger than this call."""
    asked, deadline = time.time(), time.monotonic() + seconds
    heartbeats = "SELECT count(*) FROM daemon_heartbeats WHERE timestamp > to_timestamp(%s) AT TIME ZONE 'UTC'"
    while True:
        with psycopg.connect(database) as asking:
            if asking.execute("SELECT to_regclass('daemon_heartbeats') IS NOT NULL").fetchone() == (True,):
                row = asking.execute(heartbeats, [asked]).fetchone()
                if row and row[0] >= 3:
                    return
        assert time.monotonic() < deadline, "no heartbeat"
        time.sleep(0.5)


def test_the_daemon_keeps_its_connections_and_makes_new_ones_when_they_break(database: str, tmp_path: Path) -> None:
    """Each question came with a connection of its own: a third of what an idle daemon costs."""
    with running("orchestration.daemon", tmp_path, database) as daemon:
        beats(database)
        asked, sessions = numbers(database, QUESTIONS)
        time.sleep(15)
        more, later = numbers(database, QUESTIONS)
        assert more - asked > 6 * (later - sessions), "a connection for a question is two commits"
        kept = set(numbers(database, PIDS))
        numbers(database, BREAK)
        beats(database)
        assert daemon.poll() is None and kept - set(numbers(database, PIDS))
        assert "OperationalError" not in (tmp_path / "log").read_text(), "a question failed"


def test_a_page_shows_no_error_after_its_connections_broke(database: str, tmp_path: Path) -> None:
    port = free_port()
    asking = Request(
        f"http://127.0.0.1:{port}/graphql",
        json.dumps({"query": "{ runsOrError { ... on Runs { count } ... on PythonError { message } } }"}).encode(),
        {"Authorization": f"Bearer {SECRET}", "Content-Type": "application/json"},
    )

    def ask() -> str:
        with urlopen(asking, timeout=60) as reply:
            return str(reply.read().decode())

    with running("orchestration.web", tmp_path, database, "--port", str(port)) as web:
        deadline = time.monotonic() + 120
        while True:
            try:
                first = ask()
                break
            except URLError:
                assert web.poll() is None and time.monotonic() < deadline, (tmp_path / "log").read_text()
                time.sleep(0.5)
        kept = set(numbers(database, PIDS))
        numbers(database, BREAK)
        assert [ask() for _ in range(3)] == [first] * 3 and '"count":' in first
        assert kept - set(numbers(database, PIDS)), "none was broken"

"""`lakehouse dev` with a small code location and a database of its own: what other users of the machine see of it."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen

import psutil
import psycopg
import pytest

from lakehouse.settings import load_settings
from lakehouse_stack.home.ports import is_free
from orchestration.web.login import ui_secret
from tests.test_dev import wait_for
from tests.test_secrets import watched_processes, words
from tests.unit.test_web import CODE, LAUNCH
from tests.unit.throwaway_postgres import throwaway_postgres

LOCATIONS = "{ repositoriesOrError { ... on RepositoryConnection { nodes { location { name } } } } }"
PASSWORD = "of-dagsters-database"


def after(process: psutil.Process, option: str) -> list[str]:
    """The value of an option in a command."""
    with suppress(psutil.Error):
        command = process.cmdline()
        return [value for name, value in pairwise(command) if name == option]
    return []


@pytest.mark.slow
def test_no_argument_of_any_process_shows_the_password_of_dagsters_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--instance-ref` did, in the code servers of the UI and the daemon, and in each run's process."""
    port = next(port for port in range(45_000, 55_000) if is_free(port))
    (tmp_path / "attacked.py").write_text(CODE)
    (tmp_path / "workspace.yaml").write_text("load_from:\n  - python_file: attacked.py\n")
    with throwaway_postgres() as cluster:
        with psycopg.connect(cluster, autocommit=True) as admin:
            admin.execute("CREATE DATABASE dagster")
        monkeypatch.chdir(tmp_path)
        for name, value in {
            "LAKEHOUSE_HOME": str(tmp_path / "home"),
            "LAKEHOUSE_PROJECT_DIR": str(tmp_path),
            "LAKEHOUSE_DAGSTER__PORT": str(port),
            "LAKEHOUSE_DAGSTER__STORAGE_URL": cluster.replace("postgres@", f"postgres:{PASSWORD}@")[:-8] + "dagster",
        }.items():
            monkeypatch.setenv(name, value)
        shown_secret = {"Authorization": f"Bearer {ui_secret(load_settings())}", "Content-Type": "application/json"}

        def ask(query: str) -> str:
            body = json.dumps({"query": query}).encode()
            try:
                with urlopen(Request(f"http://127.0.0.1:{port}/graphql", body, shown_secret), timeout=30) as answer:
                    return str(answer.read().decode())
            except URLError as error:
                return str(error)

        command = [str(Path(sys.executable).with_name("lakehouse")), "dev", "--no-stack", "--no-ingest"]
        with watched_processes({"database": PASSWORD}) as shown, (tmp_path / "log").open("w") as log:
            dev = subprocess.Popen(command, env=os.environ, stdout=log, stderr=log, start_new_session=True)
            try:
                wait_for(lambda: "attacked" in ask(LOCATIONS), 120)
                config = json.dumps(json.dumps({"ops": {"touch": {"config": {"path": str(tmp_path / "proof")}}}}))
                assert "LaunchRunSuccess" in ask(LAUNCH % config)
                wait_for((tmp_path / "proof").exists, 120)
                family = psutil.Process(dev.pid).children(recursive=True)
                seen = {word for process in family for word in words(process)}
                sockets = [Path(each) for process in family for each in after(process, "--socket")]
                assert sockets and all(socket.stat().st_mode & 0o077 == 0 for socket in sockets), "they run any code"
            finally:
                dev.send_signal(signal.SIGINT)
                assert dev.wait(60) == 0
    assert seen >= {"orchestration.web", "dagster-daemon", "--instance-ref"}
    assert shown == {}
    assert f"/login?token={ui_secret(load_settings())}" in (tmp_path / "log").read_text()

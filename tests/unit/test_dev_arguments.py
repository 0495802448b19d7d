"""`lakehouse dev` with a small code location and a database of its own: what other users of the machine see of it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen

import psutil
import psycopg
import pytest

from lakehouse.settings import load_settings
from orchestration.web.login import ui_secret
from tests.ports import free_port
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


class SmallDev:
    """A running `lakehouse dev` without stack and ingestion, and what its UI answers."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, folder: Path) -> None:
        self.process, self.port, self.folder = process, port, folder

    def ask(self, query: str) -> str:
        shown = {"Authorization": f"Bearer {ui_secret(load_settings())}", "Content-Type": "application/json"}
        body = json.dumps({"query": query}).encode()
        try:
            with urlopen(Request(f"http://127.0.0.1:{self.port}/graphql", body, shown), timeout=30) as answer:
                return str(answer.read().decode())
        except URLError as error:
            return str(error)

    def launches(self, proof: Path) -> bool:
        """Whether a run can be launched that makes this file."""
        config = json.dumps(json.dumps({"ops": {"touch": {"config": {"path": str(proof)}}}}))
        return "LaunchRunSuccess" in self.ask(LAUNCH % config)

    def family(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    """The URL of a cluster with a database for Dagster."""
    with throwaway_postgres() as url:
        with psycopg.connect(url, autocommit=True) as admin:
            admin.execute("CREATE DATABASE dagster")
        yield url


@pytest.fixture
def dev(cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallDev]:
    port = free_port()
    (tmp_path / "attacked.py").write_text(CODE)
    (tmp_path / "workspace.yaml").write_text("load_from:\n  - python_file: attacked.py\n")
    monkeypatch.chdir(tmp_path)
    for name, value in {
        "LAKEHOUSE_HOME": str(tmp_path / "home"),
        "LAKEHOUSE_PROJECT_DIR": str(tmp_path),
        "LAKEHOUSE_DAGSTER__PORT": str(port),
        "LAKEHOUSE_DAGSTER__STORAGE_URL": cluster.replace("postgres@", f"postgres:{PASSWORD}@")[:-8] + "dagster",
    }.items():
        monkeypatch.setenv(name, value)
    command = [str(Path(sys.executable).with_name("lakehouse")), "dev", "--no-stack", "--no-ingest"]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, env=os.environ, stdout=log, stderr=log, start_new_session=True)
    running = SmallDev(process, port, tmp_path)
    try:
        yield running
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0


@pytest.fixture
def shown() -> Iterator[dict[str, str]]:
    """The processes in whose arguments the password of Dagster's database was seen."""
    with watched_processes({"database": PASSWORD}) as found:
        yield found


@pytest.mark.slow
def test_no_argument_of_any_process_shows_the_password_of_dagsters_database(
    shown: dict[str, str], dev: SmallDev, tmp_path: Path
) -> None:
    """`--instance-ref` did, in the code servers that UI and daemon had of their own, and in each run's process."""
    wait_for(lambda: "attacked" in dev.ask(LOCATIONS), 120)
    assert dev.launches(tmp_path / "proof")
    wait_for((tmp_path / "proof").exists, 120)
    seen = {word for process in dev.family() for word in words(process)}
    sockets = [Path(each) for process in dev.family() for each in after(process, "--socket")]
    assert sockets and all(socket.stat().st_mode & 0o077 == 0 for socket in sockets), "they run any code"
    assert seen >= {"orchestration.web", "orchestration.daemon", "code-server"}
    assert shown == {}
    assert f"/login?token={ui_secret(load_settings())}" in (tmp_path / "log").read_text()


@pytest.mark.slow
def test_a_code_server_that_is_killed_is_back_within_seconds(dev: SmallDev, tmp_path: Path) -> None:
    """The UI said that the code was loaded, and every launch failed, until somebody restarted it."""
    wait_for(lambda: "attacked" in dev.ask(LOCATIONS), 120)
    [server] = [process for process in dev.family() if "code-server" in words(process)]
    server.kill()
    wait_for(lambda: dev.launches(tmp_path / "proof"), 120)
    wait_for((tmp_path / "proof").exists, 120)


@pytest.mark.slow
def test_code_is_loaded_again_when_the_project_has_changed_unless_it_does_not_load(
    dev: SmallDev, tmp_path: Path
) -> None:
    """The UI and the daemon knew no job of what had been declared, until somebody restarted `lakehouse dev`."""
    jobs = "{ repositoriesOrError { ... on RepositoryConnection { nodes { jobs { name } } } } }"
    models, code = tmp_path / "dbt_project" / "models", tmp_path / "attacked.py"
    wait_for(lambda: "attacked" in dev.ask(LOCATIONS), 120)
    processes = {process.pid for process in psutil.Process(dev.process.pid).children()}
    more = "{code}\n@dg.job\ndef {name}():\n    touch()\n\n\ndefs = dg.Definitions(jobs=[attacked, {name}])\n"
    models.mkdir(parents=True)
    code.write_text(more.format(code=CODE, name="another"))
    (models / "shop.yml").write_text("sources: []")
    wait_for(lambda: '"another"' in dev.ask(jobs), 120)
    code.write_text("raise ValueError('half of a file')")
    (models / "shop.yml").write_text("sources: [{}]")
    wait_for(lambda: "stays as it was loaded before: ValueError: half of a file" in (tmp_path / "log").read_text(), 120)
    assert '"another"' in dev.ask(jobs)
    assert processes <= {process.pid for process in psutil.Process(dev.process.pid).children()}

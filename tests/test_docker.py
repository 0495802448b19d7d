"""The compose file is sound without an engine, and the commands of our own services run as plain processes."""

import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from lakehouse.settings import load_settings
from stack.containers import write_container_files
from tests.test_stack import Home

ROOT = Path(__file__).resolve().parent.parent
COMPOSE = ROOT / "docker" / "docker-compose.yml"
SERVICES: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())["services"]
ONE_SHOT = {"config", "sources-roles", "catalog-roles", "minio-bucket"}
REFERENCE = re.compile(r"\$\{(\w+)(:\?[^}]+|:-[^}]*)?\}")


def variables(operator: str) -> set[str]:
    return {name for name, default in REFERENCE.findall(COMPOSE.read_text()) if default.startswith(operator)}


def examples() -> dict[str, str]:
    lines = (ROOT / "docker" / ".env.example").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))


@pytest.mark.parametrize("name", SERVICES)
def test_every_image_is_pinned(name: str) -> None:
    image, tag = SERVICES[name]["image"].rsplit(":", 1)
    assert image and re.search(r"\d", tag) and tag != "latest"


def test_the_base_image_is_pinned_to_a_patch_version() -> None:
    bases = re.findall(r"^FROM (\S+)", (ROOT / "docker" / "Dockerfile").read_text(), re.MULTILINE)
    assert bases and all(re.search(r":\d+\.\d+\.\d+", base) for base in bases)


@pytest.mark.parametrize("name", sorted(set(SERVICES) - ONE_SHOT))
def test_every_server_has_a_health_check_and_comes_back_by_itself(name: str) -> None:
    assert SERVICES[name]["healthcheck"]["test"][0] == "CMD"
    assert SERVICES[name]["restart"] == "unless-stopped"


@pytest.mark.parametrize("name", SERVICES)
def test_services_wait_for_what_can_be_waited_for(name: str) -> None:
    for other, how in SERVICES[name].get("depends_on", {}).items():
        expected = "service_completed_successfully" if other in ONE_SHOT else "service_healthy"
        assert how["condition"] == expected, f"{name} waits for {other}"


@pytest.mark.parametrize("name", SERVICES)
def test_volumes_are_declared(name: str) -> None:
    declared = yaml.safe_load(COMPOSE.read_text())["volumes"]
    assert {volume.split(":")[0] for volume in SERVICES[name].get("volumes", ())} <= set(declared)


def test_nothing_secret_stands_in_the_file() -> None:
    for name, service in SERVICES.items():
        for variable, value in service.get("environment", {}).items():
            if re.search("PASSWORD|SECRET|ACCESS_KEY|ROOT_USER", variable):
                assert re.fullmatch(r"\$\{\w+:\?[^}]+\}", value), f"{name}: {variable}"
            if "://" in value and "@" in value:
                assert re.search(r":\$\{\w+:\?[^}]+\}@", value), f"{name}: {variable}"


def test_the_example_names_every_required_variable_and_gives_no_value() -> None:
    assert set(examples()) == variables(":?")
    assert not any(examples().values())


def test_only_loopback_is_published_unless_asked_for() -> None:
    for service in SERVICES.values():
        assert all(port.startswith("${BIND_ADDRESS:-127.0.0.1}:") for port in service.get("ports", ()))


def test_the_engine_accepts_the_file(tmp_path: Path) -> None:
    docker = shutil.which("docker")
    if not docker or subprocess.run([docker, "compose", "version"], capture_output=True).returncode:
        pytest.skip("no docker with compose on this machine")
    (tmp_path / "env").write_text("".join(f"{name}=x\n" for name in examples()))
    command = [docker, "compose", "--file", str(COMPOSE), "--env-file", str(tmp_path / "env"), "config", "--quiet"]
    subprocess.run(command, check=True)


@pytest.fixture
def rendered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LAKEHOUSE_HOME", str(tmp_path / "home"))
    write_container_files(tmp_path / "config", load_settings(), 2048)
    return tmp_path


def test_every_file_that_the_services_name_is_rendered(rendered: Path) -> None:
    named = set(re.findall(r"/config/[\w./-]+", COMPOSE.read_text()))
    assert named >= {"/config/sources/postgresql.conf", "/config/catalog/roles.sql", "/config/trino"}
    for name in named:
        assert (rendered / name.lstrip("/")).exists(), name
    assert (rendered / "home" / "dagster" / "dagster.yaml").exists()


def test_rendered_files_hold_no_secret_and_can_be_read_by_other_users(rendered: Path) -> None:
    for path in (rendered / "config").rglob("*.*"):
        if path.is_file():
            assert path.stat().st_mode & 0o044 == 0o044
            assert not re.search(r"(?i)(password|secret[-_]key)\s*=\s*['\"]?(?!\$\{ENV:)\w", path.read_text()), path


def test_the_environment_of_our_services_is_made_of_settings_that_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKEHOUSE_CONFIG", os.devnull)
    for name, value in SERVICES["ingestion"]["environment"].items():
        monkeypatch.setenv(name, REFERENCE.sub("x", value))
    settings = load_settings()
    assert set(settings.sources) == {"retail", "bank", "payroll"}
    assert settings.trino.host in SERVICES
    assert settings.s3.endpoint == "http://minio:9000"
    assert settings.spark.master == "spark://spark-master:7077"


# ---- the commands themselves, with the addresses of a stack of this machine ----


@pytest.fixture(scope="module")
def stack_home() -> Iterator[Home]:
    home = Home()
    try:
        home.run("up")
        home.run("samples")
        home.run("prepare")
        yield home
    finally:
        home.remove()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def as_here(words: list[str], ports: dict[str, int]) -> list[str]:
    """A command of the compose file with this machine's paths, programs, addresses and free ports."""
    translated = []
    for word in words:
        for name, port in ports.items():
            word = re.sub(rf"\b{name}\b", str(port), word)
        word = word.replace("/opt/lakehouse", str(ROOT)).replace("spark-master", "127.0.0.1")
        translated.append(word.replace("0.0.0.0", "127.0.0.1"))
    return [str(Path(sys.executable).with_name(translated[0])), *translated[1:]]


@contextmanager
def service(home: Home, name: str, ports: dict[str, int], **variables: str) -> Iterator[Callable[[], bool]]:
    """Runs a service's command; yields its health check."""
    settings = dagster_url(home)
    env = home.env | settings | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "DAGSTER_HOME": str(home.path / "dagster"),
        "LAKEHOUSE_CODE_HOST": "127.0.0.1",
        "LAKEHOUSE_CODE_PORT": str(ports.get("4000", 4000)),
        **variables,
    }  # fmt: skip
    log = home.path / "logs" / f"{name}.log"
    with log.open("w") as output:
        command = as_here(SERVICES[name]["command"], ports)
        process = psutil.Popen(command, cwd=ROOT, env=env, stdout=output, stderr=output)

    def healthy() -> bool:
        assert process.poll() is None, log.read_text()[-3000:]
        check = as_here(SERVICES[name]["healthcheck"]["test"][1:], ports)
        return subprocess.run(check, cwd=ROOT, env=env, capture_output=True).returncode == 0

    try:
        yield healthy
    finally:
        everything = [process, *process.children(recursive=True)]
        process.terminate()
        psutil.wait_procs([process], timeout=30)
        for left in everything:
            if left.is_running():
                left.kill()


def dagster_url(home: Home) -> dict[str, str]:
    instance = yaml.safe_load((home.path / "dagster" / "dagster.yaml").read_text())
    url = instance["storage"]["postgres"]["postgres_url"]
    return {"DAGSTER_POSTGRES_URL": url} if isinstance(url, str) else {}


def until(condition: Callable[[], bool], seconds: float = 240) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "not healthy in time"
        time.sleep(1)


@pytest.mark.stack
@pytest.mark.slow
def test_ingestion_follows_every_source(stack_home: Home) -> None:
    with service(stack_home, "ingestion", {}) as healthy:
        assert not healthy()
        until(healthy)


@pytest.mark.stack
@pytest.mark.slow
def test_dagsters_three_services_work_together(stack_home: Home) -> None:
    ports = {"4000": free_port(), "3000": free_port()}
    with ExitStack() as running:
        for name in ("dagster-code", "dagster-webserver", "dagster-daemon"):
            until(running.enter_context(service(stack_home, name, ports)))
        address = f"http://127.0.0.1:{ports['3000']}/graphql?query=%7BrepositoriesOrError%7B__typename%20...on%20RepositoryConnection%7Bnodes%7Blocation%7Bname%7D%7D%7D%7D%7D"
        with urllib.request.urlopen(address) as answer:
            assert b'"name":"lakehouse"' in answer.read().replace(b" ", b"")


@pytest.mark.stack
@pytest.mark.slow
def test_a_spark_worker_joins_the_master(stack_home: Home) -> None:
    from lakehouse.java import spark_java_home

    java = {"JAVA_HOME": str(spark_java_home(load_settings())), "SPARK_WORKER_DIR": str(stack_home.path / "spark")}
    ports = {"7077": free_port(), "8081": free_port(), "8082": free_port()}
    with ExitStack() as running:
        until(running.enter_context(service(stack_home, "spark-master", ports, **java)))
        until(running.enter_context(service(stack_home, "spark-worker", ports, **java)))
        log = stack_home.path / "logs" / "spark-worker.log"
        until(lambda: "Successfully registered with master" in log.read_text(), 60)

"""The compose file is sound without an engine, and the commands of our own services run as plain processes."""

import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from dagster._grpc.server import DagsterGrpcServer
from pyarrow import fs

from lakehouse.declarations.access.rules import RULES
from lakehouse.errors import LakehouseError
from lakehouse.servers.logins import GROUPS, PASSWORDS, read_logins
from lakehouse.servers.spark import OVERRIDES
from lakehouse.settings import DBT_PACKAGE, Settings, load_settings
from lakehouse_stack.control.containers import container_files, write_access_files, write_container_files
from lakehouse_stack.home.certificate import make_certificate
from lakehouse_stack.servers.s3 import check_health
from lakehouse_watch.watch import declared_probes
from orchestration.web.login import ui_secret
from tests.pages import DOCS, fenced
from tests.ports import free_port
from tests.test_stack import Home

ROOT = Path(__file__).resolve().parent.parent
COMPOSE = ROOT / "docker" / "docker-compose.yml"
TOPICS = ROOT / "docker" / "kafka.yml"
OIDC = ROOT / "docker" / "oidc.yml"
PROJECT = ROOT / "docker" / "project.yml"
SERVICES: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())["services"]
PROXY: dict[str, Any] = yaml.safe_load(OIDC.read_text())["services"]["oauth2-proxy"]
EVERY = {**SERVICES, "oauth2-proxy": PROXY}
ONE_SHOT = {"config", "trino-access", "sources-roles", "catalog-roles", "setup"}
UI_SECRET = "LAKEHOUSE_DAGSTER__UI_SECRET"
SPARK_SECRET = "s" * 32
REFERENCE = re.compile(r"\$\{(\w+)(:\?[^}]+|:-[^}]*)?\}")


def variables(operator: str, file: Path = COMPOSE) -> set[str]:
    return {name for name, default in REFERENCE.findall(file.read_text()) if default.startswith(operator)}


def examples() -> dict[str, str]:
    lines = (ROOT / "docker" / ".env.example").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))


SECRET_NAMES = {"OIDC_CLIENT_SECRET", "OIDC_COOKIE_SECRET", *examples()}


@pytest.mark.parametrize("name", EVERY)
def test_every_image_is_pinned(name: str) -> None:
    image, tag = EVERY[name]["image"].rsplit(":", 1)
    assert image and re.search(r"\d", tag) and tag != "latest"


def test_the_base_image_is_pinned_to_a_patch_version() -> None:
    bases = re.findall(r"^FROM (\S+)", (ROOT / "docker" / "Dockerfile").read_text(), re.MULTILINE)
    assert bases and all(re.search(r":\d+\.\d+\.\d+", base) for base in bases)


@pytest.mark.parametrize("name", sorted(set(EVERY) - ONE_SHOT))
def test_every_server_has_a_health_check_and_comes_back_by_itself(name: str) -> None:
    assert EVERY[name]["healthcheck"]["test"][0] == "CMD"
    assert EVERY[name]["restart"] == "unless-stopped"


@pytest.mark.parametrize("name", SERVICES)
def test_services_wait_for_what_can_be_waited_for(name: str) -> None:
    for other, how in SERVICES[name].get("depends_on", {}).items():
        expected = "service_completed_successfully" if other in ONE_SHOT else "service_healthy"
        assert how["condition"] == expected, f"{name} waits for {other}"


@pytest.mark.parametrize("name", SERVICES)
def test_volumes_are_declared(name: str) -> None:
    declared = yaml.safe_load(COMPOSE.read_text())["volumes"]
    named = {volume.split(":")[0] for volume in SERVICES[name].get("volumes", ()) if ":" in volume}
    assert {volume for volume in named if not volume.startswith("./")} <= set(declared)


def test_nothing_secret_stands_in_the_file() -> None:
    for name, service in EVERY.items():
        for variable, value in service.get("environment", {}).items():
            if re.search("PASSWORD|SECRET|ACCESS_KEY", variable):
                assert re.fullmatch(r"\$\{\w+:\?[^}]+\}", value), f"{name}: {variable}"
            if "://" in value and "@" in value:
                assert re.search(r":\$\{\w+:\?[^}]+\}@", value), f"{name}: {variable}"


def test_the_example_names_every_required_variable_and_gives_no_value() -> None:
    assert set(examples()) == variables(":?")
    assert not any(examples().values())


def test_the_example_names_every_variable_that_may_be_set() -> None:
    text = (ROOT / "docker" / ".env.example").read_text()
    may = variables(":-") | variables(":-", OIDC) | variables(":?", PROJECT)
    assert {name for name in may if f"#{name}=" in text} == may


def test_only_loopback_is_published_unless_asked_for() -> None:
    for service in EVERY.values():
        assert all(port.startswith(("${BIND_ADDRESS:-127.0.0.1}:", "127.0.0.1:")) for port in service.get("ports", ()))


def test_others_reach_the_ui_by_the_companys_login_and_over_tls_only() -> None:
    """Without TLS the login would pass the network in the clear, so that port is of this machine whatever is set."""
    assert SERVICES["dagster-webserver"]["ports"] == ["127.0.0.1:3000:3000"]
    set_in_proxy = PROXY["environment"]
    assert PROXY["ports"] == ["${BIND_ADDRESS:-127.0.0.1}:443:4443"]
    assert set_in_proxy["OAUTH2_PROXY_HTTPS_ADDRESS"].endswith(":4443")
    assert {"OAUTH2_PROXY_TLS_CERT_FILE", "OAUTH2_PROXY_TLS_KEY_FILE"} <= set(set_in_proxy)
    assert set_in_proxy["OAUTH2_PROXY_UPSTREAMS"] == "http://dagster-webserver:3000"
    secrets = {name: value for name, value in set_in_proxy.items() if "UI_SECRET" in value}
    assert list(secrets) == ["OAUTH2_PROXY_BASIC_AUTH_PASSWORD"]
    assert secrets["OAUTH2_PROXY_BASIC_AUTH_PASSWORD"] == SERVICES["dagster-webserver"]["environment"][UI_SECRET]


def test_the_example_names_what_the_companys_login_needs() -> None:
    text = (ROOT / "docker" / ".env.example").read_text()
    assert {name for name in variables(":?", OIDC) if f"#{name}=" in text} == variables(":?", OIDC) - {"UI_SECRET"}


def test_the_name_of_the_ui_is_a_setting_that_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    added = yaml.safe_load(OIDC.read_text())["services"]["dagster-webserver"]["environment"]
    monkeypatch.setenv("LAKEHOUSE_CONFIG", os.devnull)
    monkeypatch.setenv(UI_SECRET, "s" * 32)
    for name, value in added.items():
        monkeypatch.setenv(name, REFERENCE.sub("lake.example.com", value))
    settings = load_settings()
    assert settings.dagster.allowed_hosts == ("lake.example.com",)
    assert ui_secret(settings) == "s" * 32


def test_a_key_for_tls_gets_into_no_image_and_no_commit() -> None:
    assert "docker/certs" in (ROOT / ".dockerignore").read_text().splitlines()
    assert "certs/" in (ROOT / "docker" / ".gitignore").read_text().splitlines()


# ---- who has what, and reaches whom ----

TRINO_LOGINS = {"TRINO_PASSWORD", "TRINO_READER_PASSWORD", "TRINO_PRIVACY_PASSWORD"}
OF_THE_LAKE = TRINO_LOGINS | {"CATALOG_PASSWORD", "S3_ACCESS_KEY", "S3_SECRET_KEY", "SPARK_SECRET"}
SECRETS_OF = {
    "config": set(),
    "sources": {"SOURCES_SUPERUSER_PASSWORD"},
    "sources-roles": {"SOURCES_SUPERUSER_PASSWORD", "APP_PASSWORD", "INGEST_PASSWORD"},
    "catalog": {"CATALOG_SUPERUSER_PASSWORD"},
    "catalog-roles": {
        "CATALOG_SUPERUSER_PASSWORD", "CATALOG_PASSWORD", "TRINO_CATALOG_PASSWORD", "DAGSTER_PASSWORD",
    },
    "s3": {"S3_ACCESS_KEY", "S3_SECRET_KEY"},
    "trino-access": TRINO_LOGINS,
    "trino": {"TRINO_INTERNAL_SECRET", "TRINO_CATALOG_PASSWORD", "S3_ACCESS_KEY", "S3_SECRET_KEY"},
    "trino-reads": TRINO_LOGINS,
    "serve": {"CATALOG_PASSWORD", "S3_ACCESS_KEY", "S3_SECRET_KEY", "SERVE_SECRET"},
    "kafka": set(),
    "connect": set(),
    "spark-master": {"SPARK_SECRET"},
    "spark-worker": {"SPARK_SECRET"},
    "ingestion": OF_THE_LAKE | {"INGEST_PASSWORD"},
    "worker": OF_THE_LAKE | {"DAGSTER_PASSWORD"},
    "watch": OF_THE_LAKE | {"DAGSTER_PASSWORD", "INGEST_PASSWORD"},
    "setup": OF_THE_LAKE | {"APP_PASSWORD", "INGEST_PASSWORD"},
    "dagster-code": OF_THE_LAKE | {"DAGSTER_PASSWORD", "INGEST_PASSWORD"},
    "dagster-webserver": {"DAGSTER_PASSWORD", "UI_SECRET"},
    "dagster-daemon": {"DAGSTER_PASSWORD"},
    "oauth2-proxy": {"OIDC_CLIENT_SECRET", "OIDC_COOKIE_SECRET", "UI_SECRET"},
}  # fmt: skip


@pytest.mark.parametrize("name", EVERY)
def test_a_service_has_its_own_secrets_only(name: str) -> None:
    named = {found[0] for value in EVERY[name].get("environment", {}).values() for found in REFERENCE.findall(value)}
    assert {n for n in named if n in SECRET_NAMES} == SECRETS_OF[name]


@pytest.mark.parametrize("name", EVERY)
def test_a_service_that_is_broken_into_has_no_rights_to_go_on_with(name: str) -> None:
    service = EVERY[name]
    assert service["cap_drop"] == ["ALL"] and "cap_add" not in service and not service.get("privileged")
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["read_only"] is True
    assert service["mem_limit"] and service["pids_limit"]
    assert not [v for v in service.get("volumes", ()) if "docker.sock" in v]
    if service["image"].startswith("postgres:"):
        assert service["user"] == "postgres", "as root it would need capabilities"
    assert "USER lakehouse" in (ROOT / "docker" / "Dockerfile").read_text()


def reached_from(name: str) -> set[str]:
    """The services that share a network with this one."""
    mine = set(EVERY[name].get("networks", ()))
    return {other for other in EVERY if other != name and mine & set(EVERY[other].get("networks", ()))}


def test_networks_lead_to_those_who_are_needed_only() -> None:
    declared = yaml.safe_load(COMPOSE.read_text())["networks"]
    assert {network for service in EVERY.values() for network in service.get("networks", ())} == set(declared)
    assert all(declared[name] == {"internal": True} for name in ("records", "catalog", "storage"))
    assert reached_from("oauth2-proxy") == {"dagster-webserver"}
    assert [name for name in EVERY if "readers" in EVERY[name].get("networks", ())] == ["serve"]
    assert not reached_from("serve") & {"sources", "spark-worker", "spark-master", "dagster-webserver"}
    assert reached_from("spark-worker") == {"spark-master", "s3", "sources", "kafka", "ingestion", "dagster-code"}
    assert not reached_from("dagster-webserver") & {"sources", "s3", "trino", "spark-master", "spark-worker"}
    for name, service in EVERY.items():
        for other in {*service.get("depends_on", {})} - ONE_SHOT:
            assert other in reached_from(name), f"{name} waits for {other} and cannot reach it"


def test_the_sample_topic_is_read_only_where_the_broker_runs() -> None:
    added = yaml.safe_load(TOPICS.read_text())["services"]
    assert all(SERVICES[name]["profiles"] == ["kafka"] for name in ("kafka", "connect"))
    assert set(added) == {"ingestion", "worker", "watch", "setup", "dagster-code"}
    for name, more in added.items():
        assert name == "worker" or "kafka" in reached_from(name), name
        assert more["environment"]["LAKEHOUSE_SOURCES__CLICKS__BOOTSTRAP_SERVERS"] == "kafka:9092"
        assert not any("CLICKS" in variable for variable in SERVICES[name]["environment"])
    assert SERVICES["connect"]["ports"] == ["127.0.0.1:8083:8083"], "its REST API knows no login"


def test_a_project_of_ones_own_takes_the_place_of_the_demos_in_every_service_that_reads_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without its connections the demo's project was refused, and no page said how another one gets in."""
    added = yaml.safe_load(PROJECT.read_text())["services"]
    demo = {name: set(filter(re.compile("RETAIL").search, SERVICES[name].get("environment", {}))) for name in SERVICES}
    assert {name for name, named in demo.items() if named} == {name for name in added if "environment" in added[name]}
    assert set(added) == {"ingestion", "watch", "worker", "setup", *(name for name in SERVICES if "dagster" in name)}
    assert len({json.dumps([service["image"], service["build"]]) for service in added.values()}) == 1
    monkeypatch.setenv("LAKEHOUSE_CONFIG", os.devnull)
    for name, value in (SERVICES["setup"]["environment"] | added["setup"]["environment"]).items():
        monkeypatch.setenv(name, REFERENCE.sub("x" * 32, value))
    assert set(load_settings().sources) == {"shop"}


def test_the_image_of_a_project_is_made_from_ours_and_has_what_nobody_can_write_later() -> None:
    page = (DOCS / "how-to" / "project-in-containers.md").read_text()
    [text] = [text for language, text in fenced(page) if language == "dockerfile"]
    place = re.findall(r"LAKEHOUSE_PROJECT_DIR=(\S+)", text)[0]
    package = Path("/opt/lakehouse") / DBT_PACKAGE.relative_to(ROOT)
    assert f"FROM {SERVICES['ingestion']['image']}\n" in text and f" dbt_project {place}/dbt_project\n" in text
    assert f"ln -sfn {package} {place}/dbt_project/dbt_packages/{package.name} " in text
    assert "WORKDIR" not in text, "health checks are named from /opt/lakehouse"


def test_the_commands_for_a_project_name_files_and_services_that_there_are() -> None:
    text = (DOCS / "how-to" / "project-in-containers.md").read_text()
    lines = [line for of, block in fenced(text) if of == "" for line in block.splitlines() if "compose" in line]
    files = {word for line in lines for word in line.split() if word.startswith("docker/")}
    assert files == {"docker/docker-compose.yml", "docker/project.yml"} and all(
        (ROOT / file).exists() for file in files
    )
    named = [found for line in lines for found in re.findall(r" (?:run --rm|exec) (\S+) lakehouse", line)]
    assert named == ["setup", "setup", "ingestion"] and {*named} <= {*SERVICES}


def test_the_code_server_has_no_port_and_its_socket_is_for_its_callers_alone() -> None:
    """It runs code for whoever may connect, and Dagster's has neither TLS nor a login."""
    having = [name for name in EVERY if any(v.startswith("code:") for v in EVERY[name].get("volumes", ()))]
    assert set(having) == {"dagster-code", "dagster-webserver", "dagster-daemon"}
    command = SERVICES["dagster-code"]["command"]
    assert command[command.index("--socket") + 1] == "/code/dagster.sock" and not {"--port", "--host"} & {*command}
    assert "install -d -m 700 -o lakehouse -g lakehouse /code" in (ROOT / "docker" / "Dockerfile").read_text()
    assert "add_insecure_port" in inspect.getsource(DagsterGrpcServer), "it may have learnt TLS: use it"
    assert "add_secure_port" not in inspect.getsource(DagsterGrpcServer)


def test_spark_knows_the_secret_and_loads_the_fixed_releases() -> None:
    fixed = ":".join(f"/opt/cache/artifacts/{folder}/*" for folder in OVERRIDES)
    for name in ("spark-master", "spark-worker"):
        assert SERVICES[name]["environment"]["SPARK_DAEMON_CLASSPATH"] == fixed
        command = SERVICES[name]["command"]
        assert command[command.index("--properties-file") + 1] == "docker/spark.conf"
    for name in ("ingestion", "dagster-code"):
        assert json.loads(SERVICES[name]["environment"]["LAKEHOUSE_SPARK__CONF"])["spark.driver.host"] == name
        assert SERVICES[name]["hostname"] == name


def test_the_image_holds_no_tool_of_development() -> None:
    assert "requirements-dev" not in (ROOT / "docker" / "Dockerfile").read_text()


def test_the_s3_server_takes_its_keys_and_no_others(tmp_path: Path) -> None:
    """As the container runs it, but for the port."""
    port, keys = free_port(), {"LAKEHOUSE_S3__ACCESS_KEY": "known", "LAKEHOUSE_S3__SECRET_KEY": "s" * 32}
    code = (
        f"import lakehouse_stack.servers.s3 as s; s.CONTAINER_PORT = {port}; import sys; "
        f"sys.argv[1:] = ['s3', {str(tmp_path / 'data')!r}]; from lakehouse_stack.__main__ import main; main()"
    )
    env = os.environ | keys | {"LAKEHOUSE_CONFIG": os.devnull, "TMPDIR": str(tmp_path)}
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, env=env)
    try:
        until(lambda: check_health(port) is None, 60)
        assert "s" * 32 not in " ".join(psutil.Process(process.pid).cmdline())
        at = {"access_key": "known", "endpoint_override": f"http://127.0.0.1:{port}", "region": "us-east-1"}
        with fs.S3FileSystem(**at, secret_key="s" * 32).open_output_stream("warehouse/a/b") as file:
            file.write(b"content")
        with pytest.raises(OSError, match=r"(?i)signature|denied"):
            fs.S3FileSystem(**at, secret_key="x" * 32).open_input_stream("warehouse/a/b").read()
        with pytest.raises(OSError, match=r"(?i)denied|forbidden"):
            fs.S3FileSystem(**at, secret_key="s" * 32, allow_bucket_creation=True).create_dir("another")
        written = [path for path in (tmp_path / "data").rglob("*") if path.is_file()]
        assert written and not any(path.stat().st_mode & 0o077 for path in (tmp_path / "data").iterdir())
    finally:
        process.terminate()
        process.wait(30)


def test_the_engine_accepts_the_file(tmp_path: Path) -> None:
    docker = shutil.which("docker")
    if not docker or subprocess.run([docker, "compose", "version"], capture_output=True).returncode:
        pytest.skip("no docker with compose on this machine")
    (tmp_path / "env").write_text(
        "".join(f"{name}=x\n" for name in {*examples(), *variables(":?", OIDC), *variables(":?", PROJECT)})
    )
    for more in ([], ["--file", str(OIDC)], ["--file", str(PROJECT)], ["--file", str(TOPICS), "--profile", "kafka"]):
        files = ["--file", str(COMPOSE), *more]
        command = [docker, "compose", *files, "--env-file", str(tmp_path / "env"), "config", "--quiet"]
        subprocess.run(command, check=True)


def test_the_pages_command_lines_name_files_and_services_that_there_are() -> None:
    """Their options are those of Docker; the `lakehouse` commands at their ends are parsed with all others."""
    lines = [
        line.partition("#")[0]
        for of, text in fenced((DOCS / "how-to" / "beyond-one-machine.md").read_text())
        for line in text.splitlines()
        if of == "" and line.startswith(("docker ", "cp "))
    ]
    files = [ROOT / word for line in lines for word in line.split() if word.startswith("docker/")]
    assert files and all(file.exists() for file in files if file.name != ".env")
    ran = [line for line in lines if re.search(r" (run|exec) ", line)]
    named = [re.search(r" (?:run|exec) (?:-\S+ (?:\S+:\S+ )?)*(\S+) (\S+)", line) for line in ran]
    assert [(each[1] in SERVICES, each[2]) for each in named if each] == [
        (True, "lakehouse"), (True, "pg_dump"), (True, "lakehouse"),
    ]  # fmt: skip


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


def test_trino_gets_a_certificate_logins_and_rules_that_nobody_else_reads(tmp_path: Path) -> None:
    logins = {"http_scheme": "https", "password": "p" * 16, "reader_user": "reader", "reader_password": "q" * 16}
    home = tmp_path / "home"  # without an embedded stack, whose logins would be taken
    with pytest.raises(LakehouseError, match="LAKEHOUSE_TRINO__PRIVACY_USER"):
        without = Settings.model_validate({"home": home, "trino": logins})
        write_access_files(tmp_path / "access", tmp_path / "certs", without)
    logins |= {"privacy_user": "privacy", "privacy_password": "r" * 16}
    settings = Settings.model_validate({"home": home, "trino": logins})
    made, given = tmp_path / "access", tmp_path / "certs"
    write_access_files(made, given, settings)
    assert {file.name for file in made.iterdir()} == {"trino.pem", "trino-ca.pem", "lock", *(PASSWORDS, GROUPS, RULES)}
    assert all(file.stat().st_mode & 0o077 == 0 for file in made.iterdir() if file.name != "trino-ca.pem")
    assert {name: login.role for name, login in read_logins(made).items()} == {
        "lakehouse": "writer",
        "reader": "reader",
        "privacy": "privacy",
    }
    ours, theirs = make_certificate(("lake.example.com",), datetime.now(UTC))
    given.mkdir()
    (given / "trino.pem").write_text(ours)
    with pytest.raises(LakehouseError, match="belong together"):
        write_access_files(made, given, settings)
    (given / "trino-ca.pem").write_text(theirs)
    write_access_files(made, given, settings)
    assert (made / "trino.pem").read_text() == ours
    with pytest.raises(LakehouseError, match="LAKEHOUSE_TRINO__PASSWORD"):
        write_access_files(made, given, Settings.model_validate({"trino": {**logins, "password": None}}))


def test_no_port_of_trino_is_published_without_tls() -> None:
    assert SERVICES["trino"]["ports"] == ["${BIND_ADDRESS:-127.0.0.1}:8443:8443"]
    config = container_files(2048)["trino/config.properties"]
    assert "http-server.http.enabled=false" in config and "http-server.https.port=8443" in config


def test_the_environment_of_our_services_is_made_of_settings_that_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKEHOUSE_CONFIG", os.devnull)
    for name, value in SERVICES["ingestion"]["environment"].items():
        monkeypatch.setenv(name, REFERENCE.sub("x" * 32, value))
    settings = load_settings()
    assert set(settings.sources) == {"retail", "bank", "payroll"}
    assert settings.trino.host in SERVICES
    assert settings.trino.http_scheme == "https" and settings.trino.login("reader").user == "reader"
    assert settings.s3.endpoint == "http://s3:9000"
    assert settings.spark.master == "spark://spark-master:7077"


def test_the_web_server_knows_the_checks_of_which_its_page_tells() -> None:
    """It did not know Dagster's database, and the page said that no check failed."""
    url = "LAKEHOUSE_DAGSTER__STORAGE_URL"
    assert SERVICES["dagster-webserver"]["environment"][url] == SERVICES["watch"]["environment"][url]
    assert "catalog" in reached_from("dagster-webserver")


def test_the_watch_knows_all_that_it_tells_of_and_has_no_port_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """There was none; one that lacks a source, Dagster's database or the project is blind to it and says nothing."""
    monkeypatch.setenv("LAKEHOUSE_CONFIG", os.devnull)
    for name, value in SERVICES["watch"]["environment"].items():
        filled = REFERENCE.sub(lambda found: "" if (found[2] or "").startswith(":-") else "x" * 32, value)
        monkeypatch.setenv(name, filled)
    settings, ingesting = load_settings(), SERVICES["ingestion"]["environment"]
    assert settings.alerts.webhook is None, "none is set by default"
    assert settings.dagster.storage_url is not None
    assert {"dagster", "dagster checks", "project"} <= {probe.name for probe in declared_probes(settings)}
    for name, value in ingesting.items():
        of_its_own = name in ("LAKEHOUSE_SPARK__CONF", "LAKEHOUSE_METRICS__FOLLOWER_PORT")
        assert of_its_own or SERVICES["watch"]["environment"][name] == value, name
    assert SERVICES["watch"]["volumes"] == SERVICES["worker"]["volumes"], "where the project is parsed"
    assert {"sources", "catalog", "s3"} <= reached_from("watch") and "ports" not in SERVICES["watch"]
    assert (settings.metrics.host, settings.metrics.watch_port) == ("0.0.0.0", 9102)


def test_prometheus_reads_the_follower_and_the_worker_too() -> None:
    """They had no port, so publish rates and load times were empty, and the rule of late tests never spoke."""
    ports = {"ingestion": ("FOLLOWER", "9101"), "watch": ("WATCH", "9102"), "worker": ("WORKER", "9103")}
    for name, (whose, port) in ports.items():
        service = SERVICES[name]
        assert service["environment"]["LAKEHOUSE_METRICS__HOST"] == "0.0.0.0"
        assert service["environment"][f"LAKEHOUSE_METRICS__{whose}_PORT"] == port
        assert "storage" in service["networks"] and "ports" not in service


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


def as_here(words: list[str], ports: dict[str, int]) -> list[str]:
    """A command of the compose file with this machine's paths, programs, addresses and free ports."""
    translated = []
    for word in words:
        for name, port in ports.items():
            word = re.sub(rf"\b{name}\b", str(port), word)
        word = word.replace("/opt/lakehouse", str(ROOT)).replace("spark-master", "127.0.0.1")
        translated.append(word.replace("0.0.0.0", "127.0.0.1").replace("/code/", f"{tempfile.gettempdir()}/"))
    return [str(Path(sys.executable).with_name(translated[0])), *translated[1:]]


@contextmanager
def service(home: Home, name: str, ports: dict[str, int], **variables: str) -> Iterator[Callable[[], bool]]:
    """Runs a service's command; yields its health check."""
    settings = dagster_url(home)
    env = home.env | settings | {
        "LAKEHOUSE_HOME": str(bare_home(home) if needs_no_lake(name) else home.path),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "DAGSTER_HOME": str(home.path / "dagster"),
        "LAKEHOUSE_CODE_SOCKET": f"{tempfile.gettempdir()}/dagster.sock",
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


def needs_no_lake(name: str) -> bool:
    return "LAKEHOUSE_CATALOG_URL" not in SERVICES[name]["environment"]


def bare_home(home: Home) -> Path:
    """A home that knows nothing: what the container's environment does not say, the process does not have."""
    bare = home.path / "bare"
    bare.mkdir(exist_ok=True)
    return bare


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
def test_dagsters_three_services_work_together(stack_home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    ports = {"3000": free_port()}
    monkeypatch.setattr(tempfile, "tempdir", str(stack_home.path))
    with ExitStack() as running:
        secret = {UI_SECRET: "s" * 32, "LAKEHOUSE_DAGSTER__PORT": str(ports["3000"])}
        for name in ("dagster-code", "dagster-webserver", "dagster-daemon"):
            until(running.enter_context(service(stack_home, name, ports, **secret)))
        query = b'{"query": "{repositoriesOrError{... on RepositoryConnection{nodes{location{name}}}}}"}'
        shown = {"Authorization": "Bearer " + "s" * 32, "Content-Type": "application/json"}
        request = urllib.request.Request(f"http://127.0.0.1:{ports['3000']}/graphql", query, shown)
        with urllib.request.urlopen(request) as answer:
            assert b'"name":"lakehouse"' in answer.read().replace(b" ", b"")


@pytest.mark.stack
@pytest.mark.slow
def test_a_spark_worker_joins_the_master(stack_home: Home) -> None:
    from lakehouse.servers.java import spark_java_home

    fixed = ":".join(str(load_settings().artifacts / folder / "*") for folder in OVERRIDES)
    java = {
        "JAVA_HOME": str(spark_java_home(load_settings())), "SPARK_WORKER_DIR": str(stack_home.path / "spark"),
        "_SPARK_AUTH_SECRET": SPARK_SECRET, "SPARK_DAEMON_CLASSPATH": fixed,
    }  # fmt: skip
    ports = {"7077": free_port(), "8081": free_port(), "8082": free_port()}
    with ExitStack() as running:
        until(running.enter_context(service(stack_home, "spark-master", ports, **java)))
        until(running.enter_context(service(stack_home, "spark-worker", ports, **java)))
        log = stack_home.path / "logs" / "spark-worker.log"
        until(lambda: "Successfully registered with master" in log.read_text(), 60)

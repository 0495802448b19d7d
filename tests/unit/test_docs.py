"""The documentation names commands, settings and files: those have to exist."""

import re
import shutil
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

from lakehouse.declarations import load_declarations
from lakehouse.declarations.policies import Policy
from lakehouse.settings import PROJECT_DIR, MailSettings, Settings, SourceSettings, load_settings
from lakehouse_cli.commands import COMMANDS
from lakehouse_cli.reference.pages import PAGES as REFERENCE
from lakehouse_project import create_project
from lakehouse_stack.home.config import StackSettings
from maintenance.actions.docs import with_actions
from maintenance.actions.registry import ACTIONS

PAGES = sorted(path for pattern in ("*.md", "docs/**/*.md", "docker/**/*.md") for path in PROJECT_DIR.glob(pattern))
SETTINGS = (PROJECT_DIR / "docs" / "reference" / "settings.md").read_text()


def _variables(model: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _variables(field.annotation, f"{prefix}{name.upper()}__")
        elif name != "sources":
            yield f"{prefix}{name.upper()}"


CHOICES = {
    "SASL": ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"),
    "DECIMALS": ("precise", "string"),
    "TIMES": ("adaptive", "adaptive_time_microseconds", "isostring"),
    "BINARY": ("bytes", "base64", "hex"),
    "DELIVERY": ("exactly_once", "at_least_once"),
    "ROLE": ("reader", "privacy", "writer"),
}
SETTING_NAMES = [
    *_variables(Settings, "LAKEHOUSE_"),
    *_variables(MailSettings, "LAKEHOUSE_ALERTS__MAIL__"),
    *_variables(StackSettings, "LAKEHOUSE_STACK_"),
]


@pytest.mark.parametrize("name", REFERENCE)
def test_the_reference_is_what_the_code_says(name: str) -> None:
    page = PROJECT_DIR / "docs" / "reference" / name
    assert page.read_text() == REFERENCE[name](), "run: make docs"


def test_every_setting_is_in_the_reference_and_says_what_it_means() -> None:
    for name in (*SETTING_NAMES, *_variables(SourceSettings, "LAKEHOUSE_SOURCES__<SOURCE>__")):
        row = re.search(rf"^\| `{name}` \| .+ \| (.*) \|$", SETTINGS, re.MULTILINE)
        assert row and row[1], name


def test_the_reference_says_which_values_a_setting_takes() -> None:
    """How to log in to brokers was on no page."""
    for name, choices in CHOICES.items():
        rows = re.findall(rf"^\| `LAKEHOUSE_\S+__{name}` \| .+$", SETTINGS, re.MULTILINE)
        assert rows and all(f"`{choice}`" in row for row in rows for choice in choices), name


def test_the_defaults_in_the_reference_are_those_of_the_settings() -> None:
    units = {"": 1, " MiB": 1024**2, " GiB": 1024**3}
    stated = re.findall(
        r"^\| `LAKEHOUSE_(STACK_|)(\w+?)(?:__(\w+))?` \| ([0-9.]+)( MiB| GiB|)(?:, set by `up`)? \|",
        SETTINGS,
        re.MULTILINE,
    )
    assert len(stated) > 20
    for stack, section, name, number, unit in stated:
        fields = StackSettings.model_fields if stack else Settings.model_fields
        if name.startswith("MAIL__"):
            fields, name = MailSettings.model_fields, name.removeprefix("MAIL__")
        elif name:
            kind = fields[section.lower()].annotation
            assert kind is not None and issubclass(kind, BaseModel)
            fields = kind.model_fields
        default = fields[(name or section).lower()].default
        assert default == float(number) * units[unit], f"{stack}{section} {name}: {default}"


def test_every_key_of_a_policy_is_in_the_declaration_reference() -> None:
    page = (PROJECT_DIR / "docs" / "declarations.md").read_text()
    for model in Policy.__subclasses__():
        if model.__module__ == Policy.__module__:
            assert [name for name in model.model_fields if not re.search(rf"\b{name}\b", page)] == [], model


def test_every_variable_that_a_page_names_is_a_setting() -> None:
    known = {*SETTING_NAMES, "LAKEHOUSE_CONFIG", "LAKEHOUSE_TEST_HOME", "LAKEHOUSE_STACK_", "LAKEHOUSE_TRINO_INTERNAL"}
    for page in PAGES:
        for name in re.findall(r"LAKEHOUSE_[A-Z0-9_]+", page.read_text()):
            assert name in known or name.startswith("LAKEHOUSE_SOURCES__"), f"{page.name} names {name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(PROJECT_DIR)))
def test_every_command_that_a_page_names_exists(page: Path) -> None:
    for command in re.findall(r"(?:^|`|bin/)lakehouse ([a-z]+(?:-[a-z]+)*)", page.read_text(), re.MULTILINE):
        assert command in COMMANDS, f"{page.name} names `lakehouse {command}`"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(PROJECT_DIR)))
def test_every_link_leads_to_a_file(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if not target.startswith(("http://", "https://")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(PROJECT_DIR)))
def test_every_link_into_a_page_leads_to_a_heading(page: Path) -> None:
    for target, heading in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text()):
        lines = re.findall(r"^#+ (.+)$", (page.parent / target if target else page).read_text(), re.MULTILINE)
        anchors = {re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in lines}
        assert heading in anchors, f"{page.name} links to {target}#{heading}"


def test_the_menu_of_the_site_names_every_page() -> None:
    """`make docs-site`, which needs the package index, refuses one that it does not name."""
    docs = PROJECT_DIR / "docs"
    pages = {str(page.relative_to(docs)) for page in docs.rglob("*.md")}
    named = set(re.findall(r"[\w/.-]+\.md", (PROJECT_DIR / "mkdocs.yml").read_text()))
    assert pages <= named


def test_the_reference_names_every_command() -> None:
    page = (PROJECT_DIR / "docs" / "reference" / "commands.md").read_text()
    for command in COMMANDS:
        assert f"\n### lakehouse {command}\n" in page, command


def test_every_test_that_a_guarantee_names_exists() -> None:
    tests = "\n".join(path.read_text() for path in (PROJECT_DIR / "tests").rglob("test_*.py"))
    defined = set(re.findall(r"^def (test_\w+)", tests, re.MULTILINE))
    for page in ("guarantees.md", "security.md"):
        named = set(re.findall(r"`(test_\w+)`", (PROJECT_DIR / "docs" / page).read_text()))
        assert named and named - defined == set(), page


def test_what_is_shown_with_a_connector_or_a_broker_is_a_test_with_one() -> None:
    page = (PROJECT_DIR / "docs" / "guarantees.md").read_text()
    [part] = re.findall(r"^### Shown with a real connector\n(.*?)^## ", page, re.MULTILINE | re.DOTALL)
    files = {path: path.read_text() for path in (PROJECT_DIR / "tests").rglob("test_*.py")}
    has = {
        "with Debezium and a broker": r"^from tests\.debezium(?:_world)? import",
        "with a broker": r"^from tests\.brokers import",
        "without servers": "",
    }
    [head, _, *rows] = [[cell.strip() for cell in line.split("|")[1:-1]] for line in part.splitlines() if "|" in line]
    assert len(rows) == 25 and head[1:] == list(has)
    for need, *cells in rows:
        for (kind, pattern), cell in zip(has.items(), cells, strict=True):
            is_unit = kind == "without servers"
            there = {
                name
                for path, text in files.items()
                if ("unit" in path.parts) == is_unit and re.search(pattern, text, re.MULTILINE)
                for name in re.findall(r"^def (test_\w+)", text, re.MULTILINE)
            }
            named = set(re.findall(r"`(test_\w+)`", cell))
            assert (named or cell == "–") and named <= there, (need, kind, named - there)


def test_the_page_has_every_maintenance_action_as_the_registry_tells_it() -> None:
    page = (PROJECT_DIR / "docs" / "operations.md").read_text()
    assert with_actions(page) == page and all(f"| `{action.name}` | `{action.part}` |" in page for action in ACTIONS)


def _blocks(page: str, language: str) -> list[str]:
    text = (PROJECT_DIR / "docs" / page).read_text()
    return [textwrap.dedent(block) for block in re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)]


@pytest.mark.slow
def test_the_declaration_of_the_how_to_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings beside it are, too."""
    monkeypatch.delenv("LAKEHOUSE_CONFIG", raising=False)
    monkeypatch.setenv("LAKEHOUSE_HOME", str(tmp_path / "home"))
    create_project(tmp_path / "shop")
    monkeypatch.chdir(tmp_path / "shop")
    (declaration,), (connection,) = (
        _blocks("how-to/add-a-table.md", "yaml"),
        _blocks("how-to/add-a-database.md", "toml"),
    )
    Path("dbt_project/models/sources/shop.yml").write_text(declaration)
    Path("lakehouse.toml").write_text(connection)
    settings = load_settings()
    (table,) = load_declarations(settings).tables
    assert (table.source, table.name, table.raw.exclude) == ("shop", "orders", ("card_number",))
    assert settings.source("shop").owner_url is not None


MANIFESTS = list(yaml.safe_load_all((PROJECT_DIR / "docker" / "kubernetes.yaml").read_text()))
DEPLOYMENTS = {each["metadata"]["name"]: each for each in MANIFESTS if each["kind"] == "Deployment"}


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_a_manifest_runs_commands_with_settings_and_mounts_what_it_has(name: str) -> None:
    pod = DEPLOYMENTS[name]["spec"]["template"]["spec"]
    volumes = {volume["name"] for volume in pod["volumes"]}
    for container in (*pod["containers"], *pod.get("initContainers", [])):
        program, command, *_ = container["args"]
        assert program != "lakehouse" or command in COMMANDS
        named = {variable["name"] for variable in container.get("env", [])} - {"LAKEHOUSE_CODE_SOCKET"}
        assert named <= set(SETTING_NAMES)
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes


def test_what_the_manifests_set_are_settings_and_every_secret_of_theirs_is_there_or_told_of() -> None:
    page = (PROJECT_DIR / "docs" / "how-to" / "kubernetes.md").read_text()
    made = {each["metadata"]["name"]: each for each in MANIFESTS if each["kind"] in ("Secret", "ConfigMap")}
    for each in MANIFESTS:
        for name in each.get("data", each.get("stringData", {})):
            known = name in SETTING_NAMES or name.startswith("LAKEHOUSE_SOURCES__")
            assert known or name in ("LAKEHOUSE_SECRETS_DIR", "DAGSTER_POSTGRES_URL"), name
    for name in re.findall(r"(?:secretName|secretRef: {name|configMapRef: {name): ([\w-]+)", _manifest_text()):
        assert name in made or f"`{name}`" in page, name


def test_the_watch_of_the_manifests_sees_dagster() -> None:
    """It had a variable that no setting reads, so no failed run or check was told."""
    [watch] = DEPLOYMENTS["lakehouse-watch"]["spec"]["template"]["spec"]["containers"]
    [storage] = [variable for variable in watch["env"] if variable["name"] == "LAKEHOUSE_DAGSTER__STORAGE_URL"]
    key = storage["valueFrom"]["secretKeyRef"]
    [secret] = [each for each in MANIFESTS if each["kind"] == "Secret" and each["metadata"]["name"] == key["name"]]
    assert secret["stringData"][key["key"]].startswith("postgresql://")


def test_every_process_of_the_manifests_that_has_metrics_has_a_port_for_them() -> None:
    """The worker had none, so load times were empty, and the rule of late tests never spoke."""
    containers = [each for pod in DEPLOYMENTS.values() for each in pod["spec"]["template"]["spec"]["containers"]]
    for name, whose in (("follower", "FOLLOWER"), ("watch", "WATCH"), ("worker", "WORKER")):
        [container] = [each for each in containers if each["name"] == name]
        [port] = [each["value"] for each in container["env"] if each["name"] == f"LAKEHOUSE_METRICS__{whose}_PORT"]
        assert container["ports"] == [{"name": "metrics", "containerPort": int(port)}], name


def test_the_web_server_of_the_manifests_sees_dagster() -> None:
    """For the checks of the page at /lake."""
    containers = DEPLOYMENTS["lakehouse-dagster"]["spec"]["template"]["spec"]["containers"]
    [web] = [container for container in containers if container["name"] == "webserver"]
    assert {"secretRef": {"name": "lakehouse-dagster"}} in web["envFrom"]


def _manifest_text() -> str:
    return (PROJECT_DIR / "docker" / "kubernetes.yaml").read_text()


def test_the_units_of_the_how_to_are_valid_and_run_commands_that_exist(tmp_path: Path) -> None:
    """systemd reads them where it is installed; the program that they start need not be there for that."""
    units = {re.findall(r"system/(\S+)", unit)[0]: unit for unit in _blocks("how-to/single-server.md", "ini")}
    program = tmp_path / "lakehouse"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    for name, unit in units.items():
        (tmp_path / name).write_text(unit.replace("/srv/lakehouse/.venv/bin/lakehouse", str(program)))
        for command in re.findall(r"^Exec\w+=\S+/lakehouse ([a-z-]+)", unit, re.MULTILINE):
            assert command in COMMANDS
    assert len(units) == 4
    if systemd := shutil.which("systemd-analyze"):
        paths = [str(tmp_path / name) for name in units]
        checked = subprocess.run([systemd, "verify", *paths], capture_output=True, text=True, check=False)
        said = [line for line in checked.stderr.splitlines() if str(tmp_path) in line or "lakehouse" in line]
        assert said == []

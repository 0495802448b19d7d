"""The documentation names commands, settings and files: those have to exist."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

from lakehouse.declarations.policies import Policy
from lakehouse.settings import PROJECT_DIR, Settings, SourceSettings
from lakehouse_cli.commands import COMMANDS
from lakehouse_stack.home.config import StackSettings
from maintenance.actions.docs import with_actions
from maintenance.actions.registry import ACTIONS

PAGES = sorted(path for pattern in ("*.md", "docs/**/*.md", "docker/**/*.md") for path in PROJECT_DIR.glob(pattern))
README = (PROJECT_DIR / "README.md").read_text()
# Shared by all pages, or written as "…" in the settings table.
SPELLED_SHORT = re.compile(r"LAKEHOUSE_STACK_(CATALOG|S3|TRINO|SERVE|DAGSTER)_PORT")


def _variables(model: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _variables(field.annotation, f"{prefix}{name.upper()}__")
        elif name != "sources":
            yield f"{prefix}{name.upper()}"


def test_every_setting_is_in_the_table_of_the_readme() -> None:
    names = [*_variables(Settings, "LAKEHOUSE_"), *_variables(StackSettings, "LAKEHOUSE_STACK_")]
    names += _variables(SourceSettings, "LAKEHOUSE_SOURCES__<SOURCE>__")
    missing = [name for name in names if f"`{name}`" not in README and not SPELLED_SHORT.fullmatch(name)]
    assert missing == []


def test_the_defaults_in_the_readme_are_those_of_the_settings() -> None:
    units = {"": 1, " MiB": 1024**2, " GiB": 1024**3}
    stated = re.findall(
        r"^\| `LAKEHOUSE_(STACK_|)(\w+?)(?:__(\w+))?` \| ([0-9.]+)( MiB| GiB|) \|", README, re.MULTILINE
    )
    assert len(stated) > 8
    for stack, section, name, number, unit in stated:
        fields = StackSettings.model_fields if stack else Settings.model_fields
        if name:
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
    known = {*_variables(Settings, "LAKEHOUSE_"), *_variables(StackSettings, "LAKEHOUSE_STACK_")}
    known |= {"LAKEHOUSE_CONFIG", "LAKEHOUSE_TEST_HOME", "LAKEHOUSE_STACK_"}
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


def test_the_readme_names_every_command() -> None:
    for command in COMMANDS:
        assert f"`{command}" in README or f"lakehouse {command}" in README, command


def test_every_test_that_a_guarantee_names_exists() -> None:
    tests = "\n".join(path.read_text() for path in (PROJECT_DIR / "tests").rglob("test_*.py"))
    defined = set(re.findall(r"^def (test_\w+)", tests, re.MULTILINE))
    for page in ("guarantees.md", "security.md"):
        named = set(re.findall(r"`(test_\w+)`", (PROJECT_DIR / "docs" / page).read_text()))
        assert named and named - defined == set(), page


def test_the_page_has_every_maintenance_action_as_the_registry_tells_it() -> None:
    page = (PROJECT_DIR / "docs" / "operations.md").read_text()
    assert with_actions(page) == page and all(f"| `{action.name}` | `{action.part}` |" in page for action in ACTIONS)

"""What a reader copies from the documentation is accepted: command lines by the command line, declarations and settings
by their models, SQL by a parser of its dialect."""

import re
import shlex
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import sqlglot
import typer
import typer.core
import typer.main
import yaml
from sqlglot import exp

from lakehouse.declarations.dbt.project import ProjectPins
from lakehouse.declarations.policies import MaintenancePolicy, RawPolicy
from lakehouse.declarations.vault.policy import VaultPolicy
from lakehouse.settings import PROJECT_DIR, load_settings
from lakehouse_cli.commands import command_line
from lakehouse_page.asked import Dashboard
from tests.pages import fenced
from tests.unit.test_scaffold import declared

PAGES = [
    page
    for pattern in ("README.md", "CONTRIBUTING.md", "docs/*.md", "docs/how-to/*.md", "docs/adr/*.md")
    for page in sorted(PROJECT_DIR.glob(pattern))
]
COMMANDS = typer.main.get_command(command_line())
IN_BLOCK = re.compile(r"(?:^|[\s=/(])lakehouse ((?:--)?[a-z].*)$")
OF_OTHERS = ("useradd ", "systemctl ", "git clone ", "journalctl ", "su ")  # lines in which `lakehouse` is a name
UsageError = typer.BadParameter.__mro__[1]
ENDS = re.compile(r"\s(?:&&|\|\|?|;|>|2>|&)(?:\s|$)|\)\"|\)$")
INLINE = re.compile(r"(?<!`)`lakehouse ([a-z][^`]*)`")


def of(*languages: str) -> list[Any]:
    return [
        pytest.param(page, block, id=f"{page.relative_to(PROJECT_DIR)}:{page.read_text().count(chr(10), 0, at)}")
        for page in PAGES
        for language, block in fenced(page.read_text())
        if language in languages
        for at in [page.read_text().find(block.strip().splitlines()[0])]
    ]


def command_lines(page: Path) -> Iterator[str]:
    """The commands of a page's blocks, without the program's name and what follows the command."""
    for language, block in fenced(page.read_text()):
        if language in ("", "bash", "ini", "sh"):
            for line in block.replace("\\\n", " ").splitlines():
                if (found := IN_BLOCK.search(line)) and not line.strip().startswith(OF_OTHERS):
                    yield ENDS.split(found[1])[0]


def parse(command: Any, args: list[str]) -> None:
    """Parses a command line and runs nothing; raises UsageError for what the command does not have."""
    with command.make_context(command.name, list(args)) as context:
        left = [*context._protected_args, *context.args] if isinstance(command, typer.core.TyperGroup) else []
        if left:
            _, inner, rest = command.resolve_command(context, left)
            parse(inner, rest)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(PROJECT_DIR)))
def test_every_command_line_of_a_page_is_one(page: Path) -> None:
    for line in command_lines(page):
        try:
            parse(COMMANDS, shlex.split(line, comments=True))
        except typer.Exit:  # such as `--version`
            continue
        except UsageError as error:
            raise AssertionError(f"{page.name}: lakehouse {line}: {error.format_message()}") from None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(PROJECT_DIR)))
def test_every_command_that_a_sentence_names_has_these_options(page: Path) -> None:
    """Arguments, and the value of an option, may be left out of a sentence."""
    for line in INLINE.findall(page.read_text().replace("\n", " ")):
        args = shlex.split(re.sub(r"<(\w+)>", r"\1", ENDS.split(line)[0]).replace("…", "2026-11-20"), comments=True)
        try:
            parse(COMMANDS, args)
        except typer.Exit:
            continue
        except UsageError as error:
            if re.search("^Missing|requires an argument", error.format_message()):
                continue
            raise AssertionError(f"{page.name}: lakehouse {line}: {error.format_message()}") from None


def test_a_command_line_that_is_none_is_found() -> None:
    for wrong in ("ingest --twice", "reconcile --view orders", "backup", "pin", "maintain nothing", "nothing"):
        with pytest.raises(UsageError):
            parse(COMMANDS, wrong.split())


CHECKED = {
    "vault": lambda text: VaultPolicy.model_validate(text),
    "maintenance": lambda text: MaintenancePolicy.model_validate(text),
    "raw": lambda text: RawPolicy.model_validate(text),
    "pins": lambda text: ProjectPins.model_validate({"pins": text}),
}
CLICKS = {
    "name": "clicks",
    "config": {"meta": {"raw": {"topic": "web.clicks", "format": "json"}, "vault": {"none": "events"}}},
    "columns": [{"name": "id", "data_type": "bigint"}],
}


@pytest.mark.parametrize(("page", "block"), of("yaml"))
def test_every_declaration_of_a_page_is_accepted(page: Path, block: str, tmp_path: Path) -> None:
    for part in re.split(r"\n\n(?=(?:#.*\n)*\w)", block):
        found = yaml.safe_load(part)
        if found is None:
            continue
        found = found.get("vars", found)
        if "sources" in found:
            declared(tmp_path, yaml.safe_dump({"sources": [as_dbt_has_it(source) for source in found["sources"]]}))
        elif "charts" in found or "questions" in found:
            asked = Dashboard.model_validate(found)
            for sql in (*(chart.sql for chart in asked.charts), *(question.sql for question in asked.questions)):
                sqlglot.parse_one(sql, dialect="trino")
        elif "scrape_configs" not in found:  # Prometheus' own
            for name, text in found.items():
                CHECKED[name](text)


def as_dbt_has_it(source: dict[str, Any]) -> dict[str, Any]:
    """A table's own meta over that of its source."""
    tables = deepcopy(source.get("tables", [CLICKS]))
    for table in tables:
        of_source = source.get("config", {}).get("meta", {})
        table["config"] = {"meta": of_source | table.get("config", {}).get("meta", {})}
    return source | {"tables": tables}


BEFORE = {
    "[sources.web.schema_registry]": '[sources.web]\nkind = "kafka"\nbootstrap_servers = "broker:9092"\n',
}


@pytest.mark.parametrize(("page", "block"), of("toml"))
def test_all_settings_of_a_page_are_some(
    page: Path, block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "lakehouse.toml"
    config.touch(mode=0o600)
    before = BEFORE.get(block.splitlines()[0], "")
    config.write_text(before + block)
    if before:  # the page says so
        monkeypatch.setenv("LAKEHOUSE_SOURCES__WEB__SCHEMA_REGISTRY__PASSWORD", "secret")
    monkeypatch.setenv("LAKEHOUSE_CONFIG", str(config))
    monkeypatch.setenv("LAKEHOUSE_HOME", str(tmp_path / "home"))
    settings = load_settings()
    assert settings.sources or settings.alerts.webhook


@pytest.mark.parametrize(("page", "block"), of("sql"))
def test_every_statement_of_a_page_parses(page: Path, block: str) -> None:
    of_postgres = re.search("pg_replication_slots|CREATE ROLE", block)
    dialect = "postgres" if of_postgres else "duckdb" if "ATTACH" in block else "trino"
    text = block.replace("FOR VERSION AS OF …", "FOR VERSION AS OF 1")
    parsed = [each for each in sqlglot.parse(text, dialect=dialect) if each]
    assert parsed and not any(isinstance(each, exp.Command) for each in parsed if dialect == "trino")

"""Commands as they are typed, without a server: options that would not be gone by, settings that are set in part."""

from pathlib import Path

import pytest
import typer
from trino.exceptions import TrinoQueryError
from typer.testing import CliRunner

from ingestion.sources.findings import Finding, Weight
from lakehouse.declarations import Declarations, Source
from lakehouse.declarations.policies import LoadPolicy
from lakehouse.servers.logins import Role
from lakehouse.settings import load_settings
from lakehouse_cli.commands import command_line
from lakehouse_cli.lake.backup import restore_backup
from lakehouse_cli.lake.erase import erase
from lakehouse_cli.lake.sql import _more
from lakehouse_cli.machine.stack import environment
from lakehouse_cli.source.ingest import ingest, prepare
from lakehouse_cli.source.scaffold import scaffold
from lakehouse_stack.control.inspect import inspect

SOURCES = ("bank", "shop")
REFUSED = [
    (erase, ["--repeat", "--end"], "give SOURCE.TABLE and the row's key"),
    (erase, ["a.b", "id=1", "--end", "--dry-run"], "give SOURCE.TABLE and the row's key"),
    (ingest, ["retail", "--pause", "retail.stores"], "--pause names its tables as SOURCE.TABLE"),
    (ingest, ["--follow", "--json"], "omit --json"),
    (ingest, ["--once", "--follow"], "give one of --once"),
    (ingest, ["--recover"], "name the sources"),
    (ingest, ["--once", "--share"], "--share is for --follow"),
    (restore_backup, ["folder", "--warehouse", "--warehouse-kept"], "give one of --warehouse, --warehouse-kept"),
    (scaffold, ["--propose"], "name one"),
    (scaffold, ["retail", "--propose", "--check"], "without --check"),
    (scaffold, ["retail", "--no-vault"], "--no-vault are for a proposal"),
]


@pytest.mark.parametrize(("command", "arguments", "reason"), REFUSED, ids=[" ".join(a) for _, a, _ in REFUSED])
def test_an_option_that_would_be_passed_over_is_refused(command: object, arguments: list[str], reason: str) -> None:
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command()(command)  # type: ignore[arg-type]
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "300"})
    assert result.exit_code == 2 and reason in result.output


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("ingst", "Did you mean 'ingest'"), ("statsu", "Did you mean 'status'"), ("ingest --folow", "--follow")],
)
def test_what_is_misspelt_is_told_with_what_is_meant(typed: str, meant: str) -> None:
    result = CliRunner().invoke(command_line(), typed.split(), env={"COLUMNS": "300"})
    assert result.exit_code == 2 and meant in result.output and "\x1b" not in result.output


def test_where_aws_has_the_keys_the_environment_has_everything_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It said that no stack was configured."""
    monkeypatch.chdir(tmp_path)
    values = environment(load_settings(home=tmp_path, catalog_url="postgresql://me:secret@catalog/lake"))
    assert values["catalog_url"] == "postgresql://me:secret@catalog/lake" and values["warehouse"] == "s3://warehouse/"
    assert not {"s3_access_key", "s3_secret_key", "s3_endpoint"} & values.keys()


def test_the_owner_of_a_database_of_yours_is_not_in_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`lakehouse env` printed the password of whoever may drop the source's tables."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("lakehouse_cli.machine.stack.is_sample", lambda settings, name: name == "bank")
    of = {name: {role: f"postgresql://{role}:secret@db/{name}" for role in ("url", "owner_url")} for name in SOURCES}
    sources = environment(load_settings(home=tmp_path, catalog_url="postgresql://me@c/lake", sources=of))["sources"]
    assert sources == {"bank": "postgresql://owner_url:secret@db/bank", "shop": "postgresql://url:secret@db/shop"}


def test_samples_that_the_project_does_not_declare_are_not_among_its_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The embedded stack serves them to every project, and they were listed beside the project's own."""
    monkeypatch.chdir(tmp_path)
    sources = {name: f"postgresql://me:secret@127.0.0.1:1/{name}" for name in SOURCES}
    monkeypatch.setattr("lakehouse_cli.machine.stack.is_sample", lambda settings, name: name == "bank")

    def listed() -> set[str]:
        of = {name: {"url": url} for name, url in sources.items()}
        settings = load_settings(home=tmp_path, catalog_url="postgresql://me@c/lake", sources=of)
        return set(environment(settings)["sources"])

    assert listed() == {"bank", "shop"}, "there is no project"
    declared = tmp_path / "dbt_project" / "models" / "sources.yml"
    declared.parent.mkdir(parents=True)
    (tmp_path / "dbt_project" / "dbt_project.yml").write_text("name: own")
    assert listed() == {"shop"}
    declared.write_text("sources: [{name: bank, schema: raw_bank, tables: []}]")
    assert listed() == {"bank", "shop"}


@pytest.mark.parametrize(("weight", "status"), [("in the way", 1), ("prepare", 1), ("warning", 0)])
def test_a_check_exits_1_while_something_is_wrong_or_still_to_do(
    monkeypatch: pytest.MonkeyPatch, weight: Weight, status: int
) -> None:
    """It was 0 for a source that was not prepared."""
    found = [Finding("shop", None, "publication", weight, "there is no publication yet", "make it")]
    declared = Declarations(sources=(Source(name="shop", description="", load=LoadPolicy(), tables=()),))
    monkeypatch.setattr("ingestion.sources.kinds.check_source", lambda settings, source: found)
    monkeypatch.setattr("lakehouse_cli.source.ingest.load_declarations", lambda settings: declared)
    monkeypatch.setattr("lakehouse_cli.source.ingest._chosen", lambda *_: ["shop"])
    app = typer.Typer(add_completion=False)
    app.command()(prepare)
    result = CliRunner().invoke(app, ["--check"])
    assert result.exit_code == status and "there is no publication yet" in result.output


def test_servers_that_lakehouse_up_did_not_start_are_not_said_to_be_down(tmp_path: Path) -> None:
    """`lakehouse status` always exited with 1 where all servers were somebody else's."""
    assert inspect(load_settings(home=tmp_path, catalog_url="postgresql://me:secret@catalog/lake")) == ()
    assert {server.trouble for server in inspect(load_settings(home=tmp_path))} == {"down"}


@pytest.mark.parametrize(
    ("said", "role", "more"),
    [
        ("line 1:15: Schema 'parsed' does not exist", "reader", "no load has made it yet: `lakehouse run load_SOURCE`"),
        ("line 1:15: Schema 'parced' does not exist", "reader", ""),
        ("line 1:8: Relation not found or not allowed", "reader", "asked as reader"),
        ("Access Denied: Cannot drop", "writer", ""),
    ],
)
def test_a_query_that_fails_is_told_what_else_is_known(said: str, role: Role, more: str) -> None:
    found = _more(TrinoQueryError({"message": said}), role)
    assert more in found and bool(found) == bool(more)

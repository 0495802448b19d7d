"""Options that a command would not go by are refused before anything is done."""

import pytest
import typer
from typer.testing import CliRunner

from cli.ingest import ingest
from cli.scaffold import scaffold

REFUSED = [
    (ingest, ["retail", "--pause", "retail.stores"], "--pause names its tables as SOURCE.TABLE"),
    (ingest, ["--follow", "--json"], "leave out --json"),
    (ingest, ["--once", "--follow"], "give one of --once"),
    (ingest, ["--recover"], "wants the sources named"),
    (scaffold, ["--propose"], "name one"),
    (scaffold, ["retail", "--propose", "--check"], "without --check"),
]


@pytest.mark.parametrize(("command", "arguments", "reason"), REFUSED, ids=[" ".join(a) for _, a, _ in REFUSED])
def test_an_option_that_would_be_passed_over_is_refused(command: object, arguments: list[str], reason: str) -> None:
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command()(command)  # type: ignore[arg-type]
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "300"})
    assert result.exit_code == 2 and reason in result.output

"""`lakehouse completion`: the scripts are given to the shells themselves, where the machine has them."""

import shutil
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lakehouse_cli.commands import COMMANDS, command_line
from lakehouse_cli.completion import Shell

WANTED = [
    ("", ["maint"], ["maintain"]),
    ("maintain --dry-run", ["pi"], ["pin", "pins"]),
    ("user add", ["--r"], ["--role"]),
    ("user add somebody", ["--h"], ["--help"]),
    ("ingest retail", ["--fo"], ["--follow"]),
]


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the script of each shell."""
    folder = tmp_path_factory.mktemp("completion")
    app = command_line()
    for shell in Shell:
        printed = CliRunner().invoke(app, ["completion", shell.value])
        assert printed.exit_code == 0
        (folder / shell.value).write_text(printed.stdout)
    return folder


def _said(*command: str | Path) -> list[str]:
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [line.split("\t")[0] for line in done.stdout.split("\n") if line]


@pytest.mark.parametrize(("typed", "word", "wanted"), WANTED)
def test_bash_completes_commands_and_options(scripts: Path, typed: str, word: list[str], wanted: list[str]) -> None:
    words = ["lakehouse", *typed.split(), *word]
    bash = f"source {scripts}/bash; COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; _lakehouse lakehouse"
    assert _said("bash", "--norc", "-c", f'{bash}; printf "%s\\n" "${{COMPREPLY[@]}}"') == wanted


@pytest.mark.skipif(shutil.which("fish") is None, reason="no fish on this machine")
@pytest.mark.parametrize(("typed", "word", "wanted"), WANTED)
def test_fish_completes_commands_and_options(scripts: Path, typed: str, word: list[str], wanted: list[str]) -> None:
    line = " ".join(["lakehouse", *typed.split(), *word])
    assert _said("fish", "--no-config", "-c", f"source {scripts}/fish; complete -C '{line}'") == wanted


@pytest.mark.skipif(shutil.which("zsh") is None, reason="no zsh on this machine")
def test_zsh_takes_the_script(scripts: Path) -> None:
    assert _said("zsh", "-f", "-c", f"source {scripts}/zsh; print $_comps[lakehouse]") != []


def test_every_command_is_completed(scripts: Path) -> None:
    for shell in Shell:
        script = (scripts / shell.value).read_text()
        assert [name for name in COMMANDS if f'" {name}"' not in script] == [], shell

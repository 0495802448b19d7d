"""`lakehouse demo`, without a server."""

from pathlib import Path

import pytest

from lakehouse.errors import LakehouseError
from lakehouse_cli.machine import demo
from lakehouse_project import create_project


@pytest.fixture(autouse=True)
def parsed(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKEHOUSE_HOME", str(home))


def test_a_project_of_ones_own_is_refused_before_anything_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It started the stack and loaded the samples, and then stopped, as nothing declares them."""
    run = list[tuple[str, ...]]()
    monkeypatch.setattr(demo, "_run", run.append)
    create_project(tmp_path / "shop")
    monkeypatch.chdir(tmp_path / "shop")
    with pytest.raises(LakehouseError, match=r"shop is not the project of the demo.* retail, .*: run `make demo` in a"):
        demo.demo()
    assert run == []


def test_ctrl_c_says_what_runs_and_how_to_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(command: tuple[str, ...]) -> None:
        if command == ("samples",):
            raise KeyboardInterrupt

    monkeypatch.setattr(demo, "_run", run)
    with pytest.raises(KeyboardInterrupt):
        demo.demo()
    assert capsys.readouterr().err == (
        "in 'samples'; what was started keeps running. Run it again to go on; `lakehouse down` stops\n"
    )


def test_the_end_names_commands_that_an_installation_has(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`make dev`, which needs the Makefile of a checkout."""
    monkeypatch.setattr(demo, "_run", lambda command: None)
    demo.demo()
    end = capsys.readouterr().out.splitlines()[-1]
    assert "`lakehouse dev`" in end and "`lakehouse down`" in end and "make" not in end

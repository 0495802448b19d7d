"""`lakehouse demo`, without a server."""

import pytest

from lakehouse_cli.machine import demo


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

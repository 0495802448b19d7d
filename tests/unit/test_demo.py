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
        "in 'samples'; what was started keeps running. Run it again to go on; `make down` stops\n"
    )

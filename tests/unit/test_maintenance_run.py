"""An interrupted run lets end what is at work, begins nothing else, and forgets nothing; no option goes unheard."""

import signal
import threading

import pytest
from typer.testing import CliRunner

from maintenance.command import _interrupts_told, app
from maintenance.run import WORKERS, a_few_at_a_time


def test_what_is_at_work_ends_and_nothing_else_is_begun() -> None:
    at_work = threading.Barrier(WORKERS)
    begun: list[int] = []
    ended: list[int] = []

    def work(item: int, stopped: threading.Event) -> None:
        begun.append(item)
        if item == 0:
            at_work.wait(10)
            raise KeyboardInterrupt
        if item < WORKERS:
            at_work.wait(10)
        assert stopped.wait(10), "the others are told"
        ended.append(item)

    with pytest.raises(KeyboardInterrupt):
        a_few_at_a_time(work, range(50))
    assert sorted(ended) == [item for item in sorted(begun) if item != 0]
    assert len(begun) <= WORKERS + 1, "one may begin before the interrupt is seen"


def test_an_interrupt_says_why_the_command_does_not_end_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), _interrupts_told():
        signal.raise_signal(signal.SIGINT)
    assert "interrupted: what is at work ends first" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGINT) == before


@pytest.mark.parametrize("option", [["--dry-run"], ["--table", "vault.hub"], ["--group", "hourly"], ["--json"]])
def test_an_option_before_the_command_is_refused_rather_than_passed_over(option: list[str]) -> None:
    """`maintain --dry-run compact` compacted every table."""
    result = CliRunner().invoke(app, [*option, "compact"])
    assert result.exit_code == 2 and "options stand behind the command" in result.output

"""An interrupted run lets end what is at work, begins nothing else, and forgets nothing; no option goes unheard."""

import signal
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest
from typer.testing import CliRunner

from lakehouse.declarations.policies import MaintenancePolicy
from lakehouse.errors import LakehouseError
from maintenance.command.maintain import _interrupts_told, app
from maintenance.inventory.declared import MaintainedTable
from maintenance.inventory.outcome import Outcome, TableName
from maintenance.planning.plan import Allowance, Case, Plan, Step
from maintenance.planning.survey import Survey
from maintenance.runner import maintain
from maintenance.runner.maintain import Prepared, act
from maintenance.runner.probes import probed
from maintenance.runner.run import ACTIONS, WORKERS, a_few_at_a_time

NAME = TableName("vault", "hub")
POLICY = MaintenancePolicy.model_validate(
    {"schedule_group": "nightly", "compact": {"target_file_size_mb": 128, "min_input_files": 5}, "probe": {"key": "id"}}
)


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
    assert "interrupted: finishing and recording the current steps" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGINT) == before


class Unreadable:
    """A session with a table whose metadata file is gone."""

    dry_run = False

    def load(self, name: TableName) -> None:
        raise FileNotFoundError(f"s3://w/{name}.metadata.json")

    refresh = load


@pytest.mark.parametrize("status", ["failed", "done"])
def test_a_table_that_cannot_be_read_is_not_probed_and_its_action_tells_it(status: Any) -> None:
    """The probe's own look ended the run, and with it what was to be done to all tables behind."""
    compact = probed(lambda *_: Outcome("compact", NAME, status, "rewrites 6 files"))
    outcome = compact(cast(Any, Unreadable()), NAME, POLICY)
    assert outcome.status == status
    assert ("not probed: FileNotFoundError" in outcome.reason) == (status == "done")


def test_whatever_a_table_does_to_a_run_the_others_have_their_turn_and_what_was_done_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def compact(session: Any, name: TableName, policy: Any) -> Outcome:
        if name.name == "broken":
            raise FileNotFoundError("s3://w/broken.metadata.json")
        if name.name == "down":
            raise LakehouseError("Trino does not answer")
        return Outcome("compact", name, "done", "rewrites 6 files")

    monkeypatch.setitem(ACTIONS, "compact", compact)
    tables = [MaintainedTable(TableName("vault", name), POLICY) for name in ("broken", "down", "hub")]
    steps = [Step(table, "compact", "", 0, 0.0, 0.0, "", 0.0, 0) for table in tables]
    prepared = Prepared(Plan(tuple(steps), (), ()), {"nightly": Allowance("n", 1e12, "")}, (), 0.0, 0.0)
    outcomes = act(cast(Any, Unreadable()), steps, prepared, lambda outcome: None)
    broken, down, hub = sorted(outcomes, key=lambda outcome: outcome.table)
    assert (broken.status, broken.error) == ("failed", "FileNotFoundError: s3://w/broken.metadata.json")
    assert (down.status, down.error) == ("failed", "Trino does not answer")
    assert broken.started_at and down.started_at, "the history is read by it"
    assert hub.status == "done" and hub.reason.startswith("rewrites 6 files; then the table could not be read")


@pytest.mark.parametrize("option", [["--dry-run"], ["--table", "vault.hub"], ["--group", "hourly"], ["--json"]])
def test_an_option_before_the_command_is_refused_rather_than_passed_over(option: list[str]) -> None:
    """`maintain --dry-run compact` compacted every table."""
    result = CliRunner().invoke(app, [*option, "compact"])
    assert result.exit_code == 2 and "options follow the command" in result.output


def test_a_table_that_keeps_an_action_from_all_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    known, other = (Outcome("clean_dbt_temporary", TableName("a", name), "failed", error="") for name in ("b", "c"))
    case = Case(MaintainedTable(known.table, POLICY), None, "its metadata cannot be read")
    project: Any = SimpleNamespace(groups={}, max_failed_share=0.0)
    monkeypatch.setattr(maintain, "survey", lambda *_: Survey((case,), (), project))
    monkeypatch.setattr(maintain, "hindrances_for", lambda session, name, names: [] if names else [known, other])
    session: Any = SimpleNamespace(now=None)
    told = maintain.prepare(session).unmeasured
    assert [(outcome.action, outcome.table.name) for outcome in told] == [
        ("measure", "b"),
        ("clean_dbt_temporary", "c"),
    ]
    assert [outcome.action for outcome in maintain.prepare(session, ["a.b"]).unmeasured] == ["measure"]

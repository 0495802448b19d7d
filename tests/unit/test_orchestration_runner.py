"""The output of `lakehouse run`: one line per fact, and one for an error."""

import json
import subprocess
from datetime import date
from pathlib import Path

import pytest

from lakehouse.errors import LakehouseError
from lakehouse_cli.lake.run import _days, run
from orchestration.assets.dbt_resource import environment
from orchestration.runner import Outcome
from orchestration.runs.arrivals import Aside
from orchestration.runs.failures import one_line
from orchestration.runs.progress import only_progress

DBT = """dagster_dbt.errors.DagsterDbtCliRuntimeError: The dbt CLI process with command

`dbt build`

failed with exit code `1`.

Errors parsed from dbt logs:

5 of 10 ERROR creating sql append_only model vault.hub_store ...... [ERROR in 3.66s]

  Database Error in model hub_store (models/vault/hub_store.sql)
  TrinoUserError(type=USER_ERROR, message="no such column")
"""


def test_of_dbts_pages_the_first_error_is_shown() -> None:
    assert one_line(DBT) == (
        "Database Error in model hub_store (models/vault/hub_store.sql): "
        'TrinoUserError(type=USER_ERROR, message="no such column")'
    )


def test_other_errors_are_their_first_line() -> None:
    assert one_line("LakehouseError: no slot\n  at x\n") == "LakehouseError: no slot"
    assert one_line("\n") == "no message"


def test_a_day_or_a_range_is_derived_again() -> None:
    first, last = date(2026, 5, 1), date(2026, 5, 3)
    assert _days(None, None, None) is None
    assert _days(first, None, None) == (first, first)
    assert _days(None, first, last) == (first, last)
    for wrong in ((first, first, None), (None, first, None), (None, None, last), (None, last, first)):
        with pytest.raises(LakehouseError):
            _days(*wrong)


def test_a_load_that_left_tables_out_says_so_in_its_last_lines_and_exits_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    aside = tuple(Aside(f"shop.{name}", "parked", "too wide") for name in ("orders", "stores"))
    done = [Outcome("load_shop", "12345678-9", True, 1.0, None, aside), Outcome("build_marts", "2", True, 1.0, None)]
    monkeypatch.setattr("orchestration.runner.run_jobs", lambda *_, **__: done)
    monkeypatch.setattr("lakehouse_stack.home.instance.ensure_instance", lambda settings: None)
    with pytest.raises(LakehouseError) as said:
        run(["load_shop", "build_marts"], None, None, None, json=True)
    assert said.value.args == tuple(
        f"load_shop: run 12345678: shop.{name} is parked: too wide; then `lakehouse ingest --resume shop.{name}`"
        for name in ("orders", "stores")
    )
    [load, _] = json.loads(capsys.readouterr().out)
    assert load["success"] and load["aside"][0] == {"table": "shop.orders", "state": "parked", "reason": "too wide"}
    done[0] = Outcome("load_shop", "1", True, 1.0, None)
    run(["load_shop", "build_marts"], None, None, None)


def test_only_progress_reaches_the_terminal(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with only_progress(tmp_path / "logs" / "run.log", to_stderr=False) as say:
        subprocess.run(["echo", "a line of dbt"], check=True)
        say("load_retail …")
    assert capfd.readouterr().out == "load_retail …\n"
    assert "a line of dbt" in (tmp_path / "logs" / "run.log").read_text()


def test_dbts_variables_do_not_outlive_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    monkeypatch.setenv("LAKEHOUSE_DAY_FROM", "kept")
    monkeypatch.delenv("LAKEHOUSE_DAY_TO", raising=False)
    with environment({"LAKEHOUSE_DAY_FROM": "2026-05-01", "LAKEHOUSE_DAY_TO": "2026-05-02"}):
        assert os.environ["LAKEHOUSE_DAY_TO"] == "2026-05-02"
    assert os.environ["LAKEHOUSE_DAY_FROM"] == "kept"
    assert "LAKEHOUSE_DAY_TO" not in os.environ

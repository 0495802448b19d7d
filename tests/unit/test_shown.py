"""What reaches a terminal, a log or a pipe: text of a source is read there and does nothing else."""

import io
import json
import logging
import subprocess
import sys
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from lakehouse.errors import LakehouseError
from lakehouse.text import shown
from lakehouse.text.shown import LineFormatter, busy, cell, console, lines, print_table, say, say_json, table, visible
from lakehouse_cli.machine.foreground import Command, _Child, _copy
from tests.hostile import FORGED, effects, names

TEXTS = st.one_of(st.sampled_from(names(1, 400)), st.text(max_size=80))


@given(TEXTS)
def test_no_text_does_anything_where_it_is_shown(text: str) -> None:
    assert not list(effects(visible(text), of_ours="")) and visible(visible(text)) == visible(text)
    assert str(LakehouseError(f"no table {text}")) == f"no table {visible(text)}"
    assert not list(effects(lines(text))) and lines(text).count("\n") == text.count("\n")
    visible(text).encode()  # a lone surrogate would end in a traceback


@pytest.mark.parametrize("text", ["Größe 5 € 日本語", "👨\u200d👩\u200d👧 می\u200cخواهم", "it's [not] {{markup}} \\d"])
def test_text_that_does_nothing_stays_as_it_is(text: str) -> None:
    assert visible(text) == text


@given(st.lists(TEXTS, min_size=1, max_size=3))
def test_a_cell_of_a_table_is_no_markup(texts: list[str]) -> None:
    """`[/x]` in a value ended `lakehouse sql` with a traceback."""
    file = io.StringIO()
    Console(file=file, width=4000, markup=True).print(table(["x", "y"], [(text, 1) for text in texts]))
    shown = file.getvalue()
    assert not list(effects(shown)) and len(shown.splitlines()) == len(texts) + 1
    assert all(visible(text).strip() in shown for text in texts)


MANY = [f"column_{n}" for n in range(45)]


def printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], width: int, is_terminal: bool, *what: Any
) -> list[str]:
    made = partial(Console, width=width, force_terminal=is_terminal, markup=False, color_system=None)
    monkeypatch.setattr(shown, "console", made)
    print_table(*what)
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("value", ["x", "longer-than-the-width-of-a-pipe-" * 7])
def test_a_pipe_gets_every_column_and_every_value_whole(
    value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of 45 columns one was printed at a width of 80, and nothing said so."""
    head, row = printed(monkeypatch, capsys, 80, False, MANY, [[value] * 45])
    assert head.split() == MANY and row.split() == [value] * 45


@pytest.mark.parametrize("width", [20, 80, 200, 450])
def test_a_terminal_gets_every_column_in_a_table_or_in_lines(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    values = [[f"row {n} value {column}" for column in MANY] for n in range(2)]
    found = printed(monkeypatch, capsys, width, True, MANY, values)
    if width == 450:  # 45 columns of eight letters, each of several lines
        assert max(map(len, found)) <= width and "".join(found[:2]).count("column_") == 45
        return
    assert found[0] == "-[ row 1 ]-" and found[1] == "column_0   row 0 value column_0"
    assert len(found) == 2 * 46 and found[-1] == "column_44  row 1 value column_44"


def test_a_terminal_folds_long_columns_and_leaves_short_ones(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [["id7", "x" * 60, "y" * 60, 5]]
    found = printed(monkeypatch, capsys, 50, True, ["id", "a", "b", "n"], rows, ["id"], ["n"])
    assert found[0].split() == ["id", "a", "b", "n"] and found[1].startswith("id7  x") and len(found) == 5
    assert "".join(found).count("x") == "".join(found).count("y") == 60


def test_a_table_without_rows_or_columns_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert printed(monkeypatch, capsys, 20, True, MANY, [])[0].split() == MANY
    assert not "".join(printed(monkeypatch, capsys, 20, True, [], []))
    assert printed(monkeypatch, capsys, 20, True, ["a", "b"], [[1, 2]]) == ["a  b", "1  2"]


@given(TEXTS)
def test_what_is_at_work_is_no_markup(text: str) -> None:
    out = console(error=True)
    with busy(out, text) as now:
        now(text)
    assert cell(text).plain == visible(text)


@given(TEXTS)
def test_json_is_ascii_on_one_line_and_says_the_text(text: str) -> None:
    out, sys.stdout = sys.stdout, io.StringIO()
    try:
        say_json({text: text})
        printed = sys.stdout.getvalue()
    finally:
        sys.stdout = out
    assert printed.isascii() and not list(effects(printed)) and printed.count("\n") == 1
    assert json.loads(printed) == {text: text}


def test_a_line_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    say("table", "a\nb\x1b[2J", error=True)
    assert capsys.readouterr().err == "table a\\nb\\x1b[2J\n"


@given(TEXTS)
def test_no_name_forges_a_record_of_a_log(text: str) -> None:
    try:
        raise ValueError(f"{text}\n{FORGED}")
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, "f", 1, "table %s", (f"{text}\n{FORGED}",), sys.exc_info())
    logged = LineFormatter("%(asctime)s %(levelname)s %(message)s").format(record)
    assert not list(effects(logged))
    assert not [line for line in logged.split("\n")[1:] if not line.startswith("  ")]


def test_a_log_of_a_child_process_is_text(tmp_path: object, capsys: pytest.CaptureFixture[str]) -> None:
    child = _Child(Command("x", (), tmp_path / "x.log"), "36")  # type: ignore[operator]
    _copy(child, io.BytesIO(b"\x1b[32mfine\x1b[0m \x1b]52;c;eA==\x07 \xe2\x80\xae\xff\n"))
    assert capsys.readouterr().out == "x         fine \\x1b]52;c;eA==\\x07 \\u202e\ufffd\n"
    assert not list(effects((tmp_path / "x.log").read_text()))  # type: ignore[operator]


def test_a_warning_before_any_log_is_set_up_is_one_line() -> None:
    """`lakehouse ingest --once` names who holds it up: Python's last resort printed that as it was."""
    code = (
        "import logging, sys; sys.argv = ['lakehouse', '--version']; import lakehouse_cli.main as main\n"
        "try: main.main()\nexcept SystemExit: logging.getLogger('x').warning('held by %s', 'a\\nb\\x1b[2J')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stderr == "held by a\\nb\\x1b[2J\n"


def test_a_traceback_is_text(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from lakehouse_cli import commands, main

    def broken() -> None:
        raise ValueError("a value \x1b[2J\u202e\u2028error: forged")

    app = type("App", (), {"__call__": lambda self: broken(), "callback": commands.app.callback})()
    monkeypatch.setattr(commands, "app", app)
    monkeypatch.setattr(commands, "COMMANDS", {})
    monkeypatch.setattr(main.signal, "signal", lambda *handler: None)
    with pytest.raises(SystemExit):
        main.main()
    told = capsys.readouterr().err
    assert (
        "ValueError: a value \\x1b[2J\\u202e\\u2028error: forged" in told
        and "Traceback" in told
        and not list(effects(told))
    )

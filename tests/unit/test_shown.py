"""What reaches a terminal, a log or a pipe: text of a source is read there and does nothing else."""

import io
import json
import logging
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from lakehouse.errors import LakehouseError
from lakehouse.text.shown import LineFormatter, busy, cell, console, lines, say, say_json, table, visible
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

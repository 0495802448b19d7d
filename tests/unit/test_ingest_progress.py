"""What `lakehouse ingest` says of long work where there is no terminal."""

import io
import threading
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from rich.console import Console

from ingestion.state.progress import Progress
from lakehouse.settings import load_settings
from lakehouse_cli.source import progress
from lakehouse_cli.source.progress import doing, shown

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
HALF = Progress("changes", 5, 10, 1000, BEGAN, BEGAN + timedelta(seconds=10))


def test_what_is_done_is_told_in_words() -> None:
    assert doing(HALF, "host:1:2", 3) == "waiting for its writer host:1:2"
    assert doing(HALF, None, 3) == "changes, 1,000 rows"
    assert doing(None, None, 3) == "comparing tables with the source, 3 left"
    assert doing(None, None, 0) == ""


def test_long_work_is_told_once_for_each_kind_where_there_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first `ingest` after a restore said nothing for minutes."""
    over = threading.Event()
    answers = [
        (None, ""), psycopg.OperationalError("away"), (None, "comparing tables with the source, 3 left"),
        (None, "comparing tables with the source, 2 left"), (HALF, "changes, 1,000 rows"),
    ]  # fmt: skip

    def now(*_: object) -> tuple[Progress | None, str]:
        if not answers:
            over.set()
            return HALF, "changes, 1,000 rows"
        if isinstance(answer := answers.pop(0), Exception):
            raise answer
        return answer

    monkeypatch.setattr(progress, "QUIET_SECONDS", 0.01)
    monkeypatch.setattr(progress, "_now", now)
    with shown(load_settings(), Console(file=io.StringIO())) as show, show("shop"):
        assert over.wait(10)
    said = capsys.readouterr()
    assert said.err.splitlines() == [
        "ingesting shop, for 0 s",
        "ingesting shop: comparing tables with the source, 3 left, for 0 s",
        "ingesting shop: changes, 1,000 rows, 100 rows/s, 0:10 left",
    ]
    assert said.out == "", "that is for machines"

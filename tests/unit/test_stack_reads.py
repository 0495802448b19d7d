"""The process that logs who has read what: it outlives a torn log and a Trino that comes and goes."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lakehouse.declarations.access.rules import RULES
from lakehouse.servers.retry import Unreachable
from lakehouse_stack.servers import reads

TORN = (b'{"logged": "2026-01-01T00:00:00.000+00:00", "que', b"\x00" * 512, b"\xff\xfe", b"12", b"[]", b"")


class Trino:
    """Has these ended queries, and goes away where it is asked about one in `gone`."""

    def __init__(self, *queries: str, gone: frozenset[str] = frozenset()) -> None:
        self.queries, self.gone = queries, gone

    def details(self, settings: Any, query: str) -> dict[str, Any]:
        if query in self.gone:
            raise Unreachable("Trino does not tell of its queries")
        return {"session": {"user": "ada"}, "inputs": [read("people")]}


def read(table: str) -> dict[str, Any]:
    return {"catalogName": "lake", "schema": "raw_shop", "table": table, "columns": [{"name": "email"}]}


@pytest.fixture
def keep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[dict[str, Any]]]:
    """Keeps the log during one poll of each of these Trinos; returns the lines that are JSON."""
    (tmp_path / RULES).write_text(json.dumps({"tables": []}))
    settings: Any = SimpleNamespace(home=tmp_path, trino=SimpleNamespace(access=tmp_path, catalog="lake"))
    monkeypatch.setattr(reads.signal, "signal", lambda *_: None)
    monkeypatch.setattr(reads.os, "umask", lambda mask: None)

    def kept(*trinos: Trino) -> list[dict[str, Any]]:
        turns = iter(trinos)
        now = [next(turns)]

        def wait(stop: threading.Event, seconds: float) -> bool:
            now[:] = [turn for turn in [next(turns, None)] if turn]
            return not now

        ended = lambda settings: {query: {"queryId": query, "state": "FINISHED"} for query in now[0].queries}  # noqa: E731
        monkeypatch.setattr(reads, "ended_queries", ended)
        monkeypatch.setattr(reads, "details", lambda settings, query: now[0].details(settings, query))
        monkeypatch.setattr(threading.Event, "wait", wait)
        reads.keep_log(settings)
        return [
            json.loads(line)
            for line in reads.log_file(tmp_path).read_text(errors="replace").splitlines()
            if is_json(line)
        ]

    return kept


def is_json(line: str) -> bool:
    return line.startswith("{") and line.endswith("}")


def queries(lines: list[dict[str, Any]]) -> list[str]:
    return [line["query"] for line in lines if "query" in line]


@pytest.mark.parametrize("torn", TORN, ids=range(len(TORN)))
def test_a_log_that_ends_within_a_line_is_gone_on_with(
    keep: Callable[..., list[dict[str, Any]]], tmp_path: Path, torn: bytes
) -> None:
    """After a power loss `lakehouse up` ended each time with `reads ended while starting`."""
    keep(Trino("1_a"))
    file = reads.log_file(tmp_path)
    file.write_bytes(before := file.read_bytes() + torn)

    keep(Trino("1_a", "2_a"))

    after = file.read_bytes().removeprefix(before).decode().splitlines()
    assert after.pop(0) == "" or not torn, "what follows begins on a line of its own"
    assert queries([json.loads(line) for line in after]) == ["2_a"]


def test_a_trino_that_goes_away_in_the_middle_of_a_poll_doubles_no_query(
    keep: Callable[..., list[dict[str, Any]]],
) -> None:
    lines = keep(Trino("1_a"), Trino("1_a", "2_a", "3_a", gone=frozenset({"3_a"})), Trino("1_a", "2_a", "3_a"))
    assert queries(lines) == ["1_a", "2_a", "3_a"]


def test_a_restart_of_trino_is_told_once(keep: Callable[..., list[dict[str, Any]]]) -> None:
    lines = keep(Trino("1_a"), Trino("1_b", gone=frozenset({"1_b"})), Trino("1_b"), Trino("1_b"))
    assert [line.get("event") for line in lines].count(reads.ANEW) == 1 and queries(lines) == ["1_a", "1_b"]

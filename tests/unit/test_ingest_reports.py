"""What `lakehouse ingest` says of the tables when it has ended."""

from collections.abc import Callable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest

import ingestion
from ingestion import SourceReport
from ingestion.run.reports import Aside, TableReport
from lakehouse.errors import LakehouseError
from lakehouse.settings import load_settings
from lakehouse_cli.source import ingest

AT = datetime(2026, 11, 20, 12, tzinfo=UTC)
ROW = "  {:<24} {:>12,} rows   {}"


def report(
    seconds: float | None, *aside: Aside, unchanged: tuple[str, ...] = (), **rows: dict[str, int]
) -> SourceReport:
    tables = tuple(TableReport(name, 1, ops, 1_200, 0, ()) for name, ops in rows.items())
    return SourceReport("shop", 1, "0/64", 100, AT, tables, aside, unchanged, seconds)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., list[str]]:
    """The lines of a command below the first."""
    declared = SimpleNamespace(named=lambda name: SimpleNamespace(source="shop", name=name.partition(".")[2]))

    def of(command: str, made: SourceReport) -> list[str]:
        monkeypatch.setattr(ingestion, command, lambda *_: made)
        ingest._on_tables(load_settings(), cast(Any, declared), command, ["shop.orders"], False)
        return capsys.readouterr().out.splitlines()[1:]

    return of


@pytest.mark.parametrize(("command", "done"), [("resume", "streams again"), ("resnapshot", "its snapshot is read")])
def test_a_table_that_was_named_is_told_what_became_of_it(
    said: Callable[..., list[str]], command: str, done: str
) -> None:
    """Beside a follower, which had done all of it, it was told that there was nothing new."""
    assert said(command, report(None, orders={}, items={})) == [
        ROW.format("orders", 1_200, f"{done}, by the writer at work"),
        ROW.format("items", 1_200, "up to date, by the writer at work"),
    ]
    assert said(command, report(0.5, orders={"c": 3, "r": 1_000}, items={})) == [
        ROW.format("orders", 1_200, f"{done}: c 3, r 1,000"),
        ROW.format("items", 1_200, "nothing new"),
    ]
    assert said(command, report(0.5, orders={})) == [ROW.format("orders", 1_200, done)]


def test_a_table_that_is_in_no_cut_is_not_said_to_stream(
    said: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert said("resnapshot", report(0.5, items={}))[1:] == [
        "  orders                   in no cut yet: `lakehouse status` says how far it is"
    ]
    with pytest.raises(LakehouseError, match="its key is gone"):
        said("resume", report(None, Aside("orders", "parked", "its key is gone"), orders={}))
    shown = capsys.readouterr().out.splitlines()[1:]
    assert shown == [ROW.format("orders", 1_200, "as of its last cut"), "  orders                   parked"]


def test_dead_letters_that_are_left_are_nothing_new(said: Callable[..., list[str]]) -> None:
    assert said("replay", report(0.5, orders={})) == [ROW.format("orders", 1_200, "nothing new")]


@pytest.mark.parametrize(("seconds", "told"), [(None, "up to date, by the writer at work"), (0.5, "nothing new")])
def test_what_another_writer_brought_is_not_said_to_be_nothing(
    capsys: pytest.CaptureFixture[str], seconds: float | None, told: str
) -> None:
    made = report(seconds, unchanged=("orders", "items"))
    ingest._each(load_settings(), {"shop": None}, lambda _: made, False)
    assert capsys.readouterr().out.splitlines()[1:] == [f"  2 tables: {told}"]

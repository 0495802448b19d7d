"""Loading a group of tables: the problem of one is that one's, and the others go on."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from ingestion.pipeline import load_tables
from ingestion.schema.problem import TableProblem
from ingestion.sink.writer import pack, unpack


def loading(*names: str) -> Any:
    return [SimpleNamespace(table=SimpleNamespace(name=name), position=name, ranges=None) for name in names]


def contained(monkeypatch: pytest.MonkeyPatch, group: Any, problems: dict[str, TableProblem]) -> tuple[Any, list[str]]:
    """What the rest of the group has brought, and which tables were parked."""
    parked: list[str] = []
    monkeypatch.setattr(load_tables, "_park", lambda writer, states, position, problem: parked.append(position))

    def load(tables: list[Any]) -> dict[str, dict[str, int]]:
        for item in tables:
            if item.table.name in problems:
                raise problems[item.table.name]
        return {item.table.name: {"r": 1} for item in tables}

    return load_tables._contained(cast(Any, None), cast(Any, None), group, load), parked


def test_the_table_that_has_the_problem_is_parked_whatever_its_text_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table to blame was looked for in the text, and where the text did not help it was the first of the group."""
    problem = TableProblem("shop", "lines", "column 'x' refers to table 'orders': correct it")
    rows, parked = contained(monkeypatch, loading("orders", "lines", "items"), {"lines": problem})
    assert parked == ["lines"] and sorted(rows) == ["items", "orders"]


def test_a_problem_of_another_table_parks_none_of_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TableProblem, match="table 'elsewhere': refused"):
        contained(monkeypatch, loading("orders"), {"orders": TableProblem("shop", "elsewhere", "refused")})


def test_a_tasks_problem_comes_back_with_its_table() -> None:
    problem = unpack(pack(TableProblem("shop", "orders", "column 'x': too large\n")))
    assert isinstance(problem, TableProblem) and problem.table == "orders"
    assert str(problem).startswith("source 'shop', table 'orders': column 'x': too large")

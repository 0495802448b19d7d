"""What `lakehouse sql` prints of rows: each column and each value, told apart."""

import json
from datetime import date
from typing import Any

import pytest
from trino.types import NamedRowTuple

from lakehouse.errors import LakehouseError
from lakehouse_cli.lake.sql import _print


def printed(capsys: pytest.CaptureFixture[str], names: list[str], *rows: list[Any], json: bool) -> list[str]:
    _print(names, list(rows), json)
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


def test_columns_of_one_name_are_refused_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    """As of a join with `SELECT *`: the last one was printed alone."""
    with pytest.raises(LakehouseError, match=r"^query: two columns are called id: name them apart with AS$"):
        printed(capsys, ["id", "name", "id"], [1, "a", 2], json=True)
    assert not capsys.readouterr().out
    assert printed(capsys, ["id", "name", "id"], [1, "a", 2], json=False) == ["id  name  id", "1   a     2"]
    assert json.loads(*printed(capsys, ["id", "ID"], [1, 2], json=True)) == {"id": 1, "ID": 2}


def test_null_is_told_from_an_empty_text(capsys: pytest.CaptureFixture[str]) -> None:
    """Both were printed as nothing."""
    assert printed(capsys, ["a", "b", "c"], [None, "", b"\x00\xff"], json=False) == ["a     b  c", "NULL     00ff"]


def test_a_varbinary_within_a_value_is_hexadecimal_digits_too(capsys: pytest.CaptureFixture[str]) -> None:
    """It was Python's text of it."""
    row = NamedRowTuple([1, b"\xff", [b"\x01"]], ["id", "b", None], ["bigint", "varbinary", "array"])
    [_, line] = printed(capsys, ["a", "m", "r"], [[b"\x00", None], {b"\x02": b"\x03"}, row], json=False)
    assert line.split("  ") == ["['00', None]", "{'02': '03'}", "(id: 1, b: 'ff', ['01'])"]


def test_json_has_what_it_does_not_know_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    """`NaN` is not JSON, a varbinary was Python's text of it, and a map with dates for keys ended in a traceback."""
    row = [float("nan"), [float("inf"), -float("inf")], b"\x00\xff", {date(2026, 5, 4): b"\x01", 1: None}, (1, 1.5)]
    [line] = printed(capsys, ["n", "i", "b", "m", "r"], row, json=True)

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    assert json.loads(line, parse_constant=refuse) == {
        "n": "NaN", "i": ["Infinity", "-Infinity"], "b": "00ff", "m": {"2026-05-04": "01", "1": None}, "r": [1, 1.5],
    }  # fmt: skip

"""What `lakehouse sql` prints of rows: each column and each value, told apart."""

import json
from typing import Any

import pytest

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

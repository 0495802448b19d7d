"""What an export does, by what both catalogs name."""

from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from sqlalchemy import event

from lakehouse.errors import LakehouseError
from lakehouse_serve.export import plan

WAREHOUSE = "s3://lake/"
A, B, C = ("m", "a"), ("m", "b"), ("m", "c")


def test_tables_are_registered_refreshed_and_dropped_and_those_of_others_stay() -> None:
    here = {A: "s3://lake/m/a/2", B: "s3://lake/m/b/1", ("m", "same"): "s3://lake/s/1"}
    there = {A: "s3://lake/m/a/1", C: "s3://lake/m/c/1", ("m", "same"): "s3://lake/s/1", ("t", "x"): "s3://lakes/x"}
    found = plan(here, there, WAREHOUSE)
    assert (found.register, found.refresh, found.drop) == ({B: "s3://lake/m/b/1"}, {A: "s3://lake/m/a/2"}, (C,))
    assert str(found) == "1 registered, 1 refreshed, 1 dropped"
    assert not plan(here, here, WAREHOUSE)


def test_a_name_that_another_table_has_is_refused() -> None:
    with pytest.raises(LakehouseError, match=r"m\.a is another table in the second catalog"):
        plan({A: "s3://lake/m/a/2"}, {A: "s3://lake2/m/a/2"}, WAREHOUSE)


def test_the_lake_is_read_once_no_other_export_can_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slower export pointed tables back to where they had been when it had begun."""
    module = import_module("lakehouse_serve.export")
    second, said = SqlCatalog("second", uri=f"sqlite:///{tmp_path}/second.db"), list[str]()
    event.listen(second.engine, "before_cursor_execute", lambda _, __, statement, *more: said.append(statement))

    def allowed(*_: Any) -> dict[tuple[str, str], str]:
        assert any("FROM iceberg_tables" in statement for statement in said), "its rows are not locked yet"
        return {A: "s3://lake/m/a/1"}

    monkeypatch.setattr(module, "_allowed", allowed)
    settings: Any = SimpleNamespace(warehouse=WAREHOUSE)
    assert str(module._export(settings, None, second)) == "1 registered, 0 refreshed, 0 dropped"
    assert second.list_tables("m") == [A] and second.list_namespaces() == [("m",)]
    second.close()

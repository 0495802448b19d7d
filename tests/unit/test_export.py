"""What an export does, by what both catalogs name."""

from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from sqlalchemy import event

from erasure.steps import Erasure
from lakehouse.catalog.relations import Relation, TableName
from lakehouse.errors import LakehouseError
from lakehouse.settings import load_settings
from lakehouse_cli.source.dropping import drop
from lakehouse_serve.export import export_again, plan

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


def test_what_deletes_files_exports_again_where_a_second_catalog_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines failed on a mirror that an erasure had made anew, until somebody ran `lakehouse export`."""
    module, done = import_module("lakehouse_serve.export"), list[object]()
    monkeypatch.setattr(module, "export", done.append)
    alone, exported = load_settings(), load_settings(export={"url": "postgresql://nobody@nowhere/second"})
    assert export_again(alone) is None and not done
    assert export_again(exported) is None and done == [exported]

    def fails(_: object) -> None:
        raise LakehouseError("second catalog: no route; check LAKEHOUSE_EXPORT__URL and its rights")

    monkeypatch.setattr(module, "export", fails)
    said = export_again(exported)
    assert said is not None and said.startswith("the second catalog may still name files that were deleted: second")


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_table_that_was_dropped_is_dropped_in_the_second_catalog(
    dry_run: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("lakehouse.servers.trino.answering", lambda _: nullcontext())
    monkeypatch.setattr("lakehouse.servers.trino.query", lambda *_: [])
    monkeypatch.setattr("lakehouse_serve.export.export_again", lambda _: "the second catalog: no route")
    drop(load_settings(), [Relation(TableName("mirror_shop", "people"), "table", "s3://lake/people/")], dry_run)
    assert ("no route" in capsys.readouterr().err) == (not dry_run)


def test_an_erasure_is_not_over_while_the_second_catalog_names_deleted_files(monkeypatch: pytest.MonkeyPatch) -> None:
    module = import_module("lakehouse_cli.lake.erase")
    monkeypatch.setattr(module, "load_manifest", lambda _: {})
    monkeypatch.setattr(module, "declarations_from", lambda *_: None)
    monkeypatch.setattr("erasure.run.erase", lambda *_, **__: Erasure(["shop.people id=1"]))
    monkeypatch.setattr("lakehouse_serve.export.export_again", lambda _: "the second catalog: no route")
    with pytest.raises(LakehouseError, match=r"^the second catalog: no route$"):
        module.erase("shop.people", ["id=1"], yes=True)

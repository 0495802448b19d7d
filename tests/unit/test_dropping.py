"""What `lakehouse remove --drop-tables` drops, and what it refuses to."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pydantic import SecretStr

from lakehouse.catalog.lake_catalog import LakeCatalog
from lakehouse.catalog.relations import Relation, TableName, list_relations
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings, SourceSettings
from lakehouse_cli.source import remove as removing
from lakehouse_cli.source.dropping import drop, droppable


def test_what_a_pin_keeps_is_not_dropped(
    postgres_catalog: LakeCatalog, catalog_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A month-end that somebody had pinned was gone without a word."""
    monkeypatch.setattr("lakehouse.catalog.open.open_catalog", lambda _: postgres_catalog)
    for namespace in ("raw_shop", "mirror_shop"):
        postgres_catalog.create_namespace_if_not_exists(namespace)
    rows = pa.table({"id": [1]})
    names = [("raw_shop", "orders"), ("mirror_shop", "orders"), ("raw_shop", "lines")]
    raw, mirror, _ = (postgres_catalog.create_table(name, rows.schema) for name in names)
    for table, pin in ((raw, "audit"), (mirror, "month")):
        table.append(rows)
        snapshot = table.metadata.current_snapshot_id
        assert snapshot is not None
        table.manage_snapshots().create_tag(snapshot, f"pin_{pin}").commit()
    unpin = r"run `lakehouse maintain unpin audit` and `lakehouse maintain unpin month` first$"
    for what, table_name in (("shop", None), ("shop.orders", "orders")):
        with pytest.raises(LakehouseError, match=f"^{what}: pin audit, month keeps old snapshots: {unpin}"):
            droppable(catalog_settings, "shop", (), table_name)
    assert [str(each.name) for each in droppable(catalog_settings, "shop", (), "lines")] == ["raw_shop.lines"]


def test_a_table_on_whose_files_another_name_lives_is_not_dropped(
    postgres_catalog: LakeCatalog, catalog_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory went with the table, and the second name had no files any more."""
    monkeypatch.setattr("lakehouse.catalog.open.open_catalog", lambda _: postgres_catalog)
    for namespace in ("raw_shop", "mirror_shop", "next_mirror_shop", "kept"):
        postgres_catalog.create_namespace_if_not_exists(namespace)
    rows = pa.table({"id": [1]})
    for name in ("raw_shop.orders", "mirror_shop.orders"):
        postgres_catalog.create_table(name, rows.schema).append(rows)
    mirror = postgres_catalog.load_table(("mirror_shop", "orders")).metadata_location
    postgres_catalog.register_table(("next_mirror_shop", "orders"), mirror)  # a killed refresh has left it
    assert len(droppable(catalog_settings, "shop", (), "orders")) >= 2
    raw = postgres_catalog.load_table(("raw_shop", "orders")).metadata_location
    postgres_catalog.register_table(("kept", "audit"), raw)
    named = r"^raw_shop\.orders: kept\.audit lives on its files, .*unregister_table"
    for table in (None, "orders"):
        with pytest.raises(LakehouseError, match=named):
            droppable(catalog_settings, "shop", (), table)


def test_what_was_pinned_while_the_question_waited_is_not_dropped(
    postgres_catalog: LakeCatalog, catalog_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A month's end was pinned while somebody thought about the answer, and it was gone."""
    dropped: list[str] = []
    monkeypatch.setattr("lakehouse.catalog.open.open_catalog", lambda _: postgres_catalog)
    monkeypatch.setattr("lakehouse.servers.trino.answering", lambda _: nullcontext())
    monkeypatch.setattr("lakehouse.servers.trino.query", lambda _, statement: dropped.append(statement))
    monkeypatch.setattr("lakehouse_serve.export.export_again", lambda _: None)
    postgres_catalog.create_namespace_if_not_exists("raw_shop")
    rows = pa.table({"id": [1]})
    for name in ("lines", "orders"):
        postgres_catalog.create_table(("raw_shop", name), rows.schema)
    found = sorted(droppable(catalog_settings, "shop", ()), key=lambda each: each.name)
    table = postgres_catalog.load_table(("raw_shop", "orders"))
    table.append(rows)
    snapshot = table.metadata.current_snapshot_id
    assert snapshot is not None
    table.manage_snapshots().create_tag(snapshot, "pin_month").commit()
    with pytest.raises(LakehouseError, match=r"^raw_shop\.orders: pin month keeps old snapshots: run .* unpin month"):
        drop(catalog_settings, found, dry_run=False)
    assert dropped == ['DROP TABLE IF EXISTS "raw_shop"."lines"']


@pytest.mark.parametrize("is_made_meanwhile", [False, True])
def test_what_goes_is_looked_for_again_once_nobody_writes_mirrors(
    catalog_settings: Settings, monkeypatch: pytest.MonkeyPatch, is_made_meanwhile: bool
) -> None:
    """The first refresh of a mirror ended behind the drop, and the mirror of a removed source stayed for ever."""
    done: list[str] = []
    lake = [Relation(TableName("raw_shop", "orders"), "table", "s3://w/raw_shop/orders/metadata/0.json")]

    def look(*_: object) -> list[Relation]:
        done.append("looked")
        return list(lake)

    def noting(what: str, result: object = None) -> Callable[..., Any]:
        return lambda *given, **_: (done.append(what), result)[1]

    @contextmanager
    def refreshing(*_: object) -> Iterator[None]:
        if is_made_meanwhile:  # by the refresh for which the command waits
            lake.append(
                Relation(TableName("mirror_shop", "orders"), "table", "s3://w/mirror_shop/orders/metadata/0.json")
            )
        done.append("no refresh")
        yield
        done.append("refreshes again")

    nothing = SimpleNamespace(is_nothing=False)
    stubs: dict[str, Any] = {
        "_declared": noting("declared"), "relations_of": lambda _: {}, "refuse_worker": lambda _: None,
        "droppable": look, "drop_aside": lambda *_, **__: None, "tell_of_connector": lambda *_: None,
        "take_back": noting("taken back", nothing),
        "drop": lambda settings, found, dry_run: None if dry_run else done.append("dropped"),
    }  # fmt: skip
    for name, stub in stubs.items():
        monkeypatch.setattr(removing, name, stub)
    monkeypatch.setattr("ingestion.kept_aside", lambda *_: {})
    monkeypatch.setattr("ingestion.list_schemas", lambda *_: ([], []))
    monkeypatch.setattr("ingestion.nobody_ingests", lambda *_: nullcontext())
    monkeypatch.setattr("ingestion.mirrors_held", refreshing)
    monkeypatch.setattr("ingestion.forget_source", noting("forgotten"))
    settings = catalog_settings.model_copy(
        update={"sources": {"shop": SourceSettings(url=SecretStr("postgresql://127.0.0.1:1/shop"))}}
    )
    if is_made_meanwhile:
        with pytest.raises(LakehouseError, match=r"^mirror_shop\.orders was made meanwhile, .* nothing was changed"):
            removing._remove_source(settings, "shop", drop_tables=True, dry_run=False, yes=True)
        assert done == ["declared", "looked", "no refresh", "looked"]
    else:
        removing._remove_source(settings, "shop", drop_tables=True, dry_run=False, yes=True)
        wanted = ["no refresh", "looked", "taken back", "forgotten", "dropped", "refreshes again"]
        assert done == ["declared", "looked", *wanted]


@pytest.mark.parametrize("mirror", ["there", "never published", "dropped before"])
def test_a_copy_that_a_killed_refresh_has_left_goes_with_its_source(
    mirror: str, postgres_catalog: LakeCatalog, catalog_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stayed for ever with all rows of the source, or as a row that could not be read."""
    folder = Path(str(postgres_catalog.properties["warehouse"]).removeprefix("file://")) / "mirror_shop" / "orders"
    dropped: list[str] = []

    def trino(_: Settings, statement: str) -> None:
        dropped.append(statement)
        shutil.rmtree(folder)
        postgres_catalog.drop_table(("mirror_shop", "orders"))

    monkeypatch.setattr("lakehouse.catalog.open.open_catalog", lambda _: postgres_catalog)
    monkeypatch.setattr("lakehouse.servers.trino.answering", lambda _: nullcontext())
    monkeypatch.setattr("lakehouse.servers.trino.query", trino)
    monkeypatch.setattr("lakehouse_serve.export.export_again", lambda _: None)
    for namespace in ("mirror_shop", "next_mirror_shop"):
        postgres_catalog.create_namespace_if_not_exists(namespace)
    rows = pa.table({"id": [1]})
    table = postgres_catalog.create_table(("mirror_shop", "orders"), rows.schema, location=f"file://{folder}")
    table.append(rows)
    postgres_catalog.register_table(("next_mirror_shop", "orders"), table.metadata_location)
    if mirror != "there":
        postgres_catalog.drop_table(("mirror_shop", "orders"))
    if mirror == "dropped before":
        shutil.rmtree(folder)
    drop(catalog_settings, droppable(catalog_settings, "shop", ()), dry_run=False)
    assert dropped == ['DROP TABLE IF EXISTS "mirror_shop"."orders"'] * (mirror == "there")
    assert list_relations(postgres_catalog) == ()
    assert not [path for path in folder.rglob("*") if path.is_file()]

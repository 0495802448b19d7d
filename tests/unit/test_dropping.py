"""What `lakehouse remove --drop-tables` drops, and what it refuses to."""

from contextlib import nullcontext

import pyarrow as pa
import pytest

from lakehouse.catalog.lake_catalog import LakeCatalog
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings
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

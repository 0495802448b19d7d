"""What `lakehouse remove --drop-tables` drops, and what it refuses to."""

import pyarrow as pa
import pytest

from lakehouse.catalog.lake_catalog import LakeCatalog
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings
from lakehouse_cli.source.dropping import droppable


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

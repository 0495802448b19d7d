"""What follows from metadata files is kept: each look of watch, sensors and page read every table's file again."""

from pathlib import Path

import pyarrow as pa
from pyiceberg.table import Table

from lakehouse.catalog.derived import derived
from lakehouse.catalog.lake_catalog import LakeCatalog

READ: list[str] = []


def rows_of(table: Table) -> int:
    READ.append(table.name()[-1])
    snapshot = table.current_snapshot()
    assert snapshot is not None and snapshot.summary is not None
    return int(snapshot.summary.additional_properties["total-records"])


def test_only_the_files_of_tables_that_have_changed_are_read(tmp_path: Path) -> None:
    properties = {"uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}
    writer, row = LakeCatalog("lake", **properties), pa.table({"n": [1]})
    writer.create_namespace("raw_derived")
    for name in ("a", "b", "c"):
        writer.create_table(("raw_derived", name), row.schema).append(row)
    names = [("raw_derived", name) for name in ("a", "b", "c", "missing")]

    def asked() -> dict[str, int]:
        READ.clear()  # by a catalog of its own, as each look opens one
        return {name: rows for (_, name), rows in derived(LakeCatalog("lake", **properties), names, rows_of).items()}

    assert asked() == {"a": 1, "b": 1, "c": 1} and sorted(READ) == ["a", "b", "c"]
    assert asked() == {"a": 1, "b": 1, "c": 1} and READ == []
    writer.load_table(("raw_derived", "b")).append(row)
    assert asked() == {"a": 1, "b": 2, "c": 1} and READ == ["b"]
    writer.drop_table(("raw_derived", "c"))
    assert asked() == {"a": 1, "b": 2} and READ == []
    writer.create_table(("raw_derived", "c"), row.schema).append(pa.table({"n": [1, 2]}))
    assert asked() == {"a": 1, "b": 2, "c": 2} and READ == ["c"]

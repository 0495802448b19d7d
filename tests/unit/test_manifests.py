"""Manifests merged in tiers, on a real Iceberg table in a directory: no server."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation

from lakehouse.catalog.writing.manifests import FAN, TIERS, TieredAppend, full_tier

SCHEMA = pa.schema([("id", pa.int64())])
COMMITS = 115


@pytest.fixture
def table(tmp_path: Path) -> Table:
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    catalog.create_namespace("shop")
    return catalog.create_table("shop.sales", SCHEMA)


def append(table: Table, number: int) -> Table:
    with table.transaction() as transaction, TieredAppend(Operation.APPEND, transaction, table.io) as update:
        for file in _dataframe_to_data_files(table.metadata, pa.table({"id": [number]}, SCHEMA), table.io):
            update.append_data_file(file)
    return table


@pytest.mark.slow
def test_no_commit_rewrites_much_and_every_file_stays_once(table: Table) -> None:
    merged = []
    for number in range(COMMITS):
        before = table.current_snapshot().manifests(table.io) if number else []
        after = append(table, number).current_snapshot().manifests(table.io)
        new = {m.manifest_path for m in after} - {m.manifest_path for m in before}
        merged.append(sum(m.existing_files_count for m in after if m.manifest_path in new))
        assert len(after) <= TIERS * (FAN + 1)
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == list(range(COMMITS))
    assert {size for size in merged if size} == {FAN, FAN * FAN}
    assert sum(size == FAN * FAN for size in merged) == COMMITS // (FAN * FAN)
    entries = table.inspect.entries().to_pylist()
    assert sorted(entry["sequence_number"] for entry in entries) == list(range(1, COMMITS + 1)), "as it was committed"


def test_deleted_rows_do_not_come_back(table: Table) -> None:
    for number in range(FAN + 3):
        append(table, number)
        if number == 4:
            table.delete("id = 2")
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == [n for n in range(FAN + 3) if n != 2]


def test_the_lowest_full_tier_of_one_partition_spec_is_merged_and_large_ones_never() -> None:
    def several(count: int, files: int, spec: int = 0, content: ManifestContent = ManifestContent.DATA) -> list:
        return [
            ManifestFile.from_args(
                manifest_path=f"{spec}-{files}-{number}", manifest_length=1, partition_spec_id=spec, content=content,
                added_snapshot_id=1, added_files_count=1, existing_files_count=files - 1,
            )
            for number in range(count)
        ]  # fmt: skip

    def merged(*manifests: list) -> set[str]:
        return {manifest.manifest_path for manifest in full_tier([m for some in manifests for m in some])}

    ten = {f"0-12-{number}" for number in range(10)}
    assert merged(several(9, 1), several(10, 12), several(10, 120)) == ten
    assert merged(several(5, 9), several(5, 10), several(9, 3, spec=1)) == set()
    assert merged(several(30, 1000), several(30, 1, content=ManifestContent.DELETES)) == set()

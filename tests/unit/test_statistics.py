"""Statistics of a table that is published so often that the snapshot they were made of leaves its metadata."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.table import Table
from pyiceberg.table.statistics import BlobMetadata, StatisticsFile

from ingestion.sink.publication import TableAppend
from ingestion.sink.publish import _begin, _stage
from lakehouse.catalog.lake_catalog import LakeCatalog
from lakehouse.catalog.writing.commit import swap
from lakehouse.declarations.policies import StatisticsPolicy
from maintenance.actions.drop_extended_stats import _why_not
from maintenance.inventory.figures import unanalyzed_share
from maintenance.inventory.reachable import metadata_files

NAME, MOST = ("raw_shop", "sales"), 10


@pytest.fixture
def catalog(tmp_path: Path) -> LakeCatalog:
    catalog = LakeCatalog("lake", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    catalog.create_namespace(NAME[0])
    catalog.create_table(NAME, pa.schema([("id", pa.int64())]))
    return catalog


def publish(catalog: LakeCatalog, rows: int = 1) -> Table:
    """As ingestion does it."""
    table = catalog.load_table(NAME)
    files = _dataframe_to_data_files(table.metadata, pa.table({"id": range(rows)}), table.io)
    staged = _stage(catalog, _begin(table, TableAppend(NAME, tuple(files), {})), MOST)
    swap(catalog, NAME, staged.old_location, staged.new_location)
    return catalog.load_table(NAME)


def analyze(table: Table) -> StatisticsFile:
    """As Trino does it, but for the file itself."""
    snapshot = table.current_snapshot()
    assert snapshot is not None
    blob = BlobMetadata.model_validate(
        {
            "type": "apache-datasketches-theta-v1", "snapshot-id": snapshot.snapshot_id,
            "sequence-number": snapshot.sequence_number, "fields": [1], "properties": {"ndv": "7"},
        }
    )  # fmt: skip
    statistics = StatisticsFile.model_validate(
        {
            "snapshot-id": snapshot.snapshot_id, "statistics-path": f"s3://w/{snapshot.snapshot_id}.stats",
            "file-size-in-bytes": 9, "file-footer-size-in-bytes": 1, "blob-metadata": [blob],
        }
    )  # fmt: skip
    table.update_statistics().set_statistics(statistics).commit()
    return statistics


def test_statistics_stay_and_grow_stale_by_every_row_that_came_since(catalog: LakeCatalog) -> None:
    table = publish(catalog, 1000)
    made = analyze(table)
    at = table.snapshots()[0].timestamp_ms
    for publishes in range(1, 41):
        table = publish(catalog, 5)
        assert unanalyzed_share(table) == (5 * publishes / (1000 + 5 * publishes), at)
        (now,) = table.metadata.statistics
        assert (now.statistics_path, now.blob_metadata) == (made.statistics_path, made.blob_metadata)
        assert made.statistics_path in metadata_files(table), "what is carried is no orphan"
    assert now.snapshot_id != made.snapshot_id and len(table.snapshots()) <= MOST + 1
    due = {share: _why_not(table, StatisticsPolicy(analyze=True, stale_share=share)) for share in (0.1, 0.2)}
    assert due == {0.1: None, 0.2: "16.7% of the rows changed since the statistics were made, below 20%"}
    again = analyze(table)
    table = catalog.load_table(NAME)
    assert unanalyzed_share(table) == (0.0, table.snapshots()[-1].timestamp_ms), "what was carried counts no more"
    for _ in range(20):
        table = publish(catalog, 5)
    assert [statistics.statistics_path for statistics in table.metadata.statistics] == [again.statistics_path]
    assert unanalyzed_share(table)[0] == 100 / 1300


def test_a_table_without_statistics_gets_none(catalog: LakeCatalog) -> None:
    for _ in range(MOST + 3):
        table = publish(catalog)
    assert table.metadata.statistics == [] and unanalyzed_share(table) == (1.0, None)

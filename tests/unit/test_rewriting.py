"""A compaction beside an ingestion that publishes each second: the snapshots since it began stay until it has ended."""

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from pyiceberg.table.update import RemoveSnapshotsUpdate, SetPropertiesUpdate

from ingestion.sink.publish import surplus_snapshots
from lakehouse.catalog.open import history
from lakehouse.catalog.writing.commit import commit_on
from lakehouse.catalog.writing.rewriting import REWRITING, needed_since, rewriting
from lakehouse.declarations.policies import CompactPolicy
from maintenance.actions.compact import BYTES_AT_ONCE, PARTITIONS_AT_ONCE, _portions, _rewrite, _until_committed
from maintenance.actions.layout import Partition
from maintenance.inventory.outcome import TableName

ROWS = pa.table({"id": [1]})
RULE = CompactPolicy(target_file_size_mb=128, min_input_files=3)


@pytest.fixture
def catalog(tmp_path: Path) -> SqlCatalog:
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    for namespace in ("raw_shop", "vault"):
        catalog.create_namespace(namespace)
    return catalog


def make(catalog: SqlCatalog, name: TableName, appends: int) -> Table:
    table = catalog.create_table(name, ROWS.schema)
    for _ in range(appends):
        table.append(ROWS)
    return table


def publish(catalog: SqlCatalog, name: TableName, most: int) -> None:
    """One append as ingestion makes it, which bounds the snapshots."""
    catalog.load_table(name).append(ROWS)
    table = catalog.load_table(name)
    if surplus := surplus_snapshots(table.metadata, most, now_ms=2):
        commit_on(catalog, table, (RemoveSnapshotsUpdate(snapshot_ids=surplus),))


def test_what_a_rewrite_needs_stays_until_its_time_is_over_and_then_goes_bit_by_bit(catalog: SqlCatalog) -> None:
    name = TableName("raw_shop", "sales")
    table = make(catalog, name, appends=5)
    assert len(surplus_snapshots(table.metadata, 4, now_ms=2)) == 3
    until = (SetPropertiesUpdate(updates=rewriting(table.metadata, until_ms=10)),)
    commit_on(catalog, table, until)
    for _ in range(8):
        publish(catalog, name, most=4)
    metadata = catalog.load_table(name).metadata
    assert [s.sequence_number for s in metadata.snapshots] == list(range(5, 14)), "those before it went"
    assert surplus_snapshots(metadata, 4, now_ms=9) == []
    assert surplus_snapshots(metadata, 4, now_ms=10) == [s.snapshot_id for s in metadata.snapshots[:4]]


@pytest.mark.parametrize("end", [None, RuntimeError("the rewrite failed")])
def test_during_each_call_of_a_compaction_the_line_of_snapshots_stays_whole(
    catalog: SqlCatalog, end: Exception | None
) -> None:
    name, began = TableName("raw_shop", "sales"), []
    table = make(catalog, name, 4)

    def call(procedure: str, *_: Any, **__: Any) -> list[Any]:
        if procedure == "rewrite_manifests":  # asks no history
            return []
        start = catalog.load_table(name).metadata
        began.append(needed_since(start, now_ms=2))
        for _ in range(9):
            publish(catalog, name, 4)
        line = list(history(catalog.load_table(name).metadata))
        assert start.current_snapshot_id in [s.snapshot_id for s in line], "Iceberg would not find where it began"
        if end is not None:
            raise end
        return [SimpleNamespace(failed_data_files_count=0)]

    error = compact(catalog, name, call)
    assert error is end and began == [table.metadata.last_sequence_number]
    assert REWRITING not in catalog.load_table(name).properties


def test_a_commit_that_spark_would_only_log_is_a_conflict_and_made_again(
    catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was told as done, and nothing was."""
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    name, calls = TableName("vault", "hub"), list[str]()
    make(catalog, name, appends=4)

    def call(procedure: str, arguments: str, files: int) -> list[Any]:
        calls.append(arguments)
        if len(calls) == 1:
            raise RuntimeError("partial-progress.enabled is true but 1 rewrite commits failed. This is more than …")
        return [SimpleNamespace(failed_data_files_count=0)]

    session: Any = SimpleNamespace(catalog=catalog, call=call)
    assert _until_committed(session, name, RULE) == 1
    assert "'partial-progress.max-failed-commits', '0'" in calls[0]


def test_a_table_that_ingestion_does_not_write_gets_no_commit_more(catalog: SqlCatalog) -> None:
    name = TableName("vault", "hub")
    before = make(catalog, name, appends=4).metadata_location
    assert compact(catalog, name, lambda *_, **__: [SimpleNamespace(failed_data_files_count=0)]) is None
    assert catalog.load_table(name).metadata_location == before


def compact(catalog: SqlCatalog, name: TableName, call: Callable[..., list[Any]]) -> Exception | None:
    """Rewrites with engines that do as they are told; what they raised."""
    session: Any = SimpleNamespace(catalog=catalog, call=call)
    try:
        _rewrite(session, name, RULE)
    except RuntimeError as error:
        return error
    return None


def test_a_call_is_of_so_many_partitions_and_bytes_and_a_large_partition_is_one_of_its_own() -> None:
    def sizes(*given: int, where: str | None = "day = 1") -> list[int]:
        partitions = [Partition(where, bytes=size) for size in given]
        return [len(portion) for portion in _portions(partitions, lambda partition: partition.bytes)]

    half = BYTES_AT_ONCE // 2
    assert sizes(half, half, half, 3 * BYTES_AT_ONCE, 1, 1) == [2, 1, 1, 2]
    assert sizes(*[1] * (PARTITIONS_AT_ONCE + 1)) == [PARTITIONS_AT_ONCE, 1]
    assert sizes(half, half, half, where=None) == [3], "what cannot be named is looked for in the whole table"
    assert sizes() == []

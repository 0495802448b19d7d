"""Which partitions a compaction sorts anew, which it only merges, and how it names them: no server, no Spark."""

from datetime import UTC, date, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import DataFile, ManifestEntry, ManifestEntryStatus
from pyiceberg.table import Table
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    YearTransform,
)

from lakehouse.declarations.policies import CompactPolicy
from maintenance.actions.layout import CLUSTERED, MEGABYTE, Partition, _delete_files, _run, ordered_since, plan_for
from maintenance.actions.partitions import condition
from maintenance.inventory.figures import live_manifests

SORTED = CompactPolicy(target_file_size_mb=100, min_input_files=5, sort_by=("id",))
PACKED = CompactPolicy(target_file_size_mb=100, min_input_files=5)
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("there", pa.timestamp("us")),
    ]
)
ROW = {
    "id": 7,
    "name": "it's",
    "day": date(2024, 2, 29),
    "at": datetime(2024, 2, 29, 23, 30, tzinfo=UTC),
    "there": datetime(2024, 2, 29, 23, 30),
}


@pytest.fixture
def table(tmp_path: Path) -> Table:
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    catalog.create_namespace("shop")
    return catalog.create_table("shop.sales", SCHEMA)


def partition(where: str | None = "", **more: object) -> Partition:
    return Partition(where, **more)  # type: ignore[arg-type]


def test_a_sorted_partition_is_not_sorted_again_for_the_small_files_that_come() -> None:
    loose = partition(bytes=1000 * MEGABYTE, off=[MEGABYTE] * 5, runs={9})
    assert loose.is_to_be_merged(SORTED) and not loose.is_to_be_sorted(SORTED)
    assert not partition(bytes=1000 * MEGABYTE, off=[MEGABYTE] * 4, runs={9}).is_to_be_merged(SORTED)


def test_many_sorted_runs_become_one() -> None:
    assert not partition(bytes=1000, runs={1, 2, 3, 4}).is_to_be_sorted(SORTED)
    assert partition(bytes=1000, runs={1, 2, 3, 4, 5}).is_to_be_sorted(SORTED)
    assert not partition(bytes=1000, runs={1, 2, 3, 4, 5}).is_to_be_sorted(PACKED)


def test_a_partition_too_large_for_one_run_is_not_sorted_without_end() -> None:
    huge = partition(bytes=300 * 1024 * MEGABYTE, runs=set(range(5)))
    assert not huge.is_to_be_sorted(SORTED)


def test_large_files_that_came_loose_are_sorted_once_they_are_a_quarter() -> None:
    assert partition(bytes=1000, unsorted_bytes=251).is_to_be_sorted(SORTED)
    assert not partition(bytes=1000, unsorted_bytes=250).is_to_be_sorted(SORTED)


def test_a_partition_that_cannot_be_named_is_never_sorted_as_a_whole() -> None:
    assert not partition(None, bytes=1000, unsorted_bytes=1000).is_to_be_sorted(SORTED)


@pytest.mark.parametrize(
    ("data", "commit", "since", "run"), [(3, 4, 2, 4), (4, 4, 2, None), (1, 2, 2, None), (3, 4, None, None)]
)
def test_a_file_is_in_order_when_a_compaction_since_the_declaration_wrote_it(
    data: int, commit: int, since: int | None, run: int | None
) -> None:
    entry = ManifestEntry.from_args(
        status=ManifestEntryStatus.EXISTING, snapshot_id=1, sequence_number=data, file_sequence_number=commit,
        data_file=DataFile.from_args(),
    )  # fmt: skip
    assert _run(entry, since) == run


def test_another_declared_order_makes_all_files_count_as_loose(table: Table) -> None:
    with table.transaction() as transaction:
        transaction.set_properties({CLUSTERED: "sort:id@12"})
    assert ordered_since(table, SORTED) == 12
    assert ordered_since(table, CompactPolicy(target_file_size_mb=1, min_input_files=5, zorder_by=("id",))) is None
    assert ordered_since(table, PACKED) is None


@pytest.mark.parametrize(
    ("transform", "column", "text"),
    [
        (IdentityTransform(), "id", "`id` = 7"),
        (IdentityTransform(), "name", r"`name` = 'it\'s'"),
        (IdentityTransform(), "day", "`day` >= DATE '2024-02-29' AND `day` < DATE '2024-03-01'"),
        (
            DayTransform(),
            "at",
            "`at` >= TIMESTAMP '2024-02-29 00:00:00 UTC' AND `at` < TIMESTAMP '2024-03-01 00:00:00 UTC'",
        ),
        (MonthTransform(), "day", "`day` >= DATE '2024-02-01' AND `day` < DATE '2024-03-01'"),
        (YearTransform(), "day", "`day` >= DATE '2024-01-01' AND `day` < DATE '2025-01-01'"),
        (
            HourTransform(),
            "there",
            "`there` >= TIMESTAMP_NTZ '2024-02-29 23:00:00' AND `there` < TIMESTAMP_NTZ '2024-03-01 00:00:00'",
        ),
    ],
)  # fmt: skip
def test_a_partition_is_named_by_a_condition_on_its_columns(
    table: Table, transform: Transform[object, object], column: str, text: str
) -> None:
    with table.update_spec() as spec:
        spec.add_field(column, transform)
    assert _condition(table, ROW) == text
    if isinstance(transform, IdentityTransform):
        assert _condition(table, {**ROW, column: None}) == f"`{column}` IS NULL"


def test_a_bucket_cannot_be_named_and_a_table_without_partitions_needs_no_name(table: Table) -> None:
    assert _condition(table, ROW) == ""
    with table.update_spec() as spec:
        spec.add_field("id", BucketTransform(4))
    assert _condition(table, ROW) is None


@pytest.mark.parametrize("rule", [PACKED, SORTED])
def test_data_that_spark_refuses_to_read_is_left_and_the_plan_says_which_column_it_is(
    table: Table, rule: CompactPolicy
) -> None:
    for _ in range(5):
        table.append(pa.Table.from_pylist([ROW], SCHEMA))
    assert plan_for(table, rule).files == 5 and plan_for(table, rule).reserved is None
    with table.update_schema() as schema:
        schema.rename_column("name", "_deleted")
    plan = plan_for(table, rule)
    assert (plan.data, plan.manifests, plan.small_files, plan.reserved) == (False, True, 5, "_deleted")
    assert plan.why_refused is not None and plan.why_refused.endswith(
        "declare meta.raw.alias for it, or rename it in its model"
    )


def _condition(table: Table, row: dict[str, object]) -> str | None:
    table.append(pa.Table.from_pylist([row], SCHEMA))
    newest = next(m for m in live_manifests(table) if m.added_snapshot_id == table.metadata.current_snapshot_id)
    (entry,) = newest.fetch_manifest_entry(table.io)
    return condition(table, newest.partition_spec_id, entry.data_file.partition)


def test_only_partitions_with_enough_small_files_are_merged(table: Table) -> None:
    with table.update_spec() as spec:
        spec.add_field("day", DayTransform())
    for day, times in ((1, 5), (2, 4)):
        for _ in range(times):
            table.append(pa.Table.from_pylist([{**ROW, "day": date(2024, 1, day)}], SCHEMA))
    for rule in (PACKED, SORTED):
        plan = plan_for(table, rule)
        assert [p.where for p in plan.merged] == ["`day` >= DATE '2024-01-01' AND `day` < DATE '2024-01-02'"]
        assert plan.sorted == ()


@pytest.mark.parametrize(
    ("files", "positions", "equalities", "what"),
    [(4, 900, 0, "leave"), (5, 49, 0, "merge"), (5, 50, 0, "apply"), (5, 0, 1, "apply"), (4, 0, 1, "leave")],
)
def test_deletes_are_left_merged_or_applied_by_their_files_and_rows(
    files: int, positions: int, equalities: int, what: str
) -> None:
    totals = {"data-files": 9, "records": 1000, "delete-files": files}
    totals |= {"position-deletes": positions, "equality-deletes": equalities}
    summary = SimpleNamespace(additional_properties={f"total-{name}": str(n) for name, n in totals.items()})
    table = SimpleNamespace(current_snapshot=lambda: SimpleNamespace(summary=summary))
    assert _delete_files(cast(Table, table), PACKED) == what

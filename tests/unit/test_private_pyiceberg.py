"""What has to hold of PyIceberg's private parts: a new version that changes one of them fails here, by its name."""

import ast
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import AssertTableUUID, SetPropertiesUpdate
from pyiceberg.transforms import IdentityTransform

from lakehouse.catalog.lake_catalog import GZIPPED, LakeCatalog
from lakehouse.catalog.private_pyiceberg import (
    LakeFileIO,
    MergingAppend,
    Rewrite,
    Staging,
    by_partition,
    copied_to,
    data_files,
    iceberg_schema,
    stage,
    write_metadata,
)
from lakehouse.settings import PROJECT_DIR

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "kind": ["a", "b", "a"]})
NAME = ("shop", "sales")
ADAPTER = "lakehouse/catalog/private_pyiceberg.py"


@pytest.fixture
def catalog(tmp_path: Path) -> LakeCatalog:
    made = LakeCatalog("lake", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    made.create_namespace("shop")
    return made


@pytest.fixture
def table(catalog: LakeCatalog) -> Table:
    return catalog.create_table(NAME, ROWS.schema)


def test_an_arrow_schema_becomes_one_of_iceberg_and_that_stays() -> None:
    made = iceberg_schema(ROWS.schema)
    assert [(field.name, str(field.field_type)) for field in made.fields] == [("id", "long"), ("kind", "string")]
    assert iceberg_schema(made) is made


def test_rows_become_data_files_with_figures_and_names_of_their_own(table: Table) -> None:
    first, second = ([*data_files(table.metadata, ROWS, table.io)] for _ in range(2))
    assert [file.record_count for file in (*first, *second)] == [3, 3]
    assert first[0].file_path != second[0].file_path
    assert table.io.new_input(first[0].file_path).exists() and first[0].lower_bounds


def test_rows_are_split_by_the_partition_that_they_belong_to(table: Table) -> None:
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "kind"))
    parts = by_partition(spec, table.schema(), ROWS)
    found = {key.partition[0]: rows.column("id").to_pylist() for key, rows in parts}
    assert found == {"a": [1, 3], "b": [2]} and all(key.to_path().startswith("kind=") for key, _ in parts)


def test_what_is_staged_is_written_with_gzip_and_nobody_sees_it(catalog: LakeCatalog, table: Table) -> None:
    staged = stage(catalog, table, [SetPropertiesUpdate(updates={"a": "1"})])
    assert staged.metadata_location.endswith(GZIPPED) and staged.metadata.properties["a"] == "1"
    with table.io.new_input(staged.metadata_location).open() as stream:
        assert stream.read(2) == b"\x1f\x8b"
    assert "a" not in catalog.load_table(NAME).properties
    assert catalog.table_at(*NAME, staged.metadata_location).properties["a"] == "1"


def test_what_is_staged_is_checked_against_the_table_as_it_was_given(catalog: LakeCatalog, table: Table) -> None:
    with pytest.raises(CommitFailedException):
        stage(catalog, table, [], [AssertTableUUID(uuid="00000000-0000-0000-0000-000000000000")])


def test_a_metadata_file_is_read_as_it_was_written(catalog: LakeCatalog, table: Table, tmp_path: Path) -> None:
    for name in ("plain.metadata.json", "packed.gz.metadata.json"):
        write_metadata(table.metadata, table.io, f"file://{tmp_path}/{name}")
        assert catalog.table_at(*NAME, f"file://{tmp_path}/{name}").metadata == table.metadata


def test_a_transaction_derives_its_metadata_once_after_each_update(
    catalog: LakeCatalog, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyiceberg.table as module

    derived: list[int] = []
    update_table_metadata = module.update_table_metadata
    monkeypatch.setattr(
        module,
        "update_table_metadata",
        lambda *given, **more: derived.append(1) or update_table_metadata(*given, **more),
    )
    transaction = Staging(table)
    assert transaction.table_metadata is table.metadata
    transaction.apply((SetPropertiesUpdate(updates={"a": "1"}),))
    assert transaction.table_metadata.properties["a"] == "1"
    looked = len(derived)
    assert transaction.table_metadata.properties["a"] == "1" and len(derived) == looked
    transaction.set_properties({"b": "2"})
    assert transaction.table_metadata.properties == table.properties | {"a": "1", "b": "2"}
    assert transaction.stage(catalog, table).metadata.properties == transaction.table_metadata.properties


def test_an_append_merges_the_manifests_that_were_chosen_and_leaves_the_others(table: Table) -> None:
    class FirstTwo(MergingAppend):
        def to_merge(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
            assert all(manifest.added_snapshot_id != self.snapshot_id for manifest in manifests)
            return sorted(manifests, key=lambda manifest: manifest.sequence_number)[:2] if len(manifests) > 2 else []

    for _ in range(4):
        with table.transaction() as transaction, FirstTwo(Operation.APPEND, transaction, table.io) as update:
            for file in data_files(table.metadata, ROWS, table.io):
                update.append_data_file(file)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert sorted(manifest.existing_files_count for manifest in snapshot.manifests(table.io)) == [0, 0, 2]
    assert table.scan().to_arrow().num_rows == 12
    sequences = table.inspect.entries().column("sequence_number").to_pylist()
    assert sorted(sequences) == [1, 2, 3, 4], "as they were committed"


def test_a_rewrite_reads_the_manifests_of_what_it_takes_out_and_no_older_ones(table: Table) -> None:
    for _ in range(3):
        table.append(ROWS)
    newest = table.current_snapshot()
    assert newest is not None
    first, *others = sorted(newest.manifests(table.io), key=lambda manifest: manifest.sequence_number)
    gone = [entry.data_file for manifest in others for entry in manifest.fetch_manifest_entry(table.io)]

    def rewrite(after: int) -> Staging:
        transaction = Staging(table)
        update = Rewrite(transaction, table.io, after, {"why": "small"})
        for file in gone:
            update.delete_data_file(file)
        for file in data_files(table.metadata, pa.concat_tables([ROWS, ROWS]), table.io):
            update.append_data_file(file)
        update.commit()
        return transaction

    with pytest.raises(ValidationException, match="Missing required files"):
        rewrite(others[0].sequence_number)
    rewrite(first.sequence_number).commit_transaction()
    table.refresh()
    snapshot = table.current_snapshot()
    assert snapshot is not None and snapshot.summary is not None
    told = {key: snapshot.summary[key] for key in ("total-records", "total-data-files", "deleted-data-files", "why")}
    assert told == {"total-records": "9", "total-data-files": "2", "deleted-data-files": "2", "why": "small"}
    assert snapshot.summary.operation == Operation.REPLACE
    assert first.manifest_path in {manifest.manifest_path for manifest in snapshot.manifests(table.io)}
    assert table.scan().to_arrow().num_rows == 9


def test_an_entry_of_a_manifest_list_is_copied_for_another_place_and_stays_as_it_was(table: Table) -> None:
    table.append(ROWS)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    [manifest] = snapshot.manifests(table.io)
    path = manifest.manifest_path
    copy = copied_to(manifest, "elsewhere.avro")
    assert (copy.manifest_path, manifest.manifest_path) == ("elsewhere.avro", path)
    assert (copy.added_snapshot_id, copy.added_files_count) == (manifest.added_snapshot_id, manifest.added_files_count)


def test_a_metadata_file_is_read_once_and_every_table_has_the_catalogs_file_io(
    catalog: LakeCatalog, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog.load_table(NAME)
    monkeypatch.setattr(FileIO, "new_input", lambda *given: pytest.fail("it was read again"))
    assert catalog.load_table(NAME).io is catalog.load_tables([NAME])[NAME].io is catalog.file_io


def test_s3_is_written_with_one_request_for_a_small_object(monkeypatch: pytest.MonkeyPatch) -> None:
    io = LakeFileIO({"s3.region": "us-east-1", "s3.endpoint": "http://127.0.0.1:1", "s3.access-key-id": "a",
                           "s3.secret-access-key": "b"})  # fmt: skip
    _, (options,) = io.fs_by_scheme("s3", "warehouse").__reduce__()
    assert options["allow_delayed_open"] is True and options["endpoint_override"] == "http://127.0.0.1:1"


def test_the_catalogs_rows_have_the_columns_that_are_asked_for_by_name() -> None:
    assert IcebergTables.__tablename__ == "iceberg_tables"
    assert {column.name for column in IcebergTables.__table__.columns} == {
        "catalog_name", "table_namespace", "table_name", "metadata_location", "previous_metadata_location",
        "iceberg_type",
    }  # fmt: skip


def test_nothing_private_is_imported_or_replaced_anywhere_else() -> None:
    """`make lint` finds private members that are read; these are names that are imported, steps that are replaced."""
    replaced = {name for kind in (SqlCatalog, FileIO, LakeFileIO, MergingAppend, Rewrite) for name in dir(kind)}
    private = {name for name in replaced if name.startswith("_") and not name.startswith("__")}
    for package in ("lakehouse", "ingestion", "maintenance", "erasure", "lakehouse_backup", "benchmarks"):
        for path in (PROJECT_DIR / package).rglob("*.py"):
            where = path.relative_to(PROJECT_DIR).as_posix()
            if where != ADAPTER:
                found = [name for node in ast.walk(ast.parse(path.read_text())) for name in _private(node, private)]
                assert found == [], f"{where}: {found}"


def _private(node: Any, private: set[str]) -> list[str]:
    if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pyiceberg"):
        return [alias.name for alias in node.names if alias.name.startswith("_")]
    if isinstance(node, ast.ClassDef) and node.bases:
        return [item.name for item in node.body if isinstance(item, ast.FunctionDef) and item.name in private]
    return []

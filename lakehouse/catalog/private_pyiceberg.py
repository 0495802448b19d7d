"""The only module that uses PyIceberg's private functions and overrides steps of its classes.

A new version may change any of them; tests/unit/test_private_pyiceberg.py checks what this module relies on.
`make lint` refuses private members anywhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa
from pyarrow.fs import FileSystem, S3FileSystem
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import PyArrowFileIO, _dataframe_to_data_files, _determine_partitions
from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntry, ManifestEntryStatus, ManifestFile
from pyiceberg.partitioning import PartitionKey, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.serializers import ToOutputFile
from pyiceberg.table import StagedTable, Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update import TableRequirement, TableUpdate
from pyiceberg.table.update.snapshot import _FastAppendFiles, _ManifestMergeManager, _OverwriteFiles
from pyiceberg.typedef import EMPTY_DICT, Properties

from lakehouse.catalog import S3_CA
from lakehouse.catalog.locations import parse_location


def iceberg_schema(schema: Schema | pa.Schema) -> Schema:
    """An Arrow schema as Iceberg's, without field ids that mean anything; one of Iceberg as it is."""
    return SqlCatalog._convert_schema_if_needed(schema)


def data_files(metadata: TableMetadata, rows: pa.Table, io: FileIO) -> Iterable[DataFile]:
    """Writes rows as data files of a table, under names that no other call gives."""
    return _dataframe_to_data_files(metadata, rows, io)


def by_partition(spec: PartitionSpec, schema: Schema, rows: pa.Table) -> list[tuple[PartitionKey, pa.Table]]:
    """Rows by the partition that they belong to."""
    return [(p.partition_key, p.arrow_table_partition) for p in _determine_partitions(spec, schema, rows)]


def stage(
    catalog: SqlCatalog, table: Table, updates: Iterable[TableUpdate], requirements: Iterable[TableRequirement] = ()
) -> StagedTable:
    """The table's next metadata file, written; the table does not point to it yet.

    Raises CommitFailedException where a requirement is not met by the table as it is given.
    """
    staged = catalog._update_and_stage_table(table, table.name(), tuple(requirements), tuple(updates))
    write_metadata(staged.metadata, staged.io, staged.metadata_location)
    return staged


def write_metadata(metadata: TableMetadata, io: FileIO, location: str) -> None:
    """Writes a metadata file, with gzip where its name says so."""
    ToOutputFile.table_metadata(metadata, io.new_output(location))


def copied_to(manifest: ManifestFile, path: str) -> ManifestFile:
    """The entry of a manifest list for a manifest at another place; PyIceberg shares those that it has read."""
    own = type(manifest)(*manifest._data)
    own[0] = path
    return own


class Staging(Transaction):
    """A transaction that derives the table's metadata once per update.

    PyIceberg does so at every look, a dozen per commit, with a deep copy each time: 20 ms for 1,000 snapshots.
    """

    def __init__(self, table: Table) -> None:
        super().__init__(table)
        self._derived: tuple[int, TableMetadata] = (0, table.metadata)

    @property
    def table_metadata(self) -> TableMetadata:
        updates, metadata = self._derived
        if updates != len(self._updates):
            metadata = super().table_metadata
            self._derived = (len(self._updates), metadata)
        return metadata

    def apply(self, updates: tuple[TableUpdate, ...]) -> None:
        """Adds updates that none of its methods makes."""
        self._apply(updates)

    def stage(self, catalog: SqlCatalog, table: Table) -> StagedTable:
        """Stages the gathered updates; see `stage`."""
        return stage(catalog, table, self._updates, self._requirements)


class MergingAppend(_FastAppendFiles):
    """An append that merges the manifests that `to_merge` chooses, and may take the place of one earlier file.

    `written` is the manifest of its own files, once it has committed.
    """

    written: ManifestFile | None = None
    _replaced: tuple[ManifestFile, DataFile] | None = None

    def to_merge(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        """Some of those that the table had before, all of one partition spec; none where there is nothing to do."""
        return []

    def replace(self, manifest: ManifestFile, file: DataFile) -> None:
        """Takes a file out in the same commit: the only live one of this manifest of the table's newest snapshot."""
        self._replaced = (manifest, file)
        self._operation = Operation.OVERWRITE
        file.spec_id = manifest.partition_spec_id  # PyIceberg sets it where it reads a file, not where it writes one
        self.delete_data_file(file)

    def _existing_manifests(self) -> list[ManifestFile]:
        gone = self._replaced[0].manifest_path if self._replaced else None
        return [manifest for manifest in super()._existing_manifests() if manifest.manifest_path != gone]

    def _deleted_entries(self) -> list[ManifestEntry]:
        if self._replaced is None:
            return []
        manifest, file = self._replaced
        number = manifest.sequence_number
        return [
            ManifestEntry.from_args(
                status=ManifestEntryStatus.DELETED,
                snapshot_id=self.snapshot_id,
                sequence_number=number,
                file_sequence_number=number,
                data_file=file,
            )
        ]

    def _process_manifests(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        own = [manifest for manifest in manifests if manifest.added_snapshot_id == self.snapshot_id]
        self.written = next((manifest for manifest in own if manifest.has_added_files()), None)
        chosen = self.to_merge([manifest for manifest in manifests if manifest.added_snapshot_id != self.snapshot_id])
        if not chosen:
            return manifests
        merging = _ManifestMergeManager(0, 0, merge_enabled=True, snapshot_producer=self)
        merged = merging._create_manifest(chosen[0].partition_spec_id, chosen)
        left = {manifest.manifest_path for manifest in chosen}
        return [*(manifest for manifest in manifests if manifest.manifest_path not in left), merged]


class Rewrite(_OverwriteFiles):
    """The same rows in other files: `delete_data_file` and `append_data_file` name them.

    All that are taken out came after the sequence number `after`; other manifests are not read.
    """

    def __init__(self, transaction: Transaction, io: FileIO, after: int, properties: dict[str, str]) -> None:
        super().__init__(Operation.OVERWRITE, transaction, io, snapshot_properties=properties)
        self._after = after

    def _build_delete_files_partition_predicate(self) -> None:
        pass

    def _build_manifest_evaluator(self, spec_id: int) -> Callable[[ManifestFile], bool]:
        return lambda manifest: manifest.content == ManifestContent.DATA and manifest.sequence_number > self._after

    def _summary(self, snapshot_properties: dict[str, str] = EMPTY_DICT) -> Summary:
        counted = super()._summary(snapshot_properties)  # which PyIceberg does for other operations alone
        return Summary(Operation.REPLACE, **counted.additional_properties)


class StepwiseCatalog(SqlCatalog):
    """A SqlCatalog of whose steps some can be replaced: what it makes of a row, and where metadata is written."""

    @property
    def file_io(self) -> FileIO:
        """What all tables are read and written with."""
        raise NotImplementedError

    def table_at(self, namespace: str, name: str, location: str) -> Table:
        """The table whose metadata is at the location."""
        raise NotImplementedError

    def named(self, location: str) -> str:
        """What a metadata file is called that PyIceberg would call so."""
        return location

    def table_of(self, row: IcebergTables) -> Table:
        """The table of one row of the catalog; raises NoSuchTableError for one that is none."""
        if not row.metadata_location:
            return super()._convert_orm_to_iceberg(row)
        return self.table_at(row.table_namespace, row.table_name, row.metadata_location)

    def _convert_orm_to_iceberg(self, orm_table: IcebergTables) -> Table:
        return self.table_of(orm_table)

    def _update_and_stage_table(self, *arguments: Any, **named: Any) -> StagedTable:
        staged = super()._update_and_stage_table(*arguments, **named)
        staged.metadata_location = self.named(staged.metadata_location)
        return staged

    def _load_file_io(self, properties: Properties = EMPTY_DICT, location: str | None = None) -> FileIO:
        return self.file_io


class LakeFileIO(PyArrowFileIO):
    """Reads and writes the very object that is named, and sends one of a few megabytes with one request.

    Arrow begins a multipart upload for each object, however small: three requests instead of one, and with them most
    of the time in which manifests, metadata and a small cycle's files are written.
    """

    @staticmethod
    def parse_location(location: str, properties: Properties = EMPTY_DICT) -> tuple[str, str, str]:
        """Scheme, authority and path: PyIceberg would take `a#b` for `a`."""
        return parse_location(location, properties)

    def _initialize_s3_fs(self, netloc: str | None) -> FileSystem:
        remake, (options,) = super()._initialize_s3_fs(netloc).__reduce__()
        trusted = {"tls_ca_file_path": self.properties[S3_CA]} if S3_CA in self.properties else {}
        made: S3FileSystem = remake(options | {"allow_delayed_open": True} | trusted)
        return made

"""Arrow rows to Parquet data files in the warehouse; nothing is visible before a publish names the files.

Rows are encoded as they come, a row group at a time and beside the thread that decodes, so that memory follows the row
group and not the transaction.
"""

import pickle
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property
from threading import Lock

import pyarrow as pa
import pyarrow.compute as pc
from cachetools import LRUCache, cached
from pyiceberg.io import FileIO
from pyiceberg.io.fileformat import FileFormatFactory, FileFormatWriter
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionKey
from pyiceberg.schema import Schema, sanitize_column_names
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.typedef import Record
from pyiceberg.utils.concurrent import ExecutorFactory

from lakehouse.catalog.private_pyiceberg import by_partition

ROW_GROUP_BYTES = 32 * 1024 * 1024  # of Arrow data
DICTIONARY_BYTES = 128 * 1024  # of a column of a row group; with 2 MiB, unique values are hashed for nothing
_CYCLE = "00000000-cycle-00000000"  # where a cycle's id goes in a template


@dataclass(frozen=True)
class Written:
    """What a task wrote for one table; `unrepresentable_files` are those of `meta.unrepresentable`."""

    name: str
    files: tuple[DataFile, ...]
    operations: dict[str, int]
    unrepresentable: dict[str, int]
    unrepresentable_files: tuple[DataFile, ...] = ()


def staged_prefix(location: str, cycle_id: str) -> str:
    """The object prefix below which a cycle writes a table's files."""
    return f"{location.rstrip('/')}/data/{cycle_id}"


def writable_metadata(table: Table, cycle_id: str) -> str:
    """The table's metadata as JSON, with the data path set to the cycle's prefix and no history to carry around."""
    return _template(table).replace(_CYCLE, cycle_id)


@cached(LRUCache(1024), key=lambda table: table.metadata_location, lock=Lock())
def _template(table: Table) -> str:
    metadata = table.metadata
    properties = {TableProperties.PARQUET_DICT_SIZE_BYTES: str(DICTIONARY_BYTES), **metadata.properties}
    properties[TableProperties.WRITE_DATA_PATH] = staged_prefix(metadata.location, _CYCLE)
    slim = metadata.model_copy(
        update={
            "properties": properties, "snapshots": [], "snapshot_log": [], "metadata_log": [], "refs": {},
            "current_snapshot_id": None, "statistics": [], "partition_statistics": [],
        }
    )  # fmt: skip
    return slim.model_dump_json()


def fitted(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Rows in a table's schema: its columns by name; those that another release has added are null."""
    nulls = {field.name: pa.nulls(rows.num_rows, field.type) for field in schema}
    columns = nulls | dict(zip(rows.column_names, rows.columns, strict=True))
    return pa.table({field.name: columns[field.name] for field in schema}).cast(schema)


class TableWriter:
    """Writes one table's rows to one open file per partition, a new one once `file_bytes` of Arrow data are in it."""

    def __init__(self, metadata_json: str, io: FileIO, file_bytes: int) -> None:
        self._metadata_json = metadata_json
        self._io = io
        self._file_bytes = file_bytes
        self._pending: list[pa.Table] = []
        self.pending_bytes = 0
        self._open: dict[Record, _OpenFile] = {}
        self._files: list[DataFile] = []
        self._under_way: Future[None] | None = None

    @cached_property
    def _metadata(self) -> TableMetadata:
        return TableMetadataUtil.parse_raw(self._metadata_json)

    @cached_property
    def schema(self) -> pa.Schema:
        """What rows have to look like."""
        return _arrow_schema(self._metadata.schema())

    def add(self, rows: pa.Table) -> None:
        """Takes rows in the table's Arrow schema."""
        if rows.num_rows:
            self._pending.append(rows)
            self.pending_bytes += rows.nbytes
        if self.pending_bytes >= ROW_GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        """Begins to write what is pending; waits for the rows before it, so that at most two row groups are held."""
        self._wait()
        if self._pending:
            rows = pa.concat_tables(self._pending)
            self._pending, self.pending_bytes = [], 0
            self._under_way = ExecutorFactory.get_or_create().submit(self._write, rows)

    def close(self) -> tuple[DataFile, ...]:
        """Writes what is left and returns all files; call `flush` on several writers first to close them together."""
        self.flush()
        self._wait()
        for file in self._open.values():
            self._files.append(file.close())
        self._open = {}
        return tuple(self._files)

    def _wait(self) -> None:
        if self._under_way is not None:
            self._under_way.result()
            self._under_way = None

    def _write(self, rows: pa.Table) -> None:
        for key, part in _partitions(self._metadata, rows):
            partition = key.partition if key else Record()
            file = self._open.get(partition)
            if file is None:
                file = self._open[partition] = _OpenFile(self._metadata, self._io, key)
            file.write(part)
            if file.arrow_bytes >= self._file_bytes:
                self._files.append(self._open.pop(partition).close())


class _OpenFile:
    """A Parquet file under way."""

    def __init__(self, metadata: TableMetadata, io: FileIO, key: PartitionKey | None) -> None:
        model = FileFormatFactory.get(FileFormat.PARQUET)
        schema = sanitize_column_names(metadata.schema())
        locations = load_location_provider(metadata.location, metadata.properties)
        self._output = io.new_output(locations.new_data_location(f"{uuid.uuid4().hex}.{model.file_extension()}", key))
        self._writer: FileFormatWriter = model.create_writer(self._output, schema, metadata.properties)
        self._schema = _arrow_schema(schema)
        self._spec_id = metadata.default_spec_id
        self._partition = key.partition if key else Record()
        self.arrow_bytes = 0

    def write(self, rows: pa.Table) -> None:
        self._writer.write(pa.Table.from_arrays(rows.columns, schema=self._schema))
        self.arrow_bytes += rows.nbytes

    def close(self) -> DataFile:
        statistics = self._writer.close()
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=self._output.location,
            file_format=FileFormat.PARQUET,
            partition=self._partition,
            file_size_in_bytes=len(self._output),
            sort_order_id=None,
            spec_id=self._spec_id,
            equality_ids=None,
            key_metadata=None,
            **statistics.to_serialized_dict(),
        )


def _arrow_schema(schema: Schema) -> pa.Schema:
    """With offsets of 32 bits, as values are decoded; PyIceberg's own choice of 64 would be a cast of every text."""
    return pa.schema([_with_small_offsets(field) for field in schema.as_arrow()])


def _with_small_offsets(field: pa.Field) -> pa.Field:
    if pa.types.is_large_list(field.type):
        return field.with_type(pa.list_(_with_small_offsets(field.type.value_field)))
    small = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}
    return field.with_type(small.get(field.type, field.type))


def _partitions(metadata: TableMetadata, rows: pa.Table) -> list[tuple[PartitionKey | None, pa.Table]]:
    """The rows by partition. Nearly always they are of one: then nothing is sorted or copied."""
    spec, schema = metadata.spec(), metadata.schema()
    if spec.is_unpartitioned():
        return [(None, rows)]
    for item in spec.fields:
        source = schema.find_field(item.source_id)
        values = item.transform.pyarrow_transform(source.field_type)(rows.column(source.name))
        bounds = pc.min_max(values)
        if values.null_count or bounds["min"] != bounds["max"]:
            return list(by_partition(spec, schema, rows))
    [(key, _)] = by_partition(spec, schema, rows.slice(0, 1))
    return [(key, rows)]


def write_unrepresentable(
    texts: Iterable[pa.Table], metadata_json: str, io: FileIO, file_bytes: int
) -> tuple[DataFile, ...]:
    """Texts of values that the lake's types cannot hold, as files of `meta.unrepresentable`."""
    writer = TableWriter(metadata_json, io, file_bytes)
    for part in texts:
        writer.add(fitted(part, writer.schema))
    return writer.close()


def pack(value: object) -> bytes:
    """A task's result as bytes for the driver."""
    return pickle.dumps(value)


def unpack(data: bytes) -> object:
    """The inverse of `pack`; only ever given what our own tasks returned."""
    return pickle.loads(data)


def merge_files(parts: Iterable[Mapping[str, tuple[DataFile, ...]]]) -> dict[str, tuple[DataFile, ...]]:
    """The files of `meta` tables, by table, of several reads."""
    merged: dict[str, tuple[DataFile, ...]] = {}
    for part in parts:
        for name, files in part.items():
            merged[name] = merged.get(name, ()) + files
    return merged


def merge(parts: Iterable[Written]) -> dict[str, Written]:
    """The parts of each table as one."""
    merged: dict[str, Written] = {}
    for part in parts:
        seen = merged.get(part.name, Written(part.name, (), {}, {}))
        merged[part.name] = Written(
            part.name,
            seen.files + part.files,
            dict(Counter(seen.operations) + Counter(part.operations)),
            dict(Counter(seen.unrepresentable) + Counter(part.unrepresentable)),
            seen.unrepresentable_files + part.unrepresentable_files,
        )
    return merged

"""Arrow rows to Parquet data files in the warehouse; nothing is visible before a publish names the files."""

import pickle
import uuid
from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.manifest import DataFile
from pyiceberg.table import TableProperties
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil


@dataclass(frozen=True)
class Written:
    """What a task wrote for one table; `odd` are files of `meta.unrepresentable`."""

    name: str
    files: tuple[DataFile, ...]
    operations: dict[str, int]
    unrepresentable: dict[str, int]
    odd: tuple[DataFile, ...] = ()


def staged_prefix(location: str, cycle_id: str) -> str:
    """The object prefix below which a cycle writes a table's files."""
    return f"{location.rstrip('/')}/data/{cycle_id}"


def writable_metadata(metadata: TableMetadata, cycle_id: str) -> str:
    """The table's metadata as JSON, with the data path set to the cycle's prefix and no history to carry around."""
    properties = metadata.properties | {TableProperties.WRITE_DATA_PATH: staged_prefix(metadata.location, cycle_id)}
    slim = metadata.model_copy(
        update={
            "properties": properties, "snapshots": [], "snapshot_log": [], "metadata_log": [], "refs": {},
            "current_snapshot_id": None, "statistics": [], "partition_statistics": [],
        }
    )  # fmt: skip
    return slim.model_dump_json()


class TableWriter:
    """Gathers rows and writes a data file per partition whenever `file_bytes` of Arrow data have come together."""

    def __init__(self, metadata_json: str, io: FileIO, file_bytes: int) -> None:
        self._metadata = TableMetadataUtil.parse_raw(metadata_json)
        self._io = io
        self._file_bytes = file_bytes
        self._pending: list[pa.Table] = []
        self._pending_bytes = 0
        self._files: list[DataFile] = []
        self.schema = self._metadata.schema().as_arrow()

    def add(self, rows: pa.Table) -> None:
        """Takes rows in the table's Arrow schema."""
        if rows.num_rows:
            self._pending.append(rows)
            self._pending_bytes += rows.nbytes
        if self._pending_bytes >= self._file_bytes:
            self._flush()

    def close(self) -> tuple[DataFile, ...]:
        """Writes what is left and returns all files."""
        self._flush()
        return tuple(self._files)

    def _flush(self) -> None:
        if self._pending:
            rows = pa.concat_tables(self._pending)
            self._files += _dataframe_to_data_files(self._metadata, rows, self._io, write_uuid=uuid.uuid4())
            self._pending, self._pending_bytes = [], 0


def write_odd(texts: Iterable[pa.Table], metadata_json: str, io: FileIO, file_bytes: int) -> tuple[DataFile, ...]:
    """Texts of values that the lake's types cannot hold, as files of `meta.unrepresentable`."""
    writer = TableWriter(metadata_json, io, file_bytes)
    for part in texts:
        writer.add(part.cast(writer.schema))
    return writer.close()


def pack(value: object) -> bytes:
    """A task's result as bytes for the driver."""
    return pickle.dumps(value)


def unpack(data: bytes) -> object:
    """The inverse of `pack`; only ever given what our own tasks returned."""
    return pickle.loads(data)

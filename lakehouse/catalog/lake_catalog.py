"""PyIceberg's SQL catalog with a cache of metadata files, which never change.

A process that loads many tables often, such as ingestion, queries their locations and reads only new metadata files.
Only the newest file of a table is cached: of a table that is published each second, a hundred files would take a
hundred megabytes. The catalogs of a process share the cache: a run of Dagster opens one after the other.
"""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from threading import Lock

from cachetools import LRUCache
from pyiceberg.catalog.sql import IcebergTables
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from sqlalchemy import select, tuple_
from sqlalchemy.orm import Session

from lakehouse.catalog.private_pyiceberg import StepwiseCatalog

KNOWN_TABLES = 4096
READERS = 8  # of metadata files at once: a file takes milliseconds, of which most are the store's
PLAIN, GZIPPED = ".metadata.json", ".gz.metadata.json"  # Iceberg knows the codec by the name
Name = tuple[str, str]
_known: LRUCache[Name, tuple[str, TableMetadata]] = LRUCache(KNOWN_TABLES)
_lock = Lock()


class LakeCatalog(StepwiseCatalog):
    """A SqlCatalog that caches metadata files and shares one FileIO, with its open connections, among all tables."""

    def load_tables(self, identifiers: Collection[tuple[str, str]]) -> dict[tuple[str, str], Table]:
        """Loads several tables with one query; views and missing tables are omitted."""
        if not identifiers:
            return {}
        wanted = tuple_(IcebergTables.table_namespace, IcebergTables.table_name).in_(list(identifiers))
        no_view = IcebergTables.iceberg_type.is_distinct_from("VIEW")
        own = select(IcebergTables).where(IcebergTables.catalog_name == self.name, wanted, no_view)
        with Session(self.engine) as session:
            found = session.scalars(own).all()
        if len(found) > READERS and not all(self._knows(row) for row in found):
            _ = self.file_io  # one for all threads
            with ThreadPoolExecutor(READERS) as pool:
                tables = list(pool.map(self.table_of, found))
        else:
            tables = [self.table_of(row) for row in found]
        return {(row.table_namespace, row.table_name): table for row, table in zip(found, tables, strict=True)}

    def _knows(self, row: IcebergTables) -> bool:
        with _lock:
            return _known.get((row.table_namespace, row.table_name), ("", None))[0] == row.metadata_location

    def remember(self, table: Name, location: str, metadata: TableMetadata) -> None:
        """Caches metadata that was just written."""
        with _lock:
            _known[table] = (location, metadata)

    def named(self, location: str) -> str:
        """Metadata files are written with gzip, a tenth of the size: most of one is a list of snapshots, all alike."""
        return location if location.endswith(GZIPPED) else location.removesuffix(PLAIN) + GZIPPED

    def table_at(self, namespace: str, name: str, location: str) -> Table:
        """The table; its metadata file is read only if it is not cached."""
        with _lock:
            known, metadata = _known.get((namespace, name), ("", None))
        if metadata is None or known != location:
            metadata = FromInputFile.table_metadata(self.file_io.new_input(location))
            self.remember((namespace, name), location, metadata)
        return Table((*self.identifier_to_tuple(namespace), name), metadata, location, self.file_io, self)

    @cached_property
    def file_io(self) -> FileIO:
        """One for all tables, with its open connections."""
        return load_file_io(self.properties, str(self.properties["warehouse"]))

"""PyIceberg's catalog in a SQL database, without reading again what cannot have changed.

A metadata file is never written twice, so its location says what is in it: a process that looks at many tables often,
such as ingestion, asks the database where they are and reads the files of those that moved on. Only a table's newest
one is kept: of a table that is published each second, a hundred would be a hundred megabytes.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property
from threading import Lock
from typing import Any

from cachetools import LRUCache
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.io import FileIO
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import StagedTable, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import EMPTY_DICT, Properties
from sqlalchemy import select, tuple_
from sqlalchemy.orm import Session

KNOWN_TABLES = 4096
PLAIN, GZIPPED = ".metadata.json", ".gz.metadata.json"  # Iceberg knows the codec by the name
Name = tuple[str, str]


class LakeCatalog(SqlCatalog):
    """A SqlCatalog that remembers metadata files and uses one FileIO, with its open connections, for all tables."""

    def __init__(self, name: str, **properties: str) -> None:
        super().__init__(name, **properties)
        self._known: LRUCache[Name, tuple[str, TableMetadata]] = LRUCache(KNOWN_TABLES)
        self._lock = Lock()

    def load_tables(self, identifiers: Collection[tuple[str, str]]) -> dict[tuple[str, str], Table]:
        """Several tables for one question to the database; those that do not exist are left out."""
        if not identifiers:
            return {}
        wanted = tuple_(IcebergTables.table_namespace, IcebergTables.table_name).in_(list(identifiers))
        with Session(self.engine) as session:
            found = session.scalars(select(IcebergTables).where(IcebergTables.catalog_name == self.name, wanted)).all()
        return {(row.table_namespace, row.table_name): self._convert_orm_to_iceberg(row) for row in found}

    def remember(self, table: Name, location: str, metadata: TableMetadata) -> None:
        """What was just written to a metadata file of the table."""
        with self._lock:
            self._known[table] = (location, metadata)

    def _update_and_stage_table(self, *arguments: Any, **named: Any) -> StagedTable:
        """Metadata files are written with gzip, a tenth of the size: most of one is a list of snapshots, all alike."""
        staged = super()._update_and_stage_table(*arguments, **named)
        if not staged.metadata_location.endswith(GZIPPED):
            staged.metadata_location = staged.metadata_location.removesuffix(PLAIN) + GZIPPED
        return staged

    def _convert_orm_to_iceberg(self, orm_table: IcebergTables) -> Table:
        location = orm_table.metadata_location
        if not location:
            return super()._convert_orm_to_iceberg(orm_table)
        name = (orm_table.table_namespace, orm_table.table_name)
        with self._lock:
            known, metadata = self._known.get(name, ("", None))
        if metadata is None or known != location:
            metadata = FromInputFile.table_metadata(self._io.new_input(location))
            self.remember(name, location, metadata)
        identifier = (*self.identifier_to_tuple(orm_table.table_namespace), orm_table.table_name)
        return Table(identifier, metadata, location, self._io, self)

    @cached_property
    def _io(self) -> FileIO:
        return super()._load_file_io(EMPTY_DICT, str(self.properties["warehouse"]))

    def _load_file_io(self, properties: Properties = EMPTY_DICT, location: str | None = None) -> FileIO:
        return self._io

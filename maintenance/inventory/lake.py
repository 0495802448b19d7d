"""A listing of the whole lake, shared by the actions that delete objects.

Its order makes it safe beside running ingestion, whatever the age limit: it lists objects, then reads the staged
prefixes, then the tables. A cycle records its prefix in `staged_files` before it writes an object. If the prefix is
gone in the second step, the cycle was published, and the table that is read in the third step refers to the object.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from pyiceberg.exceptions import ValidationError
from pyiceberg.io.pyarrow import PyArrowFileIO
from sqlalchemy import text

from lakehouse.catalog.locations import one_spelling
from lakehouse.catalog.next_names import is_next
from lakehouse.catalog.objects import StoredObject, list_objects
from lakehouse.catalog.open import load_table
from lakehouse.catalog.relations import Relation, directory, list_relations
from maintenance.inventory.outcome import TableName

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.table import Table

READERS = 8
BROKEN = (FileNotFoundError, ValueError, EOFError, zlib.error, ValidationError)
"""What PyIceberg raises for a file that is missing, or was cut short."""
UNREADABLE = (OSError, *BROKEN)


@dataclass(frozen=True)
class Lake:
    """All objects of the warehouse, the prefixes that are being written, and all tables; paths are in one spelling."""

    objects: tuple[StoredObject, ...]
    staged: tuple[str, ...]
    relations: tuple[Relation, ...]
    tables: dict[TableName, Table] = field(repr=False)
    _by_location: dict[str, list[StoredObject]] = field(repr=False)

    def objects_of(self, table: TableName) -> list[StoredObject]:
        """The objects below a table's location, without those below another table's location inside it."""
        return self._by_location.get(directory(self.tables[table].location()), [])

    def sharing_location(self, table: TableName) -> list[TableName]:
        """Other tables at the same location: an orphan of one may be another's file."""
        return [name for name in self._at[directory(self.tables[table].location())] if name != table]

    def refresh(self, name: TableName, table: Table) -> None:
        """Has the table's present state, which may be at another location."""
        self.tables[name] = table
        self.__dict__.pop("_at", None)

    @cached_property
    def _at(self) -> dict[str, list[TableName]]:
        """The tables by their location."""
        found: dict[str, list[TableName]] = defaultdict(list)
        for name, table in self.tables.items():
            found[directory(table.location())].append(name)
        return found

    @property
    def unreadable(self) -> list[TableName]:
        """Tables of the catalog whose metadata cannot be read."""
        return [r.name for r in self.relations if r.kind == "table" and r.name not in self.tables]

    @property
    def unowned(self) -> list[StoredObject]:
        """The objects below no relation's location."""
        owned = {stored.path for objects in self._by_location.values() for stored in objects}
        return [stored for stored in self.objects if stored.path not in owned]

    def is_staged(self, path: str) -> bool:
        """Whether an unpublished cycle of ingestion may have written this object."""
        return path.startswith(self.staged)


def read_lake(catalog: SqlCatalog, io: PyArrowFileIO, warehouse: str) -> Lake:
    """Lists the warehouse, then reads staged prefixes, then all tables; the module explains this order."""
    objects = [replace(stored, path=one_spelling(stored.path)) for stored in list_objects(io, warehouse)]
    staged = staged_prefixes(catalog)
    listed = list_relations(catalog)
    names = [relation.name for relation in listed if relation.kind == "table"]
    with ThreadPoolExecutor(READERS) as pool:
        loaded = pool.map(lambda name: _load_or_none(catalog, name), names)
    tables = {name: table for name, table in zip(names, loaded, strict=True) if table is not None}
    relations = tuple(each for each in listed if each.name in tables or not _is_dead_copy(io, each))
    owners = {directory(table.location()) for table in tables.values()} | {r.location for r in relations}
    return Lake(tuple(objects), staged, relations, tables, _group(objects, owners))


def _load_or_none(catalog: SqlCatalog, name: TableName) -> Table | None:
    try:
        return load_table(catalog, *name)
    except UNREADABLE:  # its metadata file is missing or broken, which must not stop the other tables
        return None


def _is_dead_copy(io: PyArrowFileIO, relation: Relation) -> bool:
    """Whether it is a copy that a killed build or refresh has left, whose metadata file went with its original."""
    if relation.kind != "table" or not is_next(relation.name.namespace):
        return False
    try:
        return not io.new_input(relation.metadata_location).exists()
    except OSError:
        return False


def staged_prefixes(catalog: SqlCatalog) -> tuple[str, ...]:
    """The prefixes that ingestion is writing; none if ingestion has never run."""
    with catalog.engine.connect() as connection:
        if connection.execute(text("SELECT to_regclass('lakehouse.staged_files')")).scalar() is None:
            return ()
        return tuple(map(one_spelling, connection.execute(text("SELECT prefix FROM lakehouse.staged_files")).scalars()))


def _group(objects: Iterable[StoredObject], owners: set[str]) -> dict[str, list[StoredObject]]:
    """Objects by the deepest owning location above them."""
    grouped: dict[str, list[StoredObject]] = defaultdict(list)
    for stored in objects:
        end = len(stored.path)
        while (end := stored.path.rfind("/", 0, end)) > 0:
            if (owner := stored.path[: end + 1]) in owners:
                grouped[owner].append(stored)
                break
    return dict(grouped)

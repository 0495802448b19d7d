"""The relations with files outside of the warehouse, which a backup, and orphan removal, would not see."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

from lakehouse.catalog.locations import one_spelling, parse_location
from lakehouse.catalog.open import load_table
from lakehouse.catalog.relations import Relation, TableName, directory
from maintenance.inventory.lake import READERS, UNREADABLE

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.io.pyarrow import PyArrowFileIO

ELSEWHERE = ("write.data.path", "write.metadata.path", "write.object-storage.path", "write.folder-storage.path")
"""The properties by which writers put a table's files elsewhere than below its location."""


class Outside(NamedTuple):
    """A relation, and a place of its files that is not below the warehouse."""

    name: TableName
    place: str


def outside(catalog: SqlCatalog, io: PyArrowFileIO, warehouse: str, relations: Iterable[Relation]) -> Iterator[Outside]:
    """Those of the relations with files outside of the warehouse; of one that cannot be read, the catalog's row tells.

    Files that were added to a table from elsewhere, such as by Spark's `add_files`, are not looked for.
    """

    def place_outside(relation: Relation) -> str | None:
        if not relation.metadata_location:
            return None
        places = (relation.metadata_location.rpartition("/")[0], *_places(catalog, relation))
        return next((place for place in places if not is_below(io, place, warehouse)), None)

    relations = sorted(relations, key=lambda relation: relation.name)
    with ThreadPoolExecutor(READERS) as pool:
        for relation, place in zip(relations, pool.map(place_outside, relations), strict=True):
            if place is not None:
                yield Outside(relation.name, place)


def is_below(io: PyArrowFileIO, place: str, warehouse: str) -> bool:
    """Whether it is the warehouse or a folder in it."""
    (scheme, _, path), (wanted, _, root) = (
        parse_location(one_spelling(at), io.properties) for at in (place, warehouse)
    )
    return scheme == wanted and directory(path).startswith(directory(root))


def _places(catalog: SqlCatalog, relation: Relation) -> tuple[str, ...]:
    """The folders that a table's metadata names."""
    try:
        table = load_table(catalog, *relation.name) if relation.kind == "table" else None
    except UNREADABLE:
        table = None
    if table is None:
        return ()
    return (table.location(), *(table.properties[name] for name in ELSEWHERE if name in table.properties))

"""What follows from a table's metadata file alone, kept by that file, which never changes.

Watch, sensors and page ask again each minute. Of 1,000 tables a few have changed: they read the files of these.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

from cachetools import LRUCache

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from lakehouse.catalog.lake_catalog import LakeCatalog

T = TypeVar("T")
Name = tuple[str, str]
_KNOWN: LRUCache[tuple[Callable[[Table], Any], Name], tuple[str, Any]] = LRUCache(16384)  # of the newest file
_LOCK = Lock()


def derived(catalog: LakeCatalog, tables: Collection[Name], derive: Callable[[Table], T]) -> dict[Name, T]:
    """What `derive` says of each table that is there; of a metadata file that it has seen, what it said then.

    `derive` is a function of a module, reads little of what that file names and nothing else, and returns little.
    """
    with _LOCK:
        known = {name: _KNOWN[derive, name] for name in tables if (derive, name) in _KNOWN}
    found = {
        name: known[name][1] for name, at in catalog.locations(tables).items() if name in known and known[name][0] == at
    }
    for name, table in catalog.load_tables([name for name in tables if name not in found]).items():
        found[name] = derive(table)
        with _LOCK:
            _KNOWN[derive, name] = (table.metadata_location, found[name])
    return found

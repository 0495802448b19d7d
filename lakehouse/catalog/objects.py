"""What the object store has below a location, and what survives a power loss of it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pyarrow import fs

from lakehouse.catalog import STORE_FOLDER
from lakehouse.catalog.locations import parse_location
from lakehouse.files.durable import sync_file_system

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.io.pyarrow import PyArrowFileIO


@dataclass(frozen=True)
class StoredObject:
    """An object of the store."""

    path: str
    size: int
    modified: datetime


def list_objects(io: PyArrowFileIO, location: str) -> list[StoredObject]:
    """Every object below a location; none when it is empty or missing."""
    scheme, authority, path = parse_location(location, io.properties)
    filesystem = io.fs_by_scheme(scheme, authority)
    selector = fs.FileSelector(path.rstrip("/"), recursive=True, allow_not_found=True)
    return [
        StoredObject(f"{scheme}://{info.path}", info.size, info.mtime)
        for info in filesystem.get_file_info(selector)
        if info.type == fs.FileType.File
    ]


def sync_objects(io: FileIO) -> None:
    """Returns once every object that was written would survive a power loss.

    For an object store on this machine that is known to have its files in a folder, such as the embedded one, which
    answers before they are on the disk; others answer for that themselves. Before anything counts on the objects for
    good: before a catalog that is on the disk names them, and a source forgets what is in them, or others are deleted.
    Raises LakehouseError.
    """
    if folder := io.properties.get(STORE_FOLDER):
        sync_file_system(Path(folder))

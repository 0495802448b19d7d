"""What the object store has below a location."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from pyarrow import fs
from pyiceberg.io.pyarrow import PyArrowFileIO


@dataclass(frozen=True)
class StoredObject:
    """An object of the store."""

    path: str
    size: int
    modified: datetime


def list_objects(io: PyArrowFileIO, location: str) -> list[StoredObject]:
    """Every object below a location; none when it is empty or missing."""
    scheme, authority, path = PyArrowFileIO.parse_location(location, io.properties)
    filesystem = io.fs_by_scheme(scheme, authority)
    selector = fs.FileSelector(path.rstrip("/"), recursive=True, allow_not_found=True)
    return [
        StoredObject(f"{scheme}://{info.path}", info.size, info.mtime)
        for info in filesystem.get_file_info(selector)
        if info.type == fs.FileType.File
    ]

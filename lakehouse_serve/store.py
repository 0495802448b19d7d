"""Reads objects of the warehouse."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from threading import Lock
from urllib.parse import urlsplit

from cachetools import LRUCache
from pyarrow.fs import FileType

from lakehouse.catalog.file_io import open_io
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings

CHUNK = 4 << 20
KNOWN_OBJECTS = 50_000


@dataclass(frozen=True)
class Facts:
    """Size in bytes and time of writing of an object. None of the lake's files is written twice."""

    size: int
    modified: datetime


class Store:
    """The object store, with the service's own keys."""

    def __init__(self, settings: Settings) -> None:
        self.scheme, self.bucket, *_ = urlsplit(settings.warehouse)
        if self.scheme not in {"s3", "s3a"}:
            raise LakehouseError(f"lakehouse serve reads a warehouse in S3, not {settings.warehouse}")
        self._files = open_io(settings).fs_by_scheme(self.scheme, self.bucket)
        self._facts: LRUCache[str, Facts] = LRUCache(KNOWN_OBJECTS)
        self._lock = Lock()

    def facts(self, location: str) -> Facts | None:
        """What is known of the object; None if there is none."""
        with self._lock:
            known = self._facts.get(location)
        if known is None:
            info = self._files.get_file_info(_path(location))
            if info.type != FileType.File:
                return None
            known = Facts(info.size, info.mtime)
            with self._lock:
                self._facts[location] = known
        return known

    def read(self, location: str) -> bytes:
        """All of an object. Raises FileNotFoundError."""
        with self._files.open_input_file(_path(location)) as file:
            return bytes(file.read())

    def pieces(self, location: str, begin: int, end: int) -> Iterator[bytes]:
        """The bytes from `begin` until before `end`, in order. Raises FileNotFoundError before the first one."""
        with self._files.open_input_file(_path(location)) as file:
            for at in range(begin, end, CHUNK):
                yield file.read_at(min(CHUNK, end - at), at)


def _path(location: str) -> str:
    return location.partition("://")[2]

"""PyIceberg's FileIO for the warehouse, made for many small objects."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from pyarrow.fs import FileSystem, S3FileSystem
from pyiceberg.io.pyarrow import PyArrowFileIO


class LakeFileIO(PyArrowFileIO):
    """Sends an object of a few megabytes with one request.

    Arrow begins a multipart upload for each object, however small: three requests instead of one, and with them most
    of the time in which manifests, metadata and a small cycle's files are written.
    """

    def _initialize_s3_fs(self, netloc: str | None) -> FileSystem:
        remake, (options,) = super()._initialize_s3_fs(netloc).__reduce__()
        made: S3FileSystem = remake(options | {"allow_delayed_open": True})
        return made


def file_io(properties: Mapping[str, str]) -> LakeFileIO:
    """The FileIO of these properties, with its open connections: one for all work in this process."""
    return _file_io(tuple(sorted(properties.items())))


@lru_cache(8)
def _file_io(properties: tuple[tuple[str, str], ...]) -> LakeFileIO:
    return LakeFileIO(dict(properties))

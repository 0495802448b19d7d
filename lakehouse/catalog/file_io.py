"""PyIceberg's FileIO for the warehouse, made for many small objects."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from lakehouse.catalog.private_pyiceberg import LakeFileIO


def file_io(properties: Mapping[str, str]) -> LakeFileIO:
    """The FileIO of these properties, with its open connections: one for all work in this process."""
    return _file_io(tuple(sorted(properties.items())))


@lru_cache(8)
def _file_io(properties: tuple[tuple[str, str], ...]) -> LakeFileIO:
    return LakeFileIO(dict(properties))

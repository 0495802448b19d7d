"""PyIceberg's FileIO for the warehouse, made for many small objects."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from lakehouse.catalog.open import file_io_properties
from lakehouse.catalog.private_pyiceberg import LakeFileIO
from lakehouse.settings import Settings


def open_io(settings: Settings) -> LakeFileIO:
    """The FileIO of the warehouse that the settings name."""
    return file_io(file_io_properties(settings))


def file_io(properties: Mapping[str, str]) -> LakeFileIO:
    """The FileIO of these properties, with its open connections: one for all work in this process."""
    return _file_io(tuple(sorted(properties.items())))


@lru_cache(8)
def _file_io(properties: tuple[tuple[str, str], ...]) -> LakeFileIO:
    return LakeFileIO(dict(properties))

"""A fast reader of the paths and sizes in manifest lists and manifests.

The history of a table has thousands of manifest lists with mostly the same entries. PyIceberg makes objects of all
their fields; this reader, in C, takes only paths and sizes.

Format: https://iceberg.apache.org/spec/#manifest-lists and https://iceberg.apache.org/spec/#manifests
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any, cast

from lakehouse.catalog.locations import one_spelling

if TYPE_CHECKING:
    from pyiceberg.io import FileIO

DELETED = 2  # the status of an entry whose file the snapshot no longer has


@dataclass(frozen=True)
class Manifest:
    """A manifest's path and its length in bytes."""

    path: str
    length: int


def manifests(io: FileIO, manifest_list: str) -> list[Manifest]:
    """The manifests that a manifest list names."""
    records = _records(io, manifest_list)
    return [Manifest(one_spelling(record["manifest_path"]), record["manifest_length"]) for record in records]


def files(io: FileIO, manifest: str) -> dict[str, int]:
    """The live data and delete files of a manifest, with their bytes."""
    described = (record["data_file"] for record in _records(io, manifest) if record["status"] != DELETED)
    return {one_spelling(file["file_path"]): file["file_size_in_bytes"] for file in described}


def _records(io: FileIO, path: str) -> Iterator[dict[str, Any]]:
    import fastavro

    with io.new_input(path).open() as stream:
        content = BytesIO(stream.read())
    try:
        yield from cast("Iterator[dict[str, Any]]", fastavro.reader(content))
    except (EOFError, IndexError, zlib.error) as error:
        raise ValueError(f"{path} was cut short: {error}") from None

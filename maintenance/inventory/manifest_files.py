"""What manifest lists and manifests name, read for no more than that.

A table's whole past is thousands of manifest lists with the same entries again and again. PyIceberg makes objects of
all they say; here only paths and sizes are taken, by a reader in C.

Format: https://iceberg.apache.org/spec/#manifest-lists and https://iceberg.apache.org/spec/#manifests
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from pyiceberg.io import FileIO

DELETED = 2  # the status of an entry whose file the snapshot no longer has


@dataclass(frozen=True)
class Manifest:
    """A manifest as a manifest list names it; its length in bytes."""

    path: str
    length: int


def manifests(io: FileIO, manifest_list: str) -> list[Manifest]:
    """The manifests that a manifest list names."""
    return [Manifest(record["manifest_path"], record["manifest_length"]) for record in _records(io, manifest_list)]


def files(io: FileIO, manifest: str) -> dict[str, int]:
    """The data and delete files that a manifest says are there, with their bytes."""
    described = (record["data_file"] for record in _records(io, manifest) if record["status"] != DELETED)
    return {file["file_path"]: file["file_size_in_bytes"] for file in described}


def _records(io: FileIO, path: str) -> Iterator[dict[str, Any]]:
    import fastavro

    with io.new_input(path).open() as stream:
        content = BytesIO(stream.read())
    yield from cast("Iterator[dict[str, Any]]", fastavro.reader(content))

"""Copies the warehouse's objects. Objects are immutable, so those already copied are skipped."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from lakehouse.catalog.objects import StoredObject, list_objects
from lakehouse.errors import LakehouseError
from lakehouse.files.private_files import private_dir

if TYPE_CHECKING:
    from pyiceberg.io.pyarrow import PyArrowFileIO

COPIERS, CHUNK = 8, 8 * 1024 * 1024
S = TypeVar("S")
T = TypeVar("T")
Say = Callable[[str], None]


@dataclass(frozen=True)
class Saved:
    """Number of objects and bytes copied, and the objects that were deleted before they could be copied."""

    objects: int = 0
    bytes: int = 0
    gone: tuple[str, ...] = ()


def save_objects(
    io: PyArrowFileIO,
    warehouse: str,
    folder: Path,
    known: Iterable[StoredObject] = (),
    say: Say = lambda step: None,
) -> Saved:
    """Copies the objects that the folder lacks: those in the warehouse now, and those `known` from before.

    Raises LakehouseError for an object whose name cannot be a file name.
    """
    root = warehouse.rstrip("/") + "/"
    private_dir(folder)
    for part in folder.rglob("*.part"):  # of a backup that was killed; the object may have been erased since
        part.unlink()
    lacking = []
    for stored in {stored.path: stored for stored in (*known, *list_objects(io, warehouse))}.values():
        target = folder / _within(stored.path, root)
        if not (target.exists() and target.stat().st_size == stored.size):
            lacking.append((stored.path, target))
    say(f"copying {len(lacking)} objects")

    def copy(pair: tuple[str, Path]) -> int | None:
        path, target = pair
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f"{target.name}.part")
        try:
            with io.new_input(path).open() as source, part.open("wb") as file:
                size = sum(file.write(chunk) for chunk in iter(lambda: source.read(CHUNK), b""))
            part.replace(target)
            return size
        except FileNotFoundError:
            return None
        finally:
            part.unlink(missing_ok=True)

    sizes = _all(copy, lacking)
    copied = [size for size in sizes if size is not None]
    gone = (path for (path, _), size in zip(lacking, sizes, strict=True) if size is None)
    return Saved(len(copied), sum(copied), tuple(gone))


def load_objects(io: PyArrowFileIO, warehouse: str, folder: Path, say: Say = lambda step: None) -> tuple[int, int]:
    """Writes the objects that are missing or incomplete in the warehouse; returns their number and bytes."""
    root = warehouse.rstrip("/") + "/"
    present = {stored.path: stored.size for stored in list_objects(io, warehouse)}
    paths = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".part")
    lacking = [(path, root + path.relative_to(folder).as_posix()) for path in paths]
    lacking = [(path, target) for path, target in lacking if present.get(target) != path.stat().st_size]
    say(f"writing {len(lacking)} objects")

    def copy(pair: tuple[Path, str]) -> int:
        path, target = pair
        with path.open("rb") as file, io.new_output(target).create(overwrite=True) as stream:
            return sum(stream.write(chunk) for chunk in iter(lambda: file.read(CHUNK), b""))

    sizes = _all(copy, lacking)
    return len(sizes), sum(sizes)


def _within(path: str, root: str) -> str:
    """The object's name relative to the warehouse. Object names are plain text, but `..` would leave a folder."""
    name = path.removeprefix(root)
    if (
        not path.startswith(root)
        or {"", ".", ".."}.intersection(name.split("/"))
        or "\0" in name
        or name.endswith(".part")
    ):
        raise LakehouseError(
            f"object {path!r} cannot be kept as a file by that name: rename or delete it; nothing was copied"
        )
    return name


def _all(copy: Callable[[T], S], pairs: Iterable[T]) -> list[S]:
    with ThreadPoolExecutor(COPIERS) as pool:
        return list(pool.map(copy, pairs))

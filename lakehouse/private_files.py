"""Files and folders that only their owner may read: what is in them is people's data, or opens the way to it."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def write_private(path: Path, text: str) -> None:
    """Replaces a file atomically; only its owner may read it. Several may write it at once: the last one wins."""
    path.parent.mkdir(parents=True, exist_ok=True)
    number, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(number, "w") as file:
            file.write(text)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink()
        raise


def private_dir(path: Path) -> None:
    """Makes a folder that only its owner may enter."""
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(0o700)


@contextmanager
def privately() -> Iterator[None]:
    """Whatever this process and its children make inside the block, only its owner may read."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)

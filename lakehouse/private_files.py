"""Files and folders that only their owner may read: what is in them is people's data, or opens the way to it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def write_private(path: Path, text: str) -> None:
    """Replaces a file atomically; only its owner may read it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
    temporary.replace(path)


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

"""Files and folders that only their owner may read: they contain personal data or credentials."""

import os
import stat
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def write_private(path: Path, text: str) -> None:
    """Replaces a file atomically; only its owner may read it. Several may write it at once: the last one wins."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _replace(path, text, 0o600)


def write_shared(path: Path, text: str) -> None:
    """The same, but in a folder that gives its group to what is in it (setgid), the group may read it as well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _replace(path, text, 0o640 if path.parent.stat().st_mode & stat.S_ISGID else 0o600)


def _replace(path: Path, text: str, mode: int) -> None:
    number, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(number, "w") as file:
            os.fchmod(number, mode)
            file.write(text)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink()
        raise


def private_dir(path: Path) -> None:
    """Makes a folder that only its owner may enter."""
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(0o700)


class _Umask:
    """The umask belongs to the process: the first thread saves it, the last one restores it."""

    lock, inside, before = threading.Lock(), 0, 0


@contextmanager
def privately() -> Iterator[None]:
    """Files that this process and its children create in the block are readable by their owner only."""
    with _Umask.lock:
        if not _Umask.inside:
            _Umask.before = os.umask(0o077)
        _Umask.inside += 1
    try:
        yield
    finally:
        with _Umask.lock:
            _Umask.inside -= 1
            if not _Umask.inside:
                os.umask(_Umask.before)

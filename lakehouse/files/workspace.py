"""Private folders with the lifetime of their process, for keys and for Spark's spilled data.

A killed process removes nothing, so the next one does it. A lock tells whether a folder's process lives. A pid would
not do: containers that share a home each have pids of their own.
"""

import atexit
import fcntl
import shutil
import tempfile
from pathlib import Path
from typing import IO

from lakehouse.files.private_files import private_dir

LOCK = "lock"
_held: list[IO[str]] = []  # open while the process runs: closing a file releases its lock


def private_workspace(parent: Path) -> Path:
    """Creates a folder below `parent` that is removed when this process ends; removes those of dead processes."""
    private_dir(parent)
    with (parent / LOCK).open("w") as alone:
        fcntl.flock(alone, fcntl.LOCK_EX)
        for folder in parent.iterdir():
            if folder.is_dir() and not _is_held(folder):
                shutil.rmtree(folder, ignore_errors=True)
        made = Path(tempfile.mkdtemp(dir=parent))
        lock = (made / LOCK).open("w")
        fcntl.flock(lock, fcntl.LOCK_EX)
    _held.append(lock)
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


def _is_held(folder: Path) -> bool:
    try:
        with (folder / LOCK).open("r+") as lock:  # NFS locks alone what may be written
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    return False

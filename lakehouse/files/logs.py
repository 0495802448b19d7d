"""Logs of bounded size, whoever writes them: a lake that runs for months would fill its disk with them."""

import fcntl
import os
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

LOG_BYTES = 20 * 1024 * 1024
LOG_COPIES = 3
LOOK_SECONDS = 60.0
OUTPUT_DAYS = 30.0  # as ticks are kept, see `dagster.yaml.j2`


def rotate(log: Path, limit: int = LOG_BYTES, copies: int = LOG_COPIES) -> None:
    """Copies a log larger than the limit to `.1` (older copies to `.2`, `.3`) and truncates it.

    The log is not renamed, because whoever writes it goes on with the same file, to which it has to append. Of one that
    has grown far past LOG_BYTES before, only the end is copied.
    """
    if not log.exists() or log.stat().st_size < limit:
        return
    with log.open("r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # another process does it
            return
        if (size := file.seek(0, os.SEEK_END)) < limit:
            return
        file.seek(max(0, size - 2 * LOG_BYTES))
        fresh = log.with_name(f"{log.name}.new")
        try:  # before the older ones move: where there is no room each look would lose one
            with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as copy:
                shutil.copyfileobj(file, copy)
            for number in range(copies - 1, 0, -1):
                older = log.with_name(f"{log.name}.{number}")
                if older.exists():
                    older.replace(log.with_name(f"{log.name}.{number + 1}"))
            fresh.replace(log.with_name(f"{log.name}.1"))
        finally:
            fresh.unlink(missing_ok=True)
        file.truncate(0)


def rotate_all(folder: Path) -> None:
    """Rotates each log of a home that needs it; of those that cannot be rotated now, the next look will. The catalog
    service rotates its own."""
    for log in folder.glob("*.log"):
        if not log.name.startswith("serve-access"):
            with suppress(OSError):
                rotate(log)


def keep_bounded(log: Path, wait: Callable[[float], object] = time.sleep) -> threading.Thread:
    """Has a thread rotate a log that another program appends to for as long as this process lives."""

    def look() -> None:
        while True:
            with suppress(OSError):
                rotate(log)
            wait(LOOK_SECONDS)

    thread = threading.Thread(target=look, name=f"bounds {log.name}", daemon=True)
    thread.start()
    return thread


def forget_outputs(folder: Path, days: float = OUTPUT_DAYS) -> None:
    """Deletes what steps of runs have printed so many days ago, and folders that are empty then."""
    until = time.time() - days * 86_400
    for path in sorted(folder.rglob("*"), reverse=True):  # what is in a folder comes before it
        with suppress(OSError):  # also of a folder in which there is more
            if path.lstat().st_mtime < until:
                path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()

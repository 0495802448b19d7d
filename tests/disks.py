"""A disk that is full: a small file system of a test's own."""

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[Callable[[int], None]]:
    """A file system of that size at `folder`, and a function that gives it another size."""
    if os.geteuid() != 0:
        pytest.skip("a small file system needs root to be mounted")
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)])
    if mounted.returncode:
        pytest.skip("this machine does not let root mount a tmpfs")
    try:
        yield lambda size: subprocess.run(["mount", "-o", f"remount,size={size}m", str(folder)], check=True) and None
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
        folder.rmdir()

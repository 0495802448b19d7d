"""What is made inside `privately` is its owner's alone, and nothing after it."""

import os
import threading
from pathlib import Path

from lakehouse.files.private_files import privately


def mode_of(path: Path) -> int:
    path.touch()
    return path.stat().st_mode & 0o777


def test_threads_that_overlap_leave_the_umask_as_it_was(tmp_path: Path) -> None:
    """The second one took the first one's umask for that of the process, and left it behind for good."""
    before = os.umask(0o022)
    entered, left = threading.Event(), threading.Event()

    def second() -> None:
        with privately():
            entered.set()
            left.wait(10)

    try:
        thread = threading.Thread(target=second)
        with privately():
            thread.start()
            assert entered.wait(10)
        assert mode_of(tmp_path / "inside the second") == 0o600
        left.set()
        thread.join()
        assert mode_of(tmp_path / "after both") == 0o644
    finally:
        os.umask(before)

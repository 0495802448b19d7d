"""What a killed process leaves behind."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lakehouse.files.workspace import private_workspace

HOLD = """
import sys
from pathlib import Path
from lakehouse.files.workspace import private_workspace
folder = private_workspace(Path(sys.argv[1]))
(folder / "keys").write_text("secret")
print(folder, flush=True)
sys.stdin.read()
"""


def holder(parent: Path) -> tuple[subprocess.Popen[str], Path]:
    """A process that has a folder until its input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(parent)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_a_process_that_ends_takes_its_folder_with_it(tmp_path: Path) -> None:
    process, folder = holder(tmp_path)
    assert (folder / "keys").exists()
    process.communicate(timeout=60)
    assert not folder.exists()


def test_keys_of_a_killed_process_go_at_the_next_start_and_those_of_a_living_one_stay(tmp_path: Path) -> None:
    parent = tmp_path / "spark"
    killed, left = holder(parent)
    living, kept = holder(parent)
    killed.send_signal(signal.SIGKILL)
    killed.communicate(timeout=60)
    assert (left / "keys").read_text() == "secret"
    mine = private_workspace(parent)
    assert not left.exists()
    assert (kept / "keys").read_text() == "secret"
    assert {path.stat().st_mode & 0o777 for path in (parent, mine, kept)} == {0o700}
    living.communicate(timeout=60)


def test_a_pid_that_is_taken_again_keeps_no_keys(tmp_path: Path) -> None:
    """As in a container, where the killed process and its successor have the same pid."""
    folder = tmp_path / str(os.getpid())
    folder.mkdir()
    (folder / "lock").touch()
    private_workspace(tmp_path)
    assert not folder.exists()


def test_a_home_on_nfs_is_locked_like_any_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There Linux takes an exclusive lock of a file that may be written, and of no other."""
    lock = fcntl.flock

    def on_nfs(file: Any, how: int) -> None:
        if how & fcntl.LOCK_EX and fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", on_nfs)
    process, folder = holder(tmp_path)
    private_workspace(tmp_path)
    assert folder.exists()
    process.communicate(timeout=60)

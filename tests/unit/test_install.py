"""What `make` installs with, before anything of ours is there."""

import os
import subprocess
import sys
from pathlib import Path

from lakehouse.settings import PROJECT_DIR


def _install(lock: Path) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, str(PROJECT_DIR / ".ci" / "install.py"), str(lock)]
    environment = {**os.environ, "PIP_NO_INDEX": "1"}
    return subprocess.run(program, env=environment, capture_output=True, text=True, check=False)


def test_it_ends_as_pip_does_and_shows_what_pip_says_of_an_error(tmp_path: Path) -> None:
    lock = tmp_path / "some.lock"
    lock.write_text(f"no-such-package==1.0 \\\n    --hash=sha256:{'0' * 64}\n    # via nothing\n")
    failed = _install(lock)
    assert failed.returncode == 1 and "no-such-package" in failed.stderr
    assert failed.stdout == "installing 1 pinned packages\n", "no line is written over where there is no terminal"
    lock.write_text("# nothing\n")
    assert _install(lock).returncode == 0

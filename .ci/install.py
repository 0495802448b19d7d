"""`python .ci/install.py LOCK`: installs what a lock file pins; a terminal shows how far it is. Needs pip alone."""

import re
import subprocess
import sys
from pathlib import Path

BEGINS = re.compile(r"(?:Collecting|Requirement already satisfied:|Ignoring) ([\w.-]+)")


def install(lock: Path) -> int:
    """Runs pip; its errors are printed as they are. Returns its exit status."""
    total, done = len(re.findall(r"^[\w.\[\]-]+==", lock.read_text(), re.MULTILINE)), 0
    print(f"installing {total} pinned packages", flush=True)
    command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar", "off"]
    command += ["--no-deps", "--require-hashes", "--requirement", str(lock)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as pip:
        assert pip.stdout is not None
        for line in pip.stdout:
            if package := BEGINS.match(line):
                done += 1
                _say(f"{done} of {total}: {package[1]}")
            elif line.startswith("Installing"):
                _say("unpacking")
    _say("")
    return pip.returncode


def _say(text: str) -> None:
    """In place of what was said before."""
    if sys.stdout.isatty():
        print(f"\r\x1b[K{text}", end="", flush=True)


if __name__ == "__main__":
    sys.exit(install(Path(sys.argv[1])))
